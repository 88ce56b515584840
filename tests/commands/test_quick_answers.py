"""Help, unknown commands and wrong options are answered from the source files, without torch and Lightning."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from yolo_lightning.cli import YOLOCLI, ShortErrorParser, run_trainer
from yolo_lightning.commands import SUBCOMMANDS, TOOLS
from yolo_lightning.commands.option_errors import known_keys
from yolo_lightning.commands.option_source import accepts, options_of_subcommand, options_of_tool
from yolo_lightning.commands.quick_answers import COMMON_OPTIONS, EVALUATION_OPTIONS, START_OPTIONS, answer

WITHOUT_TORCH = """
import sys
from yolo_lightning.commands.quick_answers import answer
try:
    answer(sys.argv[1:])
except SystemExit as end:
    heavy = {"torch", "lightning", "ultralytics", "numpy", "cv2", "matplotlib"} & sys.modules.keys()
    print("loaded:", *heavy) if heavy else None
    raise
"""


def answered(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as stopped:
        answer(words)
    shown = capsys.readouterr()
    return int(stopped.value.code or 0), shown.out + shown.err


@pytest.fixture(scope="module")
def parser_keys() -> dict[str, set[str]]:
    """The keys of the parsers of all subcommands."""
    found: dict[str, set[str]] = {}

    class Parses(Exception):
        pass

    def stop(self: YOLOCLI, parser: ShortErrorParser, args: object) -> None:
        found.update({name: known_keys(self._parser(name)) for name in SUBCOMMANDS})
        raise Parses

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(YOLOCLI, "parse_arguments", stop)
        with pytest.raises(Parses):
            run_trainer([])
    return found


@pytest.mark.parametrize("subcommand", SUBCOMMANDS)
def test_every_key_of_the_parser_is_accepted(parser_keys: dict[str, set[str]], subcommand: str) -> None:
    options = options_of_subcommand(subcommand)
    assert len(parser_keys[subcommand]) > 150
    assert [key for key in sorted(parser_keys[subcommand]) if not accepts(options, key)] == []


@pytest.mark.parametrize("subcommand", SUBCOMMANDS)
def test_nothing_but_linked_keys_is_accepted_that_the_parser_refuses(
    parser_keys: dict[str, set[str]], subcommand: str
) -> None:
    linked = {"model.allow_pickle", "model.class_names", "model.input_channels", "data.seed"}
    options = options_of_subcommand(subcommand)
    leaves = {name for name, option in options.items() if not option.is_group}
    assert leaves - parser_keys[subcommand] <= linked | {"resume"}


def test_options_of_the_short_help_exist() -> None:
    for subcommand in SUBCOMMANDS:
        options = options_of_subcommand(subcommand)
        shown = {**START_OPTIONS.get(subcommand, EVALUATION_OPTIONS), **COMMON_OPTIONS}
        assert [key for key in shown if key not in options] == []


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (["monitr", "x"], 2, "unknown command monitr. Did you mean monitor?"),
        (["fit", "--epochs", "3"], 2, "unknown key epochs. Did you mean --trainer.max_epochs 3?"),
        (["fit", "--imgsz=320"], 2, "unknown key imgsz. Did you mean --data.image_size 320?"),
        (["fit", "--device", "cuda"], 2, "unknown key device. Did you mean --trainer.accelerator gpu?"),
        (["test", "--conf", "0.3"], 2, "unknown key conf. Did you mean --model.detections.score_threshold 0.3?"),
        (["fit", "--model.convolution.backend", "gem"], 2, "got 'gem'. Did you mean gemm?"),
        (["export", "--chekpoint", "x"], 2, "unknown key chekpoint. Did you mean --checkpoint x?"),
        (["export", "--format", "onx"], 2, "format must be pt, onnx or torchscript, got 'onx'. Did you mean onnx?"),
        (["fit", "--config", "nowhere.yaml"], 2, "the file nowhere.yaml of --config does not exist"),
        (["fit", "--help"], 0, "imgsz"),
        (["monitor", "--help"], 0, "monitor RUN [options]"),
        (["--help"], 0, "contact_sheet"),
        ([], 2, "usage: "),
    ],
)
def test_answers(capsys: pytest.CaptureFixture[str], words: list[str], code: int, part: str) -> None:
    found, text = answered(capsys, *words)
    assert (found, part in text) == (code, True), text
    assert code == 0 or not words or len(text.splitlines()) == 1


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("", "must contain keys and values, as 'data: {root: PATH}', got an empty file"),
        ("trainer: {max_epoch: 3}", "unknown key trainer.max_epoch in "),
        ("model: {convolution: {backend: v8}}", "model.convolution.backend must be "),
        ("trainer: [", "cannot be read"),
    ],
)
def test_wrong_configuration_files(capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str, part: str) -> None:
    file = tmp_path / "some.yaml"
    file.write_text(content)
    code, text = answered(capsys, "fit", "--config", str(file))
    assert (code, part in text, str(file) in text) == (2, True, True), text


@pytest.mark.parametrize(
    "words",
    [
        ["fit", "--help.full"],
        ["fit", "--config", "configs/demo.yaml", "--trainer.callbacks+=EMA", "--trainer.callbacks.tau", "3"],
        ["fit", "--trainer.logger.save_dir", "logs", "--trainer.callbacks.help", "EMA"],
        ["predict", "a.jpg", "--save", "[csv]"],
        ["submission", "check", "--help"],
        ["contact_sheet", "--data.root", "x", "--samples", "3"],
        ["doctor", "--json"],
    ],
)
def test_other_command_lines_are_left_to_the_parsers(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    answer(words)


@pytest.mark.parametrize("config", sorted((REPOSITORY / "configs").rglob("*.yaml")), ids=lambda path: path.stem)
def test_published_configurations_pass(config: Path) -> None:
    answer(["fit", "--config", str(config)])


@pytest.mark.parametrize("name", [name for name in TOOLS if name != "submission"])
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], name: str) -> None:
    purpose, options = options_of_tool(name) or ("", {})
    code, text = answered(capsys, name, "--help")
    assert code == 0
    assert " ".join(purpose.split())[:40] in text
    shown = [name for name in options if name not in ("data", "config")]
    assert [name for name in shown if f"--{name}" not in text and name.upper() not in text] == []


@pytest.mark.parametrize("words", [["fit", "--help"], ["fit", "--epochs", "3"], ["export", "--help"], ["monitr"]])
def test_answers_load_neither_torch_nor_lightning(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *words], cwd=REPOSITORY, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == (0 if "--help" in words else 2)
    assert "loaded:" not in done.stdout


def test_monitor_loads_neither_torch_nor_lightning() -> None:
    code = (
        "import sys; import yolo_lightning.commands.monitor.command; print({'torch', 'lightning'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "set()", done.stderr


def test_defaults_are_shown_as_values() -> None:
    options = options_of_subcommand("fit")
    assert options["data.format"].default == "'ltdv2'"
