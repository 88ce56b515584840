"""Status of each rank in the run folder, and the rank for which the others wait."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from yolo_lightning.supervision.heartbeat import HeartbeatWriter, Phase
from yolo_lightning.supervision.rank_status import RankStatus, hanging_rank, read_ranks, write_rank
from yolo_lightning.utils.activity import Activity
from yolo_lightning.utils.run_files import RANKS


@pytest.fixture
def writers(tmp_path: Path) -> Iterator[list[HeartbeatWriter]]:
    """Heartbeats of the ranks 1 and 2."""
    writers = [HeartbeatWriter(tmp_path / f"heartbeat-rank{rank}") for rank in (1, 2)]
    yield writers
    for writer in writers:
        writer.close()


def enter(writer: HeartbeatWriter, current: Activity) -> None:
    writer.beat(Phase.STEP, step=7)
    writer.show(current)


def test_status_files_are_read_in_the_order_of_the_ranks(tmp_path: Path) -> None:
    statuses = [RankStatus(rank, f"node{rank}", "step", "exchange", 7, 1.0, 1e9) for rank in (0, 2, 10)]
    for status in reversed(statuses):
        write_rank(tmp_path, status)
    (tmp_path / RANKS / "3.json").write_text('{"rank": "3"')
    assert read_ranks(tmp_path) == statuses
    assert [status.is_waiting for status in read_ranks(tmp_path)] == [True] * 3


def test_without_status_files_the_heartbeats_of_this_host_are_read(
    tmp_path: Path, writers: list[HeartbeatWriter]
) -> None:
    enter(writers[0], Activity.FORWARD)
    (tmp_path / "heartbeat-rank3").write_bytes(b"damaged")
    assert [(status.rank, status.phase, status.activity, status.step) for status in read_ranks(tmp_path)] == [
        (1, "step", "forward", 7),
        (2, "import", "", 0),
    ]


def test_rank_that_does_not_wait_for_others_hangs(tmp_path: Path, writers: list[HeartbeatWriter]) -> None:
    for writer in writers:
        enter(writer, Activity.EXCHANGE)
    assert hanging_rank(tmp_path) is None
    enter(writers[1], Activity.LOAD)
    hanging = hanging_rank(tmp_path)
    assert hanging is not None
    rank, heartbeat = hanging
    assert (rank, heartbeat.phase, heartbeat.activity) == (2, Phase.STEP, Activity.LOAD)
