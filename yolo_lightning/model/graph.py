"""Detection graphs of Ultralytics: construction, input and weights."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from yolo_lightning.checkpoints.torch_archive import check_tensors, load_checkpoint, reason, unsafe_globals
from yolo_lightning.errors import UserError, log_unexpected
from yolo_lightning.model.description import MOST_CHANNELS, MOST_CLASSES, checked_description
from yolo_lightning.model.layers import INPUT_CHANNELS, has_one_to_one_branch, image_layers
from yolo_lightning.model.read_pt import PtFile, complete_names, read_pt
from yolo_lightning.model.variants import DESCRIPTION_KEYS, HEADS, description_of, is_file_of_user
from yolo_lightning.model.weights_file import existing_weights
from yolo_lightning.utils.offline import offline
from yolo_lightning.utils.rank_zero import rank_zero_info, rank_zero_warn

with offline():
    from ultralytics.nn.modules import Conv
    from ultralytics.nn.tasks import DetectionModel, parse_model, torch_safe_load

OWN_SETTINGS = "yolo_lightning"  # key of `NetworkSettings`, as plain Python, in a `.pt` file that this package exported
HEAD_MODULE = "ultralytics.nn.modules.head."  # Module of the last layers of Ultralytics' networks
FIRST_DISTANCE_SLOPE = 0.4
"""Decrease of the logits of the distances 0, 1, 2, ... strides between an anchor and a side of its first box: 2 strides
on average, as in the heads of yolo26."""

MIN_MATCHING = 0.5  # share of tensors from a file of weights below which a warning is printed


def network_input(images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Convert uint8 or float32 images (0 to 255) to the floating-point input of the graph (0 to 1)."""
    return images.to(dtype) / 255


def check_images(images: Any, input_channels: int) -> None:
    """Raise a UserError if images do not fit a network, without access to values; gray images fit one for RGB."""
    accepted = (1, INPUT_CHANNELS) if input_channels == INPUT_CHANNELS else (input_channels,)
    fits = False
    got = type(images).__name__
    if isinstance(images, Tensor):
        is_batch = images.dim() == 4 and len(images) > 0
        fits = is_batch and images.shape[1] in accepted and (images.dtype is torch.uint8 or images.is_floating_point())
        got = f"{tuple(images.shape)} of {images.dtype}"
    if not fits:
        raise UserError(
            f"images must be a tensor (B, {input_channels}, H, W) of uint8, or of float32 from 0 to 255, with "
            f"model.input_channels={input_channels} channels (2: data.input.background), got {got}"
        )


def build_graph(
    variant: str,
    class_names: tuple[str, ...],
    weights: str | None = None,
    class_width: int | None = None,
    allow_pickle: bool = False,
    architecture: dict[str, Any] | None = None,
    input_channels: int = INPUT_CHANNELS,
) -> nn.Module:
    """Return a detection graph with the layers that Ultralytics creates; `arrange` sets their implementation.

    In training mode the graph maps `(B, C, H, W)` float images (0 to 1) to raw predictions for `loss`, in evaluation
    mode to decoded boxes and raw predictions for `postprocess`. H and W are multiples of `graph_stride`.

    Args:
        variant: A name in `variants`, or the path of a `.yaml` file.
        class_names: Index 0 first, at least one, all different.
        weights: File with initial weights, see `_load_weights`; None for random weights.
        class_width: Channels of the hidden layers of the class head; None for the default of Ultralytics for this
            number of classes, or the width in `weights`.
        allow_pickle: See `_load_weights`.
        architecture: Description of the graph, as stored in checkpoints; None: the description of `variant`.
        input_channels: Channels of the images, >= 1.
    """
    if not class_names:
        raise UserError("model.class_names must contain at least one name, got none")
    repeated = [name for name, count in Counter(class_names).items() if count > 1]
    if repeated:
        raise UserError(f"model.class_names must differ from each other, got {repeated[0]!r} twice")
    if type(input_channels) is not int or not 1 <= input_channels <= MOST_CHANNELS:
        raise UserError(f"model.input_channels must be 1 to {MOST_CHANNELS}, got {input_channels}")
    description = description_of(variant) if architecture is None else architecture
    try:
        checked_description(description | {"nc": len(class_names)})  # possibly from a checkpoint of unknown origin
        graph = plain_graph(description, len(class_names), input_channels)
    except Exception as error:  # of many types: a source that does not exist, arguments of the wrong number or type
        if architecture is None and not is_file_of_user(variant):
            raise
        log_unexpected(error, ValueError, TypeError, LookupError, AttributeError, NameError, RuntimeError)
        raise UserError(f"model.variant {variant} describes no network that can be built: {reason(error)}") from error
    if graph.model[-1].nc != len(class_names):
        raise UserError(
            f"model.variant {variant} must have nc as the first argument of its head, for the {len(class_names)} "
            f"classes of the data, got {graph.model[-1].nc}"
        )
    if input_channels == INPUT_CHANNELS and not image_layers(graph):
        raise UserError(f"model.variant {variant} must begin with a convolution of the image, got another layer")
    graph.names = dict(enumerate(class_names))
    if class_width is not None:
        _set_class_width(graph, class_width, description, input_channels)
        if head_class_width(graph) != class_width:
            raise UserError(f"model.class_width must be {_class_widths(description)} for {variant}, got {class_width}")
    if weights is not None:
        _load_weights(graph, weights, allow_pickle=allow_pickle)
    module: nn.Module = graph
    return module


@contextmanager
def _kept_activation() -> Iterator[None]:
    """Restore the activation of all later blocks, which Ultralytics does not after an error in a description."""
    activation = Conv.default_act
    try:
        yield
    finally:
        Conv.default_act = activation


@offline()
@_kept_activation()
def plain_graph(description: dict[str, Any], classes: int, input_channels: int = INPUT_CHANNELS) -> Any:
    """Return the graph of a description with random weights, as Ultralytics builds it except for the first boxes."""
    graph = DetectionModel(deepcopy(description) | {"nc": classes}, ch=input_channels, verbose=False)
    _set_first_boxes(graph)
    return graph


def _set_first_boxes(graph: Any) -> None:
    """Set the biases of the box layers so that the first predicted boxes are about 4 strides wide and high.

    A box is predicted by distributions of the four distances between an anchor and its sides, 0 to 15 strides. With
    Ultralytics' equal biases, they are uniform, and the first boxes are 15 strides wide. Their IoU with most objects is
    near 0, and so are the targets of the classes and the weights of the box losses, until the boxes have shrunk.
    The head of yolo26, which predicts the distances themselves, begins with 2 strides.
    """
    head = graph.model[-1]
    if head.reg_max == 1:
        return
    logits = -FIRST_DISTANCE_SLOPE * torch.arange(head.reg_max)
    branches = [head.cv2, head.one2one_cv2] if has_one_to_one_branch(graph) else [head.cv2]
    for branch in branches:
        for level in branch:
            level[-1].bias.data = logits.repeat(4)


def _set_class_width(graph: Any, width: int, description: dict[str, Any], input_channels: int) -> None:
    """Give the hidden layers of the class head `width` channels, which Ultralytics derives from the classes."""
    if width != head_class_width(graph):
        graph.load(plain_graph(description, width, input_channels), verbose=False)


def _class_widths(description: dict[str, Any]) -> str:
    """Return the widths that Ultralytics gives the class head of a graph, which it limits in both directions."""
    narrowest, widest = (head_class_width(plain_graph(description, classes)) for classes in (1, MOST_CLASSES))
    return str(widest) if narrowest == widest else f">= {narrowest} and <= {widest}"


def is_same_architecture(saved: Mapping[str, Any], hyperparameters: Mapping[str, Any]) -> bool:
    """Whether hyperparameters contain the description `saved`, possibly from a file that has been moved.

    Raises:
        UserError: If the file of `hyperparameters` describes another graph.
    """
    architecture = hyperparameters.get("architecture")
    if architecture is None:
        return False
    described, expected = ({key: file.get(key) for key in DESCRIPTION_KEYS} for file in (architecture, saved))
    if described != expected:
        raise UserError(
            f"model.variant must describe the graph of the checkpoint ({saved['yaml_file']}, scale "
            f"{saved['scale'] or 'none'}), got another graph in {architecture['yaml_file']}, scale "
            f"{architecture['scale'] or 'none'}"
        )
    return True


def check_one_to_one(graph: Any, variant: str) -> None:
    """Raise a UserError if the graph has no one-to-one branch."""
    if not has_one_to_one_branch(graph):
        raise UserError(
            f"model.detections.one_to_one must be false for {variant}, got true: its head has no one-to-one branch; "
            "yolov10 and yolo26 have one"
        )


def head_class_width(graph: Any) -> int:
    return int(graph.model[-1].cv3[0][-1].in_channels)


def _load_weights(graph: Any, path: str, *, allow_pickle: bool) -> None:
    """Copy all weights whose shapes match from a file into the graph.

    Rows of the classification head are copied for classes with the same name. For images with another number of
    channels, the first layer computes the same as in the file on gray frames. `path` is an Ultralytics `.pt` file or an
    own `.ckpt` file. A `.pt` file is a pickle and can run code when it is opened. Without `allow_pickle` only layers of
    PyTorch and Ultralytics are created, which suffices for detection graphs.
    """
    file = existing_weights(path)
    source = read_network(file, allow_pickle=allow_pickle)
    graph.load(source, verbose=False)
    tensors = graph.state_dict()
    file_tensors = source.state_dict()
    matching = 0
    channels, file_channels = (network.yaml.get("channels", INPUT_CHANNELS) for network in (graph, source))
    is_adapted = channels != file_channels and {channels, file_channels} <= {1, 2, INPUT_CHANNELS}
    for name, tensor in tensors.items():
        file_tensor = file_tensors.get(name)
        if file_tensor is None:
            continue
        reads_images = is_adapted and tensor.ndim == 4 and tensor.shape[1] == channels
        if reads_images and file_tensor.shape == (tensor.shape[0], file_channels, *tensor.shape[2:]):
            tensor.copy_(_for_channels(file_tensor, channels))
        matching += file_tensor.shape == tensor.shape
    if not matching:
        raise UserError(f"model.weights {path}: none of its {len(file_tensors)} tensors matches this network")
    file_classes = {str(name).strip().lower() for name in source.names.values()}
    classes = [name for name in graph.names.values() if name.strip().lower() in file_classes]
    rank_zero_info(f"weights: {matching} of {len(tensors)} tensors from {path}; head rows of {classes or 'no class'}")
    if matching < MIN_MATCHING * len(tensors):
        rank_zero_warn(
            f"model.weights {path} has another graph than model.variant: only {matching} of {len(tensors)} tensors "
            "match, so that the network is trained nearly from scratch"
        )


def _for_channels(weight: Tensor, channels: int) -> Tensor:
    """Return the weight `(O, C, h, w)` of a layer that reads the image for another number of channels, 1 to 3.

    The layer computes the same as before on gray frames, which are three equal channels for a network for RGB. The
    second one of two channels is the difference of `data.input.background`, which is not used at first.
    """
    gray = weight[:, :1] if weight.shape[1] == 2 else weight.sum(1, keepdim=True)
    if channels == 2:
        return torch.cat((gray, torch.zeros_like(gray)), 1)
    return gray.expand(-1, channels, -1, -1) / channels


def read_network(file: Path, *, allow_pickle: bool = False) -> Any:
    """Return the network in an own `.ckpt` file or an Ultralytics `.pt` file, float32; see `_load_weights`."""
    if file.suffix == ".ckpt":
        network = read_checkpoint(file)
    else:
        _, network = open_ultralytics(file, allow_pickle=allow_pickle)
    check_tensors(network.state_dict(), str(file))
    return network


@offline()
def open_ultralytics(file: Path, *, allow_pickle: bool) -> tuple[dict[str, Any], Any]:
    """Return the content of an Ultralytics `.pt` file, and its network in float32.

    Without `allow_pickle` the network is built from its description, and only tensors are read.
    """
    try:
        if not allow_pickle:
            recorded = read_pt(file)
            return recorded.content, network_of(recorded)
        content, _ = torch_safe_load(str(file), safe_only=False)
        network = (content.get("ema") or content["model"]).float()
        classes = getattr(network.model[-1], "nc", len(network.names))
        network.names = complete_names(network.names, classes)
        network.yaml.setdefault("channels", network.yaml.get("ch", INPUT_CHANNELS))  # `ch` by older Ultralytics
        return content, network
    except Exception as error:
        names = () if allow_pickle else unsafe_globals(file)  # without names, the option changes nothing
        foreign = [name for name in names if name.split(".")[0] not in ("torch", "ultralytics", "numpy", "pathlib")]
        if foreign:
            raise UserError(
                f"weights {file} is a pickle that would run {', '.join(foreign)}; if you trust its origin, set "
                "allow_pickle true"
            ) from error
        heads = [name.removeprefix(HEAD_MODULE) for name in names if name.startswith(HEAD_MODULE)]
        if heads and not set(HEADS).intersection(heads):
            raise UserError(
                f"weights {file} must be of a network for detection ({' or '.join(HEADS)}), got {heads[0]}"
            ) from error
        remedy = "; if you trust its origin, set allow_pickle true" if names else ""
        raise UserError(f"weights {file} is not an Ultralytics checkpoint: {reason(error)}{remedy}") from error


@offline()
@_kept_activation()
def network_of(recorded: PtFile) -> Any:
    """Build the recorded network and copy its tensors; names and shapes of all tensors must be equal."""
    description = recorded.description
    channels = description["channels"]
    tensors = recorded.tensors
    try:
        with torch.device("meta"):  # no memory: the description can contain layers of any size
            layers, _ = parse_model(deepcopy(description), channels, verbose=False)
    except Exception as error:  # of many types: a source that does not exist, arguments of the wrong number or type
        raise UserError(f"the network's description cannot be built: {reason(error)}") from error
    expected = {f"model.{name}": tensor.shape for name, tensor in layers.state_dict().items()}
    for name in [*expected, *sorted(tensors.keys() - expected.keys())]:
        # The hidden layers of the class head may have the width for another number of classes.
        may_differ = name in expected and ".cv3." in name
        fits = name in tensors and name in expected and tensors[name].shape == expected[name]
        if not fits and not may_differ:
            raise UserError(f"tensor {name!r} does not fit the network's description")
    network = plain_graph(description, description["nc"], channels)
    class_weight = tensors.get(f"model.{len(layers) - 1}.cv3.0.2.weight")
    if class_weight is not None:
        _set_class_width(network, class_weight.shape[1], description, channels)
    network.load_state_dict(tensors)
    network.names = recorded.names
    network.args = recorded.arguments
    return network.eval()


def ultralytics_description(file: Path, *, allow_pickle: bool) -> dict[str, Any]:
    """Return the settings in an Ultralytics `.pt` file, with the names of `NetworkSettings`."""
    content, network = open_ultralytics(file, allow_pickle=allow_pickle)
    arguments = getattr(network, "args", {})
    if not isinstance(arguments, dict):
        arguments = vars(arguments)
    size = (content.get("train_args") or {}).get("imgsz") or arguments.get("imgsz")
    if isinstance(size, list | tuple) and len(size) == 1:
        size = size[0]
    channels = network.yaml.get("channels", INPUT_CHANNELS)
    about = {"image_size": size, "class_names": list(network.names.values()), "input_channels": channels}
    return {**content.get(OWN_SETTINGS, {}), **about}


def read_checkpoint(file: Path) -> Any:
    checkpoint = load_checkpoint(file)
    prefix = "graph."
    try:
        parameters = checkpoint["hyper_parameters"]
        names = tuple(parameters["class_names"])
        source = build_graph(
            parameters["variant"],
            names,
            class_width=parameters["class_width"],
            architecture=parameters.get("architecture"),
            input_channels=parameters.get("input_channels", INPUT_CHANNELS),
        )
        tensors = checkpoint["state_dict"].items()
        source.load_state_dict(
            {name.removeprefix(prefix): tensor for name, tensor in tensors if name.startswith(prefix)}
        )
    except (UserError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise UserError(f"checkpoint {file} contains no network of this package: {reason(error)}") from error
    return source
