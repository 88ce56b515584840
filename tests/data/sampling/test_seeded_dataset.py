"""Exact resume of any map-style dataset under Lightning."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Subset

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


class Stream(IterableDataset[float]):
    """An iterable dataset with a length: torch gives it a `__getitem__` that raises."""

    def __len__(self) -> int:
        return 11

    def __iter__(self) -> Iterator[float]:
        return iter([0.0] * 11)


class Lengthy(Dataset[float]):
    def __len__(self) -> int:
        return 11


def draw() -> list[float]:
    return [random.random(), np.random.rand(), float(torch.rand(()))]


def test_sample_depends_on_seed_epoch_and_index_only() -> None:
    dataset = SeededDataset(Random(), 3)
    _, first = dataset[SampleKey(1, 5)]
    draw(), dataset[SampleKey(1, 4)]
    assert torch.equal(dataset[SampleKey(1, 5)][1], first)
    keys = [SampleKey(2, 5), SampleKey(1, 6), SampleKey(1, 5, 1)]
    samples = [SeededDataset(Random(), 4)[SampleKey(1, 5)], *(dataset[key] for key in keys)]
    assert all((sample[1:] != first[1:]).all() for _, sample in samples)


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
        ({"dataset": Stream()}, r"dataset must have a length and dataset\[index\], got Stream"),
        ({"dataset": Subset(Stream(), [0, 1])}, "got Stream"),
        ({"dataset": Lengthy()}, "got Lengthy"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resumable_loader(**({"dataset": Random(), "batch_size": 4} | options))


def mix(samples: list[Tensor]) -> Tensor:
    return torch.stack(samples) * torch.rand(()) + random.random() * np.random.rand()


STRENGTH = [0.0]


def draw_strength(worker: int) -> None:
    STRENGTH[0] = random.random() + np.random.rand() + float(torch.rand(()))


def scaled(samples: list[Tensor]) -> Tensor:
    return torch.stack(samples) * STRENGTH[0]


def test_random_numbers_of_a_batch_do_not_depend_on_earlier_batches() -> None:
    whole, first, resumed = (resumable_loader(Random(), 4, seed=7, collate_fn=mix) for _ in range(3))
    expected = list(whole)
    batches = iter(first)
    next(batches)
    resumed.load_state_dict(first.state_dict())
    draw()
    assert [batch.tolist() for batch in resumed] == [batch.tolist() for batch in expected[1:]]


@pytest.mark.whole_run
@pytest.mark.parametrize("functions", [{"collate_fn": mix}, {"collate_fn": scaled, "worker_init_fn": draw_strength}])
def test_random_numbers_in_workers_are_those_of_an_uninterrupted_run(functions: dict[str, Any]) -> None:
    options: dict[str, Any] = {"batch_size": 2, "multiprocessing_context": "fork", **functions}
    whole = resumable_loader(Random(), num_workers=2, **options)
    expected = [batch.tolist() for _ in range(2) for batch in whole]
    first, resumed = (resumable_loader(Random(), num_workers=workers, **options) for workers in (2, 1))
    batches = iter(first)
    taken = [next(batches).tolist() for _ in range(3)]
    resumed.load_state_dict(first.state_dict())
    assert taken + [batch.tolist() for _ in range(2) for batch in resumed] == expected


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
    checkpoint = last_checkpoint(tmp_path)
    assert checkpoint["global_step"] == EPOCHS * STEPS_PER_EPOCH
    for name, tensor in uninterrupted["state_dict"].items():
        assert torch.equal(checkpoint["state_dict"][name], tensor), name
    states = [content["optimizer_states"][0]["state"] for content in (checkpoint, uninterrupted)]
    assert all(torch.equal(states[0][key]["exp_avg"], states[1][key]["exp_avg"]) for key in states[1])


@pytest.mark.whole_run
def test_another_batch_size_after_a_resume_trains_every_sample_once(forks: Forks, tmp_path: Path) -> None:
    assert train(forks, tmp_path, 0, STEPS_PER_EPOCH + 3) == KILLED
    assert train(forks, tmp_path, 0, batch_size=3) == 0
    # Two of six batches of the second epoch were saved: 8 samples; the other 14 make 5 batches of 3, the epoch after 8.
    assert last_checkpoint(tmp_path)["global_step"] == STEPS_PER_EPOCH + 2 + 5 + 8
