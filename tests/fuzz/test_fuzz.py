"""Readers of changed files succeed or raise an error of one line, within limits of time and memory."""

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from fuzzing.mutation import mutated
from fuzzing.readers import READERS, FileReader, Target
from fuzzing.session import INPUT_TIMEOUT_S, fuzz, is_allowed, outcome, run_session

SECONDS = 10.0
SEED = 20261122


@pytest.mark.whole_run
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_no_reader_ends_with_a_foreign_error(reader: FileReader, tmp_path: Path) -> None:
    report = fuzz(reader, SECONDS, SEED, tmp_path)
    assert report.findings == []
    assert report.inputs > 10


def test_changes_are_the_same_for_the_same_seed() -> None:
    content = b'{"a": [1, 2, {"b": "c"}], "d": null}'
    first, second = ([mutated(content, chance) for _ in range(200)] for chance in (random.Random(1), random.Random(1)))
    assert first == second
    assert len(set(first)) > 150


@pytest.mark.parametrize(
    ("error", "expected"), [(KeyError("a"), False), (ValueError("of a library"), False), (MemoryError(), False)]
)
def test_errors_of_other_packages_are_findings(error: Exception, expected: bool, tmp_path: Path) -> None:
    def read() -> None:
        if file.read_bytes() != b"valid":
            raise error

    file = tmp_path / "file"
    reader = FileReader("broken", lambda folder: Target(file, [b"valid"], read))
    found = outcome(read) if file.exists() else None
    assert found is None
    file.write_bytes(b"changed")
    caught = outcome(read)
    assert caught is error
    assert is_allowed(caught) is expected
    assert reader.name == "broken"


def test_own_errors_are_allowed() -> None:
    from yolo_lightning.data.formats.frame_checks import Limits

    error = outcome(lambda: Limits(max_image_pixels=0))
    assert error is not None
    assert is_allowed(error)
    assert INPUT_TIMEOUT_S < SECONDS
    assert callable(run_session)
