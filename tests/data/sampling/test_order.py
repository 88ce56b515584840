"""Order and pixels of an epoch do not depend on storage, workers or the start position."""

import hashlib
import zipfile
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from synthetic import draw_dataset

from tests.helpers.annotations import open_ltdv2
from tests.helpers.archives import pack
from yolo_lightning.data.batch import Batch, collate
from yolo_lightning.data.dataset import TrainingDataset
from yolo_lightning.data.labelled_frames import LabelledFrames
from yolo_lightning.data.loader import prepare_worker
from yolo_lightning.data.occurrences import occurrences
from yolo_lightning.data.sampling.epoch_order import SampledOrder, Sampling
from yolo_lightning.data.sampling.mosaic_partners import MIXUP_RULER, mosaic_partners
from yolo_lightning.data.sampling.resumable_loader import EpochBatchSampler, ResumableLoader, SampleKey
from yolo_lightning.data.storage.choose_storage import open_frames
from yolo_lightning.data.storage.folder_frames import FolderFrames
from yolo_lightning.data.storage.storage_settings import StorageKind, StorageSettings
from yolo_lightning.data.transforms.augmentation_settings import Augmentation, BoxPaste

SEED, BATCH_SIZE, EPOCHS, EPOCH_BATCHES = 5, 4, 3, 5
SAMPLING = Sampling(epoch_frames=18)
"""Some frames twice in an epoch, epochs that begin within a pass, and a smaller last batch."""
AUGMENTATION = Augmentation(mosaic=0.5, photometric=1.0, mixup=0.5, paste=BoxPaste(0.7))
MOSAIC_EPOCHS = 2
WINDOW = 5
"""Frames that a process caches from a packed store; it caches all frames of the other storages."""
STORAGES: tuple[StorageKind, ...] = ("folder", "zip", "packed")


class Workers(NamedTuple):
    """How loader workers are used; `fork` stands here alone, as `LoaderSettings` refuses it."""

    number: int
    start_method: str = "spawn"
    persistent: bool = False

    def arguments(self) -> dict[str, Any]:
        if not self.number:
            return {}
        return {
            "num_workers": self.number,
            "multiprocessing_context": self.start_method,
            "persistent_workers": self.persistent,
            "worker_init_fn": prepare_worker,
        }


WORKERS = [Workers(*each) for each in product((2, 4), ("spawn", "forkserver", "fork"), (True, False))]
STORAGES_OF_WORKERS = [*STORAGES, *STORAGES, *STORAGES[1:], *STORAGES, *STORAGES[:1]]
"""Each way of starting workers meets each storage."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same frames as a folder, as an archive and as a packed store."""
    root = tmp_path_factory.mktemp("order") / "data"
    draw_dataset(root, train_frames=16, valid_frames=1, test_frames=1, width=96, height=64)
    files = sorted(path.relative_to(root) for path in root.glob("frames/**/*.jpg"))
    with zipfile.ZipFile(root / "frames.zip", "w") as archive:
        for file in files:
            archive.write(root / file, file)
    pack(root / "packed", FolderFrames(root), [str(file) for file in files])
    return root


def make_dataset(root: Path, index_root: Path, storage: StorageKind = "folder") -> TrainingDataset:
    source = open_frames(root, StorageSettings(storage, index_root=str(index_root)))
    frames = LabelledFrames(open_ltdv2(root / "Train.json", index_root), source)
    return TrainingDataset(frames.cached(1, WINDOW), 64, AUGMENTATION, SEED)


def make_loader(dataset: TrainingDataset, workers: Workers, state: dict[str, Any] | None = None) -> ResumableLoader:
    order = SampledOrder(dataset.frames.index, SAMPLING, SEED)
    keys = EpochBatchSampler(order, BATCH_SIZE, has_mixup=True)
    loader = ResumableLoader(dataset, keys, collate, mosaic_epochs=lambda: MOSAIC_EPOCHS, **workers.arguments())
    if state is not None:
        loader.load_state_dict(state)
    return loader


def digest(batch: Batch) -> str:
    """Of everything that the network and its loss see, and of the frames' ids."""
    content = hashlib.sha256(repr(batch.image_ids).encode())
    for tensor in (batch.images, batch.boxes, batch.labels, batch.sample_index):
        content.update(tensor.numpy().tobytes())
    return content.hexdigest()


def stream(loader: ResumableLoader) -> Iterator[str]:
    while True:
        yield from (digest(batch) for batch in loader)


@pytest.fixture(scope="module")
def dataset(root: Path, index_root: Path) -> TrainingDataset:
    return make_dataset(root, index_root)


@pytest.fixture(scope="module")
def expected(dataset: TrainingDataset) -> list[str]:
    """The digests of all batches, from the definition of order and samples, without a loader."""
    order = SampledOrder(dataset.frames.index, SAMPLING, SEED)
    digests = []
    for epoch in range(EPOCHS):
        indices = order.indices(epoch)
        partners = map(tuple, mosaic_partners(indices, slice(None)).tolist())
        seconds = map(tuple, mosaic_partners(indices, slice(None), MIXUP_RULER).tolist())
        members = zip(indices.tolist(), occurrences(indices).tolist(), partners, seconds, strict=True)
        samples = [dataset[SampleKey(epoch, *member, has_mosaic=epoch < MOSAIC_EPOCHS)] for member in members]
        digests += [
            digest(collate(samples[first : first + BATCH_SIZE])) for first in range(0, len(samples), BATCH_SIZE)
        ]
    return digests


def run_on(loader: ResumableLoader, batches: int) -> list[str]:
    return list(islice(stream(loader), batches))


def test_this_order_repeats_frames_and_no_batch(dataset: TrainingDataset, expected: list[str]) -> None:
    order = SampledOrder(dataset.frames.index, SAMPLING, SEED)
    assert all(occurrences(order.indices(epoch)).any() for epoch in range(EPOCHS))
    assert len(set(expected)) == EPOCHS * EPOCH_BATCHES


@pytest.mark.parametrize("storage", STORAGES)
def test_all_storages_give_the_same_batches(
    root: Path, index_root: Path, storage: StorageKind, expected: list[str]
) -> None:
    loader = make_loader(make_dataset(root, index_root, storage), Workers(0))
    assert run_on(loader, len(expected)) == expected


@pytest.mark.parametrize("batches", [2, 5, 7, 10, 14])
def test_interruption_is_invisible(dataset: TrainingDataset, expected: list[str], batches: int) -> None:
    loader = make_loader(dataset, Workers(0))
    assert run_on(loader, batches) == expected[:batches]
    rest = run_on(make_loader(dataset, Workers(0), loader.state_dict()), len(expected) - batches)
    assert rest == expected[batches:]


@pytest.mark.whole_run
def test_interrupted_with_workers_and_resumed_with_fewer(dataset: TrainingDataset, expected: list[str]) -> None:
    loader = make_loader(dataset, Workers(2, "spawn", persistent=True))
    assert run_on(loader, 7) == expected[:7]
    assert run_on(make_loader(dataset, Workers(0), loader.state_dict()), 8) == expected[7:]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("workers", "storage"), zip(WORKERS, STORAGES_OF_WORKERS, strict=True), ids=str)
def test_all_workers_give_the_same_batches(
    root: Path, index_root: Path, expected: list[str], workers: Workers, storage: StorageKind
) -> None:
    loader = make_loader(make_dataset(root, index_root, storage), workers)
    assert run_on(loader, len(expected)) == expected


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("first", "second", "batches"), zip(WORKERS, WORKERS[7:] + WORKERS[:7], [5, 7] * 6, strict=True), ids=str
)
def test_workers_may_change_across_an_interruption(
    dataset: TrainingDataset, expected: list[str], first: Workers, second: Workers, batches: int
) -> None:
    loader = make_loader(dataset, first)
    assert run_on(loader, batches) == expected[:batches]
    assert run_on(make_loader(dataset, second, loader.state_dict()), len(expected) - batches) == expected[batches:]
