"""Stage `step`: YOLOModule in a Lightning Trainer on random images, with guarded step and pinned batches."""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader

from yolo_lightning.commands.benchmark.comparison import (
    Result,
    Timer,
    compare,
    faster,
    fastest,
    ratio,
    ratio_text,
    record_failures,
    result_table,
)
from yolo_lightning.commands.benchmark.conv_variants import Variant, convert
from yolo_lightning.commands.benchmark.result_texts import ms
from yolo_lightning.commands.benchmark.section import Section
from yolo_lightning.data.batch import Batch
from yolo_lightning.data.boxes import Letterbox
from yolo_lightning.data.formats.ltdv2 import CLASS_NAMES
from yolo_lightning.data.image_size import ImageSize
from yolo_lightning.model.convolution_settings import ConvolutionSettings
from yolo_lightning.module import YOLOModule
from yolo_lightning.training.guard_settings import GuardSettings
from yolo_lightning.training.recipe import Recipe
from yolo_lightning.utils.accelerator import synchronize
from yolo_lightning.utils.announced_operations import announce
from yolo_lightning.utils.tensorboard import Curves

STEPS_PER_SAMPLE = 8
"""Eight steps of eight images contain one optimizer step."""
WARM_STEPS = 2
BATCHES = 4
"""Different batches, which repeat; in page-locked memory if there is a GPU."""
BFLOAT16_VARIANTS = (Variant.GEMM, Variant.GEMM_KERNELS, Variant.NATIVE_NHWC, Variant.NATIVE_GRAPH)
EPOCH_IMAGES = 329_299
"""Training frames of LTDv2."""
Precision = Literal["32-true", "bf16-mixed", "16-mixed"]


def step(section: Section) -> None:
    """Measure a training step of YOLOModule in a Lightning Trainer, in float32 and with bfloat16 autocast."""
    section.record.add(
        "YOLOModule in a Lightning Trainer: transfer from page-locked memory (on a GPU), guarded step, loss, clipping,"
        " optimizer step after 64 images, logging. Wall-clock time per step."
    )
    results = _compare_steps(section, tuple(Variant), "32-true")
    section.record.verdict = faster(ratio(fastest(results, "gemm"), fastest(results, "native")))
    section.record.answer = _speed_text(results)
    section.save(results=[asdict(result) for result in results])
    best = fastest(results, "gemm", "native")
    if best.samples_s:
        hours = math.ceil(EPOCH_IMAGES / section.batch_size) * best.median_s / 3600
        section.record.add(
            f"An epoch of LTDv2 ({EPOCH_IMAGES:,} frames) with `{best.variant}` takes {hours:.2f} h, without data"
            " loading and validation."
        )
    results = _compare_steps(section, BFLOAT16_VARIANTS, "bf16-mixed")
    section.record.answer += f"; bfloat16: {_speed_text(results)}"
    section.save(bfloat16=[asdict(result) for result in results])


def _compare_steps(section: Section, variants: Sequence[Variant], precision: Precision) -> list[Result]:
    """Measure the variants with a precision of Lightning's Trainer, and add their table to the record."""

    def prepare(variant: Variant) -> Timer:
        announce(f"training step, {variant}, {precision}, {section.images}")
        return TrainerSteps(section, variant, precision).time

    works = {variant: partial(prepare, variant) for variant in section.variants(variants)}
    results = compare(section, works, calls=1 if section.quick else STEPS_PER_SAMPLE)
    section.record.add(f"Training step, {precision}, {section.images}:")
    section.record.add(*result_table(results, section.batch_size))
    record_failures(section.record, results)
    return results


def _speed_text(results: Sequence[Result]) -> str:
    """Return the times of the fastest variants of this package and of PyTorch, and their ratio."""
    gemm = fastest(results, "gemm")
    native = fastest(results, "native")
    times = f"{gemm.variant} {ms(gemm.median_s)} ms, {native.variant} {ms(native.median_s)} ms"
    return f"{times}: {ratio_text(ratio(gemm, native))} times the time of native"


class TrainerSteps:
    """Training steps of one variant, in as many epochs as `time` is called; other variants can take turns.

    A batch that does not fit into the memory is an error. `self_check_share` is the share of the time for checks.
    """

    def __init__(self, section: Section, variant: Variant, precision: Precision, self_check_share: float = 0.0) -> None:
        guard = GuardSettings(max_oom_splits=0, self_check_share=self_check_share)
        convolution = ConvolutionSettings(backend="native", cuda_graph=variant is Variant.NATIVE_GRAPH)
        self._module = make_module(recipe=Recipe(warmup_epochs=0.0), guard=guard, convolution=convolution)
        convert(self._module.graph, variant)
        self._clock = StepClock(section.device)
        self._batches = [random_batch(section.batch_size, section.image_size, seed) for seed in range(BATCHES)]
        if section.device.type in ("cuda", "xpu"):
            self._batches = [batch.pin_memory() for batch in self._batches]
        self._trainer = Trainer(
            accelerator=section.device.type,
            devices=1 if section.device.index is None else [section.device.index],
            precision=precision,
            max_epochs=1,
            logger=Curves(section.folder, name="", version=variant.value),
            log_every_n_steps=10,
            callbacks=[self._clock],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=section.folder,
        )

    def time(self, steps: int) -> float:
        """Return the mean duration of steps after a warm-up in seconds, transfer of batches included."""
        self._clock.steps = steps
        size = len(self._batches[0])
        positions: Any = range((WARM_STEPS + steps) * size)
        loader = DataLoader(positions, size, collate_fn=lambda images: self._batches[images[0] // size % BATCHES])
        self._trainer.fit_loop.max_epochs = self._trainer.current_epoch + 1
        self._trainer.fit(self._module, train_dataloaders=loader)
        return self._clock.seconds / steps


class StepClock(Callback):
    """Times `steps` steps after the warm-up; the host waits for the device before and after."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.steps = 1
        self.seconds = 0.0
        self._began_s = 0.0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx + 1 == WARM_STEPS:
            self._began_s = self._now_s()
        if batch_idx + 1 == WARM_STEPS + self.steps:
            self.seconds = self._now_s() - self._began_s

    def _now_s(self) -> float:
        synchronize(self.device)
        return time.perf_counter()


def random_batch(batch_size: int, image_size: ImageSize, seed: int) -> Batch:
    """Return noise images with 5 to 13 boxes each, whose sides are 2 to 20 % of those of the image; on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(5, 14, (batch_size,), generator=generator)
    number = int(counts.sum())
    sides = 0.02 + 0.18 * torch.rand(number, 2, generator=generator)
    centres = sides / 2 + (1 - sides) * torch.rand(number, 2, generator=generator)
    height, width = image_size
    return Batch(
        images=torch.randint(0, 256, (batch_size, 1, height, width), dtype=torch.uint8, generator=generator),
        boxes=torch.cat((centres, sides), dim=1),
        labels=torch.randint(0, len(CLASS_NAMES), (number,), generator=generator),
        sample_index=torch.arange(batch_size).repeat_interleave(counts),
        image_ids=tuple(map(str, range(batch_size))),
        frame_shapes=((height, width),) * batch_size,
        letterboxes=(Letterbox(1.0, 0, 0),) * batch_size,
        readable=(True,) * batch_size,
    )


def make_module(**options: Any) -> YOLOModule:
    """Return YOLOv8n with equal random weights in training mode on the CPU, by default with native convolutions.

    `options` are further arguments of `YOLOModule`.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return YOLOModule("yolov8n", **({"convolution": ConvolutionSettings(backend="native")} | options)).train()
