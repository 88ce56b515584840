"""Objects for box paste are drawn by month and class."""

import pickle
from collections import Counter

import numpy as np
import pytest

from tests.data.sampling.test_epoch_order import make_index
from yolo_lightning.data.index.split_index import SplitIndex
from yolo_lightning.data.transforms.box_paste import AnnotatedObject, PasteCandidates

Groups = dict[tuple[int, int], set[AnnotatedObject]]


@pytest.fixture
def index() -> SplitIndex:
    return make_index([30, 20, 25, 40])


def groups(index: SplitIndex) -> Groups:
    """Return the objects of each month and class, box by box."""
    objects: Groups = {}
    for frame in range(len(index)):
        for box, label in enumerate(index.labels(frame).tolist()):
            objects.setdefault((index.month(frame), label), set()).add(AnnotatedObject(frame, box))
    return objects


def draws(candidates: PasteCandidates, month: int, count: int = 2000) -> Counter[AnnotatedObject]:
    generator = np.random.default_rng(2)
    return Counter(drawn for _ in range(count) if (drawn := candidates.draw(month, generator)) is not None)


def test_every_object_of_the_month_and_no_other_is_drawn(index: SplitIndex) -> None:
    expected = groups(index)
    for month in np.unique(index.months()).tolist():
        wanted = set.union(*(expected.get((month, label), set()) for label in (1, 3)))
        assert draws(PasteCandidates(index, ["vehicle", "bicycle"]), month).keys() == wanted


def test_objects_of_a_part_of_a_split_are_those_of_the_part(index: SplitIndex) -> None:
    vars(index)["_arrays"]["clip_names"] = np.zeros(4, "S1")
    part = index.of_clips(np.array([1, 3]))
    vars(part).update(_arrays=vars(index)["_arrays"], facts=index.facts)
    expected = groups(part)
    for month in np.unique(part.months()).tolist():
        assert draws(PasteCandidates(part, ["person"]), month).keys() == expected[month, 0]


def test_classes_are_equally_likely_however_frequent(index: SplitIndex) -> None:
    labels = vars(index)["_arrays"]["labels"]
    labels[:] = np.where(np.arange(len(labels)) % 20 == 0, 2, 0)
    label_counts = Counter(
        int(index.labels(drawn.frame)[drawn.box]) for drawn in draws(PasteCandidates(index, []), 202005).elements()
    )
    assert label_counts.keys() == {0, 2}
    assert abs(label_counts[2] - 1000) < 100


def test_month_without_objects_gives_none(index: SplitIndex) -> None:
    arrays = vars(index)["_arrays"]
    months = np.repeat(index.months(), np.diff(index.box_offsets()))
    arrays["labels"][months == 202006] = 0
    candidates = PasteCandidates(index, ["motorcycle"])
    assert not draws(candidates, 202006)
    assert draws(candidates, 202005)


def test_pickle_contains_no_objects(index: SplitIndex) -> None:
    candidates = PasteCandidates(index, [])
    expected = draws(candidates, 202005)
    assert len(pickle.dumps(candidates)) < 500
    assert candidates.positions[202005][0].dtype == np.int32
    assert draws(candidates, 202005) == expected


def test_unknown_class_is_refused(index: SplitIndex) -> None:
    with pytest.raises(
        ValueError, match=r"data\.augmentation\.paste\.classes must be names of person, .*, vehicle, got 'bike'"
    ):
        PasteCandidates(index, ["person", "bike"])


def test_class_without_a_box_is_refused(index: SplitIndex) -> None:
    vars(index)["_arrays"]["labels"][:] = 0
    with pytest.raises(ValueError, match=r"must contain a class that occurs .*, got motorcycle"):
        PasteCandidates(index, ["motorcycle"])
