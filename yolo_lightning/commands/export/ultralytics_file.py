"""Ultralytics `.pt` files, which `YOLO("x.pt")` opens without this package."""

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
    """Write the result of `plain_network`, modified in place, in Ultralytics' checkpoint layout in half precision.

    The file is a pickle of the whole network; open such files only from trusted senders. The image size of the settings
    is the default of `predict` and `val`.
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
        assert not foreign, f"the file would import {foreign}"


def own_globals(path: Path) -> list[str]:
    """Return the names of this package that a `.pt` file imports; empty if Ultralytics alone can open the file."""
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except (RuntimeError, pickle.UnpicklingError) as error:
        raise ValueError(f"{path} is not a checkpoint: {error}") from error
    return [name for name in names if name.split(".")[0] in OWN_PACKAGES]
