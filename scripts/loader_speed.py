"""Measure training samples per second and core from each available storage (packed store, folder, frames.zip).

    python scripts/loader_speed.py --config configs/ltdv2.yaml --data.root LTDv2

The storages take turns, from a warm page cache, with the full augmentation in every sample. Options `--data.*` are
those of `fit`.
"""

import itertools
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from statistics import median

import cv2
import torch
from comparison.dataset import with_storage

from yolo_lightning.commands.benchmark.comparison import rounds
from yolo_lightning.commands.benchmark.result_texts import table
from yolo_lightning.commands.command_line import call
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.dataset import TrainingDataset
from yolo_lightning.data.sampling.epoch_order import SampledOrder, Sampling
from yolo_lightning.data.sampling.mosaic_partners import frames_to_cache
from yolo_lightning.data.sampling.resumable_loader import EpochBatchSampler, Position
from yolo_lightning.errors import UserError
from yolo_lightning.utils.choices import check_range


def loader_speed(*, data: DetectionDataModule, samples: int = 60, repeats: int = 7) -> None:
    """Print the speed of each available storage as a table.

    Args:
        data: Dataset, augmentation, batch size and loader settings.
        samples: Samples per measurement, on one core.
        repeats: Measurements per storage; the median is reported.
    """
    check_range("samples", samples, ">= 1")
    check_range("repeats", repeats, ">= 1")
    data.setup("fit")
    datasets = training_datasets(data)
    makers = {storage: sample_maker(dataset) for storage, dataset in datasets.items()}
    # After as many samples, all image caches are full.
    warm_up = max(dataset.frames.cache.max_frames for dataset in datasets.values())
    torch.set_num_threads(1)  # as in a loader worker
    cv2.setNumThreads(0)
    rows = []
    for storage, times_s in measure_speeds(makers, samples, repeats, warm_up).items():
        speed, slowest, fastest = (f"{1 / time_s:,.0f}" for time_s in (median(times_s), max(times_s), min(times_s)))
        rows.append([storage, f"{speed} ({slowest} to {fastest})", f"{median(times_s) * 1e3:.2f}"])
    print(f"{data.image_size} px, one core, median (slowest to fastest):\n")
    print("\n".join(table(["storage", "samples/s per core", "ms per sample"], rows)))


def training_datasets(data: DetectionDataModule) -> dict[str, TrainingDataset]:
    """Return a training dataset for each available storage of the frames, with mosaic in every sample.

    Each has the image cache of a single loader process.
    """
    settings = replace(data.augmentation, mosaic=1.0)
    datasets: dict[str, TrainingDataset] = {}
    problems = []
    for storage in data.dataset_format.storages:
        data.dataset_format = with_storage(data.dataset_format, storage)
        try:
            frames = data.open("train")
        except UserError as error:
            problems.append(f"{storage}: {error}")
            continue
        window = frames_to_cache(len(frames), 1, data.batch_size, has_mixup=settings.mixup > 0)
        frames = frames.cached(data.storage.image_cache_mib, window)
        datasets[storage] = TrainingDataset(frames, data.image_size, settings, data.seed)
    if not datasets:
        raise UserError("; ".join(problems))
    return datasets


def sample_maker(dataset: TrainingDataset) -> Callable[[], object]:
    """Return a function that makes the next sample, in the order of the epochs, which use each frame once."""
    order = SampledOrder(dataset.frames.index, Sampling(), dataset.seed)
    keys = EpochBatchSampler(order, 1, has_mixup=dataset.augmentation.mixup > 0)

    def samples() -> Iterator[object]:
        for epoch in itertools.count():
            for (key,) in keys.from_position(Position(epoch)):
                yield dataset[key]

    return samples().__next__


def measure_speeds(
    makers: Mapping[str, Callable[[], object]], samples: int, repeats: int, warm_up: int = 0
) -> dict[str, list[float]]:
    """Return the seconds per sample of each function, one value per turn.

    The functions take turns: one unmeasured turn of `samples` or `warm_up` samples, whichever is more, then `repeats`
    measured ones of `samples` samples.
    """
    for make in makers.values():
        _time_samples(make, max(samples, warm_up))
    times_s: dict[str, list[float]] = {name: [] for name in makers}
    for order in rounds(list(makers), repeats):
        for name in order:
            times_s[name].append(_time_samples(makers[name], samples))
    return times_s


def _time_samples(make: Callable[[], object], samples: int) -> float:
    """Return the mean duration of a sample in seconds."""
    began_s = time.perf_counter()
    for _ in range(samples):
        make()
    return (time.perf_counter() - began_s) / samples


if __name__ == "__main__":
    call(loader_speed, sys.argv[1:])
