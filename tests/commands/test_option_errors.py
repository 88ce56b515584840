"""Errors for options: one line with the key, the accepted values, the value and a suggestion."""

import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Literal

import pytest
from lightning.pytorch import Callback
from torch.optim import Optimizer

from yolo_lightning import __version__
from yolo_lightning.commands.command_line import ToolParser
from yolo_lightning.commands.parser_errors import short_message
from yolo_lightning.errors import UserError
from yolo_lightning.options.option_checks import check_class_names
from yolo_lightning.options.option_errors import missing_package
from yolo_lightning.utils.suggestions import SYNONYMS, nearest_key

UNION = """Parser key "{key}":
  Does not validate against any of the Union subtypes
  Subtypes: [...]
  Errors:
{errors}
  Given value type: <class 'str'>
  Given value: {value}"""


def union(key: str, value: str, *expected: str) -> str:
    return UNION.format(key=key, value=value, errors="\n".join(f"    - Expected a {kind}" for kind in expected))


@pytest.mark.parametrize(
    ("message", "short"),
    [
        (
            union("model.recipe.optimizer", "sgd", "typing.Literal['SGD', 'AdamW']", "dot import path string: sgd"),
            "model.recipe.optimizer must be SGD, AdamW or a class path, got 'sgd'. Did you mean SGD?",
        ),
        (
            union("trainer.precision", "fp16", "<class 'int'>", "typing.Literal['16-mixed', 'bf16-mixed']"),
            "trainer.precision must be an integer, 16-mixed or bf16-mixed, got 'fp16'. Did you mean 16-mixed?",
        ),
        ("unrecognized arguments: --epochs 3", "unknown key epochs. Did you mean trainer.max_epochs?"),
        ("unrecognized arguments: --nonsense", "unknown key nonsense; --help.full lists all keys."),
        (
            "Parser key \"trainer.callbacks\":\n  - Problem with given class_path 'yolo_lightning.callbacks.EMA':\n"
            "        Parser key \"tau\":\n          Expected a <class 'float'>. Got value: x\n"
            "    - Problem with given class_path 'lightning.Callback':\n"
            "        Option 'tau' is not accepted\n  Given value: NestedArg(key='tau', val='x')",
            "trainer.callbacks: EMA: tau must be a number, got 'x'.",
        ),
        ("another\nmessage", "another message"),
    ],
)
def test_message_is_one_line_with_what_is_accepted(message: str, short: str) -> None:
    assert short_message(message, {"trainer.max_epochs"}) == short


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("lr0", "model.recipe.lr0"),
        ("imgsz", "data.image_size"),
        ("supervision.floors.step_s", "supervision.phase_timeouts.step_s"),
        ("model.lrr", "model.recipe.lrf"),
        ("model.class_names", None),
        ("Img", "data.image_size"),
        ("xyz", None),
    ],
)
def test_nearest_key(key: str, nearest: str | None) -> None:
    keys = {"model.recipe.lr0", "model.recipe.lrf", "data.image_size", "supervision.phase_timeouts.step_s"}
    keys |= {"model.detections.class_agnostic"}
    assert nearest_key(key, keys) == nearest


def test_every_suggestion_is_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    from yolo_lightning.cli import main
    from yolo_lightning.options.command_names import TOOLS

    helps = []
    for command in ("fit", "predict", "recalibrate", "prepare", "export"):
        with pytest.raises(SystemExit):
            main([command, *(["a.jpg"] if command == "predict" else []), "--help.full"])
        helps.append(capsys.readouterr().out)
    everything = " ".join(helps)
    assert set(TOOLS) >= {"recalibrate", "prepare", "export"}
    for name in {option for options in SYNONYMS.values() for option in options} - {"class_names"}:  # of Python alone
        assert f"--{name}" in everything, name


def test_version_is_printed_without_torch() -> None:
    code = "import runpy, sys; sys.argv = ['x', '--version']; runpy.run_module('yolo_lightning', run_name='__main__')"
    code += "; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"yolo_lightning {__version__}\n"


CALLBACK_ERROR = """Parser key "trainer.callbacks":
  Does not validate against any of the Union subtypes
  Errors:
    - Expected a dot import path string: EMAA
    - Expected a <class 'NoneType'>
  Given value: [{'class_path': 'EMAA'}]"""

OPTION_ERROR = """Parser key "trainer.callbacks":
  Does not validate against any of the Union subtypes
  Errors:
    - Problem with given class_path 'yolo_lightning.callbacks.EMA':
        Option 'taau' is not accepted
    - Expected a <class 'NoneType'>
  Given value: NestedArg(key='taau', val='3')"""


@pytest.mark.parametrize(
    ("message", "start"),
    [
        (CALLBACK_ERROR, "there is no callback EMAA. Did you mean EMA? The callbacks are BestCheck"),
        (
            CALLBACK_ERROR.replace("EMAA", "EarlyStoping"),
            "there is no callback EarlyStoping. Did you mean EarlyStopping?",
        ),
        (
            CALLBACK_ERROR.replace("EMAA", "EMA"),
            "must be a list, such as [{class_path: EMA, init_args: {decay: 0.999}}], got [{",
        ),
        (OPTION_ERROR.replace("yolo_lightning.callbacks.EMA", "lightning.Callback"), "must be a list, such as "),
        (
            union("trainer.callbacks", "5", "<class 'NoneType'>"),
            "must be a list, such as [{class_path: EMA, init_args: ",
        ),
    ],
)
def test_wrong_callback_is_named_with_the_known_ones(message: str, start: str) -> None:
    import yolo_lightning.callbacks  # noqa: F401

    text = short_message(message, ())
    assert text.startswith((f"trainer.callbacks: {start}", f"trainer.callbacks {start}"))
    assert "\n" not in text


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("trainer.logger", "wandb", "there is no logger wandb. Did you mean WandbLogger?"),
        ("trainer.logger", "nope", "there is no logger nope. The loggers are CSVLogger"),
        ("trainer.callbacks", "[EMA, {class_path: Nope}]", "there is no callback Nope. The callbacks are Best"),
        ("trainer.callbacks", "EMA(decay=1)", "trainer.callbacks must be a list, such as"),
        ("trainer.callbacks", "true", "trainer.callbacks must be a list, such as"),
        ("trainer.callbacks", "[EMA, EarlyStopping, os.path.Callback]", None),
        ("trainer.callbacks", "no_such_module.Mine", "there is no module no_such_module of no_such_module.Mine; its"),
        ("trainer.logger", "true", None),
    ],
)
def test_class_that_does_not_exist_is_named(key: str, value: str, message: str | None) -> None:
    if message is None:
        check_class_names(key, value)
        return
    with pytest.raises(UserError) as refused:
        check_class_names(key, value)
    assert message in str(refused.value)


def parsed(words: list[str]) -> None:
    """Parse options with the types of trainer.callbacks and model.recipe.optimizer."""
    parser = ToolParser(prog="fit")
    parser.add_argument("--trainer.callbacks", type=list[Callback] | Callback | None)
    parser.add_argument("--model.recipe.optimizer", type=Literal["SGD"] | Callable[[Iterable], Optimizer])
    parser.parse_args(words)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "trainer.callbacks",
            "{class_path: EMA, init_args: {taau: 3}}",
            "callbacks: EMA does not have the option taau.",
        ),
        (
            "trainer.callbacks",
            "{class_path: EMA, init_args: {tau: x}}",
            "callbacks: EMA: tau must be a number, got 'x'.",
        ),
        ("trainer.callbacks", "{class_path: EMA, init_args: [1]}", "callbacks: EMA: init_args must be keys and values"),
        (
            "trainer.callbacks",
            "{class_path: EarlyStopping}",
            "EarlyStopping requires monitor: set --trainer.callbacks.",
        ),
        (
            "trainer.callbacks",
            "[{EMA: {tau: 3}}]",
            "trainer.callbacks must be a list, such as [{class_path: EMA",
        ),
        (
            "trainer.callbacks",
            "{class_path: nowhere.Callback}",
            "nowhere.Callback: No module named 'nowhere'",
        ),
        ("model.recipe.optimizer", "torch.nn.Linear", "optimizer must be SGD or a class path, got 'torch.nn.Linear'."),
        (
            "model.recipe.optimizer",
            "{class_path: torch.optim.AdamW, init_args: {lrr: 3}}",
            "model.recipe.optimizer: AdamW does not have the option lrr. Did you mean lr?",
        ),
        (
            "model.recipe.optimizer",
            "{class_path: torch.optim.AdamW, init_args: {weight_decay: x}}",
            "model.recipe.optimizer: AdamW: weight_decay must be a number, got 'x'.",
        ),
    ],
)
def test_mistakes_in_classes_are_one_line(
    key: str, value: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import yolo_lightning.callbacks  # noqa: F401

    with pytest.raises(SystemExit, match="2"):
        parsed([f"--{key}={value}"])
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_missing_positional_argument_is_named_as_in_the_help() -> None:
    assert short_message("the following arguments are required: out", ()).startswith("OUT is missing; see --help")


@pytest.mark.parametrize(
    ("words", "keys", "end"),
    [
        ("python train.py", {"command", "run"}, "write the command after all options: -- python train.py"),
        ("a.yaml", {"data.format"}, "Did you mean --data.format a.yaml?"),
        ("a.yaml", {"samples"}, "write --key value, and a list as --key '[a, b]'."),
    ],
)
def test_words_without_an_option(words: str, keys: set[str], end: str) -> None:
    text = short_message(f"unrecognized arguments: {words}", keys)
    assert text.startswith(f"{words!r} follows no option; ")
    assert text.endswith(end)


def test_missing_package_is_one_line_with_the_command_that_installs_it() -> None:
    message = (
        "Does not validate against any of the Union subtypes\nErrors:\n"
        "  - Problem with given class_path 'lightning.pytorch.loggers.WandbLogger':\n"
        "      Requirement 'wandb>=0.12.10' not met. HINT: Try running `pip install -U 'wandb>=0.12.10'`\n"
    )
    assert missing_package(message) == "WandbLogger requires a missing package: pip install 'wandb>=0.12.10'"
