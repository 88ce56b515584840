"""Command lines and argument files of Ultralytics, such as `train data=x.yaml epochs=3` and `args.yaml`, translated."""

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from yolo_lightning.commands.option_errors import MODES, VALUE_SYNONYMS
from yolo_lightning.commands.option_layers import TRUE, named_values
from yolo_lightning.utils.suggestions import SYNONYMS, nearest_key
from yolo_lightning.utils.yaml_file import read_yaml

TASKS = ("yolo", "detect", "segment", "classify", "pose", "obb")
PAIR = re.compile(r"(?P<name>[a-zA-Z]\w*)=(?P<value>.*)", re.DOTALL)
DEVICES = re.compile(r"[\d,\[\] ]+")
START = ("python", "-m", "yolo_lightning")
STOPPING = "--trainer.callbacks+=lightning.pytorch.callbacks.EarlyStopping"
SEPARATE = ("mode", "task", "source", "project", "name")
"""Arguments that are no options here, or only together."""
OF_A_RUN = {*SEPARATE, "save_dir", "exist_ok", "tracker"}
"""Arguments of a finished run of Ultralytics that do not concern another run."""


def command_of(words: Sequence[str], commands: Collection[str]) -> str | None:
    """Return the command that a command line in the form of Ultralytics means, or None for another command line."""
    if "--" in words[:2] or not words:
        return None
    first = [word for word in words if not word.startswith("-")]
    pairs = pairs_of([word for word in first if not Path(word).exists()])
    while first and first[0].lower() in TASKS:
        del first[0]
    mode = dict(pairs).get("mode", first[0] if first else "").lower()
    command = MODES.get(mode, mode)
    is_theirs = bool(pairs) or words[0].lower() in (*TASKS, *MODES)
    return command if is_theirs and command in commands else None


def pairs_of(words: Sequence[str]) -> list[tuple[str, str]]:
    """Return the name, in lower case, and the value of each `name=value` and `name = value`."""
    joined = re.sub(r"(?<=\w)\n=\n", "=", "\n".join(words)).split("\n")  # name = value
    return [(found["name"].lower(), found["value"]) for word in joined if (found := PAIR.fullmatch(word))]


def translated(words: Sequence[str], command: str, keys: Collection[str]) -> str:
    """Return the error for a command line in the form of Ultralytics, with the command line to type.

    Args:
        words: Command line.
        command: What `command_of` returns.
        keys: Options of the command.
    """
    pairs = pairs_of(words) + named_values(words)
    if not pairs and words[0].lower() in MODES:
        return f"{words[0]} is {command} here. Type: {shlex.join([*START, command, *words[1:]])}"
    given = dict(pairs)
    found: list[str] = []
    if command == "fit" and given.get("data", "").endswith((".yaml", ".yml")) and "config" not in given:
        found = ["--config", "yolo"]
    sources = [given["source"]] if "source" in given else ["PICTURES"] * ("run" in keys)
    base = "/".join(given[name] for name in ("project", "name") if given.get(name))
    if folder := next((one for one in ("trainer.default_root_dir", "output") if one in keys and base), None):
        found += [f"--{folder}", base]
    unknown = []
    for name, value in pairs:
        options = [] if name in SEPARATE else options_of(name, value, keys)
        found += options or []
        unknown += [f"{name}={value}"] if options is None else []
    if unknown and not found:
        return f"unknown {', '.join(unknown)}; options are written as --key value"
    line = shlex.join([*START, command, *(sources if command == "predict" else ()), *found])
    left = f" # without an equivalent: {', '.join(unknown)}" if unknown else ""
    return f"options are written as --key value. Type: {line}{left}"


def translated_file(file: str, content: Mapping[str, Any], words: Sequence[str], keys: Collection[str]) -> str | None:
    """Return the error for a file with arguments of Ultralytics, with the command line to type; None for another file.

    Arguments with the default of Ultralytics are left out: `configs/yolo.yaml` contains these defaults.

    Args:
        file: Path in `--config`.
        content: Content of the file.
        words: Command line with the command.
        keys: Options of the command.
    """
    defaults = arguments_of_ultralytics()
    names = [name for name in content if name in defaults and name not in keys]
    if not names or any(isinstance(value, dict) for value in content.values()) or isinstance(content.get("data"), list):
        return None
    changed = {name: value for name, value in content.items() if defaults.get(name, False) != value}
    pairs = [f"{name}={value}" for name, value in changed.items() if value is not None and name not in OF_A_RUN]
    others = [word for word in words[1:] if word not in ("--config", file, f"--config={file}")]
    base = ["config=yolo"] if "config" in keys else []
    return f"{file} has arguments of Ultralytics; {translated([*base, *pairs, *others], words[0], keys)}"


@cache
def arguments_of_ultralytics() -> dict[str, Any]:
    """Return the arguments of the installed Ultralytics with their defaults; the package is not imported."""
    package = find_spec("ultralytics")
    assert package is not None
    assert package.submodule_search_locations
    arguments: dict[str, Any] = read_yaml(Path(package.submodule_search_locations[0]) / "cfg" / "default.yaml")
    return arguments


def options_of(name: str, value: str, keys: Collection[str]) -> list[str] | None:
    """Return the words for an argument of Ultralytics; None if there is no equivalent.

    Args:
        name: Name of the argument, or an option of this package.
        value: Its value.
        keys: Options of the command.
    """
    is_on = value.lower() == TRUE
    if name in ("model", "weights") and name not in keys:
        variant = Path(value).suffix in ("", ".yaml") and "model.variant" in keys
        options = ("model.variant",) if variant else ("model.weights", "weights", "checkpoint")
        key = next((one for one in options if one in keys), None)
        return None if key is None else [f"--{key}", Path(value).stem if variant else value]
    if name == "cache":
        return None  # the option here is an amount of memory
    if name == "pretrained" and value.lower() in (TRUE, "false"):
        return []  # the weights are those of `model`
    if name == "device":
        return device_options(value, keys)
    if name == "patience" and "trainer.callbacks" in keys and "resume" in keys:
        rest = {"monitor": "val/map_50", "mode": "max", "patience": value}
        return [STOPPING, *(f"--trainer.callbacks.{one}={text}" for one, text in rest.items())]
    if name == "resume" and name in keys:
        if value.lower() in (TRUE, "false"):
            return ["--resume"] if is_on else []
        return ["--resume", "--trainer.default_root_dir", value] if Path(value).is_dir() else ["--ckpt_path", value]
    if name in ("amp", "half") and "trainer.precision" in keys:
        return ["--trainer.precision", "16-mixed" if is_on else "32-true"]
    key = name if name in keys else nearest_key(name, keys)
    if key is None or not (key == name or key in SYNONYMS.get(name, ()) or key.rpartition(".")[2] == name):
        return None
    return [f"--{key}", value.lower() if value in ("True", "False") else value]


def device_options(value: str, keys: Collection[str]) -> list[str] | None:
    """Return the words for `device=0`, `device=0,1`, `device=cpu` or `device=cuda:0`."""
    value = value.removeprefix("cuda:")
    is_number = DEVICES.fullmatch(value) is not None
    if "trainer.devices" not in keys:
        return ["--device", f"cuda:{value}" if is_number else value] if "device" in keys else None
    if not is_number:
        return ["--trainer.accelerator", VALUE_SYNONYMS.get(value, value)]
    return ["--trainer.accelerator", "gpu", "--trainer.devices", f"[{value.strip('[] ')}]"]
