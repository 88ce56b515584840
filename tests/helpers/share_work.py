"""Results of several processes: torchrun ... share_work.py FOLDER writes FOLDER/RANK.pt."""

import errno
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import distributed as dist, nn

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS.parent))

from tests.callbacks.tiny_training import TinyModule, loader  # noqa: E402
from tests.evaluation.detections import CLASS_NAMES, random_frames  # noqa: E402
from tests.training.test_guarded_step import Rig, make_batch, run  # noqa: E402
from yolo_lightning.callbacks import (  # noqa: E402
    EMA,
    BestCheckpoint,
    LastCheckpoint,
    RandomState,
    StopOnSignal,
    StoppableTrainer,
)
from yolo_lightning.checkpoints.checkpoint_io import AtomicCheckpointIO  # noqa: E402
from yolo_lightning.data.batch import Batch, _slice  # noqa: E402
from yolo_lightning.data.sampling.global_batches import GlobalBatches  # noqa: E402
from yolo_lightning.evaluation.drift import drift_scores, named_scores  # noqa: E402
from yolo_lightning.evaluation.record import EvaluationCollection  # noqa: E402
from yolo_lightning.training.normalization_statistics import (  # noqa: E402
    recompute_statistics,
    share_statistics,
    statistics_of,
)
from yolo_lightning.utils.distributed import gather, sum_over_ranks  # noqa: E402
from yolo_lightning.utils.loop_position import steps_begun  # noqa: E402
from yolo_lightning.utils.stop_signals import request  # noqa: E402

FRAMES = 21
FRAMES_PER_BATCH = 4
EDGES = {"equal": (0, 3, 6), "unequal, one without boxes": (0, 4, 5)}
"""How the images of a batch are dealt to two processes."""


def own_share(edges: tuple[int, ...]) -> Batch:
    """Images of this process."""
    return _slice(make_batch(), edges[dist.get_rank()], edges[dist.get_rank() + 1])


def gradients_of_share(batch: Batch, fault: str = "") -> dict[str, Any]:
    """Gradients and losses of a step, to which each process brings its part of a batch.

    With a `fault`, `fails_forward` or `fails_backward`, the second process runs out of memory with its whole part.
    """
    rig = Rig(batch_norm=False)
    rig.step.prepare(rig.graph, summed=sum_over_ranks)
    if fault and dist.get_rank() == 1:
        setattr(rig, fault, lambda images: images == len(batch))
    losses = run(rig.step, batch, rig.compute, rig.backward)
    return {
        "gradients": rig.gradients(),
        "losses": losses.parts,
        "total": losses.total / len(batch),
        "seen": rig.seen,
        "state": rig.step.state_dict(),
    }


def scores_of_share() -> dict[str, Any]:
    """Scores of frames that are dealt to the processes, and what a gather in their order holds."""
    frames = random_frames(9, frames=FRAMES, months=(202005, 202101), digits=1)  # many ties: their order counts
    metric = EvaluationCollection(len(CLASS_NAMES))
    deal = GlobalBatches(FRAMES_PER_BATCH, dist.get_rank(), dist.get_world_size())
    predictions = []
    for dealt in deal.slices(0, FRAMES):
        metric.update([prediction for prediction, _ in frames[dealt]], [truth for _, truth in frames[dealt]])
        predictions += [prediction for prediction, _ in frames[dealt]]
    gathered = gather(predictions)
    collected = metric.compute("val", CLASS_NAMES)
    return {
        "scores": named_scores(drift_scores(collected.matches), CLASS_NAMES),
        "keys": collected.image_ids,
        "ids": [prediction.image_id for share in gathered for prediction in share],
    }


def statistics_of_ranks() -> dict[str, Any]:
    """Return the running statistics after `share_statistics` and after `recompute_statistics`, and the exchanges."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 3, 1), nn.BatchNorm2d(3), nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2))
    number = float(dist.get_rank() + 1)
    for statistic in statistics_of(network).values():
        statistic.fill_(number)
    share_statistics(network)
    shared = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with patch.object(dist, "all_reduce", wraps=dist.all_reduce) as exchange:
        recompute_statistics(network, [number * torch.rand(2, 1, 4, 4)], ranks=dist.get_world_size())
    recomputed = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    exchanges = exchange.call_count
    torch.manual_seed(1)
    batch = torch.rand(2, 1, 4, 4)
    recompute_statistics(network, [batch] if dist.get_rank() else [], ranks=dist.get_world_size())
    of_second = {name: tensor.clone() for name, tensor in statistics_of(network).items()}
    recompute_statistics(network, [batch])
    of_batch = statistics_of(network)
    return {
        "shared": shared,
        "recomputed": recomputed,
        "exchanges": exchanges,
        "of_second": of_second,
        "of_batch": of_batch,
    }


class FullDisk(AtomicCheckpointIO):
    """Cannot write the first two checkpoints."""

    def __init__(self) -> None:
        self.tries = 0

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        self.tries += 1
        if self.tries <= 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().save_checkpoint(checkpoint, path, storage_options)


class Unequal(Callback):
    """Gives each process other frames, and so other statistics."""

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        batch += trainer.global_rank


def fit_on_a_full_disk(folder: Path) -> dict[str, Any]:
    """Train three epochs; the disk rejects the first two checkpoints."""
    module, best = TinyModule(val_scores=(0.5, 0.3, 0.4)), BestCheckpoint()
    acts = [EMA(decay=0.5, tau=1.0), Unequal(), best, LastCheckpoint()]
    trainer(folder, FullDisk(), acts, epochs=3).fit(module, loader(), loader(1))
    saved = torch.load(folder / "checkpoints" / "best.ckpt", weights_only=True)
    return {"best": float(best.best_model_score or 0), "best_epoch": saved["epoch"], "weights": module.state_dict()}


def trainer(
    folder: Path, writer: AtomicCheckpointIO, acts: list[Callback], epochs: int = 1, kind: type[Trainer] = Trainer
) -> Trainer:
    return kind(
        accelerator="cpu",
        devices=dist.get_world_size(),
        strategy=DDPStrategy(),
        use_distributed_sampler=False,
        default_root_dir=folder,
        max_epochs=epochs,
        callbacks=acts,
        plugins=[writer],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )


class Draws(Callback):
    """Draws a number at each batch."""

    def __init__(self) -> None:
        self.drawn: list[float] = []

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.drawn.append(float(torch.rand(())))


def draws_of_a_resumed_fit(folder: Path) -> dict[str, Any]:
    """What a fit of four batches draws, and what one does that goes on after the second."""
    whole, resumed = Draws(), Draws()
    acts = [RandomState(), whole, LastCheckpoint(1, keep=9)]
    trainer(folder, AtomicCheckpointIO(), acts).fit(TinyModule(), loader(), loader(1))
    torch.rand(dist.get_rank() + 1)
    goes_on = trainer(folder, AtomicCheckpointIO(), [RandomState(), resumed])
    goes_on.fit(TinyModule(), loader(), loader(1), ckpt_path=folder / "checkpoints/step-000000002.ckpt")
    return {"whole": whole.drawn, "resumed": resumed.drawn}


class SignalsTo(Callback):
    """One rank receives SIGTERM within a batch."""

    def __init__(self, rank: int, batch: int) -> None:
        self.rank, self.batch = rank, batch

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if (trainer.global_rank, batch_idx) == (self.rank, self.batch):
            os.kill(os.getpid(), signal.SIGTERM)


def stop_of_a_fit(folder: Path) -> dict[str, Any]:
    """Which step each rank stops after, and which are saved, where only the second rank receives SIGTERM."""
    request.install()
    acts = [StopOnSignal(), SignalsTo(1, 2), LastCheckpoint(0)]
    stopping = trainer(folder, AtomicCheckpointIO(), acts, kind=StoppableTrainer)
    with suppress(SIGTERMException):
        stopping.fit(TinyModule(), loader(9), loader(1))
    saved = sorted(path.name for path in (folder / "checkpoints").glob("step-*.ckpt"))
    return {"step": steps_begun(stopping), "saved": saved, "finished": stopping.state.finished}


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    to = Path(sys.argv[1])
    results = {
        "gradients": {name: gradients_of_share(own_share(edges)) for name, edges in EDGES.items()},
        "split": {
            fault: gradients_of_share(own_share(EDGES["equal"]), fault) for fault in ("fails_forward", "fails_backward")
        },
        "scores": scores_of_share(),
        "statistics": statistics_of_ranks(),
        "full_disk": fit_on_a_full_disk(to / "run"),
        "draws": draws_of_a_resumed_fit(to / "drawing"),
        "stop": stop_of_a_fit(to / "stopping"),
    }
    torch.save(results, to / f"{dist.get_rank()}.pt")
