"""Descriptions of detection graphs: those of the installed Ultralytics by name, and YAML files of the user."""

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from yolo_lightning.errors import UserError
from yolo_lightning.utils.paths import user_path
from yolo_lightning.utils.suggestions import did_you_mean, similar
from yolo_lightning.utils.yaml_file import read_yaml

PARTS = ("backbone", "head")  # lists of layers; a layer is [inputs, repeats, module, arguments]
PLAIN_KEYS = ("scale", "scales", "depth_multiple", "width_multiple", "kpt_shape", "end2end", "reg_max", "inplace")
DESCRIPTION_KEYS = ("nc", "channels", "activation", *PLAIN_KEYS, *PARTS)
"""Keys of a description that determine the graph. Others are notes, of any type that YAML has, such as a date."""

HEADS = ("Detect", "v10Detect")
"""Heads whose output and loss are supported: boxes and classes, with one branch or a one-to-one branch beside it."""

SCALE_OF_NAME = re.compile(r"yolov?\d+([a-z])")  # as in Ultralytics: yolo11s-p2 has scale s
NAMED = 3  # suggested names for an unknown one


@cache
def variants() -> dict[str, Path]:
    """Return the file of each detection graph that the installed Ultralytics describes, by name.

    A file with scales, such as `yolov8-p2.yaml`, describes one graph per scale: `yolov8n-p2`, `yolov8s-p2`, ...
    """
    package = find_spec("ultralytics")
    assert package is not None
    assert package.submodule_search_locations
    folder = Path(package.submodule_search_locations[0]) / "cfg" / "models"
    files = {}
    for file in sorted(folder.glob("*/*.yaml"), key=lambda file: (len(file.parent.name), file.parent.name, file.stem)):
        description = read_yaml(file)
        if _head_of(description) not in HEADS:
            continue
        if SCALE_OF_NAME.match(file.stem) or not description.get("scales"):
            files[file.stem] = file
        else:
            for scale in description["scales"]:
                files[re.sub(r"(\d+)", rf"\g<1>{scale}", file.stem, count=1)] = file
    return files


def description_of(variant: str) -> dict[str, Any]:
    """Return the description of a graph, as Ultralytics' `yaml_model_load`, which needs no warning about the scale.

    `variant` is a name in `variants` or the path of a `.yaml` file in the same format. The scale of a file of the user
    follows from its name as in Ultralytics (`my-yolo11s.yaml`), or is the first one in the file.

    Raises:
        UserError: If the name is unknown, or the file does not describe a detection graph.
    """
    if is_file_of_user(variant):
        file = user_path(variant)
        if not file.is_file():
            name = file.stem
            meant = did_you_mean([name] if name in variants() else [])
            raise UserError(
                f"model.variant must be an existing .yaml file or the name of a graph, got {variant!r}{meant}"
            )
    elif variant in variants():
        file = variants()[variant]
    else:
        raise UserError(unknown(variant))
    try:
        description: dict[str, Any] = read_yaml(file)
    except (OSError, UserError) as error:
        raise UserError(f"model.variant {variant} cannot be read: {error}") from error
    head = _head_of(description)
    if head not in HEADS:
        raise UserError(
            f"model.variant {variant} must describe a detection graph (lists {' and '.join(PARTS)} of layers [inputs, "
            f"repeats, module, arguments], the last of them {' or '.join(HEADS)}), got {head or 'no such lists'}"
        )
    scales = description.get("scales") or {}
    if not isinstance(scales, dict):
        raise UserError(
            f"model.variant {variant}: scales must be a mapping, as n: [depth, width, largest number of channels], "
            f"got {scales!r}"
        )
    scale = next(iter(scales), "")
    match = SCALE_OF_NAME.search(Path(variant).stem)
    if match and match[1] in scales:
        scale = match[1]
    # Checkpoints contain the description, and are read with `weights_only=True`, which refuses dates.
    description = {key: value for key, value in description.items() if key in DESCRIPTION_KEYS}
    return description | {"scale": scale, "yaml_file": variant if is_file_of_user(variant) else f"{variant}.yaml"}


def is_file_of_user(variant: str) -> bool:
    return variant.endswith((".yaml", ".yml"))


def _head_of(description: Any) -> str | None:
    """Return the name of the last module of a description; None if it does not describe a graph."""
    try:
        layers = [layer for part in PARTS for layer in description[part]]
        if all(len(layer) == 4 for layer in layers):
            return str(layers[-1][2])
    except (TypeError, KeyError, IndexError):
        pass
    return None


def unknown(variant: str) -> str:
    """Return the message for an unknown name: the nearest names, and the families."""
    if variant.endswith(".pt"):
        return f"model.variant must be the name of a graph, got {variant!r}. Did you mean model.weights {variant}?"
    names = variants()
    near = similar(variant.lower(), names, NAMED, cutoff=0.5)
    families = dict.fromkeys(SCALE_OF_NAME.sub(lambda match: match[0][:-1], name) for name in names)
    return (
        f"model.variant must be a detection graph of Ultralytics ({', '.join(families)}; with its scale, such as "
        f"yolov8n-p2) or a .yaml file, got {variant!r}{did_you_mean(near)}"
    )
