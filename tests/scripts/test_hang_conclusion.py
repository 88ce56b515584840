"""Conclusions of the hang study from the results of its arms."""

import sys
from dataclasses import replace

import pytest

from tests.conftest import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "scripts"))

from hang_experiment.conclusion import ARMS, ArmResult, End, conclude, markdown

PLAIN = ArmResult("spawn-pinned", End.COMPLETE, 3600.0, 100_000, 200, 0, 0.0, 0, 20.0, 30.0, 0)


def study(**evicted_ms: int | None) -> list[ArmResult]:
    """Return six complete arms, with stopped queues in the named arms only (underscores for hyphens)."""
    named = {name.replace("_", "-"): value for name, value in evicted_ms.items()}
    assert set(named) <= set(ARMS)
    return [replace(PLAIN, arm=arm, evicted_ms=named.get(arm, 0)) for arm in ARMS]


def text(results: list[ArmResult]) -> str:
    return " ".join(conclude(results))


PREDICTED = study(fork_pinned=4000, fork_pageable=400_000, fork_staged=4000, spawn_pageable=300_000)


def test_there_are_six_arms() -> None:
    assert (
        *("fork-pinned", "fork-pageable", "fork-staged"),
        *("spawn-pinned", "spawn-pageable", "spawn-staged"),
    ) == ARMS


def test_the_prediction_holds() -> None:
    said = text(PREDICTED)
    assert "As predicted" in said
    assert "multiprocessing_context: spawn and data.loader.pin_memory: true" in said
    assert "Each start of forked workers stops the queues for 20 ms" in said
    assert "Each pageable batch stops the queues for 3 ms" in said
    assert "GPU_PINNED_MIN_XFER_SIZE prevents this" in said
    assert "No arm hung" in said
    assert "Not as predicted" not in said


def test_staging_may_not_help() -> None:
    assert "GPU_PINNED_MIN_XFER_SIZE does not help" in text([*PREDICTED[:5], replace(PREDICTED[5], evicted_ms=9000)])


@pytest.mark.parametrize(
    ("results", "phrase"),
    [
        (study(), "fork-pinned does not grow, spawn-pageable does not grow"),
        (study(fork_pinned=4000, spawn_pageable=4000, spawn_pinned=4000), "Not as predicted: spawn-pinned grows"),
        (study(fork_pinned=4000), "Not as predicted: spawn-pageable does not grow"),
    ],
)
def test_the_prediction_fails(results: list[ArmResult], phrase: str) -> None:
    said = text(results)
    assert phrase in said
    assert "As predicted" not in said
    assert "multiprocessing_context: spawn" not in said


def test_growth_is_relative_to_the_duration() -> None:
    assert replace(PLAIN, evicted_ms=361).grows is True
    assert replace(PLAIN, evicted_ms=359).grows is False
    assert replace(PLAIN, evicted_ms=None).grows is None
    assert replace(PLAIN, evicted_ms=0, steps=0).grows is None


def test_without_evicted_ms_the_prediction_is_not_tested() -> None:
    said = text([replace(one, evicted_ms=None, stall_evicted_ms=None) for one in study()])
    assert "does not report evicted_ms" in said
    assert "predicted:" not in said


@pytest.mark.parametrize(
    ("stopped_ms", "phrase"),
    [(119_000, "(H3)"), (60_000, "(H3)"), (59_999, "at most a part"), (0, "not H3"), (None, "is unknown")],
)
def test_conclusion_about_a_hang_depends_on_stopped_queues(stopped_ms: int | None, phrase: str) -> None:
    hung = replace(PREDICTED[0], end=End.HANG, stalled_s=120.0, stall_evicted_ms=stopped_ms)
    said = text([hung, *PREDICTED[1:]])
    assert "fork-pinned hung after 100,000 steps" in said
    assert phrase in said
    assert "Without a hang: fork-pageable, fork-staged, spawn-pinned, spawn-pageable, spawn-staged." in said


def test_unfinished_arms_are_named_and_make_conclusions_preliminary() -> None:
    results = [replace(PREDICTED[3], end=End.CRASH, steps=0), *PREDICTED[:3]]
    said = text(results)
    assert "Not finished: spawn-pinned, spawn-pageable, spawn-staged" in said
    assert "As predicted" not in said
    assert "No arm hung" not in said


def test_the_table_has_a_row_per_arm_and_the_conclusion() -> None:
    crashed = replace(PREDICTED[1], end=End.CRASH, detail="SIGSEGV")
    lines = markdown([PREDICTED[0], crashed], "a card").splitlines()
    row = "| fork-pinned | complete | 1.00 | 100,000 | 200 | 4,000 | 0.04 | 20 | 20.0 | 30.0 | 0 |"
    assert row in lines
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1
    assert "- fork-pageable crashed: SIGSEGV" in lines
    assert any("Not finished" in line for line in lines)
