import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.evaluation.detections import CLASS_NAMES, OBJECT, Frame, prediction, random_frames, target
from yolo_lightning.evaluation import record
from yolo_lightning.evaluation.drift import drift_scores
from yolo_lightning.evaluation.frame_records import FrameRecords
from yolo_lightning.evaluation.matching import match
from yolo_lightning.evaluation.record import EvaluationCollection, EvaluationRecord
from yolo_lightning.evaluation.ultralytics_matching import match_as_ultralytics
from yolo_lightning.evaluation.ultralytics_metrics import threshold_curves, ultralytics_scores


def record_of(frames: list[Frame], **numbers: int) -> EvaluationRecord:
    predictions = [detections for detections, _ in frames]
    truth = [objects for _, objects in frames]
    classes = len(CLASS_NAMES)
    return EvaluationRecord(
        "test",
        tuple(CLASS_NAMES),
        tuple(objects.image_id for objects in truth),
        match(predictions, truth, classes),
        match_as_ultralytics(predictions, truth, classes),
        **numbers,
    )


def assert_same(records: FrameRecords, other: FrameRecords) -> None:
    for name in records.names():
        np.testing.assert_array_equal(getattr(records, name), getattr(other, name), strict=True)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "evaluations/test.npz"
    record_of(random_frames(3, months=(202101, 202005)), epoch=4, steps=900).save(path)
    return path


@pytest.mark.parametrize("frames", [random_frames(3, months=(202101, 202005)), []], ids=["frames", "none"])
def test_what_was_saved_is_loaded(tmp_path: Path, frames: list[Frame]) -> None:
    written = record_of(frames, epoch=4, steps=900)
    written.save(tmp_path / "a.npz")
    assert list(tmp_path.iterdir()) == [tmp_path / "a.npz"]
    loaded = EvaluationRecord.load(tmp_path / "a.npz")
    assert_same(loaded.matches, written.matches)
    assert_same(loaded.ultralytics, written.ultralytics)
    assert (loaded.stage, loaded.epoch, loaded.steps) == ("test", 4, 900)
    assert (loaded.class_names, loaded.image_ids) == (written.class_names, written.image_ids)


def test_missing_file_is_no_damaged_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        EvaluationRecord.load(tmp_path / "a.npz")


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.999])
def test_torn_file_is_refused(saved: Path, share: float) -> None:
    content = saved.read_bytes()
    saved.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match=r"test.npz is not a complete evaluation record"):
        EvaluationRecord.load(saved)


@pytest.mark.parametrize("content", [b"<html>", b"\x80\4K\1."])
def test_other_file_is_named_without_advice_to_unpickle(saved: Path, content: bytes) -> None:
    saved.write_bytes(content)
    with pytest.raises(ValueError, match=r"record: it is not an archive of NumPy; run `validate` again$"):
        EvaluationRecord.load(saved)


def test_flipped_bytes_are_refused_or_do_no_harm(saved: Path) -> None:
    """Flipping an unused byte, such as a timestamp in the archive, has no effect."""
    content, before = saved.read_bytes(), EvaluationRecord.load(saved)
    refused: list[int] = []
    for place in range(0, len(content), 37):
        saved.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
        try:
            after = EvaluationRecord.load(saved)
        except ValueError as error:
            refused.append(len(str(error)))
            continue
        assert_same(after.matches, before.matches)
        assert_same(after.ultralytics, before.ultralytics)
        assert after.image_ids == before.image_ids
    assert len(refused) > 50
    assert max(refused) < len(str(saved)) + 500


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("matches.scores", np.zeros(3, np.float32)),
        ("matches.hits", np.zeros(3, np.float64)),
        ("ultralytics.annotated", np.zeros((12, 5), np.int32)),
        ("header", np.frombuffer(b'{"format": 3}', np.uint8)),
        ("header", np.frombuffer(b"[]", np.uint8)),
        ("header", np.frombuffer(b"{", np.uint8)),
        ("matches.counts", np.array([None])),
    ],
)
def test_file_of_another_content_is_refused(saved: Path, name: str, content: np.ndarray) -> None:  # type: ignore[type-arg]
    with np.load(saved) as arrays:
        stored = dict(arrays)
    np.savez(saved, **(stored | {name: content}))
    with pytest.raises(ValueError, match=r"test.npz is not a complete evaluation record"):
        EvaluationRecord.load(saved)


def test_file_that_lacks_an_array_is_refused(saved: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(saved) as whole, zipfile.ZipFile(tmp_path / "a.npz", "w") as part:
        for name in whole.namelist():
            if name != "ultralytics.assigned.npy":
                part.writestr(name, whole.read(name))
    with pytest.raises(ValueError, match=r"a.npz is not a complete evaluation record: .*ultralytics.assigned"):
        EvaluationRecord.load(tmp_path / "a.npz")


def test_collection_holds_ids_and_both_matches_without_repeats() -> None:
    frames = random_frames(9, frames=20)
    collection = EvaluationCollection(len(CLASS_NAMES))
    for part in (frames[:6], frames[6:], frames[4:9]):  # the last batch repeats frames, as a distributed sampler does
        collection.update([detections for detections, _ in part], [truth for _, truth in part])
    collected, expected = collection.compute("val", CLASS_NAMES), record_of(frames)
    assert collected.image_ids == expected.image_ids
    assert_same(collected.matches, expected.matches)
    assert_same(collected.ultralytics, expected.ultralytics)


def test_collection_of_several_ranks_has_the_order_of_a_single_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each update is split over two ranks; the second rank repeats a frame of the first one."""
    frames = random_frames(9, frames=9)
    ranks: list[Any] = []
    monkeypatch.setattr(record, "gather", lambda of_rank: ranks.append(of_rank) or list(ranks))
    for slices in ((frames[:2], frames[4:7]), (frames[2:4], [*frames[7:], frames[0]])):
        collection = EvaluationCollection(len(CLASS_NAMES))
        for part in slices:
            collection.update([detections for detections, _ in part], [truth for _, truth in part])
        collected = collection.compute("val", CLASS_NAMES)
    expected = record_of(frames)
    assert collected.image_ids == expected.image_ids
    assert_same(collected.matches, expected.matches)
    assert_same(collected.ultralytics, expected.ultralytics)


@pytest.mark.parametrize(("classes", "dtype"), [(256, "uint8"), (257, "uint16"), (1203, "uint16")])
def test_every_class_of_many_is_scored_and_stored(tmp_path: Path, classes: int, dtype: str) -> None:
    last = classes - 1
    collection = EvaluationCollection(classes)
    collection.update([prediction("a", OBJECT, [0.9], [last])], [target("a", OBJECT, [last])])
    collection.compute("val", [f"c{label}" for label in range(classes)]).save(tmp_path / "a.npz")
    loaded = EvaluationRecord.load(tmp_path / "a.npz")
    assert loaded.matches.labels.dtype == loaded.ultralytics.labels.dtype == dtype
    assert drift_scores(loaded.matches).overall.scalars()["map"] == 1
    assert threshold_curves(loaded.matches).scalars()["precision"] == 1
    assert ultralytics_scores(loaded.ultralytics).scalars()["ultralytics_map"] == pytest.approx(0.995)
    confusion = loaded.ultralytics.confusion()
    assert (confusion.sum(), confusion[last, last]) == (1, 1)
