"""Section `loader`: training samples per second and core from each storage."""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from statistics import median

import cv2
import torch

from yolo_lightning.commands.benchmark.comparison import rounds
from yolo_lightning.commands.benchmark.findings import Findings, table
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.dataset import TrainingDataset
from yolo_lightning.data.sampling.epoch_order import SampledOrder, Sampling
from yolo_lightning.data.sampling.mosaic_partners import frames_to_cache
from yolo_lightning.data.sampling.resumable_loader import EpochBatchSampler, Position
from yolo_lightning.errors import UserError
from yolo_lightning.utils.choices import check_range


def loader(
    *,
    data: DetectionDataModule,
    samples: int = 60,
    repeats: int = 7,
) -> None:
    """Measure training samples per second and core.

    Every available storage (packed store, folder, frames.zip) is measured in turns, from a warm page cache, with the
    full augmentation in every sample.

    Args:
        data: Dataset, augmentation, batch size and loader settings.
        samples: Samples per measurement, on one core.
        repeats: Measurements per storage; the median is reported.
    """
    check_range("samples", samples, ">= 1")
    check_range("repeats", repeats, ">= 1")
    data.setup("fit")
    datasets = training_datasets(data)
    makers = {name: sample_maker(dataset) for name, dataset in datasets.items()}
    # After as many samples, all image caches are full.
    warm_up = max(dataset.frames.cache.max_frames for dataset in datasets.values())
    torch.set_num_threads(1)  # as in a loader worker
    cv2.setNumThreads(0)
    times = measure_speeds(makers, samples, repeats, warm_up)
    findings = Findings()
    findings.add(f"{data.image_size} px, one core, median (slowest to fastest):")
    rows = []
    for name, own in times.items():
        speed, slow, fast = (f"{1 / time_s:,.0f}" for time_s in (median(own), max(own), min(own)))
        rows.append([name, f"{speed} ({slow} to {fast})", f"{median(own) * 1e3:.2f}"])
    findings.add(*table(["storage", "samples/s per core", "ms per sample"], rows))
    findings.finish()


def training_datasets(data: DetectionDataModule) -> dict[str, TrainingDataset]:
    """Return a training dataset for each available storage of the frames, with mosaic in every sample.

    Each has the image cache of a single loader process.
    """
    settings = replace(data.augmentation, mosaic=1.0)
    datasets: dict[str, TrainingDataset] = {}
    problems = []
    for storage in data.dataset_format.storages:
        try:
            frames = data.open("train", storage)
        except UserError as error:
            problems.append(f"{storage}: {error}")
        else:
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
    times: dict[str, list[float]] = {name: [] for name in makers}
    for turn, order in enumerate([tuple(makers), *rounds(tuple(makers), repeats)]):
        for name in order:
            began_s = time.perf_counter()
            for _ in range(samples if turn else max(samples, warm_up)):
                makers[name]()
            if turn:
                times[name].append((time.perf_counter() - began_s) / samples)
    return times
