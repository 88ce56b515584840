"""`benchmark_loader`: training samples per second, time to the first batch, and memory of the loader workers."""

import pickle
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import cv2
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader

from yolo_lightning.commands.benchmark.timing import Spread, rounds
from yolo_lightning.commands.benchmark_loader.worker_start import WorkerStart, floor_of, watch_start
from yolo_lightning.data.batch import collate
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.dataset import TrainingDataset
from yolo_lightning.utils.files import write_json

PIPE_COLUMNS = 120
"""Width of the tables if the output is not a terminal."""
STARTS = 3
"""Starts per number of workers; the first one may read files from disk and start the fork server."""
MIB = 1024**2
ALL_EPOCHS = 2**31
"""Number of mosaic epochs that no run exceeds."""

FIRST_BATCH_LIMIT_S = 300.0

Arm = Callable[[int], object]
"""Function that makes training sample number n."""


def benchmark_loader(
    *,
    data: DetectionDataModule,
    workers: tuple[int, ...] = (0, 2, 4),
    samples: int = 60,
    repeats: int = 7,
    json: Path | None = None,
) -> None:
    """Measure training samples per second and core, the time to the first batch and the memory of the workers.

    Every available storage (packed store, folder, frames.zip) is measured in turns, from a warm page cache, with the
    full augmentation in every sample. The time to the first batch is printed beside a lower bound: the same number of
    interpreters that only import torch.

    Args:
        data: Dataset, augmentation, batch size and loader settings.
        workers: Numbers of workers to start, each >= 0.
        samples: Samples per measurement, on one core.
        repeats: Measurements per storage; the median is reported.
        json: Output file for all results.

    Raises:
        ValueError: If an option is out of range, or the data cannot be used.
    """
    for name, value in (("samples", samples), ("repeats", repeats)):
        if value < 1:
            raise ValueError(f"{name} must be >= 1, got {value}")
    if min(workers, default=0) < 0:
        raise ValueError(f"workers must contain values >= 0 only, got {list(workers)}")
    started = time.perf_counter()
    data.setup("fit")
    setup_s = time.perf_counter() - started
    datasets = our_datasets(data)
    speeds = measure_speeds({name: arm_of(dataset) for name, dataset in datasets.items()}, samples, repeats)
    dataset = next(iter(datasets.values()))
    pickled_bytes = len(pickle.dumps(dataset))
    starts = {f"{count} workers": [start_of(data, dataset, count) for _ in range(STARTS)] for count in workers}
    floors = {f"{count} workers": floor_of(count) for count in workers if count}
    console = wide_console()
    console.print(f"data module setup: {setup_s:.2f} s; pickled dataset: {pickled_bytes:,} bytes")
    console.print(speed_table(speeds, f"{data.image_size} x {data.image_size}, one core"))
    console.print(start_table(starts, floors, data))
    if json is not None:
        content = {
            "setup_s": setup_s,
            "pickled_bytes": pickled_bytes,
            "samples_s": {name: spread.samples_s for name, spread in speeds.items()},
            "starts": {name: [asdict(start) for start in own] for name, own in starts.items()},
            "floors": {name: asdict(floor) for name, floor in floors.items()},
        }
        write_json(json, content)


def wide_console() -> Console:
    """Return a console for stdout that is wide enough for the tables if stdout is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS)


def our_datasets(data: DetectionDataModule) -> dict[str, TrainingDataset]:
    """Return a training dataset for each available storage of the frames, with mosaic in every sample.

    Raises:
        ValueError: If no storage is available; the message lists the reason for each.
    """
    settings = replace(data.augmentation, mosaic=1.0)
    datasets: dict[str, TrainingDataset] = {}
    problems = []
    for storage in data.dataset_format.storages:
        try:
            frames = data.open("train", storage)
        except ValueError as error:
            problems.append(f"{storage}: {error}")
            continue
        datasets[storage] = TrainingDataset(frames, data.image_size, settings, ALL_EPOCHS, data.seed)
    if not datasets:
        raise ValueError("; ".join(problems))
    return datasets


def arm_of(dataset: TrainingDataset) -> Arm:
    """Return a function that makes the samples of the dataset in the order of its epochs."""
    order = shuffled(dataset)
    return lambda number: dataset[number // len(order), order[number % len(order)]]


def shuffled(dataset: TrainingDataset) -> list[int]:
    """Return a permutation of the frame indices that depends on the seed of the dataset only."""
    return [int(index) for index in np.random.default_rng(dataset.seed).permutation(len(dataset))]


def measure_speeds(arms: Mapping[str, Arm], samples: int, repeats: int) -> dict[str, Spread]:
    """Return the seconds per sample of each arm on one core. The arms take turns, after one unmeasured turn each.

    Args:
        arms: Functions that make samples, by name.
        samples: Samples per turn.
        repeats: Number of measured turns.
    """
    times: dict[str, list[float]] = {name: [] for name in arms}
    with single_thread():
        for turn, order in enumerate([tuple(arms), *rounds(tuple(arms), repeats)]):
            for name in order:
                started = time.perf_counter()
                for number in range(turn * samples, (turn + 1) * samples):
                    arms[name](number)
                if turn > 0:
                    times[name].append((time.perf_counter() - started) / samples)
    return {name: Spread(tuple(own)) for name, own in times.items()}


@contextmanager
def single_thread() -> Iterator[None]:
    """Limit torch and OpenCV to one thread, as in a loader worker."""
    before = torch.get_num_threads(), cv2.getNumThreads()
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        cv2.setNumThreads(before[1])


def start_of(data: DetectionDataModule, dataset: TrainingDataset, workers: int) -> WorkerStart:
    """Start workers with the loader settings of `data`; return the time to the first batch and their memory."""
    settings = replace(data.loader, num_workers=workers, timeout_s=FIRST_BATCH_LIMIT_S)
    order = shuffled(dataset)
    batches = [
        [(0, index) for index in order[first : first + data.batch_size]]
        for first in range(0, len(order), data.batch_size)
    ]
    arguments = settings.arguments(on_gpu=False, persistent=False)
    loader = DataLoader(dataset, batch_sampler=batches, collate_fn=collate, **arguments)
    return watch_start(lambda: loader)


def speed_table(speeds: Mapping[str, Spread], title: str, against: Sequence[str] = ()) -> Table:
    """Return a table of the speed of each arm, with the ratio to the speed of each arm in `against`."""
    table = Table(title=f"{title}: median (slowest to fastest)", title_justify="left")
    table.add_column("storage")
    for heading in ("samples/s per core", "ms per sample", *(f"x {name}" for name in against)):
        table.add_column(heading, justify="right")
    for name, spread in speeds.items():
        slow, fast = 1 / spread.maximum_s, 1 / spread.minimum_s
        ratios = [f"{speeds[other].ratio_to(spread):.2f}" for other in against]
        cells = [f"{1 / spread.median_s:,.0f} ({slow:,.0f} to {fast:,.0f})", f"{spread.median_s * 1e3:.2f}", *ratios]
        table.add_row(name, *cells)
    return table


def start_table(
    starts: Mapping[str, Sequence[WorkerStart]], floors: Mapping[str, WorkerStart], data: DetectionDataModule
) -> Table:
    """Return a table of the time to the first batch and the memory per worker, beside the lower bound."""
    context = data.loader.multiprocessing_context
    table = Table(
        title=f"{context} workers, batch {data.batch_size}: median (longest), largest worker",
        title_justify="left",
    )
    table.add_column("loader")
    for heading in ("first batch s", "private MiB", "PSS MiB", "import torch s", "its private MiB"):
        table.add_column(heading, justify="right")
    for name, own in starts.items():
        seconds = Spread(tuple(start.first_batch_s for start in own))
        cells = [
            f"{seconds.median_s:.2f} ({seconds.maximum_s:.2f})",
            megabytes(own[-1].private_bytes),
            megabytes(own[-1].proportional_bytes),
        ]
        floor = floors.get(name)
        cells += [f"{floor.first_batch_s:.2f}", megabytes(floor.private_bytes)] if floor else ["", ""]
        table.add_row(name, *cells)
    return table


def megabytes(sizes_bytes: Sequence[int]) -> str:
    """Return the largest size in MiB, or an empty string if there is none."""
    return f"{max(sizes_bytes) / MIB:.0f}" if any(sizes_bytes) else ""
