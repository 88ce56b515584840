"""Run one training twice with equal batches and weights: by Ultralytics' trainer and by this package."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader
from ultralytics.models.yolo.detect import DetectionTrainer
from ultralytics.nn.tasks import DetectionModel

from tests.helpers.networks import module_of
from yolo_lightning.callbacks import EMA
from yolo_lightning.data.batch import Batch, TrainingFacts
from yolo_lightning.data.boxes import Letterbox
from yolo_lightning.data.formats.ltdv2 import CLASS_NAMES

SIZE, BATCH_SIZE, STEPS_PER_EPOCH = 64, 4, 5
Weights = dict[str, Tensor]
Step = dict[str, Any]

SCORES = {
    "metrics/precision(B)": "val/ultralytics_precision",
    "metrics/recall(B)": "val/ultralytics_recall",
    "metrics/mAP50(B)": "val/ultralytics_map_50",
    "metrics/mAP50-95(B)": "val/ultralytics_map",
}
"""Logged scores by Ultralytics' names."""


def random_batches(batches: int = STEPS_PER_EPOCH, *, size: int = SIZE, seed: int = 7) -> list[Batch]:
    """Noise with boxes, in three channels: Ultralytics' first layer takes no single one here."""
    generator = torch.Generator().manual_seed(seed)
    return [_random_batch(generator, size) for _ in range(batches)]


def _random_batch(generator: torch.Generator, size: int) -> Batch:
    sample_index = torch.arange(BATCH_SIZE).repeat_interleave(3)
    centres = torch.rand(len(sample_index), 2, generator=generator) * 0.5 + 0.25
    sides = torch.rand(len(sample_index), 2, generator=generator) * 0.3 + 0.1
    return Batch(
        images=torch.randint(256, (BATCH_SIZE, 3, size, size), dtype=torch.uint8, generator=generator),
        boxes=torch.cat((centres, sides), 1),
        labels=torch.randint(len(CLASS_NAMES), (len(sample_index),), generator=generator).clamp(max=2),
        sample_index=sample_index,
        image_ids=("0",) * BATCH_SIZE,
        frame_shapes=((size, size),) * BATCH_SIZE,
        letterboxes=(Letterbox(1.0, 0, 0),) * BATCH_SIZE,
        readable=(True,) * BATCH_SIZE,
    )


def as_ultralytics(batch: Batch) -> dict[str, Tensor]:
    """What Ultralytics' own collate function makes of the same samples."""
    return {
        "img": batch.images.clone(),
        "batch_idx": batch.sample_index.float(),
        "cls": batch.labels.float()[:, None],
        "bboxes": batch.boxes.clone(),
    }


def initial_graph(variant: str = "yolov8n") -> DetectionModel:
    torch.manual_seed(0)
    return DetectionModel(f"{variant}.yaml", ch=3, nc=len(CLASS_NAMES), verbose=False)


class Batches:
    """Stands for Ultralytics' loader: the same batches in every epoch."""

    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches
        self.batch_size, self.num_workers, self.drop_last = BATCH_SIZE, 0, False
        self.sampler = range(BATCH_SIZE * len(batches))
        self.dataset = Labels(batches)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return (as_ultralytics(batch) for batch in self.batches)

    def reset(self) -> None:
        """Nothing is prefetched."""


class Labels:
    def __init__(self, batches: list[Batch]) -> None:
        self.labels = [{"cls": batch.labels.numpy().astype(np.float32)[:, None]} for batch in batches]

    def __len__(self) -> int:
        return BATCH_SIZE * len(self.labels)


class UltralyticsTrainer(DetectionTrainer):
    """Ultralytics' training loop as it is, without files, data set, validation and pictures."""

    def __init__(self, folder: Path, batches: list[Batch], variant: str = "yolov8n", **overrides: Any) -> None:
        self.batches, self.steps = batches, []
        fixed = {"model": f"{variant}.yaml", "project": str(folder), "name": "theirs", "device": "cpu", "imgsz": SIZE}
        off = {"amp": False, "plots": False, "save": False, "close_mosaic": 0, "optimizer": "SGD"}
        super().__init__(overrides=fixed | off | {"batch": BATCH_SIZE, "nbs": BATCH_SIZE} | overrides)
        self.model = initial_graph(variant)
        self.add_callback("on_train_batch_end", self._record)

    def get_dataset(self) -> dict[str, Any]:
        names = dict(enumerate(CLASS_NAMES))
        return {"train": "", "val": "", "nc": len(names), "names": names, "channels": 3}

    def get_dataloader(self, *_: Any, **__: Any) -> Batches:
        return Batches(self.batches)

    def get_validator(self) -> SimpleNamespace:
        return SimpleNamespace(metrics=SimpleNamespace(keys=[]), dataloader=None)

    def validate(self) -> tuple[dict[str, float], float]:
        return {}, 0.5

    def save_metrics(self, metrics: dict[str, float]) -> None:
        pass

    def save_model(self) -> bool:
        return False

    def final_eval(self) -> None:
        pass

    def _record(self, _: Any) -> None:
        names = [group["param_group"].replace("bn", "normalisation") for group in self.optimizer.param_groups]
        if "muon" in names:
            names = [f"class head {name}" if number % 2 == 0 else name for number, name in enumerate(names)]
        groups = dict(zip(names, self.optimizer.param_groups, strict=True))
        self.steps.append(record(groups, float(self.loss.detach()) / BATCH_SIZE))


class Frames(LightningDataModule):
    """The part of our data module that the network's module asks for."""

    def __init__(self, batches: list[Batch]) -> None:
        super().__init__()
        self.batches = batches

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.batches, batch_size=None)  # type: ignore[arg-type]

    def training_facts(self) -> TrainingFacts:
        labels = torch.cat([batch.labels for batch in self.batches])
        return TrainingFacts(BATCH_SIZE, 0, tuple(labels.bincount(minlength=len(CLASS_NAMES)).tolist()))


class Recorder(Callback):
    """Sees the averaged weights before EMA leaves them in the network, and the optimizer after every step."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.weights: Weights = {}

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        groups = {group["name"]: group for group in trainer.optimizers[0].param_groups}
        self.steps.append(record(groups, float(trainer.callback_metrics["train/loss"])))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.weights = state(pl_module.graph)


def record(groups: dict[str, dict[str, Any]], loss: float) -> Step:
    names = ("lr", "momentum", "betas", "weight_decay")
    return {
        "loss": loss,
        "groups": {key: {name: group[name] for name in names if name in group} for key, group in groups.items()},
    }


def state(graph: Any) -> Weights:
    return {name: tensor.detach().clone() for name, tensor in graph.state_dict().items()}


def train_theirs(
    folder: Path, epochs: int = 2, batches: list[Batch] | None = None, **overrides: Any
) -> tuple[Weights, Weights, list[Step]]:
    """Trained weights, their average, and the steps."""
    trainer = UltralyticsTrainer(folder, batches or random_batches(), epochs=epochs, **overrides)
    trainer.train()
    return state(trainer.model), state(trainer.ema.ema), trainer.steps


def train_ours(
    folder: Path, epochs: int = 2, batches: list[Batch] | None = None, **arguments: Any
) -> tuple[Weights, Weights, list[Step]]:
    """The same by a `YOLOModule` under Lightning."""
    module = module_of(**({"backend": "native", "nominal_batch": BATCH_SIZE} | arguments))
    module.graph.load_state_dict(initial_graph(module.hparams["variant"]).state_dict())
    recorder = Recorder()
    trainer = make_trainer(folder, epochs, recorder, EMA())
    trainer.fit(module, Frames(batches or random_batches()))
    return recorder.weights, state(deepcopy(module.graph)), recorder.steps


def make_trainer(folder: Path, epochs: int, *callbacks: Callback, **options: Any) -> Trainer:
    settings: dict[str, Any] = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}
    return Trainer(
        default_root_dir=folder, max_epochs=epochs, callbacks=list(callbacks), **(settings | quiet | options)
    )


def largest_difference(actual: Weights, expected: Weights) -> float:
    """Over all tensors of floating point. Counters are left out: theirs stand still in the average, ours are copied."""
    assert actual.keys() == expected.keys()
    floating = [name for name, tensor in actual.items() if tensor.is_floating_point()]
    return max(float((actual[name] - expected[name]).abs().max()) for name in floating)
