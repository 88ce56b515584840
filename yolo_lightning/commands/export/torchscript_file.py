"""A TorchScript file: runs in C++ and in any PyTorch, without Python code of anybody."""

import warnings
from dataclasses import replace
from pathlib import Path

import torch

from yolo_lightning.commands.export.export_network import InferenceNetwork, sample_images
from yolo_lightning.commands.export.metadata import as_json, metadata
from yolo_lightning.model.network_settings import NetworkSettings
from yolo_lightning.utils.files import replacing

METADATA = "config.txt"
"""Name of the description inside the archive, where Ultralytics looks for it."""


def write_torchscript_file(network: InferenceNetwork, path: Path, settings: NetworkSettings) -> float:
    """Trace a network, write it, read it back and compare.

    Args:
        network: What to write.
        path: File to write; it appears only if it agrees.
        settings: Of the weights, kept in the file; the image size is known. The file takes other multiples of 32 too.

    Returns:
        Largest absolute difference of an output value, over batches of 1, 2 and 8.

    Raises:
        RuntimeError: If the file and the network disagree.
    """
    assert settings.image_size is not None
    image_size = settings.image_size
    about = metadata(replace(settings, channels=network.channels), suppresses=False, dynamic=True)
    with warnings.catch_warnings(), torch.no_grad(), replacing(path) as temporary:
        warnings.simplefilter("ignore")  # torch.jit's farewell, and tracing's remarks on Ultralytics' head
        example = sample_images(2, network.channels, image_size)
        traced = torch.jit.trace(network, example, check_trace=False)  # type: ignore[no-untyped-call]
        torch.jit.save(traced, str(temporary), _extra_files={METADATA: as_json(about)})
        again = torch.jit.load(str(temporary))  # type: ignore[no-untyped-call]
        gaps = []
        for batch in (1, 2, 8):
            images = sample_images(batch, network.channels, image_size)
            gaps.append(float((again(images) - network(images)).abs().max()))
        if max(gaps) > 1e-3:
            raise RuntimeError(f"the TorchScript file differs from the network by {max(gaps)}")
    return max(gaps)
