"""Limits of option values and missing files are answered before torch is imported."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoints.test_resume_choice import RESUMABLE
from tests.helpers.layouts import draw, write_one_image, write_text
from yolo_lightning.checkpoints.checkpoint_file import write_checkpoint
from yolo_lightning.commands.option_limits import check_launch
from yolo_lightning.commands.resolve import resolve
from yolo_lightning.errors import UserError
from yolo_lightning.options.option_table import find_command
from yolo_lightning.supervision.trainer import MARKER_VARIABLE
from yolo_lightning.utils.distributed import LAUNCH_VARIABLE

WITHOUT_TORCH = """
import sys
from yolo_lightning.__main__ import main
try:
    main()
finally:
    print(*({"torch", "lightning", "ultralytics", "jsonargparse"} & sys.modules.keys()), "loaded", sys.argv[1:])
"""


TOOLS_WITHOUT_TORCH = """
import sys
from yolo_lightning.__main__ import main
for line in sys.argv[1:]:
    sys.argv = ["yolo_lightning", *line.split()]
    try:
        main()
        print(line, "was accepted")
    except SystemExit:
        heavy = {"torch", "lightning", "ultralytics"} & sys.modules.keys()
        if heavy:
            sys.exit(f"{line} has loaded {heavy}")
"""


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(MARKER_VARIABLE, raising=False)
    monkeypatch.delenv(LAUNCH_VARIABLE, raising=False)


WRONG = [
    ("fit --model.recipe.lr0 -1", "model.recipe.lr0 must be > 0, got -1"),
    ("fit --model.recipe.lr0=1e-3 --model.recipe.multi_scale=1", "multi_scale must be >= 0 and < 1, got 1"),
    ("fit --model.class_width 0", "model.class_width must be >= 1 and <= 8192 or null, got 0"),
    ("fit --model.loss.class_weight_power 2", "model.loss.class_weight_power must be >= 0 and <= 1, got 2"),
    ("fit --model.convolution.probe_timeout_s 0", "model.convolution.probe_timeout_s must be > 0, got 0"),
    ("fit --model.guard.oom_splits -1", "model.guard.oom_splits must be >= 0, got -1"),
    ("fit --data.batch_size 0", "data.batch_size must be >= 1 or auto, got 0"),
    ("recalibrate --data.batch_size 0", "data.batch_size must be >= 1 or auto, got 0"),
    ("fit --data.image_size [480,70]", "data.image_size must be two multiples of 32 and >= 32, got [480, 70]"),
    ("fit --data.loader {num_workers:\\ -3}", "data.loader.num_workers must be >= 0 and <= 1024 or auto, got -3"),
    ("fit --data.input.pixel_range.mode fixed", "data.input.pixel_range.low must be a pixel value"),
    ("fit --data.limits.quarantine [7]", "data.limits.quarantine must be a list of texts"),
    ("fit --supervision.enabled true --supervision.phase_timeouts.step_s -1", "step_s must be > 0, got -1"),
    ("fit --supervision.notify.webhook abc", "supervision.notify.webhook must be http"),
    ("fit --trainer.max_epochs null", "trainer.max_epochs must be >= 1, for the schedules, got None"),
    ("fit --trainer.max_epochs 0", "trainer.max_epochs must be an integer >= 1, got 0"),
    ("fit --trainer.max_steps 0", "trainer.max_steps must be another value than 0, with which a fit trains no step."),
    ("fit --max_hours 0", "max_hours must be > 0 and <= 1000000 or null, got 0"),
    ("fit --seed_everything -1", "seed_everything must be an integer >= 0, got -1"),
    ("validate --model.detections.score_threshold 2", "score_threshold must be >= 0 and <= 1, got 2"),
    ("fit --config wrong.yaml", "model.recipe.lr0 must be > 0, got -1"),
    ("fit", "data.root must be the dataset folder, got null"),
    ("fit --data.format yolo", "Datasets of Ultralytics are read with --data.format FOLDER/data.yaml"),
    ("fit --trainer.limit_train_batches 0.0", "limit_train_batches must be another value than 0"),
    ("fit --trainer.strategy ddp_spawn", "trainer.strategy must be auto, ddp or a class, got ddp_spawn."),
    ("fit --trainer.profiler fast", "trainer.profiler must be simple, advanced, pytorch, xla or a class, got fast."),
    ("fit --resume --ckpt_path torn.ckpt", "give either --resume or --ckpt_path"),
    ("fit --ckpt_path nope.ckpt", "checkpoint nope.ckpt cannot be used: it does not exist"),
    ("validate --data.root .", "there are no weights: no run folder runs/yolo"),
    ("fit --data.root nope", "dataset root nope does not exist."),
    ("fit --data.root .", "annotation file Train.json does not exist."),
    (
        "fit --data.format coco --data.root .",
        "Set data.files.train and data.files.valid to JSON files of COCO, relative",
    ),
    ("fit --data.format nope.yaml", "data.format nope.yaml does not exist."),
    ("fit --data.format C:\\sets\\a.yaml", "is a drive of Windows"),
    ("fit --data.root . --data.input.channels 3", "data.input.channels must be 1 or null with data.format ltdv2"),
    (
        "fit --data.format coco --data.root . --data.files.train wrong.yaml --data.files.valid x",
        "annotation file x does",
    ),
    ("fit --data.format a.zip", "Unpack the archive"),
    ("fit --data.format a.mp4", "annotate frames. predict reads videos"),
    (
        "fit --data.format pictures",
        "pictures contains 1 images, such as a.png, and neither a data.yaml nor annotations",
    ),
    ("fit --data.format moved/data.yaml", "The images are beside this file: remove 'path'"),
    ("fit --data.format coco --data.root coco", "data.root, which contains train/_annotations.coco.json, valid/_annot"),
    ("fit --data.format labels/data.yaml", "line 1: class must be 0, as there is one class in the data.yaml, got 9"),
    ("validate --data.format labels/data.yaml --model.weights w.pt", "got 9"),
    (
        "fit --data.format one --data.batch_size 2",
        "at most the 1 frames of an epoch of data.yaml train, got 2: set data.batch_size to auto or at most 1",
    ),
    (
        "fit --data.format one --data.batch_size 1 --trainer.devices 2",
        "got 1 x 2 processes: set trainer.devices to at most 1",
    ),
    ("fit --data.format one --data.batch_size 1 --trainer.val_check_interval 2", "val_check_interval must be <= 1"),
    ("fit --data.format one --data.input.pixel_range.mode frame", "1 of 1 sampled frames are not 16-bit images, such"),
    ("fit --data.format pointer", "none of 1 sampled frames can be read: a.png: not an image that can be decoded (43"),
    ("validate --data.format pointer --model.weights w.pt", "it is a pointer of Git LFS; run git lfs pull"),
    ("fit --trainer.callbacks EarlyStopping", "trainer.callbacks: EarlyStopping requires monitor"),
    ("fit --trainer.callbacks [{class_path:\\ EarlyStopping,\\ init_args:\\ {patience:\\ 3}}]", "requires monitor"),
    (
        "fit --data.format one/data.yaml --data.batch_size 1 --model.weights half.pt",
        "got half.pt: it is not an archive of torch.save",
    ),
    (
        "fit --data.format one/data.yaml --trainer.default_root_dir none --resume",
        "nothing to resume: no run folder none or none-<n> contains a checkpoint",
    ),
    ("predict pictures/a.png --output w.pt", "output must be a new folder, got 'w.pt'"),
    ("predict pictures/a.png --weights wrong.yaml", "weights must be a .pt or .ckpt file of weights, which torch.save"),
    ("predict pictures/a.png --weights pictures/a.png", "it begins with the bytes 89 50 4e 47 0d 0a 1a 0a"),
    ("predict pointer/a.png", "no file can be read: pointer/a.png (not an image that can be decoded (43 bytes)"),
    ("predict empty.mp4", "no file can be read: empty.mp4 (cannot be opened as a video: it is empty)"),
]


@pytest.mark.parametrize(("line", "message"), WRONG)
def test_wrong_values_and_missing_files_are_refused(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("wrong.yaml").write_text("model: {recipe: {lr0: -1}}\n")
    Path("w.pt").write_text("PK")
    Path("empty.mp4").touch()
    Path("half.pt").write_bytes(b"PK\x03\x04" + bytes(99))
    write_one_image(Path("labels"), "9 .5 .5 .2 .2\n")
    write_one_image(Path("one"), "0 .5 .5 .2 .2\n")
    write_one_image(Path("pointer"), "0 .5 .5 .2 .2\n")
    Path("pointer/a.png").write_text("version https://git-lfs.github.com/spec/v1\n")
    draw(Path("pictures"), {"a.png": ((32, 32), ())})
    write_text(Path("moved/data.yaml"), "path: /content/x\ntrain: .\nval: .\nnames: [car]\n")
    for split in ("train", "valid"):
        write_text(Path("coco", split, "_annotations.coco.json"), "{}")
    words = line.replace("\\ ", "\0").split()
    with pytest.raises((SystemExit, ValueError)) as refused:
        resolve([word.replace("\0", " ") for word in words])
    assert message in str(refused.value) + capsys.readouterr().err


def test_missing_weights_are_refused_before_the_first_start_only(tmp_path: Path) -> None:
    write_one_image(Path("labels"), "0 .5 .5 .2 .2\n")
    words = ["fit", "--data.format", "labels/data.yaml", "--data.batch_size", "1", "--model.weights", "nope.pt"]
    with pytest.raises(ValueError, match=r"model\.weights must be an existing file"):
        resolve(words)
    write_checkpoint(RESUMABLE, Path("runs/yolo/checkpoints/last.ckpt"))
    assert resolve([*words, "--resume"]).given["resume"] is True


def test_classes_of_the_data_and_of_the_checkpoint_are_compared() -> None:
    write_one_image(Path("one"), "0 .5 .5 .2 .2\n")
    checkpoint = Path("run/checkpoints/best.ckpt")
    write_checkpoint({**RESUMABLE, "hyper_parameters": {"class_names": ["dog"]}}, checkpoint)
    with pytest.raises(UserError, match=rf"must be \['dog'\], as in the checkpoint {checkpoint}, got \['car'\]"):
        resolve(["validate", "run", "--data.format", "one"])


def test_recalibrate_reads_the_data_of_the_run() -> None:
    write_checkpoint(RESUMABLE, Path("run/checkpoints/best.ckpt"))
    write_text(Path("run/config.yaml"), "data: {format: coco, root: ., files: {train: a.json, valid: b.json}}\n")
    with pytest.raises(UserError, match=r"annotation file a\.json does not exist"):
        resolve(["recalibrate", "run"])
    with pytest.raises(UserError, match=r"annotation file c\.json does not exist"):
        resolve(["recalibrate", "run", "--config", "{data: {format: coco, root: ., files: {train: c.json, valid: d}}}"])


@pytest.mark.parametrize("variable", [MARKER_VARIABLE, LAUNCH_VARIABLE])
def test_processes_that_can_be_restarted_wait_for_missing_data(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "token")
    resolve(["fit", "--data.root", "nope"])


def test_printed_configurations_are_not_checked() -> None:
    resolve(["fit", "--data.root", "nope", "--model.recipe.lr0", "-1", "--print_config"])


def test_launches_that_cannot_be_restarted_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LAUNCH_VARIABLE, "none")
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    with pytest.raises(ValueError, match="--max-restarts needs --rdzv-id"):
        check_launch({}, is_fit=True)
    monkeypatch.setenv(LAUNCH_VARIABLE, "launch-1")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    with pytest.raises(ValueError, match="TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 and --rdzv-backend c10d"):
        check_launch({}, is_fit=True)
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "0")
    check_launch({}, is_fit=True)
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 and --rdzv-backend c10d"):
        check_launch({}, is_fit=False)


def test_every_group_of_settings_is_constructed() -> None:
    """A group without `settings` in the table is answered by the parser, seconds later."""
    groups = {key for key, option in find_command("fit").options.items() if option.is_group and not option.settings}
    assert groups == {"trainer", "model", "data", "model.recipe"}


@pytest.mark.parametrize("words", [["fit", "--config", "ltdv2"], ["fit", "--data.format", "one"]])
def test_missing_data_and_large_batches_are_answered_without_torch(words: list[str]) -> None:
    write_one_image(Path("one"), "0 .5 .5 .2 .2\n")
    command = [sys.executable, "-c", WITHOUT_TORCH, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, f"loaded {words}\n")


def test_tools_refuse_wrong_files_and_values_without_torch(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "best.ckpt").touch()
    (tmp_path / "run" / "a.png").write_text("text")
    (tmp_path / "run" / "a.mp4").touch()
    lines = [
        *("report nope", "report run nope", "report run --output a.txt"),
        *("export nope", "export --checkpoint nope.ckpt", "average nope", "average run", "average run --last 1"),
        *("bootstrap nope", "bootstrap run --samples 3", "bootstrap run"),
        *("prepare --root nope", "prepare convert nope out", "prepare --check --root nope --format coco"),
        *("submission check nope.json", "submission score a.json nope.json", "submission fuse a.json b.json"),
        *("contact_sheet --data.root nope", "contact_sheet --samples 99", "contact_sheet --output a.jpg"),
        *("recalibrate nope", "recalibrate --images 1", "recalibrate --device tpu", "recalibrate --output a.pt"),
        "benchmark gpu out --device 0",
        *("predict nope.jpg", "predict run --run run", "predict *.nope", "predict nope.jpg --score_threshold 2"),
        *("predict run/a.png", "predict run/a.mp4"),
    ]
    command = [sys.executable, "-c", TOOLS_WITHOUT_TORCH, *lines]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert done.stderr.count("error: ") == len(lines)
