"""The loader benchmark on a small split."""

import json
import os
import time
from pathlib import Path
from typing import Any

import cv2
import pytest
import torch

from tests.helpers.data_module import data_module
from yolo_lightning.commands.benchmark.comparison import Spread
from yolo_lightning.commands.benchmark_loader.command import (
    WorkerStart,
    benchmark_loader,
    largest_mib,
    measure_speeds,
    memory_of,
    sample_maker,
    single_thread,
    speed_table,
    training_datasets,
    warm_up_samples,
)
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.loader import LoaderSettings
from yolo_lightning.data.sampling.resumable_loader import EpochBatchSampler
from yolo_lightning.data.sampling.sampling_rules import SampledOrder, Sampling


@pytest.fixture
def data(look_alike: Path, index_root: Path) -> DetectionDataModule:
    loader = LoaderSettings(multiprocessing_context="forkserver")
    return data_module(str(look_alike), index_root=str(index_root), image_size=64, batch_size=4, loader=loader)


@pytest.mark.whole_run
def test_numbers_are_printed_and_written(
    data: DetectionDataModule, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "loader.json"
    benchmark_loader(data=data, workers=(0, 1), samples=3, repeats=2, json=output)
    content = json.loads(output.read_text())
    assert set(content["samples_s"]) == {"folder"}
    assert len(content["samples_s"]["folder"]) == 2
    assert all(0 < value < 5 for value in content["samples_s"]["folder"])
    assert 0 < content["pickled_bytes"] < 5000
    assert content["setup_s"] > 0
    (serial, *_), (one, *_) = content["starts"]["0 workers"], content["starts"]["1 workers"]
    assert serial["private_bytes"] == []
    assert len(one["private_bytes"]) == 1
    assert 1e6 < one["private_bytes"][0] <= one["proportional_bytes"][0] < 2e9
    assert set(content["floors"]) == {"1 workers"}
    printed = capsys.readouterr().out
    assert "folder" in printed
    assert "1 workers" in printed


def test_functions_take_turns_over_the_same_samples() -> None:
    calls: list[tuple[str, int]] = []
    arms: dict[str, Any] = {name: lambda number, name=name: calls.append((name, number)) for name in ("a", "b")}
    spreads = measure_speeds(arms, samples=2, repeats=2)
    assert calls == [
        *[("a", 0), ("a", 1), ("b", 0), ("b", 1)],  # unmeasured
        *[("a", 2), ("a", 3), ("b", 2), ("b", 3)],
        *[("b", 4), ("b", 5), ("a", 4), ("a", 5)],
    ]
    assert all(len(spread.samples_s) == 2 for spread in spreads.values())


def test_the_unmeasured_turn_fills_the_image_caches(data: DetectionDataModule) -> None:
    datasets = training_datasets(data)
    calls: list[int] = []
    measure_speeds({"a": calls.append}, samples=2, repeats=1, warm_up=warm_up_samples(datasets))
    assert calls == list(range(16 + 2))


def test_samples_are_those_of_a_training(data: DetectionDataModule) -> None:
    (dataset,) = training_datasets(data).values()
    make = sample_maker(dataset)
    keys = [key for batch in EpochBatchSampler(SampledOrder(dataset.frames.index, Sampling(), 0), 4) for key in batch]
    for number in (0, 15):
        assert (make(number).image == dataset[keys[number]].image).all()
    assert (make(16).image != dataset[keys[0]].image).any()


def test_speed_is_seconds_per_sample() -> None:
    (spread,) = measure_speeds({"sleepy": lambda number: time.sleep(0.01)}, samples=4, repeats=3).values()
    assert spread.minimum_s >= 0.01
    assert spread.minimum_s < 0.03


def test_measurement_uses_one_thread_and_restores_the_number() -> None:
    before = cv2.getNumThreads()
    torch.set_num_threads(2)
    try:
        with single_thread():
            assert (torch.get_num_threads(), cv2.getNumThreads()) == (1, 1)
        assert (torch.get_num_threads(), cv2.getNumThreads()) == (2, before)
    finally:
        torch.set_num_threads(1)


def test_every_sample_is_a_mosaic(data: DetectionDataModule) -> None:
    (dataset,) = training_datasets(data).values()
    assert dataset.augmentation.mosaic == 1
    assert dataset.mosaic_epochs > 1000


def test_ratio_is_that_of_the_speeds() -> None:
    from rich.console import Console

    console = Console(width=100, record=True, quiet=False, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(speed_table({"ours": Spread((0.5, 0.5)), "baseline": Spread((1.0, 1.0))}, "title", ("baseline",)))
    text = console.export_text()
    assert "2 (2 to 2)" in text
    assert "2.00" in text


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"samples": 0}, "samples must be >= 1, got 0"),
        ({"repeats": 0}, "repeats must be >= 1, got 0"),
        ({"workers": (2, -1)}, r"workers must contain values >= 0 only, got \[2, -1\]"),
    ],
)
def test_option_out_of_range_is_rejected(data: DetectionDataModule, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        benchmark_loader(data=data, **changed)


def test_data_without_frames_are_rejected(tmp_path: Path, look_alike: Path, index_root: Path) -> None:
    (tmp_path / "Train.json").write_bytes((look_alike / "Train.json").read_bytes())
    data = data_module(str(tmp_path), index_root=str(index_root))
    with pytest.raises(ValueError, match=r"packed: .*folder: .*zip: "):
        training_datasets(data)


def test_memory_of_this_process_is_measured() -> None:
    private, proportional = memory_of(os.getpid())
    assert 10e6 < private <= proportional


def test_memory_of_a_missing_process_is_zero() -> None:
    assert memory_of(2**22 + 1) == (0, 0)


def test_largest_worker_is_shown() -> None:
    start = WorkerStart(1.0, (3 * 2**20, 5 * 2**20), ())
    assert (largest_mib(start.private_bytes), largest_mib(start.proportional_bytes)) == ("5", "")
