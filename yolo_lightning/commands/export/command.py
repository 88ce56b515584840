"""`python -m yolo_lightning export`: export a trained network."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from rich.console import Console

from yolo_lightning.checkpoints.remote_folder import is_address
from yolo_lightning.checkpoints.resume import chosen_checkpoint
from yolo_lightning.checkpoints.run_folder import DEFAULT_RUN
from yolo_lightning.commands.console import check_writable
from yolo_lightning.data.image_size import ImageSize
from yolo_lightning.errors import UserError
from yolo_lightning.utils.choices import check_range
from yolo_lightning.utils.paths import real_path, user_path

Format = Literal["pt", "onnx"]
PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def export(
    run: str = DEFAULT_RUN,
    checkpoint: str | None = None,
    format: Format = "pt",
    output: str | None = None,
    image_size: int | Sequence[int] | None = None,
    channels: Literal[1, 3] | None = None,
    max_detections: int | None = None,
    class_agnostic: bool | None = None,
    one_to_one: bool | None = None,
) -> None:
    """Export the averaged weights of a run for Ultralytics or ONNX Runtime.

    Args:
        run: Run folder; the best checkpoint of its newest run is used.
        checkpoint: A checkpoint file or address, instead of the best one of `run`.
        format: `pt` opens with `YOLO("file.pt")` for prediction, validation, fine-tuning and export to other formats;
            `onnx` is one file for any batch size.
        output: File to write; null: the name of the checkpoint with the suffix of the format, in the same folder, or in
            the working folder for an address.
        image_size: Size of the input in pixels, multiples of 32: the side of a square, or `[height, width]`; null: as
            in training.
        channels: Input channels, 1 for gray images; null: as in training, except `pt`, which has the channels
            of the network.
        max_detections: Maximum detections per image with `one_to_one`; null: as in training.
        class_agnostic: Detect an anchor as one class only with `one_to_one`; null: as in training.
        one_to_one: Use the one-to-one branch of the head (yolov10, yolo26); null: as in training. `onnx` files then
            return the best `max_detections` boxes and need no NMS. `pt` contains both branches; Ultralytics selects one
            by its argument `nms`.

    Raises:
        UserError: If the checkpoint does not exist or an option is invalid.
    """
    file = chosen_checkpoint(run, checkpoint)
    if channels == 1 and format == "pt":
        raise UserError("channels must be 3 for format pt, got 1: Ultralytics builds the network with 3 channels.")
    if image_size is not None:
        ImageSize.of("image_size", image_size).check("image_size")
    if max_detections is not None:
        check_range("max_detections", max_detections, ">= 1")
    target = _target(output, file, checkpoint, format)
    if format == "onnx":
        _require_packages()
    from yolo_lightning.checkpoints.torch_archive import check_tensors
    from yolo_lightning.commands.export.onnx_file import InferenceNetwork, write_onnx_file  # imports torch
    from yolo_lightning.commands.export.pt_file import plain_network, write_ultralytics_file
    from yolo_lightning.model.graph import check_one_to_one
    from yolo_lightning.model.layers import graph_stride
    from yolo_lightning.model.network_settings import read_settings

    recorded = read_settings(file)
    if channels is not None and recorded.background:
        raise UserError(f"channels must be null for a network with data.input.background, got {channels}.")
    if channels is not None and recorded.input_channels not in (3, channels):
        raise UserError(f"channels must be null for a network of {recorded.input_channels} channels, got {channels}.")
    settings = recorded.for_pictures(
        image_size=image_size,
        channels=channels,
        score_threshold=recorded.detections.score_threshold,
        max_detections=max_detections,
        class_agnostic=class_agnostic,
        one_to_one=one_to_one,
    )
    size = settings.image_size
    assert size is not None
    graph = plain_network(file)
    check_tensors(graph.state_dict(), str(file))
    size.check("image_size", stride=graph_stride(graph))
    if settings.detections.one_to_one:
        check_one_to_one(graph, str(file))
    say = Console(highlight=False).print
    if format == "pt":
        write_ultralytics_file(graph, target, settings)
    else:
        network = InferenceNetwork(graph, settings.exported_channels, settings)
        for batch, (boxes, scores) in write_onnx_file(network, target, settings).items():
            say(f"batch {batch}: maximum difference {boxes:.1e} px, {scores:.1e} in score")
    say(f"{target}: {target.stat().st_size / 1e6:.1f} MB from {file}")


def _target(output: str | None, file: Path, checkpoint: str | None, format: Format) -> Path:
    """Return the file to write; raise a UserError if the file cannot be written, or is the checkpoint itself."""
    if output is not None:
        target = user_path(output)
    elif checkpoint and is_address(checkpoint):
        target = Path(file.name).with_suffix(f".{format}")
    else:
        target = file.with_suffix(f".{format}")
    if real_path(target) == real_path(file):
        raise UserError(f"output must differ from the checkpoint, got {target}.")
    check_writable(target, f".{format}")
    return target


def _require_packages() -> None:
    """Raise a `UserError` if a package for ONNX export is not installed."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise UserError(f"format onnx requires {', '.join(missing)}: pip install 'yolo-lightning[export]'")
