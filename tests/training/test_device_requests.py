"""A training step by Lightning's Trainer on the meta device: waits for the device, copies to it, and memory."""

import functools
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor
from torch.utils.data import DataLoader

from tests.conv.emulation import assume_available
from tests.helpers.dispatch_count import counts_lists
from tests.helpers.meta_device import META, MetaAccelerator, MetaDevice, Requests
from yolo_lightning.callbacks import EMA, EpochTable, MetricsFile, ProgressLines, StatusFile
from yolo_lightning.conv import Plan
from yolo_lightning.data.batch import Batch, TrainingFacts
from yolo_lightning.data.boxes import Letterbox
from yolo_lightning.model import conv_backend
from yolo_lightning.model.convolution_settings import ConvolutionSettings
from yolo_lightning.model.loss_settings import LossSettings
from yolo_lightning.module import YOLOModule
from yolo_lightning.training.guard_settings import GuardSettings
from yolo_lightning.training.recipe import Recipe

IMAGES, SIZE, BOXES = 8, 640, 8
GIB = 1 << 30

DOCUMENTED_WAITS = {
    # Whether a batch is skipped must be known before its backward pass, and an update before it changes the weights.
    "local_scalar_dense in yolo_lightning/training/guarded_step.py:GuardedStep.are_finite": 1,
    "local_scalar_dense in yolo_lightning/module.py:YOLOModule._clip_gradients": 1,
    # The numbers of boxes and of assigned anchors are sizes of tensors.
    "unique2 in ultralytics/utils/loss.py:v8DetectionLoss.preprocess": 1,
    "local_scalar_dense in ultralytics/utils/loss.py:v8DetectionLoss.preprocess": 1,
    "nonzero in ultralytics/utils/tal.py:TaskAlignedAssigner.get_box_metrics": 1,
    "nonzero in ultralytics/utils/loss.py:BboxLoss.forward": 1,
}
DOCUMENTED_UPLOADS = {
    "_to_copy in ultralytics/utils/tal.py:make_anchors": 6,
    "lift_fresh in ultralytics/utils/loss.py:v8DetectionLoss.get_assigned_targets_and_loss": 2,
    "lift_fresh in ultralytics/utils/tal.py:TaskAlignedAssigner.select_candidates_in_gts": 1,
}
"""docs/accelerators.md explains them."""


class RecordSteps(Callback):
    """Stores what each step asked of the device, from the end of the previous step on, and its peak of memory."""

    def __init__(self, device: MetaDevice) -> None:
        self.device = device
        self.steps: list[tuple[Requests, int]] = []

    def on_train_batch_end(self, *_: Any) -> None:
        self.steps.append((self.device.requests, self.device.peak_bytes))
        self.device.start()


def make_batch() -> Batch:
    count = IMAGES * BOXES
    return Batch(
        images=torch.zeros(IMAGES, 1, SIZE, SIZE, dtype=torch.uint8),
        boxes=torch.full((count, 4), 0.3),
        labels=torch.zeros(count, dtype=torch.int64),
        sample_index=torch.arange(IMAGES).repeat_interleave(BOXES),
        image_ids=tuple(map(str, range(IMAGES))),
        frame_shapes=((SIZE, SIZE),) * IMAGES,
        letterboxes=(Letterbox(1.0, 0, 0),) * IMAGES,
        readable=(True,) * IMAGES,
    )


@functools.cache
def second_step(backend: str, activation_checkpointing: bool) -> tuple[Requests, int]:
    """Return what the second training step of YOLOv8n asks of a device, and its peak of memory in bytes.

    Forward pass, loss, backward pass, update, EMA, logging and the transfer of a pinned batch, as Lightning runs them.
    `backend` is `native`, `gemm`, or `kernels`: `gemm` with the GPU kernels.
    """
    loader: Any = DataLoader([make_batch()] * 2, batch_size=None)  # type: ignore[arg-type]
    device = MetaDevice(IMAGES, number=BOXES)
    recorder = RecordSteps(device)
    with pytest.MonkeyPatch.context() as patch:
        # Its own decisions: those on the meta device, with or without kernels, must not leave this function.
        patch.setattr(conv_backend, "DEFAULT_PLAN", Plan())
        module = YOLOModule(
            convolution=ConvolutionSettings(
                backend="native" if backend == "native" else "gemm", activation_checkpointing=activation_checkpointing
            ),
            recipe=Recipe(nominal_batch=IMAGES),
            loss=LossSettings(class_weight_power=0.5),
            guard=GuardSettings(self_check_share=0),  # a step that is not checked
        )
    trainer = Trainer(
        strategy=SingleDeviceStrategy(device=META, accelerator=MetaAccelerator()),
        max_epochs=1,
        callbacks=[EMA(), recorder],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    kernels = assume_available("meta") if backend == "kernels" else nullcontext()
    with pytest.MonkeyPatch.context() as patch, kernels, device:
        facts = TrainingFacts(IMAGES, class_counts=(4, 3, 2, 1))
        patch.setattr(TrainingFacts, "from_trainer", lambda trainer: facts)
        patch.setattr(Tensor, "is_pinned", lambda tensor: tensor.device.type == "cpu")
        trainer.fit(module, loader)
    return recorder.steps[1]


@pytest.mark.parametrize("backend", [pytest.param("native", marks=pytest.mark.whole_run), "gemm", "kernels"])
def test_step_waits_for_the_device_where_it_is_documented_only(backend: str) -> None:
    requests, _ = second_step(backend, False)
    assert dict(requests.waits) == DOCUMENTED_WAITS


@counts_lists
@pytest.mark.parametrize("backend", [pytest.param("native", marks=pytest.mark.whole_run), "gemm", "kernels"])
def test_step_copies_nothing_to_the_device_but_the_batch(backend: str) -> None:
    requests, _ = second_step(backend, False)
    assert requests.queued_uploads == 4
    assert dict(requests.uploads) == DOCUMENTED_UPLOADS


@pytest.mark.parametrize("backend", ["gemm", "kernels"])
def test_step_reports_each_wait_for_the_device(backend: str) -> None:
    requests, _ = second_step(backend, False)
    assert not requests.unreported


class RecordTraining(Callback):
    """Forgets what the set-up of the training asked of the device: a hang there has a phase of its own."""

    def __init__(self, device: MetaDevice) -> None:
        self.device = device

    def on_train_start(self, *_: Any) -> None:
        self.device.start()


class ReadsEverything(Logger):
    """Logger for whose values Lightning waits in every step."""

    name = version = "reads everything"

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        pass

    def log_hyperparams(self, *arguments: Any, **named: Any) -> None:
        pass


def test_fit_with_validation_and_logger_reports_each_wait_for_the_device(tmp_path: Path) -> None:
    loader: Any = DataLoader([make_batch()], batch_size=None)  # type: ignore[arg-type]
    device = MetaDevice(IMAGES, number=BOXES)
    module = YOLOModule(
        convolution=ConvolutionSettings(backend="gemm"),
        recipe=Recipe(nominal_batch=IMAGES),
        guard=GuardSettings(self_check_share=0),
    )
    trainer = Trainer(
        strategy=SingleDeviceStrategy(device=META, accelerator=MetaAccelerator()),
        max_epochs=1,
        callbacks=[
            RecordTraining(device),
            EMA(),
            MetricsFile(),
            ProgressLines(interval_s=0),
            EpochTable(),
            StatusFile(),
        ],
        logger=ReadsEverything(),
        log_every_n_steps=1,
        num_sanity_val_steps=0,
        default_root_dir=tmp_path,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with pytest.MonkeyPatch.context() as patch, device:
        facts = TrainingFacts(IMAGES, class_counts=(4, 3, 2, 1))
        patch.setattr(TrainingFacts, "from_trainer", lambda trainer: facts)
        patch.setattr(conv_backend, "DEFAULT_PLAN", Plan())
        trainer.fit(module, loader, loader)
    assert sum(device.requests.waits.values()) > 20
    # Within the forward pass of an evaluation, the head computes anchors for each new image size.
    assert not [request for request in device.requests.unreported if "make_anchors" not in request]


def test_step_backs_up_buffers_with_one_copy_per_dtype() -> None:
    requests, _ = second_step("gemm", False)
    # GuardedStep copies float32 and int64 buffers, EMA the int64 buffers.
    assert requests.kernels["_foreach_copy_"] == 3
    assert requests.kernels["_foreach_lerp_"] == 1


@pytest.mark.parametrize(
    ("backend", "checkpointing", "limit_gib"),
    [
        pytest.param("native", False, 1.5, marks=pytest.mark.whole_run),
        ("gemm", False, 1.5),
        pytest.param("gemm", True, 1.1, marks=pytest.mark.whole_run),
        ("kernels", False, 1.5),
    ],
)
def test_peak_memory_of_a_step(backend: str, checkpointing: bool, limit_gib: float) -> None:
    """The limits are measured peaks, rounded up; the lower bound shows that activations are counted."""
    _, peak_bytes = second_step(backend, checkpointing)
    assert 0.5 * limit_gib < peak_bytes / GIB < limit_gib


@pytest.mark.parametrize(
    "work",
    [
        lambda tensor: tensor.sum().item(),
        lambda tensor: tensor.copy_(torch.ones(4)),
        pytest.param(lambda tensor: tensor[[0, 1]], marks=counts_lists),
        lambda tensor: tensor[torch.tensor([0, 1])],
        lambda tensor: tensor[tensor > 0],
        lambda tensor: tensor.cpu(),
        pytest.param(lambda tensor: torch.tensor(1.0, device=tensor.device), marks=counts_lists),
    ],
    ids=["item", "blocking copy", "list", "host tensor", "mask", "copy to the host", "tensor of a number"],
)
def test_instrument_counts(work: Any) -> None:
    with MetaDevice(IMAGES) as device:
        tensor = torch.empty(4, device=META)
        work(tensor)
    assert len(device.requests.waits) + len(device.requests.uploads) == 1


def test_instrument_ignores_what_a_device_does_alone() -> None:
    with MetaDevice(IMAGES) as device:
        tensor = torch.full((4,), 2.0, device=META)
        tensor.mul_(torch.tensor(3.0)).copy_(torch.ones(4), non_blocking=True)
        tensor[1:3] = 0.0
    assert not device.requests.waits
    assert not device.requests.uploads
    assert device.requests.queued_uploads == 1


def test_instrument_measures_live_memory() -> None:
    with MetaDevice(IMAGES) as device:
        first = torch.empty(1000, device=META)
        view = first[10:]
        del first
        second = view + 1
        del view
        third = second.clone()
    assert device.live_bytes == (990 + 990) * third.element_size()
    assert device.peak_bytes == (1000 + 990) * third.element_size()
