"""Command lines and argument files of Ultralytics, such as `train data=x.yaml epochs=3` and `args.yaml`, translated."""

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from yolo_lightning.options.command_names import COMMANDS, PROGRAM
from yolo_lightning.options.option_errors import MODES, VALUE_SYNONYMS
from yolo_lightning.options.run_spec import TRUE, WEIGHTS, named_values, stray_words
from yolo_lightning.utils.choices import AUTO
from yolo_lightning.utils.suggestions import SYNONYMS, nearest_key
from yolo_lightning.utils.yaml_file import read_yaml

TASKS = ("yolo", "detect", "detector", "segment", "classify", "pose", "obb")
PAIR = re.compile(r"(?P<name>[a-zA-Z]\w*)=(?P<value>.*)", re.DOTALL)
DEVICES = re.compile(r"[\d,\[\] ]+")
STOPPING = "--trainer.callbacks+=lightning.pytorch.callbacks.EarlyStopping"
SWITCHES = ("save", "save_txt", "pretrained")
SEPARATE = ("mode", "task", "source", "project", "name")
"""Arguments that are no options here, or only together."""
OF_A_RUN = {*SEPARATE, "save_dir", "exist_ok", "tracker"}
"""Arguments of a finished run of Ultralytics that do not concern another run."""


def command_of(words: Sequence[str]) -> str | None:
    """Return the command that a command line in the form of Ultralytics means, or None for another command line."""
    if "--" in words or not words:
        return None
    plain_words = [word for word in stray_words(words) if not word.startswith("-")]
    pairs = pairs_of([word for word in plain_words if not Path(word).exists()])
    if not pairs and words[0].lower() not in (*TASKS, *MODES):
        return None
    modes = [word for word in plain_words if word.lower() not in TASKS]
    mode = dict(pairs).get("mode", "".join(modes[:1])).lower()
    command = MODES.get(mode, mode)
    if command in COMMANDS:
        return command
    return "predict" if names_pictures(words) else None  # detect.py --source PICTURES


def names_pictures(words: Sequence[str]) -> bool:
    """Return whether a command line has Ultralytics' argument for the images and videos of a prediction."""
    return any(re.fullmatch(r"(--)?source(=.*)?", word, re.DOTALL) for word in words)


def is_pair(word: str) -> bool:
    """Return whether a word has the form `name=value` of Ultralytics."""
    return PAIR.fullmatch(word) is not None


def pairs_of(words: Sequence[str]) -> list[tuple[str, str]]:
    """Return the name, in lower case, and the value of each `name=value` and `name = value`."""
    joined = re.sub(r"(?<=\w)\n=\n", "=", "\n".join(words)).split("\n")  # name = value
    matches = filter(None, map(PAIR.fullmatch, joined))
    return [(match["name"].lower(), match["value"]) for match in matches]


def translated(words: Sequence[str], command: str, keys: Collection[str]) -> str:
    """Return the error for a command line in the form of Ultralytics, with the command line to type.

    Args:
        words: Command line.
        command: What `command_of` returns.
        keys: Options of the command.
    """
    pairs = pairs_of(stray_words(words)) + [(setting.key, setting.text) for setting in named_values(words)]
    if not pairs and words[0].lower() in MODES:
        return f"{words[0]} is {command} here. Type: {PROGRAM} {shlex.join([command, *words[1:]])}"
    options = _options_of_several(dict(pairs), command, keys)
    values = [value for _, value in pairs]
    for word in words[1:]:
        if Path(word).suffix in WEIGHTS and word not in values and not is_pair(word):
            options += model_options(word, keys) or []
    unknown = []
    for name, value in pairs:
        if name in SEPARATE:
            continue
        equivalent = options_of(name, value, keys)
        if equivalent is None:
            unknown.append(f"{name}={value}")
        else:
            options += equivalent
    if unknown and not options:
        return f"unknown {', '.join(unknown)}; options are written as --key value"
    text = f"options are written as --key value. Type: {PROGRAM} {shlex.join([command, *options])}"
    if unknown:
        text += f" # without an equivalent: {', '.join(unknown)}"
    return text


def _options_of_several(values: Mapping[str, str], command: str, keys: Collection[str]) -> list[str]:
    """Return the words that follow from the command and from several arguments of Ultralytics together."""
    options = []
    if command == "predict" and "source" in values:
        options.append(values["source"])
    elif command == "predict" and "run" in keys:
        options.append("PICTURES")
    if command == "fit" and values.get("data", "").endswith((".yaml", ".yml")) and "config" not in values:
        options += ["--config", "yolo"]
    folder = "/".join(values[name] for name in ("project", "name") if values.get(name))
    folder_options = [key for key in ("trainer.default_root_dir", "output") if key in keys]
    if folder and folder_options:
        options += [f"--{folder_options[0]}", folder]
    return options


def translated_file(file: str, content: Mapping[str, Any], words: Sequence[str], keys: Collection[str]) -> str | None:
    """Return the error for a file with arguments of Ultralytics, with the command line to type; None for another file.

    Arguments with the default of Ultralytics are left out: `configs/yolo.yaml` contains these defaults.

    Args:
        file: Path in `--config`.
        content: Content of the file, without nested keys.
        words: Command line with the command.
        keys: Options of the command.
    """
    defaults = arguments_of_ultralytics()
    names = [name for name in content if name in defaults and name not in keys]
    if not names or isinstance(content.get("data"), list):
        return None
    changed = {name: value for name, value in content.items() if defaults.get(name, False) != value}
    pairs = [f"{name}={value}" for name, value in changed.items() if value is not None and name not in OF_A_RUN]
    further = [word for word in words[1:] if word not in ("--config", file, f"--config={file}")]
    if "config" in keys:
        pairs.insert(0, "config=yolo")
    return f"{file} has arguments of Ultralytics; {translated([*pairs, *further], words[0], keys)}"


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
        value: Value of the argument.
        keys: Options of the command.
    """
    name, value = in_usual_form(name.replace("-", "_"), value)
    if name in ("model", "weights") and name not in keys:
        return model_options(value, keys)
    if name == "cache":
        return None  # the option here is an amount of memory
    if name in SWITCHES and value.lower() in (TRUE, "false"):
        return switch_options(name, value, keys)
    if name == "device":
        return device_options(value, keys)
    if name == "patience" and "trainer.callbacks" in keys and "resume" in keys:
        return stopping_options(value)
    if name == "resume" and name in keys:
        return resume_options(value)
    if name in ("amp", "half") and "trainer.precision" in keys:
        return ["--trainer.precision", "16-mixed" if value.lower() == TRUE else "32-true"]
    key = key_of(name, keys)
    if key is None:
        return None
    if value in ("True", "False"):
        value = value.lower()
    return [f"--{key}", value]


def in_usual_form(name: str, value: str) -> tuple[str, str]:
    """Return an argument that YOLOv5 names, or Ultralytics counts, in another way: `cfg=yolov5s.yaml`, `batch=-1`."""
    if name == "cfg" and value.startswith("yolo"):
        name = "model"
    elif name in ("batch", "batch_size") and not value.isdecimal():  # also a share of the memory
        value = AUTO
    return name, value


def switch_options(name: str, value: str, keys: Collection[str]) -> list[str]:
    """Return the words for a switch: pictures are saved by default, and pretrained weights are those of `model`."""
    if name == "save_txt" and value.lower() == TRUE and "save" in keys:
        return ["--save", "[pictures,txt]"]
    return []


def key_of(name: str, keys: Collection[str]) -> str | None:
    """Return the option with the name, or with the meaning, of an argument; None if there is none."""
    if name in keys:
        return name
    key = nearest_key(name, keys)
    if key is not None and (key in SYNONYMS.get(name, ()) or key.rpartition(".")[2] == name):
        return key
    return None


def model_options(value: str, keys: Collection[str]) -> list[str] | None:
    """Return the words for `model=yolov8n.pt`, `model=yolov8n` or `model=yolov8n.yaml`."""
    if not value:
        return []  # random weights are the default
    path = Path(value)
    if path.suffix in ("", ".yaml") and "model.variant" in keys:
        return ["--model.variant", path.stem]
    for key in ("model.weights", "weights", "checkpoint"):
        if key in keys:
            return [f"--{key}", value]
    return None


def stopping_options(patience: str) -> list[str]:
    """Return the words for `patience=50`, epochs without a better score."""
    arguments = {"monitor": "val/map_50", "mode": "max", "patience": patience}
    return [STOPPING, *(f"--trainer.callbacks.{name}={text}" for name, text in arguments.items())]


def resume_options(value: str) -> list[str]:
    """Return the words for `resume=True`, or with the folder of a run or a checkpoint."""
    if value.lower() == TRUE:
        return ["--resume"]
    if value.lower() == "false":
        return []
    if Path(value).is_dir():
        return ["--resume", "--trainer.default_root_dir", value]
    return ["--ckpt_path", value]


def device_options(value: str, keys: Collection[str]) -> list[str] | None:
    """Return the words for `device=0`, `device=0,1`, `device=cpu` or `device=cuda:0`."""
    value = value.removeprefix("cuda:")
    is_number = DEVICES.fullmatch(value) is not None
    if "trainer.devices" not in keys and "device" not in keys:
        return None
    if "trainer.devices" not in keys:
        return ["--device", f"cuda:{value}" if is_number else value]
    if not is_number:
        return ["--trainer.accelerator", VALUE_SYNONYMS.get(value, value)]
    return ["--trainer.accelerator", "gpu", "--trainer.devices", f"[{value.strip('[] ')}]"]
