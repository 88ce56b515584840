"""Lines of ranks other than the first begin with rank and host."""

import io
import socket

import pytest

from yolo_lightning.utils import rank_zero
from yolo_lightning.utils.rank_zero import RankLines


def test_each_line_of_another_rank_begins_with_rank_and_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_zero.rank_zero_only, "rank", 3)
    stream = io.StringIO()
    lines = RankLines(stream)
    print("first\nsecond", "with a second word", file=lines, flush=True)
    lines.write("without a line break")
    lines.flush()
    lines.flush()
    mark = f"[rank 3, {socket.gethostname()}]"
    assert stream.getvalue().splitlines() == [
        f"{mark} first",
        f"{mark} second with a second word",
        f"{mark} without a line break",
    ]
    assert lines.closed is False
