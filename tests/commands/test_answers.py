"""Help, unknown commands and wrong options are answered from the table of options, without torch and Lightning."""

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.make_option_table import SHOWN
from tests.conftest import REPOSITORY
from yolo_lightning.cli import main
from yolo_lightning.commands.resolve import resolve
from yolo_lightning.commands.user_errors import user_errors
from yolo_lightning.options.command_names import SUBCOMMANDS, TOOLS
from yolo_lightning.options.option_table import find_command
from yolo_lightning.options.short_help import fitted, short_help
from yolo_lightning.supervision.trainer import MARKER_VARIABLE

WITHOUT_TORCH = """
import sys
from yolo_lightning.commands.resolve import resolve
from yolo_lightning.commands.user_errors import user_errors
try:
    with user_errors():
        resolve(sys.argv[1:])
except SystemExit as end:
    heavy = {"torch", "lightning", "ultralytics", "numpy", "cv2", "matplotlib", "jsonargparse"} & sys.modules.keys()
    print("loaded:", *heavy) if heavy else None
    raise
"""


def answered(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as stopped, user_errors():
        resolve(words)
    shown = capsys.readouterr()
    return int(stopped.value.code or 0), shown.out + shown.err


ANSWERS = [
    (["monitr", "x"], 2, "unknown command monitr. Did you mean monitor?"),
    (["Trains"], 2, "unknown command Trains. Did you mean fit?"),
    (["convert", "VOC", "yolo"], 2, "unknown command convert. Did you mean prepare convert?"),
    (["run"], 2, "run is fit here. Type: python -m yolo_lightning fit"),
    (["fit", "--epochs", "3"], 2, "unknown key epochs. Did you mean --trainer.max_epochs 3?"),
    (["fit", "--imgsz=320"], 2, "unknown key imgsz. Did you mean --data.image_size 320?"),
    (["fit", "--device", "cuda"], 2, "unknown key device. Did you mean --trainer.accelerator gpu?"),
    (["fit", "--model.lr0", "0.1"], 2, "unknown key model.lr0. Did you mean --model.recipe.lr0 0.1?"),
    (["test", "--conf", "0.3"], 2, "unknown key conf. Did you mean --model.detections.score_threshold 0.3?"),
    (["fit", "--model.convolution.backend", "gem"], 2, "got 'gem'. Did you mean gemm?"),
    (["fit", "--data.loader.prefetch", "2"], 2, "unknown key data.loader.prefetch. Did you mean"),
    (["fit", "--half"], 2, "unknown key half. Did you mean --trainer.precision 16-mixed?"),
    (["fit", "--gpus", "2"], 2, "unknown key gpus. Did you mean --trainer.devices 2?"),
    (["fit", "--device", "0,1"], 2, "Did you mean --trainer.accelerator gpu --trainer.devices '[0,1]'?"),
    (["fit", "--data", "coco8.yaml"], 2, "data must be set by its keys, got 'coco8.yaml'. Did you mean --data.format"),
    (["fit", "--data.loader", "4"], 2, "data.loader must be set by its keys data.loader.multiprocessing_context, "),
    (["fit", "epochs=3"], 2, "Type: python -m yolo_lightning fit --trainer.max_epochs 3"),
    (["predict", "a.jpg", "--save", "no"], 2, "save must be a list, pictures, json, csv or txt, got 'no'."),
    (["val", "best.ckpt", "--data", "x.yaml"], 2, "validate --model.weights best.ckpt --data.format x.yaml"),
    (["supervise", "python", "train.py"], 2, "write the command after all options: -- python train.py"),
    (["export", "--weights", "x"], 2, "unknown key weights. Did you mean --checkpoint x?"),
    (["export", "--chekpoint", "x"], 2, "unknown key chekpoint. Did you mean --checkpoint x?"),
    (["export", "--format", "onx"], 2, "format must be pt or onnx, got 'onx'. Did you mean onnx?"),
    (["fit", "-config", "yolo"], 2, "options begin with two hyphens, got -config. Did you mean --config?"),
    (["fit", "-epochs=3"], 2, "options begin with two hyphens, got -epochs. Did you mean --trainer.max_epochs?"),
    (["fit", "--config", "yolo8"], 2, "yolo8 of --config does not exist. Did you mean yolo? The package has"),
    (["fit", "--config", "."], 2, "the file . of --config is a folder; pass a YAML file"),
    (["fit", "--config"], 2, "--config must be followed by a YAML file or a name, such as --config yolo"),
    (["fit", "x.yaml"], 2, "'x.yaml' follows no option; write --key value, and a list as --key '[a, b]'. Did you mean"),
    (["fit", "--data.image_size", "480", "640"], 2, "'640' follows no option; write --key value, and a list as"),
    (
        ["fit", "--resume", "."],
        2,
        "resume takes no value, got '.'. Did you mean --resume --trainer.default_root_dir .?",
    ),
    (["fit", "--resume", "a.ckpt"], 2, "resume takes no value, got 'a.ckpt'. Did you mean --ckpt_path a.ckpt?"),
    (["fit", "--resume-from", "a.ckpt"], 2, "unknown key resume-from. Did you mean --ckpt_path a.ckpt?"),
    (["fit", "--ckpt_path="], 2, "ckpt_path must not be empty, got ''; leave the option out for its default"),
    (["fit", "--cache", "True"], 2, "unknown key cache. Did you mean --data.storage.image_cache_mib?"),
    (["fit", "--rect", "True"], 2, "unknown key rect; --help.full lists all keys."),
    (["fit", "--model.recipe.lr0", "fast"], 2, "model.recipe.lr0 must be a number, got 'fast'."),
    (["fit", "--trainer.max_epochs=ten"], 2, "trainer.max_epochs must be an integer or null, got 'ten'."),
    (["fit", "--data.image_size", "x"], 2, "data.image_size must be an integer or a list of integers, got 'x'."),
    (["validate", "--supervision.enabled", "maybe"], 2, "supervision.enabled must be true or false, got 'maybe'."),
    (["export", "--chekpoint", "x"], 2, "Did you mean --checkpoint x?"),
    (["submission", "check", "--help"], 0, "usage: python -m yolo_lightning submission check FILE"),
    (["fit", "--help"], 0, "--data.image_size = 640 [imgsz, img]"),
    (["fit", "--trainer.precision", "fp8"], 2, "64, 32, 16, bf16 or null, got 'fp8'"),
    (["export", "--help"], 0, "pt | onnx"),
    *((["--help"], 0, tool) for tool in sorted(TOOLS)),
    (
        ["export", "best.ckpt"],
        2,
        "'best.ckpt' follows no option; write --key value, and a list as --key '[a, b]'. Did you",
    ),
    (["test", "best.ckpt"], 2, "Did you mean --ckpt_path best.ckpt?"),
    (["test", "--split", "test"], 2, "unknown key split; --help.full lists all keys."),
    (["prepare", "x.yaml"], 2, "Did you mean --format x.yaml?"),
    (["contact_sheet", "x.yaml"], 2, "'x.yaml' follows no option;"),
    (
        ["fit", "--model.class_names", "[a]"],
        2,
        "model.class_names is no option: the data defines the",
    ),
    (["export", "--data", "x.yaml"], 2, "unknown key data; --help.full lists all keys."),
    (["--epochs", "3"], 2, "must be a command, such as fit, got --epochs; options are written as --key value. Type: "),
    (["epochs=3", "batch=-1"], 2, "fit --trainer.max_epochs 3 --data.batch_size auto"),
    (["--img", "64", "--weights", "", "--cfg", "yolo11n.yaml"], 2, "fit --data.image_size 64 --model.variant yolo11n"),
    (["detect", "--source", "a", "--conf-thres", "0.4"], 2, "Type: python -m yolo_lightning predict a --score_thr"),
    (["detect", "--weights", "a.pt"], 2, "a mode is missing: fit, validate, test, predict or export"),
    (["fit", "--batch-size", "-1"], 2, "unknown key batch-size. Did you mean --data.batch_size auto?"),
    (["predict", "a.jpg", "--save_txt"], 2, "unknown key save_txt. Did you mean --save '[pictures,txt]'?"),
    (["fit", "--trainer.checkpoint_callback", "1"], 2, "Did you mean --trainer.enable_checkpointing 1?"),
    (
        ["fit", "--model.class_path", "yolov8n"],
        2,
        "unknown key model.class_path. Did you mean --model.variant yolov8n?",
    ),
    (["fit", "--data.split.valid_share", "20%"], 2, "got '20%'. Did you mean 0.2?"),
    (["fit", "--data.image_size", "640x480"], 2, "got '640x480'. Did you mean '[480, 640]'?"),
    (["prepare", "conver", "a", "b"], 2, "prepare has no section conver. Did you mean prepare convert?"),
    (["fit", "\u2013\u2013epochs", "3"], 2, "begins with typographic dashes; type two hyphens: --epochs"),
    (["fit", "--data.format", "\u201ca.yaml\u201d"], 2, "data.format begins with a typographic quote, got"),
    (["recalibrate", "run", "x.yaml"], 2, "'x.yaml' follows no option;"),
    ([], 2, "usage: "),
]


@pytest.mark.parametrize(("words", "code", "part"), ANSWERS)
def test_answers(capsys: pytest.CaptureFixture[str], words: list[str], code: int, part: str) -> None:
    actual_code, text = answered(capsys, *words)
    assert (actual_code, part in text) == (code, True), text
    assert code == 0 or not words or len(text.splitlines()) == 1


def test_an_option_with_two_values_is_named_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = ["test", "--seed_everything", "1", "--seed_everything=2", "--trainer.max_epochs", "3"]
    words += ["--trainer.max_epochs=3", "--trainer.callbacks+=EMA", "--trainer.callbacks+=MeanAP"]
    monkeypatch.setattr("yolo_lightning.commands.resolve.check_files", lambda *_: None)

    resolve(words)
    assert capsys.readouterr().err == "--seed_everything is given 2 times: 2 is used\n"

    resolve(words).write(tmp_path)
    capsys.readouterr()
    resolve(["test", f"--config={tmp_path / 'spec.json'}"])  # as a supervisor starts the trainer
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("", "must contain keys and values, as 'data: {root: PATH}', got an empty file"),
        ("trainer: {max_epoch: 3}", "unknown key trainer.max_epoch in "),
        ("model: {recipe: {lr0: fast}}", "some.yaml must be a number, got 'fast'."),
        ("data: {loader: {pin_memory: 3}}", "some.yaml must be true or false or null, got '3'."),
        ("trainer: [", "cannot be read"),
        ("trainer:\n\tmax_epochs: 3\n", "line 2 begins with a tab: YAML is indented by spaces"),
        (
            "model: yolov8n.pt\nlr0: 0.02\nbox: 7.5\n",
            "--config yolo --model.weights yolov8n.pt --model.recipe.lr0 0.02\n",
        ),
        ("data: {augmentation: {mosaic: no}}", "got 'False'. YAML reads yes, no, on and off as True and False."),
        ("model: {recipe: {lr0: }}", "got 'None'. YAML reads a key without a value as None."),
        ("trainer:\n  max_epochs=3\n", "must be set by its keys, as 'max_epochs: 3', got 'max_epochs=3'."),
        ("data: {augmentation: [{mosaic: 0.5}]}", ", got [{'mosaic': 0.5}]."),
        ("data: {loader: 4}", "must be set by its keys data.loader.multiprocessing_context"),
        ("path: .\nnames: [a]\n", "describes a dataset. Did you mean --config yolo --data.format "),
        ("data: {loader: none.yaml}", "must be set by its keys data.loader.multiprocessing_context"),
    ],
)
def test_wrong_configuration_files(capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str, part: str) -> None:
    file = tmp_path / "some.yaml"
    file.write_text(content)
    _, text = answered(capsys, "fit", "--config", str(file))
    assert (part in text, str(file) in text) == (True, True), text


@pytest.mark.parametrize(
    ("option", "value", "part"),
    [
        ("data.loader", "{num_worker: 3}", "unknown key data.loader.num_worker. Did you mean data.loader.num_workers?"),
        ("data", "{loader: {num_workers: x}}", "data.loader.num_workers must be an integer or auto, got 'x'."),
        (
            "data.loader",
            "loader.yaml",
            "data.loader.prefetch_factor in loader.yaml must be an integer, got 'x'.",
        ),
        ("data", "set.yaml", "data must be set by its keys, got 'set.yaml'. Did you mean --data.format set.yaml?"),
        ("model", "yolov8n", "model must be set by its keys, got 'yolov8n'. Did you mean --model.variant yolov8n?"),
        ("data.loader", "null", "data.loader must be set by its keys data.loader.multiprocessing_context, "),
        ("data.loader", "tab.yaml", "the file tab.yaml of --data.loader cannot be read: line 2 begins with a tab"),
        ("data", "{loader: loader.yaml}", "data.loader.prefetch_factor must be an integer, got 'x'."),
        (
            "config",
            "{data: {loader: loader.yaml}}",
            "prefetch_factor in {data: {loader: loader.yaml}} must be an integer",
        ),
        ("config", "data.yaml", "data.loader.prefetch_factor in data.yaml must be an integer, got 'x'."),
        ("config", "parts.yaml", "trainer.max_epochs in parts.yaml must be an integer or null, got 'x'."),
    ],
)
def test_wrong_groups_of_options(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    option: str,
    value: str,
    part: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loader.yaml").write_text("prefetch_factor: x\n")
    Path("set.yaml").write_text("path: .\nnames: [a]\n")
    Path("tab.yaml").write_text("a:\n\tb: 1\n")
    Path("data.yaml").write_text("data: {loader: loader.yaml, format: x}\n")
    Path("parts.yaml").write_text("trainer: trainer.yaml\nseed_everything: 1\n")
    Path("trainer.yaml").write_text("max_epochs: x\n")
    code, text = answered(capsys, "fit", f"--{option}", value)
    assert (code, part in text) == (2, True), text


def test_paths_that_a_shell_or_the_user_confused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SETS", "a set of mine")
    for name in ("a set of mine/data.yaml", "a set of mine/images/train/0.jpg", "best.ckpt"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()
    for line, part in (
        ("--data.format a set of mine/data.yaml", "a path with spaces needs quotes: 'a set of mine/data.yaml'"),
        ("--data.format=a set of mine/data.yaml", "a path with spaces needs quotes: 'a set of mine/data.yaml'"),
        ("--config best.ckpt", "must be a YAML file, got weights or a checkpoint. Did you mean --ckpt_path best.ckpt?"),
        ("--data.format=$SETS/data.yaml", "does not exist (a shell replaces $NAME, but not in single quotes)."),
        ("--data.format=a\xa0set\xa0of\xa0mine/data.yaml", "Did you mean a set of mine/data.yaml?"),
        ("--data.format=.", "data.format data.yaml does not exist. Did you mean a set of mine/data.yaml?"),
    ):
        assert part in answered(capsys, "fit", *line.split(" "))[1], line
    words = ["--data.format", "a set of mine/images/train"]
    assert "Did you mean a set of mine/data.yaml?" in answered(capsys, "fit", *words)[1]


@pytest.mark.parametrize(
    "words",
    [
        ["fit", "--help.full"],
        ["fit", "--config", "configs/demo.yaml", "--trainer.callbacks+=EMA", "--trainer.callbacks.tau", "3"],
        ["fit", "--trainer.logger.save_dir", "logs", "--trainer.callbacks.help", "EMA"],
        ["predict", "a.jpg", "--save", "[csv]"],
        ["submission", "check", "a.zip"],
        ["contact_sheet", "--data.root", "x", "--samples", "3"],
        ["export", "--image_size", "64"],
        ["doctor", "--json"],
    ],
)
def test_other_command_lines_are_left_to_the_parsers(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setenv(MARKER_VARIABLE, "token")  # only the first process of a fit checks that its data exists
    resolve(words)


@pytest.mark.parametrize("middle", ["FIT_", "", "FTI__", "VALIDAT__"])
def test_environment_variable_of_no_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, middle: str
) -> None:
    name = f"YOLO_LIGHTNING_{middle}DATA__BATCH_SIZE"
    monkeypatch.setenv(name, "4")
    expected = f"the environment variable {name} is not used. Did you mean YOLO_LIGHTNING_FIT__DATA__BATCH_SIZE?"
    assert answered(capsys, "fit", "--config", "yolo") == (2, f"error: {expected}\n")


def test_options_of_the_short_help_exist() -> None:
    command = find_command("fit")
    assert [key for key in SHOWN if not command.accepts(key)] == []
    help_of_fit = short_help(command)
    assert [key for key in SHOWN if f"--{key}" not in help_of_fit] == []
    assert help_of_fit.index("--data.format") < help_of_fit.index("--data.root")


def test_help_of_predict_begins_with_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    _, text = answered(capsys, "predict", "--help")
    assert text.startswith("usage: python -m yolo_lightning predict PICTURES [options]\n")
    assert text.index("--run = runs/yolo") < text.index("usage: python -m yolo_lightning predict [options]")
    assert not any(word in text for word in ("lr0", "max_epochs", "device.help", "SUPPRESS"))


@pytest.mark.parametrize("name", sorted(TOOLS.keys() - {"benchmark", "service", "submission"}))  # subcommands
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], name: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([name, "--help"])
    shown = capsys.readouterr().out
    assert stopped.value.code == 0
    assert f"usage: python -m yolo_lightning {name}" in shown
    assert shown == fitted(short_help(find_command(name))) + "\n"


@pytest.mark.parametrize("name", ["benchmark", "service", "submission"])
def test_commands_with_sections_have_help(capsys: pytest.CaptureFixture[str], name: str) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    assert f"usage: python -m yolo_lightning {name}" in capsys.readouterr().out


def test_help_and_errors_name_arguments_without_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    usage = "usage: python -m yolo_lightning submission score FILE TRUTH [options]"
    for words, part in (
        (["submission", "score", "--help"], usage),
        (["submission", "score", "a.zip", "--truth", "b.json"], f"truth has no option; {usage}"),
        (["predict", "--source", "a b"], "pictures have no option. Type: python -m yolo_lightning predict 'a b'"),
    ):
        with pytest.raises(SystemExit):
            main(words)
        assert part in "".join(capsys.readouterr())


def test_predict_for_pictures_and_for_a_dataset_have_tables_of_their_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("yolo_lightning.commands.resolve.check_files", lambda *_: None)
    resolve(["predict", "--trainer.accelerator", "cpu"])
    resolve(["predict", "street.jpg", "--run", "runs/ltdv2"])
    assert "unknown key rnu. Did you mean --run x?" in answered(capsys, "predict", "street.jpg", "--rnu", "x")[1]
    assert "pictures come first: predict val --run RUN" in answered(capsys, "predict", "--data.root", "x", "val")[1]


@pytest.mark.parametrize("words", [["fit", "--help"], ["fit", "--epochs", "3"], ["export", "--help"], ["monitr"]])
def test_answers_load_neither_torch_nor_lightning(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *words], cwd=REPOSITORY, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == (0 if "--help" in words else 2)
    assert "loaded:" not in done.stdout


@pytest.mark.parametrize("subcommand", SUBCOMMANDS)
def test_full_help_is_that_of_the_parser(capsys: pytest.CaptureFixture[str], subcommand: str) -> None:
    with pytest.raises(SystemExit):
        main([subcommand, "--help.full"])
    shown = capsys.readouterr().out
    assert "--supervision.notify.webhook" in shown
    assert subcommand != "fit" or "Learning rate after warm-up" in " ".join(shown.split())


def test_help_fits_into_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    text = fitted(f"  stop              {'stops a run ' * 3}\n\n      a long purpose of an option that is wrapped")
    assert text.splitlines() == [
        "  stop              stops a run stops a",
        "                    run stops a run",
        "",
        "      a long purpose of an option that",
        "      is wrapped",
    ]
