"""A `.pt` file that plain `YOLO("x.pt")` opens, in a process that has never heard of this package."""

import pickle
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from yolo_lightning.model.graph import OWN_SETTINGS
from yolo_lightning.model.network_settings import NetworkSettings
from yolo_lightning.utils.files import replacing

OWN_PACKAGES = ("yolo_lightning", "callbacks")


def write_ultralytics_file(graph: Any, path: Path, settings: NetworkSettings) -> None:
    """Write the network in Ultralytics' checkpoint layout, half precision as Ultralytics does.

    Such a file is a pickle of the whole network, which others should open only if they trust its sender.

    Args:
        graph: From `plain_network`; changed in place.
        path: File to write; it appears whole or not at all.
        settings: Of the weights, kept in the file. Their image size is the default of `predict` and `val`.
    """
    options = {"task": "detect", "imgsz": settings.image_size, "single_cls": False, "data": None}
    graph.args = options
    graph.task = "detect"
    graph.criterion = None
    content = {
        "epoch": -1,
        "best_fitness": None,
        "model": graph.half(),
        "ema": None,
        "updates": None,
        "optimizer": None,
        "train_args": options,
        "train_metrics": None,
        "train_results": None,
        "date": datetime.now().isoformat(),
        "version": version("ultralytics"),
        "license": "AGPL-3.0-or-later",
        OWN_SETTINGS: settings.plain(),
    }
    with replacing(path) as temporary:
        torch.save(content, temporary)
        foreign = own_globals(temporary)
        assert not foreign, f"the file would need {foreign}"


def own_globals(path: Path) -> list[str]:
    """Names of this project that opening a `.pt` file would import; empty for a file that others can open."""
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except (RuntimeError, pickle.UnpicklingError) as error:
        raise ValueError(f"{path} is no checkpoint: {error}") from error
    return [name for name in names if name.split(".")[0] in OWN_PACKAGES]
