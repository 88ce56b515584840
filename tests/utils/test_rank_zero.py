"""Lines of ranks other than the first, and lines that nobody needs."""

import io
import logging
import os
import socket

import pytest
from lightning.pytorch.utilities import rank_zero_info

from yolo_lightning.utils import rank_zero
from yolo_lightning.utils.rank_zero import RankLines, count_as_only_process, hide_harmless_lines


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


def test_advice_of_lightning_that_a_user_cannot_follow_is_hidden(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    hide_harmless_lines()
    rank_zero_info("You are using a CUDA device ('NVIDIA H200') that has Tensor Cores. To properly utilize them, ...")
    rank_zero_info("💡 Tip: For seamless cloud logging, ...")
    rank_zero_info("Restored all states from the checkpoint")
    assert caplog.messages == ["Restored all states from the checkpoint"]


def test_rank_of_another_program_is_named_and_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setattr(rank_zero.rank_zero_only, "rank", 3)
    with pytest.warns(UserWarning, match=r"^RANK=3 in the environment has no effect"):
        count_as_only_process()
    assert rank_zero.rank_zero_only.rank == 0
    assert "RANK" not in os.environ
    assert os.environ["LOCAL_RANK"] == "0"
