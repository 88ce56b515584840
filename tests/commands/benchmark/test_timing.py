"""Order of the rounds, statistics, the time of the stages, and the comparison of variants."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from yolo_lightning.commands.benchmark import comparison
from yolo_lightning.commands.benchmark.baselines import Variant
from yolo_lightning.commands.benchmark.comparison import Pass, Result, Spread, compare, ratio, reference, rounds

CPU = torch.device("cpu")


class Watch:
    """Replacement of the host clock; only the stages advance the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.seen: list[Variant] = []
        monkeypatch.setattr(comparison.time, "perf_counter", lambda: self.now_s)

    def work(self, variant: Variant, forward_s: float, backward_s: float) -> Callable[[], Pass]:
        def forward(_: None) -> None:
            self.seen.append(variant)
            self.now_s += forward_s

        def backward(_: None) -> None:
            self.now_s += backward_s

        return lambda: Pass((("forward", forward), ("backward", backward)), ())


def run(passes: dict[Variant, Callable[[], Pass]], repeats: int = 3) -> list[Result]:
    return compare(passes, CPU, repeats=repeats, footprints=False, profiled=False)


@given(st.integers(1, 6), st.integers(0, 12))
def test_every_round_is_a_rotation_that_starts_one_item_later(items: int, count: int) -> None:
    orders = list(rounds(range(items), count))
    assert len(orders) == count
    for position, order in enumerate(orders):
        assert sorted(order) == list(range(items))
        assert order[0] == position % items


def test_ratio_cancels_a_slowdown_of_a_whole_round() -> None:
    # Neither the ratio of the medians (9) nor the mean of the ratios (4.3).
    one, two = Spread((2.0, 20.0, 9.0)), Spread((1.0, 10.0, 1.0))
    assert one.ratio_to(two) == 2.0
    assert (one.median_s, one.minimum_s, one.maximum_s) == (9.0, 2.0, 20.0)


def test_time_of_a_stage_is_the_mean_over_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(monkeypatch)
    durations = iter((1.0, 3.0, 2.0, 5.0))

    def stage(_: None) -> None:
        watch.now_s += next(durations)

    one_pass = Pass((("forward", stage), ("backward", stage)), ())
    assert one_pass.time(CPU, calls=2) == {"forward": 1.5, "backward": 4.0}
    assert watch.now_s == 11.0


def test_events_time_the_stages_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events whose times are known replace those of a GPU."""
    milliseconds = iter((0.0, 1.0, 4.0, 10.0, 13.0, 20.0))

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at_ms = next(milliseconds)

        def elapsed_time(self, end: "Event") -> float:
            return end.at_ms - self.at_ms

    synchronized: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.accelerator, "synchronize", synchronized.append)
    one_pass = Pass((("forward", lambda _: None), ("backward", lambda _: None)), ())
    assert one_pass.time(torch.device("cuda"), calls=2) == pytest.approx({"forward": 0.002, "backward": 0.005})
    assert len(synchronized) == 1, "the host waits at the end only"


def test_variants_take_turns_and_are_timed_separately(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(monkeypatch)
    native, gemm = run({v: watch.work(v, s, 2 * s) for v, s in ((Variant.NATIVE, 1.0), (Variant.GEMM, 2.0))})
    warm_up, rounds_ = watch.seen[:4], watch.seen[4:]
    assert warm_up == [Variant.NATIVE, Variant.NATIVE, Variant.GEMM, Variant.GEMM]
    assert rounds_ == [Variant.NATIVE, Variant.GEMM, Variant.GEMM, Variant.NATIVE, Variant.NATIVE, Variant.GEMM]
    assert native.total == Spread((3.0,) * 3)
    assert gemm.stages == {"forward": Spread((2.0,) * 3), "backward": Spread((4.0,) * 3)}
    assert ratio(gemm, reference([native, gemm])) == 2.0


def test_short_work_is_repeated_within_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(monkeypatch)
    (result,) = run({Variant.GEMM: watch.work(Variant.GEMM, 0.001, 0.001)}, repeats=1)
    assert len(watch.seen) == 2 + comparison.MIN_SAMPLE_S / 0.002
    assert result.total is not None
    assert result.total.median_s == pytest.approx(0.002)


@pytest.mark.parametrize("fails_at", [1, 4], ids=["warm-up", "second round"])
def test_a_failing_variant_becomes_a_result(monkeypatch: pytest.MonkeyPatch, fails_at: int) -> None:
    watch = Watch(monkeypatch)
    calls = 0

    def broken(_: None) -> None:
        nonlocal calls
        calls += 1
        if calls >= fails_at:
            raise RuntimeError("miopenStatusUnknownError\nand a long text")

    passes = {
        Variant.NATIVE: lambda: Pass((("forward", broken),), ()),
        Variant.GEMM: watch.work(Variant.GEMM, 1.0, 1.0),
    }
    native, gemm = run(passes)
    failure = "RuntimeError: miopenStatusUnknownError"
    assert native == Result(Variant.NATIVE, {}, None, None, failure, reference=Variant.GEMM)
    assert calls == fails_at
    assert gemm.total == Spread((2.0,) * 3)
    assert reference([native, gemm]) is gemm
    assert ratio(native, gemm) is None


def test_reference_is_the_faster_layout_of_the_first_measured_implementation() -> None:
    times = {Variant.NATIVE: 3.0, Variant.NATIVE_NHWC: 2.0, Variant.GEMM: 1.0, Variant.SLOW: 4.0}
    results = [Result(variant, {}, Spread((time_s,))) for variant, time_s in times.items()]
    found = [reference(results), reference(results, ("slow",)), reference(results[2:])]
    assert [result and result.variant for result in found] == [Variant.NATIVE_NHWC, Variant.SLOW, Variant.SLOW]
