"""Reader of Ultralytics `.pt` files that creates no layer: the description of the network, and its tensors.

A `.pt` file is a pickle of the whole network. The constructors of its layers are not called, because some of them have
side effects: `TorchVision("resnet18", "DEFAULT")` downloads weights. Every class of a layer is replaced by `Record`,
which only stores attributes. The network is then built from its description, which `checked_description` accepts.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from yolo_lightning.checkpoints.torch_archive import check_archive, reason
from yolo_lightning.errors import UserError
from yolo_lightning.model.description import checked_description
from yolo_lightning.utils.plain_text import one_line
from yolo_lightning.utils.rank_zero import rank_zero_warn

RECORDED = ("torch.nn.modules.", "ultralytics.", "pathlib.", "numpy.")
"""Beginnings of the names of classes and functions that are replaced by `Record`."""

LONGEST_NAME = 200  # characters of a class name
MOST_MODULES = 50_000
DEEPEST_MODULE = 32


class Record:
    """Attributes of an object in a pickle, in place of the object."""

    def __init__(self, *arguments: Any, **attributes: Any) -> None:
        pass

    def __new__(cls, *arguments: Any, **attributes: Any) -> "Record":
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update({str(name): value for name, value in state.items()})


@dataclass(frozen=True)
class PtFile:
    """Content of an Ultralytics `.pt` file, without code."""

    content: dict[str, Any]  # the outermost dictionary, in which `Record` replaces all objects
    description: dict[str, Any]  # checked content of the network's YAML file
    tensors: dict[str, Tensor]  # weights and statistics by full name, as in a `state_dict`
    names: dict[int, str]  # class names by class index, complete
    arguments: dict[str, Any]  # training arguments


def read_pt(file: Path) -> PtFile:
    """Read a `.pt` file without running any code of it.

    Raises:
        UserError: If the file is not a checkpoint of a known detection network; the message does not name the file.
    """
    check_archive(file)
    try:
        content = load(file)
    except MemoryError:
        raise UserError("it needs more memory than is available") from None
    except Exception as error:  # torch.load raises errors of many types on a damaged file
        raise UserError(reason(error)) from error
    if not isinstance(content, dict):
        raise UserError("it contains no dictionary")
    network = content.get("ema") or content.get("model")
    if not isinstance(network, Record):
        keys = ", ".join(map(str, [*content][:3])) or "nothing"
        message = f"it has no network under the key 'model', but {keys}"
        if "state_dict" in content:
            message += "; a checkpoint of this package must be named .ckpt"
        raise UserError(message)
    attributes = vars(network)
    description = checked_description(attributes.get("yaml"))
    tensors = dict(_tensors_of(network))
    _check_tensors(tensors)
    names = complete_names(attributes.get("names"), description["nc"])
    return PtFile(content, description, tensors, names, _arguments(attributes.get("args")))


def complete_names(names: Any, count: int) -> dict[int, str]:
    """Return the names of the classes 0 to `count - 1` by index, in this order.

    `names` of a file is a list, or a dictionary in any order, whose keys can be texts. A class without a name is named
    by its number, which a warning says.
    """
    if isinstance(names, list | tuple):
        names = dict(enumerate(names))
    recorded = dict(entries(names))
    unnamed = [str(index) for index in range(count) if str(index) not in recorded]
    if unnamed:
        keys = ", ".join([*recorded][:3]) or "nothing"
        rank_zero_warn(
            f"the weights have no names for {len(unnamed)} of their classes 0 to {count - 1}, which are named by their "
            f"numbers, such as {unnamed[0]}: 'names' in the file begins with {one_line(keys, LONGEST_NAME)}"
        )
    return {index: one_line(str(recorded.get(str(index), index)), LONGEST_NAME) for index in range(count)}


def _arguments(arguments: Any) -> dict[str, Any]:
    """Return the training arguments; none for a value of another type."""
    if isinstance(arguments, Record):
        return vars(arguments)
    return arguments if isinstance(arguments, dict) else {}


def load(file: Path) -> Any:
    """Return the content of a pickle with a new class derived from `Record` for each class of a layer.

    Other classes raise an error; PyTorch's restricted unpickler calls no function by its name.
    """
    unsafe = torch.serialization.get_unsafe_globals_in_checkpoint(file)
    recorded: list[Any] = [
        (type(name.rpartition(".")[2], (Record,), {}), name) for name in unsafe if name.startswith(RECORDED)
    ]
    with torch.serialization.safe_globals(recorded):
        return torch.serialization.load(file, map_location="cpu", weights_only=True)


def _tensors_of(network: Record) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of `state_dict` by full name."""
    waiting: list[tuple[str, Any, int]] = [("", network, 0)]
    for visited, (prefix, module, depth) in enumerate(waiting):
        if visited > MOST_MODULES or depth > DEEPEST_MODULE:
            raise UserError(f"its network has more than {MOST_MODULES:,} modules, or {DEEPEST_MODULE} levels")
        attributes = vars(module) if isinstance(module, Record) else {}
        transient = attributes.get("_non_persistent_buffers_set") or ()
        for group in ("_parameters", "_buffers"):
            for name, tensor in entries(attributes.get(group)):
                if isinstance(tensor, Tensor) and name not in transient:
                    yield prefix + name, tensor
        waiting.extend((f"{prefix}{name}.", child, depth + 1) for name, child in entries(attributes.get("_modules")))


def entries(group: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(group, Mapping):
        yield from ((str(name), value) for name, value in group.items())


def _check_tensors(tensors: Mapping[str, Tensor]) -> None:
    """Raise a UserError if a tensor is not stored completely: an expanded one can have any size."""
    for name, tensor in tensors.items():
        if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
            raise UserError(f"tensor {name!r} is not an ordinary tensor")
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise UserError(f"tensor {name!r} has more elements than are stored")
