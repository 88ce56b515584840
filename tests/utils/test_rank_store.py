"""Ranks receive the decision of the first rank, and end together if they differ."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from torch.distributed import HashStore

from yolo_lightning.errors import UserError
from yolo_lightning.utils.distributed import disagreement
from yolo_lightning.utils.rank_store import RankStore, connect_ranks

RANKS = 3


def results(work: Callable[[RankStore], Any]) -> list[Any]:
    """Return the result, or the exception, of `work` in each rank; the ranks are threads."""
    store = HashStore()
    store.set_timeout(timedelta(seconds=20))

    def of_rank(rank: int) -> Any:
        try:
            return work(RankStore(store, rank, RANKS))
        except Exception as error:
            return error

    with ThreadPoolExecutor(RANKS) as threads:
        return list(threads.map(of_rank, range(RANKS)))


def test_all_ranks_receive_what_the_first_rank_decides() -> None:
    deciders = []

    def work(ranks: RankStore) -> Any:
        return ranks.decide("plan", lambda: deciders.append(ranks.rank) or {"folder": "run"})

    assert results(work) == [{"folder": "run"}] * RANKS
    assert deciders == [0]


@pytest.mark.parametrize("error", [UserError("no checkpoint"), OSError("no mount"), SystemExit(0)])
def test_exception_of_the_first_rank_ends_all_ranks(error: BaseException) -> None:
    def work(ranks: RankStore) -> str:
        def fail() -> None:
            raise error

        try:
            ranks.decide("plan", fail)
        except BaseException as raised:
            return f"{type(raised).__name__}: {raised}"
        return "continues"

    first, *other_results = results(work)
    assert first == f"{type(error).__name__}: {error}"
    assert other_results == [f"UserError: the first rank ended: {error}"] * (RANKS - 1)


def test_difference_ends_all_ranks_in_one_line_with_host_rank_and_both_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "host")

    def work(ranks: RankStore) -> None:
        ranks.compare({"torch": "2.11" if ranks.rank == 2 else "2.12", "option model.variant": "yolov8n"})

    expected = "the ranks differ in torch: '2.11' on rank 2 (host host), '2.12' on rank 0 (host host). All ranks end."
    assert [str(error) for error in results(work)] == [expected] * RANKS
    assert results(lambda ranks: ranks.compare({"torch": "2.12"})) == [None] * RANKS


def test_missing_fact_is_a_difference() -> None:
    reports: list[tuple[str, dict[str, int]]] = [("a", {}), ("b", {"step": 3})]
    assert disagreement(reports) == (
        "the ranks differ in step: 3 on rank 1 (host b), None on rank 0 (host a). All ranks end."
    )
    assert disagreement(reports[:1]) is None


def test_process_without_torchrun_has_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert connect_ranks() is None
