"""Readers of changed files succeed or raise an error of one line, within limits of time and memory."""

import random
from pathlib import Path

import pytest
from fuzzing.mutation import mutated
from fuzzing.readers import READERS
from fuzzing.session import fuzz, is_allowed, outcome

SECONDS = 10.0
SEED = 20261122


@pytest.mark.whole_run
@pytest.mark.parametrize("reader", READERS)
def test_no_reader_ends_with_a_foreign_error(reader: str, tmp_path: Path) -> None:
    report = fuzz(reader, SECONDS, SEED, tmp_path)
    assert report.findings == []
    assert report.inputs > 10


def test_changes_are_the_same_for_the_same_seed() -> None:
    content = b'{"a": [1, 2, {"b": "c"}], "d": null}'
    first, second = ([mutated(content, chance) for _ in range(200)] for chance in (random.Random(1), random.Random(1)))
    assert first == second
    assert len(set(first)) > 150


@pytest.mark.parametrize("error", [KeyError("a"), ValueError("of a library"), MemoryError()])
def test_errors_of_other_packages_are_findings(error: Exception) -> None:
    def read() -> None:
        raise error

    assert outcome(read) is error
    assert not is_allowed(error)
    assert outcome(lambda: None) is None


def test_own_errors_are_allowed() -> None:
    from yolo_lightning.data.limit_settings import Limits

    error = outcome(lambda: Limits(max_image_pixels=0))
    assert error is not None
    assert is_allowed(error)
