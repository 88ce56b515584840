"""ONNX files for any batch size, with or without non-maximum suppression, verified against PyTorch."""

import logging
import warnings
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from yolo_lightning.commands.export.export_network import InferenceNetwork, metadata, sample_images
from yolo_lightning.commands.export.suppression import Suppression, suppress, suppression_model
from yolo_lightning.data.boxes import STRIDE
from yolo_lightning.model.network_settings import NetworkSettings
from yolo_lightning.utils.files import replacing

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
OPSET = 20
"""First ONNX operator set with all operators of the network and of the suppression."""
INPUT, DECODED, DETECTIONS = "images", "output0", "detections"
CHECKED_BATCHES = (1, 2, 8)
TOLERANCES = {"boxes": 0.05, "scores": 1e-3}
"""Maximum differences in input pixels and in score, from float32 sums in different order."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference between the file and PyTorch for one batch size."""

    batch: int
    boxes: float  # Maximum absolute difference of a box value in input pixels
    scores: float  # Maximum absolute difference of a class score
    detections: float | None = None  # Fraction of equal rows after suppression, 0 to 1; None without suppression

    def is_close(self) -> bool:
        return self.boxes <= TOLERANCES["boxes"] and self.scores <= TOLERANCES["scores"]


def require_packages() -> None:
    """Raise a `ValueError` if a package for ONNX export is not installed."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ValueError(f"format onnx requires {', '.join(missing)}: pip install 'yolo-lightning[export]'")


def write_onnx_file(
    network: InferenceNetwork, path: Path, settings: NetworkSettings, suppression: Suppression | None
) -> list[Difference]:
    """Write a network as ONNX if the outputs of onnxruntime and PyTorch agree; return the difference per batch size.

    The input `images` is `(B, channels, H, W)` float32 in [0, 1] for any B and any multiples H and W of 32. The output
    is `output0`, `(B, 4 + classes, anchors)`, or with suppression `detections`, `(B, max_detections, 6)` as returned by
    `suppress`. The comparison uses the image size of the settings.
    """
    require_packages()
    import onnx

    assert settings.image_size is not None
    image_size = settings.image_size
    model = decoding_model(network, image_size)
    if suppression is not None:
        tail = suppression_model(network.classes, suppression)
        tail.ir_version = model.ir_version
        model = onnx.compose.merge_models(model, tail, io_map=[(DECODED, "decoded")], outputs=[DETECTIONS, DECODED])
    about = metadata(replace(settings, channels=network.channels), nms=suppression is not None)
    onnx.helper.set_model_props(model, {key: str(value) for key, value in about.items()})
    differences = compare(model, network, image_size, suppression)
    if suppression is not None:  # the decoded output is needed for the comparison only
        model.graph.output.remove(*(one for one in model.graph.output if one.name == DECODED))
    onnx.checker.check_model(model, full_check=True)
    with replacing(path) as temporary:
        temporary.write_bytes(model.SerializeToString())
    return differences


def decoding_model(network: InferenceNetwork, image_size: int) -> Any:
    """Return the network without suppression as an ONNX model."""
    example = sample_images(2, network.channels, image_size)  # torch.export would treat a batch of 1 as a constant
    height, width = (STRIDE * torch.export.Dim(name, min=1) for name in ("rows", "columns"))
    quiet = logging.getLogger("torch.onnx")
    level = quiet.level
    try:
        quiet.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about Ultralytics' head, which assigns the anchors in forward
            program = torch.onnx.export(
                network,
                (example,),
                dynamo=True,
                opset_version=OPSET,
                input_names=[INPUT],
                output_names=[DECODED],
                dynamic_shapes={INPUT: {0: torch.export.Dim.DYNAMIC, 2: height, 3: width}},
                external_data=False,
                verbose=False,
            )
    finally:
        quiet.setLevel(level)
    assert program is not None
    return program.model_proto


def compare(
    model: Any, network: InferenceNetwork, image_size: int, suppression: Suppression | None
) -> list[Difference]:
    """Run the model in onnxruntime and the network in PyTorch; raise a `RuntimeError` if the outputs disagree."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    differences = []
    for batch in CHECKED_BATCHES:
        images = sample_images(batch, network.channels, image_size)
        with torch.no_grad():
            expected = network(images)
        outputs = dict(zip(names, map(torch.from_numpy, session.run(None, {INPUT: images.numpy()})), strict=True))
        gap = (outputs[DECODED] - expected).abs()
        same = None
        if suppression is not None:
            # Both suppressions receive the same decoded values: the last bit can decide which of two boxes is kept.
            same = agreement(outputs[DETECTIONS], suppress(outputs[DECODED], suppression))
        difference = Difference(batch, float(gap[:, :4].max()), float(gap[:, 4:].max()), same)
        if not difference.is_close() or (same is not None and same < 1):
            raise RuntimeError(f"the ONNX file and PyTorch disagree: {difference}")
        differences.append(difference)
    return differences


def agreement(found: Tensor, expected: Tensor) -> float:
    """Return the fraction of rows of two outputs of `suppress` that are equal within rounding, 0 to 1."""
    equal = torch.isclose(found, expected, rtol=1e-5, atol=1e-3).all(-1)
    return float(equal.float().mean())
