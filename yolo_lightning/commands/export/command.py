"""`python -m yolo_lightning export`: the trained network as a file for others."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

from rich.console import Console

from yolo_lightning.checkpoints.checkpoint_file import require_whole
from yolo_lightning.checkpoints.remote import is_address, local_checkpoint
from yolo_lightning.checkpoints.run_folder import DEFAULT_RUN, checkpoint_to_evaluate
from yolo_lightning.commands.export.export_network import InferenceNetwork, plain_network
from yolo_lightning.commands.export.onnx_file import require_packages, write_onnx_file
from yolo_lightning.commands.export.suppression import Suppression
from yolo_lightning.commands.export.torchscript_file import write_torchscript_file
from yolo_lightning.commands.export.ultralytics_file import write_ultralytics_file
from yolo_lightning.data.boxes import check_image_size
from yolo_lightning.model.network_settings import read_settings
from yolo_lightning.utils.choices import check_choices

Format = Literal["pt", "onnx", "torchscript"]


def export(
    run: str = DEFAULT_RUN,
    checkpoint: str | None = None,
    format: Format = "pt",
    output: str | None = None,
    image_size: int | None = None,
    channels: Literal[1, 3] | None = None,
    nms: bool = False,
    score_threshold: float | None = None,
    iou_threshold: float | None = None,
    max_detections: int | None = None,
    class_agnostic: bool | None = None,
) -> None:
    """Write the averaged weights of a run into a file that others open: Ultralytics, ONNX Runtime, TorchScript.

    Args:
        run: Run folder; its newest run's best checkpoint is taken.
        checkpoint: A checkpoint file or address, instead of the best one of `run`.
        format: `pt` opens with plain `YOLO("file.pt")`, for prediction, validation, fine-tuning; `onnx` is a single
            file for any batch size; `torchscript` runs without Python.
        output: File to write; null takes the checkpoint's name with the format's ending, beside it;
            of an address, in the working folder.
        image_size: Side of the square input, pixels, a multiple of 32; null takes that of the training.
        channels: Channels of the input, 1 for gray images; null takes those of the training, but `pt` always has 3.
        nms: Put non-maximum suppression into the file (`onnx`).
        score_threshold: Minimum score of a detection, 0 to 1; null takes the threshold of the training if that is above
            0.001, the threshold for computing mAP, else 0.25.
        iou_threshold: Intersection over union above which NMS drops the weaker of two boxes of a class, 0 to 1; null
            takes the threshold of the training.
        max_detections: Detections kept per image; null takes that of the training.
        class_agnostic: Whether boxes of different classes suppress each other, too; null takes that of the training.

    Raises:
        ValueError: If there is no such checkpoint, or a value is not allowed.
    """
    file = local_checkpoint(checkpoint) if checkpoint else checkpoint_to_evaluate(Path(run))
    require_whole(file)
    check_choices("format", [format], Format)
    if nms and format != "onnx":
        raise ValueError(f"nms is part of a file of format onnx only, format is {format}")
    if channels == 1 and format == "pt":
        raise ValueError("channels is 1, allowed is 3 for format pt, as others build the network anew with 3")
    recorded = read_settings(file)
    settings = recorded.for_pictures(
        image_size=image_size,
        channels=channels,
        score_threshold=score_threshold,
        iou_threshold=iou_threshold,
        max_detections=max_detections,
        class_agnostic=class_agnostic,
    )
    assert settings.image_size is not None
    check_image_size("image_size", settings.image_size)
    suppression = Suppression.of(settings)
    if nms and settings.class_agnostic:
        raise ValueError(
            "class_agnostic is true, as given or as the weights record, allowed with nms is false: ONNX suppresses "
            "each class by itself. Give --class_agnostic false, or leave out --nms"
        )
    if not nms and score_threshold is None:
        settings = replace(settings, score_threshold=recorded.score_threshold)
    if format == "onnx":
        require_packages()
    beside = Path(file.name) if checkpoint and is_address(checkpoint) else file
    target = Path(output) if output else beside.with_suffix(f".{format}")
    if target.resolve() == file.resolve():
        raise ValueError(f"output {target} is the checkpoint itself")
    target.parent.mkdir(parents=True, exist_ok=True)
    say = Console(highlight=False).print
    graph = plain_network(file)
    if format == "pt":
        write_ultralytics_file(graph, target, settings)
    elif format == "onnx":
        network = InferenceNetwork(graph, settings.channels or 3)
        for found in write_onnx_file(network, target, settings, suppression if nms else None):
            same = "" if found.detections is None else f", {found.detections:.0%} of the detections the same"
            say(f"batch {found.batch}: boxes within {found.boxes:.1e} px, scores within {found.scores:.1e}{same}")
    else:
        gap = write_torchscript_file(InferenceNetwork(graph, settings.channels or 3), target, settings)
        say(f"batches of 1, 2, 8: outputs within {gap:.1e}")
    say(f"{target}: {target.stat().st_size / 1e6:.1f} MB from {file}")
