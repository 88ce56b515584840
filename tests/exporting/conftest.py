from pathlib import Path

import pytest
import torch

from yolo_lightning.checkpoint_file import write_checkpoint
from yolo_lightning.module import YOLOModule

CLASSES = ("person", "bicycle", "motorcycle", "vehicle")
IMAGE_SIZE = 64


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a network with random weights whose boxes and scores differ from place to place."""
    torch.manual_seed(0)
    module = YOLOModule(class_names=CLASSES, conv="gemm", activations="recompute")
    for layer in module.graph.modules():
        if isinstance(layer, torch.nn.Conv2d) and layer.weight.requires_grad:
            torch.nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")  # signals do not fade
    for head in module.graph.model[-1].cv3:
        torch.nn.init.zeros_(head[-1].bias)
    path = tmp_path_factory.mktemp("trained") / "best.ckpt"
    parameters = {name: module.hparams[name] for name in ("variant", "class_names", "class_width")}
    write_checkpoint({"state_dict": module.state_dict(), "hyper_parameters": parameters}, path)
    return path
