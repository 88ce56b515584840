"""TorchScript files, which run without Python."""

import json
import warnings
from dataclasses import replace
from pathlib import Path

import torch

from yolo_lightning.commands.export.export_network import InferenceNetwork, metadata, sample_images
from yolo_lightning.model.network_settings import NetworkSettings
from yolo_lightning.utils.files import replacing

METADATA = "config.txt"
"""File name of the metadata in the archive, as Ultralytics expects."""


def write_torchscript_file(network: InferenceNetwork, path: Path, settings: NetworkSettings) -> float:
    """Write a traced network if the loaded file agrees with it; return the largest difference for batches of 1, 2 and 8.

    The file accepts image sizes of other multiples of 32.
    """
    assert settings.image_size is not None
    image_size = settings.image_size
    about = metadata(replace(settings, channels=network.channels), nms=False)
    with warnings.catch_warnings(), torch.no_grad(), replacing(path) as temporary:
        warnings.simplefilter("ignore")  # torch.jit's deprecation, and tracing of Ultralytics' head
        example = sample_images(2, network.channels, image_size)
        traced = torch.jit.trace(network, example, check_trace=False)  # type: ignore[no-untyped-call]
        torch.jit.save(traced, str(temporary), _extra_files={METADATA: json.dumps(about)})
        again = torch.jit.load(str(temporary))  # type: ignore[no-untyped-call]
        gaps = []
        for batch in (1, 2, 8):
            images = sample_images(batch, network.channels, image_size)
            gaps.append(float((again(images) - network(images)).abs().max()))
        if max(gaps) > 1e-3:
            raise RuntimeError(f"the TorchScript file and PyTorch disagree: maximum difference {max(gaps)}")
    return max(gaps)
