"""Exact resume of any map-style dataset under Lightning."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from tests.helpers.forks import Forks
from tests.helpers.plain_training import BATCH, EPOCHS, SAMPLES
from yolo_lightning.data.sampling.resumable_loader import SampleKey
from yolo_lightning.data.sampling.seeded_dataset import SeededDataset, resumable_loader

HELPER = Path(__file__).parents[2] / "helpers" / "plain_training.py"
STEPS_PER_EPOCH = -(-SAMPLES // BATCH)
KILLED = -9


class Random(Dataset[Tensor]):
    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([index, random.random(), np.random.rand(), float(torch.rand(()))])


def draw() -> list[float]:
    return [random.random(), np.random.rand(), float(torch.rand(()))]


def test_sample_depends_on_seed_epoch_and_index_only() -> None:
    dataset = SeededDataset(Random(), 3)
    first = dataset[SampleKey(1, 5)]
    draw(), dataset[SampleKey(1, 4)]
    assert torch.equal(dataset[SampleKey(1, 5)], first)
    others = (SeededDataset(Random(), 4)[SampleKey(1, 5)], dataset[SampleKey(2, 5)], dataset[SampleKey(1, 6)])
    assert all((other[1:] != first[1:]).all() for other in others)


def test_generators_of_the_process_are_restored() -> None:
    def drawn(between: Any) -> list[float]:
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        between()
        return draw()

    assert drawn(lambda: SeededDataset(Random())[SampleKey(0, 1)]) == drawn(lambda: None)


def test_dataloader_draws_nothing_from_the_generator_of_the_model() -> None:
    torch.manual_seed(1)
    expected = torch.rand(())
    torch.manual_seed(1)
    list(resumable_loader(Random(), 4))
    assert torch.equal(torch.rand(()), expected)


@pytest.mark.parametrize("batch_size", [4, 3])
def test_rest_of_an_epoch_after_a_resume(batch_size: int) -> None:
    whole, first, resumed = (resumable_loader(Random(), size, seed=7) for size in (4, 4, batch_size))
    list(whole), list(first)
    expected = torch.cat(list(whole))
    batches = iter(first)
    taken = [next(batches), next(batches)]
    resumed.load_state_dict(first.state_dict())
    assert torch.equal(torch.cat([*taken, *resumed]), expected)
    assert sorted(expected[:, 0].tolist()) == list(range(11))


def test_another_order_cannot_be_resumed_within_an_epoch() -> None:
    loader = resumable_loader(Random(), 4, seed=7)
    next(iter(loader))
    with pytest.raises(ValueError, match=r"^seed must be 7, got 8: the checkpoint was saved within epoch 0"):
        resumable_loader(Random(), 4, seed=8).load_state_dict(loader.state_dict())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be an integer >= 1, got 0"),
        ({"seed": -1}, "seed must be an integer >= 0, got -1"),
        ({"drop_last": True}, "remove drop_last"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resumable_loader(Random(), **({"batch_size": 4} | options))


def train(forks: Forks, folder: Path, workers: int, killed_step: int = -1, batch_size: int = BATCH) -> int:
    return forks.start(HELPER, str(workers), str(killed_step), str(batch_size), folder=folder).wait()


def last_checkpoint(folder: Path) -> dict[str, Any]:
    checkpoint: dict[str, Any] = torch.load(folder / "run" / "checkpoints" / "last.ckpt", weights_only=True)
    return checkpoint


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("uninterrupted")
    assert train(forks, folder, 0) == 0
    return last_checkpoint(folder)


@pytest.mark.whole_run
@pytest.mark.parametrize(
    ("killed_step", "workers"),
    [(STEPS_PER_EPOCH + 3, (2, 0)), (STEPS_PER_EPOCH + 3, (0, 1)), (STEPS_PER_EPOCH, (1, 2))],
    ids=["2 workers, then none", "no workers, then 1", "between two epochs"],
)
def test_killed_training_ends_with_the_weights_of_an_uninterrupted_one(
    killed_step: int, workers: tuple[int, int], forks: Forks, uninterrupted: dict[str, Any], tmp_path: Path
) -> None:
    assert train(forks, tmp_path, workers[0], killed_step) == KILLED
    saved = last_checkpoint(tmp_path)["global_step"]
    assert 0 < saved <= killed_step
    assert train(forks, tmp_path, workers[1]) == 0
    found = last_checkpoint(tmp_path)
    assert found["global_step"] == EPOCHS * STEPS_PER_EPOCH
    for name, tensor in uninterrupted["state_dict"].items():
        assert torch.equal(found["state_dict"][name], tensor), name
    states = [one["optimizer_states"][0]["state"] for one in (found, uninterrupted)]
    assert all(torch.equal(states[0][key]["exp_avg"], states[1][key]["exp_avg"]) for key in states[1])


@pytest.mark.whole_run
def test_another_batch_size_after_a_resume_trains_every_sample_once(forks: Forks, tmp_path: Path) -> None:
    assert train(forks, tmp_path, 0, STEPS_PER_EPOCH + 3) == KILLED
    assert train(forks, tmp_path, 0, batch_size=3) == 0
    # Two of six batches of the second epoch were saved: 8 samples; the other 14 make 5 batches of 3, the epoch after 8.
    assert last_checkpoint(tmp_path)["global_step"] == STEPS_PER_EPOCH + 2 + 5 + 8
