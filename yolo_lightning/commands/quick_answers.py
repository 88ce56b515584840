"""Answers that need neither torch nor Lightning: help, unknown commands, unknown options, values that are no choice."""

import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml

from yolo_lightning.commands import SUBCOMMANDS, TOOLS
from yolo_lightning.commands.command_line import PROGRAM
from yolo_lightning.commands.option_errors import (
    VALUE_SYNONYMS,
    unknown_command,
    unknown_key,
    wrong_choice,
)
from yolo_lightning.commands.option_layers import FILE_OPTION, SHORT_FILE_OPTION
from yolo_lightning.commands.option_source import OptionSource, accepts, options_of_subcommand, options_of_tool
from yolo_lightning.utils.exit_codes import ExitCode

HELP_WORDS = ("-h", "--help")
FULL_HELP = "--help.full"

COMMON_OPTIONS = {
    "data.root": ("", "folder of the dataset"),
    "data.format": ("data", "ltdv2, coco, or the path of a data.yaml"),
    "data.image_size": ("imgsz", "network input, pixels: side of a square, or [height, width]"),
    "data.batch_size": ("batch", "images per batch and process"),
    "data.loader.num_workers": ("workers", "loader processes, or auto"),
    "data.split.train_fraction": ("fraction", "share of the training set"),
    "data.augmentation.mosaic": ("mosaic", "share of samples that are mosaics of four images"),
    "data.augmentation.close_mosaic_epochs": ("close_mosaic", "last epochs without mosaic"),
    "model.variant": ("model", "yolov8n to yolov8x, yolo11n, yolo26n, ..., or a .yaml"),
    "model.weights": ("model, pretrained", "file with initial weights, .pt or .ckpt"),
    "model.recipe.optimizer": ("optimizer", "SGD, Adam, AdamW, ..."),
    "model.recipe.lr0": ("lr0", "learning rate after the warm-up"),
    "model.freeze": ("freeze", "layers that are not trained"),
    "model.convolution.backend": ("", "gemm needs no vendor convolution library"),
    "trainer.max_epochs": ("epochs", "epochs to train"),
    "trainer.accelerator": ("device", "auto, cpu or gpu"),
    "trainer.devices": ("device", "number of devices, or their indices"),
    "trainer.precision": ("amp, half", "32-true, 16-mixed or bf16-mixed"),
    "trainer.default_root_dir": ("project, name", "run folder"),
    "seed_everything": ("seed", "seed of weights, order and augmentation"),
}
"""The options that most runs set, with the names of Ultralytics and their purposes."""

START_OPTIONS = {
    "fit": {
        "config": ("cfg", "configuration file; later options override it"),
        "resume": ("resume", "resume the newest run of the run folder"),
        "ckpt_path": ("", "checkpoint to resume"),
        "supervision.enabled": ("", "restart the fit after hangs and crashes"),
        "mirror": ("", "address to which the checkpoints are copied"),
    }
}
EVALUATION_OPTIONS = {
    "config": ("cfg", "configuration file; later options override it"),
    "ckpt_path": ("model", "checkpoint; default: the best of the newest run"),
    "model.detections.score_threshold": ("conf", "minimum score of a detection"),
    "model.detections.iou_threshold": ("iou", "IoU limit of non-maximum suppression"),
}
WRITTEN = {"None": "null", "True": "true", "False": "false"}
"""Python's constants as they are written on the command line."""

QUOTE = "'"
LABEL_WIDTH, THEIRS_WIDTH = 40, 18


def answer(words: Sequence[str]) -> None:
    """Print the answer and exit, or return if a parser has to read the command line.

    Args:
        words: Command line after the program name.

    Raises:
        SystemExit: After help, with code 0; after an error, with code 2.
    """
    if not words or words[0] in HELP_WORDS:
        print(program_help())
        raise SystemExit(0 if words else ExitCode.USAGE)
    command, rest = words[0], words[1:]
    if command == "supervise" and "--" in rest:  # followed by a command with options of its own
        rest = rest[: rest.index("--")]
    if FULL_HELP in rest or command.startswith("-"):
        return
    if command not in SUBCOMMANDS and command not in TOOLS:
        fail(unknown_command(command, [*SUBCOMMANDS, *TOOLS]))
    asks_for_help = any(word in HELP_WORDS for word in rest)
    if command in TOOLS:
        found = options_of_tool(command)
        if found is not None:
            purpose, options = found
            if asks_for_help:
                print(tool_help(command, purpose, options))
                raise SystemExit(0)
            check_words([underscored(word) for word in rest], options)
        return
    if asks_for_help:
        print(subcommand_help(command))
        raise SystemExit(0)
    if command == "predict" and rest and not rest[0].startswith("-"):  # PICTURES: has options of its own
        return
    options = options_of_subcommand(command)
    check_words(rest, options)
    check_files(rest, options)


def check_words(words: Sequence[str], options: Mapping[str, OptionSource]) -> None:
    """Exit with an error for the first unknown option, or value that is none of the choices of its option."""
    for at, word in enumerate(words):
        typed, equals, value = word.partition("=")
        if not typed.startswith("--") or typed == "--":
            continue
        key = typed.removeprefix("--")
        given = value if equals else next((one for one in words[at + 1 : at + 2] if not one.startswith("--")), "")
        if not accepts(options, key):
            fail(unknown_key(key, options.keys(), value=translated(given), hyphens="--"))
        check_value(key, given, options)


def check_files(words: Sequence[str], options: Mapping[str, OptionSource]) -> None:
    """Exit with an error for a configuration file that does not exist, is empty, or contains an unknown key."""
    for at, word in enumerate(words):
        if word in (FILE_OPTION, SHORT_FILE_OPTION):
            name = next(iter(words[at + 1 : at + 2]), "")
        elif word.startswith(f"{FILE_OPTION}="):
            name = word.partition("=")[2]
        else:
            continue
        path = Path(name)
        if path.suffix not in (".yaml", ".yml", ".json"):
            continue  # the text of a configuration, or a wrong word
        if not path.is_file():
            fail(f"the file {path} of --config does not exist")
        try:
            content = yaml.safe_load(path.read_text())
        except (OSError, ValueError, yaml.YAMLError) as error:
            fail(f"the file {path} of --config cannot be read: {' '.join(str(error).split())}")
        if not isinstance(content, dict):
            got = "an empty file" if content is None else repr(content)
            fail(f"the file {path} of --config must contain keys and values, as 'data: {{root: PATH}}', got {got}")
        check_tree(content, options, path)


def check_tree(tree: Mapping[Any, Any], options: Mapping[str, OptionSource], file: Path, prefix: str = "") -> None:
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if not accepts(options, key):
            fail(unknown_key(key, options.keys(), source=f" in {file}"))
        if isinstance(value, dict):
            if key in options and options[key].is_group:
                check_tree(value, options, file, f"{key}.")
        elif isinstance(value, str):
            check_value(key, value, options, f"{file}: ")


def check_value(key: str, value: str, options: Mapping[str, OptionSource], source: str = "") -> None:
    option = options.get(key)
    if option is not None and option.choices and value and value not in option.choices:
        fail(f"{source}{wrong_choice(key, value, list(option.choices))}")


def underscored(word: str) -> str:
    """Return a word with the hyphens of the name of its option replaced, as `spelled_out` does."""
    name, equals, value = word.removeprefix("--").partition("=")
    return f"--{name.replace('-', '_')}{equals}{value}" if word.startswith("--") else word


def translated(value: str) -> str:
    """Return this package's word for a value of Ultralytics, or the value."""
    return VALUE_SYNONYMS.get(value.lower(), value)


def program_help() -> str:
    """Return the help of the program: its commands."""
    lines = [
        f"usage: {PROGRAM} COMMAND [options]",
        "",
        "Train YOLO detectors on LTDv2 or your own images.",
        "",
        "commands:",
    ]
    lines += [f"  {name:<18}{purpose}" for name, purpose in {**SUBCOMMANDS, **TOOLS}.items()]
    return "\n".join([*lines, "", f"{PROGRAM} COMMAND --help: options; --version: version"])


def subcommand_help(command: str) -> str:
    """Return the short help of fit, validate, test or predict."""
    options = options_of_subcommand(command)
    shown = {**START_OPTIONS.get(command, EVALUATION_OPTIONS), **COMMON_OPTIONS}
    lines = [f"usage: {PROGRAM} {command} --config FILE [--KEY VALUE ...]", ""]
    if command == "predict":
        lines[1:1] = [
            f"       {PROGRAM} predict PICTURES [options]    any images and videos: see predict PICTURES below"
        ]
    lines += [f"{SUBCOMMANDS[command]}. A KEY is also a key of the configuration file.", ""]
    lines.append(f"  {'option (default)':<{LABEL_WIDTH}}{'Ultralytics':<{THEIRS_WIDTH}}purpose")
    for key, (theirs, purpose) in shown.items():
        default = options[key].default
        label = f"--{key}" + ("" if default in (None, "None") else f" ({WRITTEN.get(default, default.strip(QUOTE))})")
        purpose = " | ".join(options[key].choices) or purpose
        if len(label) >= LABEL_WIDTH:
            lines.append(f"  {label}")
            label = ""
        lines.append(f"  {label:<{LABEL_WIDTH}}{theirs:<{THEIRS_WIDTH}}{purpose}")
    if command == "predict":
        _, extra = options_of_tool("predict") or ("", {})
        lines += ["", "predict PICTURES: " + ", ".join(f"--{name}" for name in extra)]
    return "\n".join([*lines, "", f"all {len(options)} options: {PROGRAM} {command} {FULL_HELP}"])


def tool_help(command: str, purpose: str, options: Mapping[str, OptionSource]) -> str:
    """Return the help of another command: its options with their purposes; options of the dataset by name only."""
    width = min(shutil.get_terminal_size().columns, 120)
    positional = [name.upper() for name, option in options.items() if option.is_positional]
    lines = [f"usage: {' '.join([PROGRAM, command, *positional])} [options]", ""]
    for paragraph in purpose.split("\n\n"):
        lines += [*textwrap.wrap(" ".join(paragraph.split()), width), ""]
    data = [name for name in options if f"{name}.".startswith("data.")]
    for name, option in options.items():
        if name in data:
            continue
        default = "required" if option.default is None else f"default: {WRITTEN.get(option.default, option.default)}"
        accepted = f"{' | '.join(option.choices)}; " if option.choices else ""
        lines.append(f"  {name.upper()}" if option.is_positional else f"  --{name} ({accepted}{default})")
        lines += textwrap.wrap(option.purpose, width, initial_indent=" " * 6, subsequent_indent=" " * 6)
    if data:
        lines += ["", *textwrap.wrap(f"dataset: {', '.join(f'--{name}' for name in data[1:])}", width)]
    return "\n".join([*lines, "", f"the parser's own help: {PROGRAM} {command} {FULL_HELP}"])


def fail(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(ExitCode.USAGE)
