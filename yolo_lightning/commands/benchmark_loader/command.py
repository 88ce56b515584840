"""`benchmark_loader`: training samples per second, time to the first batch, and memory of the loader workers."""

import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import cv2
import torch
from rich.table import Table
from torch.utils.data import DataLoader

from yolo_lightning.commands.benchmark.comparison import Spread, rounds
from yolo_lightning.commands.command_line import wide_console
from yolo_lightning.data.batch import collate
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.dataset import TrainingDataset
from yolo_lightning.data.sampling.mosaic_partners import frames_to_cache
from yolo_lightning.data.sampling.resumable_loader import EpochBatchSampler, SampleKey
from yolo_lightning.data.sampling.sampling_rules import SampledOrder, Sampling
from yolo_lightning.utils.files import write_json

STARTS = 3
"""Starts per number of workers; the first one may read files from disk and start the fork server."""
MIB = 1024**2
ALL_EPOCHS = 2**31
"""Number of mosaic epochs that no run exceeds."""

FIRST_BATCH_LIMIT_S = 300.0

MakeSample = Callable[[int], object]  # makes training sample number n


@dataclass(frozen=True)
class WorkerStart:
    """Time from the start of loader workers to the first batch, and the memory of each worker."""

    first_batch_s: float
    private_bytes: tuple[int, ...]
    proportional_bytes: tuple[int, ...]  # PSS: private memory plus a share of the memory that several processes map


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
    datasets = training_datasets(data)
    makers = {name: sample_maker(dataset) for name, dataset in datasets.items()}
    speeds = measure_speeds(makers, samples, repeats, warm_up_samples(datasets))
    dataset = next(iter(datasets.values()))
    pickled_bytes = len(pickle.dumps(dataset))
    starts = {f"{count} workers": [measure_start(data, dataset, count) for _ in range(STARTS)] for count in workers}
    bounds = {f"{count} workers": measure_bound(count) for count in workers if count}
    console = wide_console()
    console.print(f"data module setup: {setup_s:.2f} s; pickled dataset: {pickled_bytes:,} bytes")
    console.print(describe_caches(datasets))
    console.print(speed_table(speeds, f"{data.image_size.height} x {data.image_size.width}, one core"))
    console.print(start_table(starts, bounds, data))
    if json is not None:
        content = {
            "setup_s": setup_s,
            "pickled_bytes": pickled_bytes,
            "samples_s": {name: spread.samples_s for name, spread in speeds.items()},
            "starts": {name: [asdict(start) for start in own] for name, own in starts.items()},
            "floors": {name: asdict(bound) for name, bound in bounds.items()},
        }
        write_json(json, content)


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
        except ValueError as error:
            problems.append(f"{storage}: {error}")
        else:
            window = frames_to_cache(len(frames), 1, data.batch_size, has_mixup=settings.mixup > 0)
            frames = frames.cached(data.storage.image_cache_mib, window)
            datasets[storage] = TrainingDataset(frames, data.image_size, settings, ALL_EPOCHS, data.seed)
    if not datasets:
        raise ValueError("; ".join(problems))
    return datasets


def sample_maker(dataset: TrainingDataset) -> MakeSample:
    """Return a function that makes the samples of the dataset in the order of its epochs, which use each frame once."""
    keys = sample_keys(dataset, batch_size=1)
    length = len(dataset)

    @cache
    def keys_of(epoch: int) -> list[SampleKey]:
        keys.epoch = epoch
        return [key for (key,) in keys]

    return lambda number: dataset[keys_of(number // length)[number % length]]


def sample_keys(dataset: TrainingDataset, batch_size: int) -> EpochBatchSampler:
    order = SampledOrder(dataset.frames.index, Sampling(), dataset.seed)
    return EpochBatchSampler(order, batch_size, has_mixup=dataset.augmentation.mixup > 0)


def warm_up_samples(datasets: Mapping[str, TrainingDataset]) -> int:
    """Return the number of samples after which all image caches are full."""
    return max(dataset.frames.cache.max_frames for dataset in datasets.values())


def describe_caches(datasets: Mapping[str, TrainingDataset]) -> str:
    """Return a line with the image cache of each storage."""
    return "; ".join(f"{name}: {dataset.frames.describe_cache()}" for name, dataset in datasets.items())


def measure_speeds(makers: Mapping[str, MakeSample], samples: int, repeats: int, warm_up: int = 0) -> dict[str, Spread]:
    """Return the seconds per sample of each function on one core.

    The functions take turns: one unmeasured turn of `samples` or `warm_up` samples, whichever is more, then `repeats`
    measured ones of `samples` samples.
    """
    first = max(samples, warm_up)
    turns = [range(first), *(range(first + turn * samples, first + (turn + 1) * samples) for turn in range(repeats))]
    times: dict[str, list[float]] = {name: [] for name in makers}
    with single_thread():
        for numbers, order in zip(turns, [tuple(makers), *rounds(tuple(makers), repeats)], strict=True):
            for name in order:
                started = time.perf_counter()
                for number in numbers:
                    makers[name](number)
                if numbers is not turns[0]:
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


def measure_start(data: DetectionDataModule, dataset: TrainingDataset, workers: int) -> WorkerStart:
    """Start workers with the loader settings of `data`; return the time to the first batch and their memory."""
    settings = replace(data.loader, num_workers=workers, timeout_s=FIRST_BATCH_LIMIT_S)
    arguments = settings.arguments(on_gpu=False, persistent=False)
    keys = sample_keys(dataset, data.batch_size)
    loader = DataLoader(dataset, batch_sampler=keys, collate_fn=collate, **arguments)
    return time_first_batch(lambda: loader)


def time_first_batch(build: Callable[[], Any]) -> WorkerStart:
    """Build a loader, wait for its first batch, measure its workers and wait until they have exited."""
    other_processes = {process.pid for process in active_children()}
    started = time.perf_counter()
    batches = iter(build())
    next(batches)
    first_batch_s = time.perf_counter() - started
    workers = [process for process in active_children() if process.pid not in other_processes]
    start = _with_memory(first_batch_s, [worker.pid for worker in workers if worker.pid is not None])
    del batches
    for worker in workers:
        worker.join()
    return start


def measure_bound(workers: int) -> WorkerStart:
    """Start `workers` interpreters at once that only import torch; a lower bound for the start of spawned workers."""
    code = "import torch, sys; print(flush=True); sys.stdin.read()"
    started = time.perf_counter()
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(workers)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        return _with_memory(time.perf_counter() - started, [process.pid for process in processes])
    finally:
        for process in processes:
            process.communicate()


def memory_of(process_id: int) -> tuple[int, int]:
    """Return the private memory and the PSS of a process in bytes; zeros if /proc does not report them."""
    try:
        lines = Path(f"/proc/{process_id}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return 0, 0
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    return sizes["Private_Clean"] + sizes["Private_Dirty"], sizes["Pss"]


def _with_memory(first_batch_s: float, process_ids: Iterable[int]) -> WorkerStart:
    memory = [memory_of(process_id) for process_id in process_ids]
    return WorkerStart(first_batch_s, tuple(own for own, _ in memory), tuple(share for _, share in memory))


def speed_table(speeds: Mapping[str, Spread], title: str, baselines: Sequence[str] = ()) -> Table:
    """Return a table of samples per second, with the ratio to the speed of each of `baselines`."""
    table = Table("storage", title=f"{title}: median (slowest to fastest)", title_justify="left")
    for heading in ("samples/s per core", "ms per sample", *(f"x {name}" for name in baselines)):
        table.add_column(heading, justify="right")
    for name, spread in speeds.items():
        speed, slow, fast = (1 / time_s for time_s in (spread.median_s, spread.maximum_s, spread.minimum_s))
        ratios = [f"{speeds[other].ratio_to(spread):.2f}" for other in baselines]
        table.add_row(name, f"{speed:,.0f} ({slow:,.0f} to {fast:,.0f})", f"{spread.median_s * 1e3:.2f}", *ratios)
    return table


def start_table(
    starts: Mapping[str, Sequence[WorkerStart]], bounds: Mapping[str, WorkerStart], data: DetectionDataModule
) -> Table:
    """Return a table of the time to the first batch and the memory of the largest worker, beside the lower bound."""
    title = f"{data.loader.multiprocessing_context} workers, batch {data.batch_size}: median (longest), largest worker"
    table = Table("loader", title=title, title_justify="left")
    for heading in ("first batch s", "private MiB", "PSS MiB", "import torch s", "its private MiB"):
        table.add_column(heading, justify="right")
    for name, own in starts.items():
        seconds, last, bound = Spread(tuple(start.first_batch_s for start in own)), own[-1], bounds.get(name)
        cells = [f"{seconds.median_s:.2f} ({seconds.maximum_s:.2f})"]
        cells += [largest_mib(last.private_bytes), largest_mib(last.proportional_bytes)]
        cells += [f"{bound.first_batch_s:.2f}", largest_mib(bound.private_bytes)] if bound else ["", ""]
        table.add_row(name, *cells)
    return table


def largest_mib(sizes_bytes: Sequence[int]) -> str:
    """Return the largest size in MiB, or an empty string if there is none."""
    return f"{max(sizes_bytes) / MIB:.0f}" if any(sizes_bytes) else ""
