"""Check of a network's description, which may come from a file of unknown origin.

Ultralytics calls the named layers with the given arguments and evaluates the text of the activation.
"""

import re
from typing import Any

from torch import nn

from yolo_lightning.errors import UserError
from yolo_lightning.model.variants import DESCRIPTION_KEYS, PARTS, PLAIN_KEYS
from yolo_lightning.utils.plain_text import one_line

# fmt: off
LAYERS = frozenset((
    "A2C2f", "ADown", "AConv", "Bottleneck", "BottleneckCSP", "C1", "C2", "C2f", "C2fCIB", "C2fPSA", "C2PSA", "C3",
    "C3Ghost", "C3TR", "C3k2", "C3x", "CBFuse", "CBLinear", "Concat", "Conv", "ConvTranspose", "DWConv",
    "DWConvTranspose2d", "Detect", "ELAN1", "Focus", "GhostBottleneck", "GhostConv", "OBB", "OBB26", "PSA", "Pose",
    "Pose26", "RepC3", "RepConv", "RepNCSPELAN4", "SCDown", "SPP", "SPPELAN", "SPPF", "Segment", "Segment26", "Silence",
    "v10Detect",
))
# fmt: on
"""Accepted layers of Ultralytics, beside those of `torch.nn`. Their constructors only create tensors, other than that
of `TorchVision`, which downloads weights."""

WORDS = frozenset(("nc", "kpt_shape", "None", "True", "False", "nearest", "bilinear"))  # accepted texts in arguments
ACTIVATION = re.compile(r"(?:torch\.)?(nn\.\w+)\([\w=., -]{0,40}\)")  # without brackets inside, which could be a call
MOST_LAYERS = 256
MOST_REPEATS = 64
LARGEST_NUMBER = 8192
MOST_CLASSES = 10_000
MOST_CHANNELS = 16


def checked_description(description: Any) -> dict[str, Any]:
    """Return the known keys of a network's YAML content; raise a ValueError if a layer could do more than compute."""
    if not isinstance(description, dict):
        raise UserError("its network has no description ('yaml')")
    checked = {key: description[key] for key in DESCRIPTION_KEYS if description.get(key) is not None}
    classes = checked.get("nc")
    if type(classes) is not int or not 1 <= classes <= MOST_CLASSES:
        raise UserError(f"its number of classes must be 1 to {MOST_CLASSES:,}, got {shown(classes)}")
    channels = checked.setdefault("channels", description.get("ch", 3))  # `ch` in files of older Ultralytics
    if type(channels) is not int or not 1 <= channels <= MOST_CHANNELS:
        raise UserError(f"its number of channels must be 1 to {MOST_CHANNELS}, got {shown(channels)}")
    activation = checked.get("activation")
    if activation is not None and not _is_activation(activation):
        raise UserError(f"its activation must be like nn.ReLU(), got {shown(activation)}")
    for key in PLAIN_KEYS:
        value = checked.get(key)
        if isinstance(value, dict):
            value = list(value.values())
        if not is_plain(value, any_text=True):
            raise UserError(f"its {key} {shown(checked[key])} is not supported")
    rows = [row for part in PARTS for row in checked.get(part, ())]
    if not 0 < len(rows) <= MOST_LAYERS:
        raise UserError(f"its network must have 1 to {MOST_LAYERS} layers, got {len(rows)}")
    for row in rows:
        _check_layer(row)
    return checked


def _is_activation(text: Any) -> bool:
    """Return whether a text calls the constructor of a layer of `torch.nn` with plain arguments."""
    call = ACTIVATION.fullmatch(text) if isinstance(text, str) else None
    return call is not None and _is_layer(call[1])


def _check_layer(row: Any) -> None:
    if not (isinstance(row, list | tuple) and len(row) == 4):
        raise UserError(f"layer {shown(row)} must be a list of source, repeats, name, arguments")
    sources, repeats, name, arguments = row
    if not _is_layer(name):
        raise UserError(f"its layers must be of torch.nn or of Ultralytics' YOLOv3 to YOLO26, got {shown(name)}")
    if not (type(repeats) is int and 0 < repeats <= MOST_REPEATS and is_plain(sources) and is_plain(arguments)):
        raise UserError(f"layer {shown(row)} has unsupported repeats or arguments")


def _is_layer(name: Any) -> bool:
    """Return whether a name in a description is that of an accepted layer."""
    if not isinstance(name, str):
        return False
    if not name.startswith("nn."):
        return name in LAYERS
    layer = getattr(nn, name.removeprefix("nn."), None)
    return isinstance(layer, type) and issubclass(layer, nn.Module)


def is_plain(value: Any, depth: int = 0, *, any_text: bool = False) -> bool:
    """Return whether a value is a number of usual size, a known text, or a short list of them."""
    if isinstance(value, list | tuple):
        return depth < 3 and len(value) <= MOST_LAYERS and all(is_plain(element, depth + 1) for element in value)
    if isinstance(value, str):
        return value in WORDS or (any_text and len(value) <= 8)
    return value is None or (isinstance(value, bool | int | float) and abs(value) <= LARGEST_NUMBER)


def shown(value: Any) -> str:
    return one_line(repr(value), 80)
