"""Measure training samples per second of Ultralytics' dataset and of this project on the same frames, in turns.

    python scripts/benchmark_loader.py --config configs/ltdv2.yaml --data.root path/to/LTDv2

Ultralytics reads links to the frames and labels in its own format below `--work`, with its defaults (three channels)
and configured for one channel. Heavy imports are inside the functions, because workers import this file again.
"""

import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from yolo_lightning.data.datamodule import DetectionDataModule

WORKERS = 4


def main() -> None:
    """Parse the same options as `benchmark_loader`, and compare."""
    from yolo_lightning.commands.data_options import call_with_data

    call_with_data(compare, sys.argv[1:])


def compare(
    *, data: "DetectionDataModule", work: Path = Path("runs/benchmark_loader"), samples: int = 60, repeats: int = 7
) -> None:
    """Measure both datasets and both loaders on the same frames.

    Args:
        data: Dataset, augmentation and batch size.
        work: Folder for links, labels and settings of Ultralytics.
        samples: Samples per measurement, on one core.
        repeats: Measurements of each kind; the median is reported.
    """
    from yolo_lightning.commands.benchmark_loader.command import (
        describe_caches,
        measure_bound,
        measure_speeds,
        measure_start,
        sample_maker,
        speed_table,
        start_table,
        time_first_batch,
        training_datasets,
        warm_up_samples,
    )
    from yolo_lightning.commands.command_line import wide_console

    ours = training_datasets(data)
    baselines = {f"Ultralytics, {channels} channels": baseline_dataset(data, work, channels) for channels in (3, 1)}
    makers = {name: sample_maker(dataset) for name, dataset in ours.items()}
    makers |= {name: baseline_samples(dataset) for name, dataset in baselines.items()}
    speeds = measure_speeds(makers, samples, repeats, warm_up_samples(ours))
    console = wide_console()
    console.print(describe_caches(ours))
    title = f"{data.image_size.height} x {data.image_size.width}, one core"
    console.print(speed_table(speeds, title, tuple(baselines)))
    dataset, baseline = next(iter(ours.values())), next(iter(baselines.values()))
    load = partial(baseline_batches, baseline, data.batch_size)
    starts = {
        f"{WORKERS} workers": [measure_start(data, dataset, WORKERS) for _ in range(3)],
        "Ultralytics, forked": [time_first_batch(load) for _ in range(3)],
    }
    console.print(start_table(starts, {f"{WORKERS} workers": measure_bound(WORKERS)}, data))


def baseline_dataset(data: "DetectionDataModule", work: Path, channels: int) -> Any:
    """Return the training dataset of Ultralytics with its default augmentation: mosaic in every sample."""
    settings = work / "settings"
    settings.mkdir(parents=True, exist_ok=True)
    os.environ["YOLO_CONFIG_DIR"] = str(settings.resolve())
    from comparison.dataset import convert
    from ultralytics.cfg import get_cfg  # noqa: TID251
    from ultralytics.data import build_yolo_dataset  # noqa: TID251

    images = str((convert(data, work / "frames").parent / "images" / "train").resolve())
    description = {"names": dict(enumerate(data.class_names)), "nc": len(data.class_names), "channels": channels}
    options = get_cfg(overrides={"imgsz": max(data.image_size), "task": "detect"})
    return build_yolo_dataset(options, images, data.batch_size, description, mode="train")


def baseline_samples(dataset: Any) -> Any:
    """Return samples in one fixed order, which is longer than the buffer of decoded frames, like an epoch."""
    import numpy as np

    order = np.random.default_rng(0).permutation(len(dataset)).tolist()
    return lambda number: dataset[order[number % len(order)]]


def baseline_batches(dataset: Any, batch_size: int) -> Iterator[Any]:
    """Yield batches of the loader of Ultralytics, which forks its workers; end the workers when the iterator closes."""
    from ultralytics.data import build_dataloader  # noqa: TID251

    loader = build_dataloader(dataset, batch_size, WORKERS, shuffle=True)
    try:
        yield from loader
    finally:
        loader.close()


if __name__ == "__main__":
    main()
