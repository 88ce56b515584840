"""Speed of the storages of a small split."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.helpers.data_module import data_module
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.sampling.epoch_order import SampledOrder, Sampling
from yolo_lightning.data.sampling.resumable_loader import EpochBatchSampler


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    return importlib.import_module("loader_speed")


@pytest.fixture
def data(look_alike: Path, index_root: Path) -> DetectionDataModule:
    return data_module(str(look_alike), index_root=str(index_root), image_size=64, batch_size=4)


@pytest.mark.whole_run
def test_numbers_are_printed(script: ModuleType, data: DetectionDataModule, capsys: pytest.CaptureFixture[str]) -> None:
    script.loader_speed(data=data, samples=3, repeats=2)
    printed = capsys.readouterr().out
    assert "| folder |" in printed


def test_functions_take_turns_after_an_unmeasured_turn_that_fills_the_image_caches(script: ModuleType) -> None:
    calls: list[str] = []
    makers = {name: lambda name=name: calls.append(name) for name in ("a", "b")}
    times = script.measure_speeds(makers, samples=2, repeats=2, warm_up=3)
    assert "".join(calls) == "aaabbb" + "aabb" + "bbaa"
    assert all(len(function_times) == 2 for function_times in times.values())


def test_samples_are_those_of_a_training(script: ModuleType, data: DetectionDataModule) -> None:
    (dataset,) = script.training_datasets(data).values()
    assert dataset.augmentation.mosaic == 1
    make = script.sample_maker(dataset)
    keys = [key for batch in EpochBatchSampler(SampledOrder(dataset.frames.index, Sampling(), 0), 4) for key in batch]
    samples: list[Any] = [make() for _ in range(17)]
    for number in (0, 15):
        assert (samples[number].image == dataset[keys[number]].image).all()
    assert (samples[16].image != samples[0].image).any()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"samples": 0}, "samples must be >= 1, got 0"),
        ({"repeats": 0}, "repeats must be >= 1, got 0"),
    ],
)
def test_option_out_of_range_is_rejected(
    script: ModuleType, data: DetectionDataModule, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        script.loader_speed(data=data, **changed)


def test_data_without_frames_are_rejected(
    script: ModuleType, tmp_path: Path, look_alike: Path, index_root: Path
) -> None:
    (tmp_path / "Train.json").write_bytes((look_alike / "Train.json").read_bytes())
    with pytest.raises(ValueError, match=r"packed: .*folder: .*zip: "):
        script.training_datasets(data_module(str(tmp_path), index_root=str(index_root)))
