"""Builds the Ultralytics YOLOv8 graph, with convolutions of our choice, and loads weights into it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import nn
from ultralytics.nn.tasks import DetectionModel, torch_safe_load

from yolo_lightning.conv import DEFAULT_PLAN, Plan
from yolo_lightning.model.layers import Convolution, MemoryFormat, arrange
from yolo_lightning.utils.choices import check_choices

Variant = Literal["yolov8n", "yolov8s", "yolov8m", "yolov8l", "yolov8x"]

OWN_SETTINGS = "yolo_lightning"
"""Key of a `.pt` file that this package exported: `NetworkSettings` as plain Python."""

INPUT_CHANNELS = 3
"""Channels of the first weight, so that published weights fit. Gray frames need not be repeated, see `GrayConv2d`."""


def build_graph(
    variant: Variant,
    class_names: tuple[str, ...],
    convolution: Convolution,
    weights: str | None = None,
    class_width: int | None = None,
    activation_checkpointing: bool = False,
    plan: Plan = DEFAULT_PLAN,
    memory_format: MemoryFormat = "auto",
    allow_pickle: bool = False,
) -> nn.Module:
    """A YOLOv8 detection graph.

    In training it maps `(B, 1 or 3, H, W)` float images (0 to 1) to raw predictions for `loss`; in evaluation to those
    and the decoded boxes for `postprocess`.

    Args:
        variant: Size of the network.
        class_names: Names of the classes, index 0 first.
        convolution: See `arrange`; `auto` is native until the device is known and `arrange` is called again.
        weights: File to start from, see `load_weights`; null starts from random weights.
        class_width: Channels of the hidden layers of the class head; null takes what the number of classes (or
            `weights`) implies. A head that once took over published weights keeps their width.
        activation_checkpointing: See `arrange`.
        plan: See `arrange`.
        memory_format: See `arrange`.
        allow_pickle: See `load_weights`.

    Raises:
        ValueError: If a value is not allowed or `weights` cannot be used.
    """
    choices = (
        ("variant", variant, Variant),
        ("conv_backend", convolution, Convolution),
        ("memory_format", memory_format, MemoryFormat),
    )
    for name, value, allowed in choices:
        check_choices(f"model.{name}", [value], allowed)
    if not class_names:
        raise ValueError("model.class_names is empty")
    graph = plain_graph(variant, len(class_names))
    graph.names = dict(enumerate(class_names))
    if class_width is not None and class_width != head_class_width(graph):
        graph.load(plain_graph(variant, class_width), verbose=False)
    if weights is not None:
        load_weights(graph, weights, allow_pickle=allow_pickle)
    arrange(graph, convolution, activation_checkpointing, plan, memory_format)
    module: nn.Module = graph
    return module


def plain_graph(variant: str, classes: int) -> Any:
    """Ultralytics' own graph, random weights, native convolutions."""
    return DetectionModel(f"{variant}.yaml", ch=INPUT_CHANNELS, nc=classes, verbose=False)


def head_class_width(graph: Any) -> int:
    """Channels of the hidden layers of the class head; Ultralytics derives them from the number of classes."""
    return int(graph.model[-1].cv3[0][-1].in_channels)


def set_loss_gains(graph: Any, *, box: float, cls: float, dfl: float) -> None:
    """Give the graph the weights of the three parts of the loss, where the Ultralytics loss looks for them."""
    graph.args = SimpleNamespace(box=box, cls=cls, dfl=dfl)


def load_weights(graph: Any, path: str, *, allow_pickle: bool = False) -> None:
    """Copy weights from an Ultralytics `.pt` or from one of our `.ckpt` files into the graph, as far as shapes match.

    Rows of the classification head are kept where the class names match.

    Args:
        graph: The graph to change.
        path: The file.
        allow_pickle: A `.pt` file is a pickle, which can run code when it is opened. Without trust only the layers that
            PyTorch and Ultralytics publish are rebuilt from it, which is enough for any YOLOv8 file of Ultralytics.

    Raises:
        ValueError: If the file is missing, needs trust, is not a detection checkpoint, or nothing in it fits.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise ValueError(f"model.weights {path} does not exist (nothing is downloaded)")
    source = read_network(file, allow_pickle=allow_pickle)
    theirs = source.state_dict()
    graph.load(source, verbose=False)
    own = graph.state_dict()
    fitting = sum(name in theirs and theirs[name].shape == tensor.shape for name, tensor in own.items())
    if not fitting:
        raise ValueError(f"model.weights {path}: none of its {len(theirs)} tensors fits this network")
    kept = matching_classes(graph, source)
    rank_zero_info(f"weights: {fitting} of {len(own)} tensors from {path}; head rows kept for {kept or 'no class'}")


def read_network(file: Path, *, allow_pickle: bool = False) -> Any:
    """The network in one of our `.ckpt` files or an Ultralytics `.pt`; see `load_weights`."""
    return read_checkpoint(file) if file.suffix == ".ckpt" else read_ultralytics(file, allow_pickle=allow_pickle)


def read_ultralytics(file: Path, *, allow_pickle: bool = False) -> Any:
    """The network in an Ultralytics `.pt` file, float32; see `load_weights`."""
    return open_ultralytics(file, allow_pickle=allow_pickle)[1]


def open_ultralytics(file: Path, *, allow_pickle: bool) -> tuple[dict[str, Any], Any]:
    """The content of an Ultralytics `.pt` file, and the network in it, float32.

    Raises:
        ValueError: If it needs trust, or is no checkpoint.
    """
    try:
        content, _ = torch_safe_load(str(file), safe_only=not allow_pickle)
        return content, (content.get("ema") or content["model"]).float()
    except Exception as error:
        foreign = [] if allow_pickle else foreign_globals(file)
        if foreign:
            raise ValueError(
                f"model.weights {file} is a pickle that would run {', '.join(foreign)}; if you trust whoever made it, "
                "add --allow_pickle"
            ) from error
        raise ValueError(f"model.weights {file} is not an Ultralytics checkpoint: {error}") from error


def ultralytics_description(file: Path, *, allow_pickle: bool = False) -> dict[str, Any]:
    """What an Ultralytics `.pt` file records about the use of its weights, under the names of `NetworkSettings`.

    Args:
        file: The file.
        allow_pickle: See `load_weights`.

    Raises:
        ValueError: See `read_ultralytics`.
    """
    content, network = open_ultralytics(file, allow_pickle=allow_pickle)
    size = (content.get("train_args") or {}).get("imgsz") or as_dictionary(getattr(network, "args", {})).get("imgsz")
    names = list(network.names.values() if isinstance(network.names, dict) else network.names)
    recorded = {"image_size": max(size) if isinstance(size, list | tuple) else size, "class_names": names}
    return {**content.get(OWN_SETTINGS, {}), **recorded}


def as_dictionary(arguments: Any) -> dict[str, Any]:
    """Arguments of a network, which Ultralytics stores as a dictionary or a namespace."""
    return arguments if isinstance(arguments, dict) else vars(arguments)


def foreign_globals(file: Path) -> list[str]:
    """What a pickle refers to beyond the packages that publish layers and plain Python; empty where it has no list."""
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(file)
    except Exception:  # no archive of torch.save, or a torn one
        return []
    return [name for name in names if name.split(".")[0] not in ("torch", "ultralytics", "numpy", "pathlib")]


def read_checkpoint(file: Path) -> Any:
    """The (averaged) network in one of our checkpoints, built anew with its own classes."""
    checkpoint = torch.load(file, map_location="cpu", weights_only=True)
    parameters = checkpoint["hyper_parameters"]
    names = tuple(parameters["class_names"])
    source = build_graph(parameters["variant"], names, "native", class_width=parameters["class_width"])
    prefix = "graph."
    source.load_state_dict(
        {name[len(prefix) :]: tensor for name, tensor in checkpoint["state_dict"].items() if name.startswith(prefix)}
    )
    return source


def matching_classes(graph: Any, source: Any) -> list[str]:
    """Class names that both networks know."""
    known = {str(name).strip().lower() for name in source.names.values()}
    return [name for name in graph.names.values() if name.strip().lower() in known]
