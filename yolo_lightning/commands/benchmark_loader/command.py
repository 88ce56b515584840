"""`benchmark_loader`: how fast training samples are made, how soon workers deliver, and what they hold in memory."""

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
"""Width of the tables where there is no terminal."""

STARTS = 3
"""Starts of each number of workers; the first may find cold files, or no fork server yet."""

MIB = 1024**2
ALL_EPOCHS = 2**31
"""Mosaic in any epoch."""

FIRST_BATCH_LIMIT_S = 300.0

Arm = Callable[[int], object]
"""Makes training sample number n."""


def benchmark_loader(
    *,
    data: DetectionDataModule,
    workers: tuple[int, ...] = (0, 2, 4),
    samples: int = 60,
    repeats: int = 7,
    json: Path | None = None,
) -> None:
    """Measure how training samples are made: per second and core, until the first batch, and in memory.

    The frames are read from wherever they lie (packed store, folder, frames.zip), taking turns, from a warm page cache,
    with the full augmentation in every sample. Beside the first batch stands the floor: as many interpreters that
    import torch and nothing else.

    Args:
        data: The dataset, its augmentation, batch size and loader settings.
        workers: Numbers of workers to start, each at least 0.
        samples: Samples per measurement, on one core.
        repeats: Measurements of each kind; the median counts.
        json: File that receives the numbers.

    Raises:
        ValueError: If an option is out of range, or the data cannot be used.
    """
    for name, value in (("samples", samples), ("repeats", repeats)):
        if value < 1:
            raise ValueError(f"{name} is {value}, allowed are 1 and more")
    if min(workers, default=0) < 0:
        raise ValueError(f"workers are {workers}, allowed are 0 and more")
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
    console.print(f"setup of the datamodule {setup_s:.2f} s, pickled dataset {pickled_bytes:,} bytes")
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
    """The terminal, or a page wide enough for the tables."""
    return Console() if sys.stdout.isatty() else Console(width=PIPE_COLUMNS)


def our_datasets(data: DetectionDataModule) -> dict[str, TrainingDataset]:
    """A training dataset with mosaic in each sample for each way in which the frames are stored.

    Raises:
        ValueError: If they are stored in none.
    """
    settings = replace(data.augmentation, mosaic=1.0)
    datasets: dict[str, TrainingDataset] = {}
    problems = []
    for storage in data.source.storages:
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
    """Samples of a dataset in the order of its first epochs."""
    order = shuffled(dataset)
    return lambda number: dataset[number // len(order), order[number % len(order)]]


def shuffled(dataset: TrainingDataset) -> list[int]:
    """The frames of a dataset, each once, in an order that depends on its seed alone."""
    return [int(index) for index in np.random.default_rng(dataset.seed).permutation(len(dataset))]


def measure_speeds(arms: Mapping[str, Arm], samples: int, repeats: int) -> dict[str, Spread]:
    """Seconds per sample of each arm on one core; the arms take turns, each begins with an unmeasured turn.

    Args:
        arms: What makes the samples, by name.
        samples: Samples per turn.
        repeats: Measured turns.
    """
    times: dict[str, list[float]] = {name: [] for name in arms}
    with single_thread():
        for arm in arms.values():
            make(arm, 0, samples)
        for turn, order in enumerate(rounds(tuple(arms), repeats), start=1):
            for name in order:
                times[name].append(make(arms[name], turn * samples, samples))
    return {name: Spread(tuple(own)) for name, own in times.items()}


def make(arm: Arm, first: int, count: int) -> float:
    """Seconds per sample over `count` samples from `first` on."""
    started = time.perf_counter()
    for number in range(first, first + count):
        arm(number)
    return (time.perf_counter() - started) / count


@contextmanager
def single_thread() -> Iterator[None]:
    """One thread for torch and OpenCV, as in a loader worker."""
    before = torch.get_num_threads(), cv2.getNumThreads()
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        cv2.setNumThreads(before[1])


def start_of(data: DetectionDataModule, dataset: TrainingDataset, workers: int) -> WorkerStart:
    """Start `workers` workers with the settings of `data`, wait for the first batch, look at them, end them."""
    settings = replace(data.loader, workers=workers, timeout_s=FIRST_BATCH_LIMIT_S)
    order = shuffled(dataset)
    batches = [
        [(0, index) for index in order[first : first + data.batch_size]]
        for first in range(0, len(order), data.batch_size)
    ]
    arguments = settings.arguments(on_gpu=False, persistent=False)
    loader = DataLoader(dataset, batch_sampler=batches, collate_fn=collate, **arguments)
    return watch_start(lambda: loader)


def speed_table(speeds: Mapping[str, Spread], title: str, against: Sequence[str] = ()) -> Table:
    """A row per arm: samples per second and core, milliseconds per sample, times as fast as each of `against`."""
    table = Table(title=f"{title}: median (slowest to fastest)", title_justify="left")
    table.add_column("frames from")
    for heading in ("samples per second and core", "ms per sample", *(f"times {name}" for name in against)):
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
    """A row per kind of start: seconds to the first batch, memory per worker, beside the floor."""
    table = Table(
        title=f"start by {data.loader.start_method}, batches of {data.batch_size}: median (longest), largest worker",
        title_justify="left",
    )
    table.add_column("loader")
    for heading in ("first batch, s", "private MB", "proportional MB", "import torch, s", "private MB of it"):
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
    """The largest of several sizes, MB; nothing where there is none."""
    return f"{max(sizes_bytes) / MIB:.0f}" if any(sizes_bytes) else ""
