"""Training of Ultralytics' `YOLO` with swapped layers."""

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from tests.helpers.operators import vendor_operators
from yolo_lightning.conv import AutotunedPlan, GemmConv2d, swap_convs, swap_ultralytics_trainer, unswap_convs

EVENT = "on_pretrain_routine_end"


class Network(nn.Sequential):
    """A network that looks like one of Ultralytics."""

    __module__ = "ultralytics.nn.tasks"


def test_network_and_average_are_swapped() -> None:
    plan = AutotunedPlan(0)
    trainer = SimpleNamespace(model=nn.Sequential(nn.Conv2d(3, 4, 3)), ema=SimpleNamespace(ema=nn.Conv2d(3, 4, 3)))
    swap_ultralytics_trainer(trainer, plan=plan)
    assert [type(layer) for layer in (trainer.model[0], trainer.ema.ema)] == [GemmConv2d, GemmConv2d]
    assert trainer.ema.ema.plan is plan


@pytest.mark.parametrize("trainer", [SimpleNamespace(), SimpleNamespace(model="yolov8n.yaml", ema=None)], ids=str)
def test_an_earlier_event_is_refused(trainer: Any) -> None:
    with pytest.raises(ValueError, match="must be registered for the event 'on_pretrain_routine_end'"):
        swap_ultralytics_trainer(trainer)


def test_a_network_that_training_replaces_gives_a_warning() -> None:
    network = Network(nn.Conv2d(3, 4, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        swap_convs(network)
    network.task = "detect"  # type: ignore[assignment]
    with pytest.warns(UserWarning, match=r"builds a new network .* yolo\.add_callback\('on_pretrain_routine_end'"):
        swap_convs(network)


@pytest.mark.whole_run
def test_a_training_uses_no_vendor_operator(tmp_path: Path) -> None:
    ultralytics = pytest.importorskip("ultralytics")
    for split in ("train", "val"):
        for folder in ("images", "labels"):
            (tmp_path / folder / split).mkdir(parents=True)
        for number in range(2):
            frame = np.zeros((32, 32, 3), np.uint8)
            frame[8:20, 8:20] = 200
            cv2.imwrite(str(tmp_path / "images" / split / f"{number}.png"), frame)
            (tmp_path / "labels" / split / f"{number}.txt").write_text("0 0.4375 0.4375 0.375 0.375\n")
    data = tmp_path / "data.yaml"
    data.write_text(f"path: {tmp_path}\ntrain: images/train\nval: images/val\nnames: {{0: square}}\n")
    yolo = ultralytics.YOLO("yolov8n.yaml")
    with pytest.warns(UserWarning, match="builds a new network"):
        swap_convs(yolo.model)
    unswap_convs(yolo.model)
    options = {"epochs": 1, "imgsz": 32, "batch": 2, "device": "cpu", "workers": 0, "plots": False, "amp": False}
    yolo.add_callback(EVENT, swap_ultralytics_trainer)
    trace = profile(activities=[ProfilerActivity.CPU])
    # Before, the constructor of the network computes its strides with the layers of PyTorch.
    yolo.add_callback("on_train_start", lambda _: trace.start())
    yolo.train(data=str(data), project=str(tmp_path / "runs"), verbose=False, **options)
    trace.stop()
    assert vendor_operators(trace) == set()
    best = ultralytics.YOLO(next(tmp_path.rglob("best.pt")))
    convolutions = [layer for layer in best.model.modules() if isinstance(layer, nn.Conv2d)]
    assert all(isinstance(layer, GemmConv2d) for layer in convolutions)
    unswap_convs(best.model)
    best.save(tmp_path / "plain.pt")
    assert b"yolo_lightning" not in (tmp_path / "plain.pt").read_bytes()
    assert torch.isfinite(next(iter(best.model.parameters()))).all()
