"""Write the table of the options of all commands, which help and errors read without torch, from the parsers.

python scripts/make_option_table.py
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import is_dataclass
from importlib import import_module
from importlib.metadata import version
from inspect import Parameter, isclass, signature
from os import PathLike
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin

from lightning.pytorch.cli import ArgsType, LightningArgumentParser

from yolo_lightning import cli
from yolo_lightning.commands.command_line import tool_function, tool_parser
from yolo_lightning.options.command_names import PICTURES, SUBCOMMANDS, TOOLS
from yolo_lightning.options.option_table import BOOLEAN, CLASS_PATH, INTEGER, LIST, NULL, NUMBER, TABLE_FILE, TEXT
from yolo_lightning.options.run_spec import RunSpec
from yolo_lightning.training.recipe import Recipe

SHOWN = (
    "config",
    "resume",
    "detach",
    "ckpt_path",
    "mirror",
    "supervision.enabled",
    "data.format",
    "data.root",
    "data.image_size",
    "data.batch_size",
    "data.loader.num_workers",
    "data.split.valid_share",
    "data.split.train_fraction",
    "data.augmentation.mosaic",
    "data.augmentation.close_mosaic_epochs",
    "model.variant",
    "model.weights",
    "model.recipe.optimizer",
    "model.recipe.lr0",
    "model.freeze",
    "model.convolution.backend",
    "model.detections.score_threshold",
    "model.detections.iou_threshold",
    "trainer.max_epochs",
    "trainer.accelerator",
    "trainer.devices",
    "trainer.precision",
    "trainer.default_root_dir",
    "seed_everything",
)
"""Options in the short help of fit, in order; `TRAINING` are those that validate, test and predict do not use."""

TRAINING = (
    *("resume", "detach", "mirror", "supervision.enabled", "data.split.train_fraction", "data.augmentation.mosaic"),
    *("data.augmentation.close_mosaic_epochs", "model.recipe.optimizer", "model.recipe.lr0", "model.freeze"),
    "trainer.max_epochs",
)

CLASS_MODULES = ("yolo_lightning.callbacks", "lightning.pytorch.callbacks", "lightning.pytorch.loggers")
TYPES = {int: INTEGER, float: NUMBER, bool: BOOLEAN, str: TEXT, NoneType: NULL}
SEQUENCES = (list, tuple, Sequence)
NOT_SHOWN = ("_ActionConfigLoad", "_ActionHelp", "_HelpAction", "_ActionPrintConfig")
"""Actions of jsonargparse that the short help leaves out."""

ELEMENTS = {INTEGER: f"{LIST} of integers", NUMBER: f"{LIST} of numbers"}
WORDS = (INTEGER, NUMBER, BOOLEAN, TEXT, *ELEMENTS.values(), LIST)
ORDER = {name: position for position, name in enumerate(WORDS)}


class BuiltParserError(Exception):
    """Ends the start of LightningCLI when the parser of a command is complete."""


class ParserOfCommand(cli.YOLOCLI):
    """LightningCLI that builds the parser of one command and ends."""

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> NoReturn:
        raise BuiltParserError(self._parser(self._spec.command))


def subcommand_parser(name: str) -> Any:
    """Return the parser of fit, validate, test or predict."""
    try:
        cli.run(RunSpec((name,)), ParserOfCommand)
    except BuiltParserError as built:
        return built.args[0]
    raise AssertionError(name)


def tools() -> dict[str, Callable[..., Any]]:
    """Return the function of each other command, and of each section of a command."""
    functions: dict[str, Callable[..., Any]] = {}
    for name in (*TOOLS, "predict"):
        function = tool_function(name)
        if isinstance(function, dict):
            functions |= {f"{name} {section}".strip(): part for section, part in function.items()}
        else:
            functions[PICTURES if name == "predict" else name] = function
    return functions


def table() -> dict[str, Any]:
    """Return the content of the table; equal options of several commands share an entry."""
    parsers = {name: subcommand_parser(name) for name in SUBCOMMANDS}
    parsers |= {name: tool_parser(function, name) for name, function in tools().items()}
    positions: dict[str, int] = {}
    commands = {}
    for name, parser in parsers.items():
        options = {}
        for key, entry in entries(name, parser).items():
            options[key] = positions.setdefault(json.dumps(entry), len(positions))
        purpose = SUBCOMMANDS.get(name) or parser.description or ""
        commands[name] = {"purpose": " ".join(purpose.split()), "shown": shown(name, parser), "options": options}
    return {
        "lightning": version("lightning"),
        "classes": {name: required_arguments(import_module(name)) for name in CLASS_MODULES},
        "entries": [json.loads(entry) for entry in positions],
        "commands": commands,
    }


def required_arguments(module: ModuleType) -> dict[str, list[str]]:
    """Return the arguments without a default of each class that a module exports."""
    required = {}
    for name in sorted(module.__all__):
        arguments = signature(getattr(module, name)).parameters.values()
        named = [argument for argument in arguments if argument.kind == Parameter.POSITIONAL_OR_KEYWORD]
        required[name] = [argument.name for argument in named if argument.default is Parameter.empty]
    return required


def shown(command: str, parser: Any) -> list[str]:
    """Return the options in the short help of a command: of other commands than fit, ... all but `data.*`."""
    keys = [key for action in parser._actions if type(action).__name__ not in NOT_SHOWN for key in keys_of(action)]
    if command not in SUBCOMMANDS:
        return [key for key in keys if not key.startswith("data.") and not key.endswith(("+", ".help"))]
    hidden = () if command == "fit" else TRAINING
    return [key for key in SHOWN if key in keys and key not in hidden]


def keys_of(action: Any) -> list[str]:
    """Return the names of an option without hyphens; a positional argument has one name."""
    keys = [name.removeprefix("--") for name in action.option_strings or [action.dest]]
    return [key for key in keys if not key.startswith("-")]


def entries(command: str, parser: Any) -> dict[str, dict[str, Any]]:
    """Return the fields of `CommandOption` for each option of a parser, without those that have their default."""
    names = {name.removeprefix("--") for action in parser._actions for name in action.option_strings}
    shown_keys = shown(command, parser)
    options = {}
    for action in parser._actions:
        fields = entry(action)
        for key in keys_of(action):
            is_group = any(other.startswith(f"{key}.") and other != f"{key}.help" for other in names)
            option = {"is_group": True, **settings_of(action)} if is_group else dict(fields)
            if key not in shown_keys:
                option = {field: value for field, value in option.items() if field not in ("default", "help")}
            options[key] = option
    return options


def settings_of(action: Any) -> dict[str, str]:
    """Return the field `settings` of a group that is a dataclass, unless its file imports torch."""
    group = getattr(action, "basetype", None)
    if not isclass(group) or not is_dataclass(group) or group is Recipe:
        return {}
    return {"settings": f"{group.__module__}.{group.__qualname__}"}


def entry(action: Any) -> dict[str, Any]:
    """Return the fields of `CommandOption` for an option that is no group."""
    hint = getattr(action, "_typehint", None)
    default = ""
    if action.default is not None:
        default = json.dumps(action.default, default=str).replace('"', "")
    fields = {
        "default": default,
        "help": " ".join((action.help or "").partition(". ")[0].split()),
        "types": type_names(hint),
        "is_switch": action.nargs == "?" and action.const is True,
        "is_positional": not action.option_strings,
    }
    return {name: value for name, value in fields.items() if value}


def alternatives(hint: Any) -> Iterable[Any]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def type_names(hint: Any) -> list[str]:
    """Return the accepted types in words, then the accepted values; none if only the parser can decide."""
    names: list[str] = []
    for part in alternatives(hint):
        origin = get_origin(part) or part
        if origin is Literal:
            names += map(str, get_args(part))
        elif origin in SEQUENCES:
            elements = type_names(get_args(part)[0]) if get_args(part) else []
            names.append(ELEMENTS.get("".join(elements), LIST))
        elif origin in TYPES:
            names.append(TYPES[origin])
        elif isclass(origin) and issubclass(origin, (Path, PathLike)):
            names.append(TEXT)
        elif origin is Callable:
            names.append(CLASS_PATH)
        else:
            return []
    # `typing` shares equal unions, so that the order in a union depends on what was imported first.
    return sorted(dict.fromkeys(names), key=lambda name: ORDER.get(name, len(ORDER) + (name in (NULL, CLASS_PATH))))


def text_of(content: dict[str, Any]) -> str:
    """Return the table as JSON with one line per entry and per command, for readable differences."""
    lines = [json.dumps(entry) for entry in content["entries"]]
    commands = [f"{json.dumps(name)}: {json.dumps(command)}" for name, command in content["commands"].items()]
    return (
        f'{{"lightning": {json.dumps(content["lightning"])},\n'
        f'"classes": {json.dumps(content["classes"])},\n"entries": [\n'
        + ",\n".join(lines)
        + '\n],\n"commands": {\n'
        + ",\n".join(commands)
        + "\n}}\n"
    )


if __name__ == "__main__":
    TABLE_FILE.write_text(text_of(table()), encoding="utf-8")
    print(f"wrote {TABLE_FILE}")
