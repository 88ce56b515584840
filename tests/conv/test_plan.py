"""Plans: selection, timing, constant decisions."""

import copy
import pickle
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.conv.test_conv2d import random
from yolo_lightning.conv import DEFAULT_PLAN, AutotunedPlan, GemmConv2d, Plan, conv2d, plan as plan_module
from yolo_lightning.conv.algorithms.algorithm import Operation
from yolo_lightning.conv.algorithms.problem import Problem, Tensors
from yolo_lightning.conv.algorithms.table import SEPARATE, Candidate, candidates

PROBLEM = Problem((1, 1, 4, 4), (1, 1, 3, 3), (1, 1), (0, 0, 0, 0), (1, 1), 1, False)
OTHER = Problem((2, 1, 4, 4), (1, 1, 3, 3), (1, 1), (0, 0, 0, 0), (1, 1), 1, False)
TENSORS = (torch.zeros(1), torch.zeros(1))


class Table:
    """Replacement of the table: three algorithms that count calls and advance a fake clock, the default first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.seconds = {"slow": 3.0, "quick": 1.0, "middling": 2.0}
        self.calls: list[str] = []
        self.failures: dict[str, RuntimeError] = {}
        self.pause_s = 0.0
        monkeypatch.setattr(plan_module, "time", SimpleNamespace(perf_counter=lambda: self.now_s))
        monkeypatch.setattr(plan_module, "candidates", lambda *_: self.candidates())

    def candidates(self) -> tuple[Candidate, ...]:
        return tuple(Candidate(name, self.compute(name)) for name in self.seconds)

    def compute(self, name: str) -> Callable[[Tensors], Tensors]:
        def compute(tensors: Tensors) -> Tensors:
            self.calls.append(name)
            self.now_s += self.seconds[name]
            time.sleep(self.pause_s)
            if name in self.failures:
                raise self.failures[name]
            return (torch.zeros(1),)

        return compute

    def run(self, plan: Plan, problem: Problem = PROBLEM) -> list[str]:
        """What a forward product calls."""
        self.calls.clear()
        plan.compute(Operation.FORWARD, problem, TENSORS)
        return list(self.calls)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    return Table(monkeypatch)


# The table of defaults


@pytest.mark.parametrize(
    ("weight_size", "stride", "groups", "defaults"),
    [
        ((8, 8, 1, 1), 1, 1, ["pointwise"] * 3),
        ((8, 8, 3, 3), 1, 1, ["im2col", "mirrored im2col", "im2col"]),
        ((32, 8, 3, 3), 1, 1, ["im2col", "mirrored im2col", "im2col"]),
        ((8, 4, 3, 3), 2, 2, ["im2col", "im2col", "im2col"]),
        ((8, 1, 3, 3), 1, 8, ["depthwise", "mirrored depthwise", "depthwise"]),
    ],
)
def test_defaults_of_contiguous_float32(
    weight_size: tuple[int, int, int, int], stride: int, groups: int, defaults: list[str]
) -> None:
    for channels_last in (True, False):
        problem = Problem((2, 8, 9, 9), weight_size, (stride, stride), (0, 0, 0, 0), (1, 1), groups, channels_last)
        names = [candidates(operation, problem, torch.float32, "cpu")[0].name for operation in list(Operation)[:3]]
        assert [name.removesuffix(" in NHWC") for name in names] == defaults


def test_names_are_unique() -> None:
    for channels_last in (False, True):
        for stride in (1, 2):
            problem = Problem((2, 8, 9, 9), (8, 8, 3, 3), (stride, stride), (0,) * 4, (1, 1), 1, channels_last)
            for operation in Operation:
                names = [candidate.name for candidate in candidates(operation, problem, torch.float32, "cpu")]
                assert len(names) == len(set(names))


def test_default_plan_times_nothing(table: Table) -> None:
    plan = Plan()
    assert [table.run(plan), table.run(plan, OTHER)] == [["slow"], ["slow"]]
    assert [chosen.name for chosen in plan.decisions.values()] == ["slow"] * 2


# Timing


def test_the_fastest_candidate_is_used_from_the_first_call_on(table: Table) -> None:
    plan = AutotunedPlan(100)
    first = table.run(plan)
    assert set(first) == {"slow", "quick", "middling"}
    assert first[-1] == "quick"
    table.seconds = {"slow": 0.1, "quick": 9.0, "middling": 0.1}
    assert table.run(plan) == ["quick"], "the choice does not change"
    ((key, chosen),) = plan.decisions.items()
    assert (key.operation, chosen.name) == (Operation.FORWARD, "quick")


def test_a_hopeless_candidate_is_run_no_more_than_twice(table: Table) -> None:
    table.seconds = {"quick": 1.0, "hopeless": 30.0}
    assert table.run(AutotunedPlan(1000)).count("hopeless") == 2


def test_the_default_is_kept_unless_another_is_clearly_faster(table: Table) -> None:
    table.seconds = {"default": 1.0, "hardly faster": 0.96}
    assert table.run(AutotunedPlan(1000))[-1] == "default"
    table.seconds = {"default": 1.0, "faster": 0.94}
    assert table.run(AutotunedPlan(1000))[-1] == "faster"


def test_new_problems_use_the_default_after_the_budget_is_spent(table: Table) -> None:
    plan = AutotunedPlan(budget_s=5.0)
    table.run(plan)
    assert plan.spent_s > 5.0, "the problem that was begun is finished"
    assert table.run(plan, OTHER) == ["slow"]
    assert table.run(plan) == ["quick"], "earlier decisions do not change"


def test_no_timing_with_a_budget_of_0(table: Table) -> None:
    assert table.run(AutotunedPlan(0)) == ["slow"]


@pytest.mark.parametrize("budget_s", [-1, float("nan")])
def test_invalid_budgets(budget_s: float) -> None:
    with pytest.raises(ValueError, match=f"budget_s must be >= 0 seconds, got {budget_s}"):
        AutotunedPlan(budget_s)


def test_cleared_decisions_are_made_again_without_timing(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "MAX_DECISIONS", 1)
    plan = AutotunedPlan(100)
    table.run(plan)
    table.run(plan, OTHER)
    assert len(plan.decisions) == 1
    assert table.run(plan) == ["quick"]


def test_two_threads_time_a_problem_once(table: Table) -> None:
    plan, gate, table.pause_s = AutotunedPlan(1000), threading.Barrier(2), 0.01

    def run() -> None:
        gate.wait()
        plan.compute(Operation.FORWARD, PROBLEM, TENSORS)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert table.calls.count("slow") == 2, "excluded after one timed run"


def test_no_timing_on_the_meta_device(table: Table) -> None:
    plan = AutotunedPlan(100)
    plan.compute(Operation.FORWARD, PROBLEM, (torch.zeros(1, device="meta"), torch.zeros(1, device="meta")))
    assert table.calls == ["slow"]
    assert table.run(plan)[-1] == "quick", "the first real tensors are timed"


def test_both_gradients_at_once_if_faster(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The separate candidate takes 2 seconds, and the nested timing of its parts is counted once."""
    both = (torch.zeros(1), torch.zeros(1))

    def at_once(tensors: Tensors) -> Tensors:
        table.now_s += 1.5
        return both

    monkeypatch.setattr(
        plan_module,
        "gradient_candidates",
        lambda *arguments: (Candidate(SEPARATE, arguments[-1]), Candidate("at once", at_once)),
    )
    plan = AutotunedPlan(1000)
    assert plan.compute(Operation.GRADIENTS, PROBLEM, (*TENSORS, TENSORS[0])) == both
    assert plan.spent_s == pytest.approx(table.now_s - 1.5), "all but the run whose result was returned"
    chosen = {key.operation: chosen.name for key, chosen in plan.decisions.items()}
    assert chosen == {
        Operation.INPUT_GRADIENT: "quick",
        Operation.WEIGHT_GRADIENT: "quick",
        Operation.GRADIENTS: "at once",
    }


def test_an_unbatched_input_uses_the_plan() -> None:
    plan = Plan()
    conv2d(random(4, 9, 8), random(6, 4, 3, 3), plan=plan)
    assert [key.operation for key in plan.decisions] == [Operation.FORWARD]


# Memory


@pytest.mark.parametrize("make", [Plan, lambda: AutotunedPlan(100)], ids=["table", "autotune"])
def test_errors_of_the_selected_algorithm_are_raised(table: Table, make: Callable[[], Plan]) -> None:
    """The caller of a training step divides the batch after an out-of-memory error."""
    table.failures = {name: torch.OutOfMemoryError(name) for name in table.seconds}
    with pytest.raises(torch.OutOfMemoryError, match="slow"):
        table.run(make())
    table.failures["slow"] = RuntimeError("a mistake of ours")
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        table.run(make())


def test_out_of_memory_while_timing(table: Table) -> None:
    plan = AutotunedPlan(100)
    table.failures["quick"] = torch.OutOfMemoryError("too much")
    with pytest.warns(UserWarning, match="not timed: 'quick'.*too much") as caught:
        assert table.run(plan)[-1] == "middling"
    assert len(caught) == 1
    assert table.run(plan) == ["middling"]


# Copies


def test_copies_of_a_layer_share_the_plan_and_pickles_keep_its_settings(tmp_path: Path) -> None:
    layer = GemmConv2d(3, 4, 3)
    layer.plan = AutotunedPlan(1.5, tmp_path / "plan.json")
    layer(torch.zeros(1, 3, 5, 5))
    assert copy.deepcopy(layer).plan is layer.plan
    twins = pickle.loads(pickle.dumps([layer, layer]))
    assert twins[0].plan is twins[1].plan
    assert (twins[0].plan.budget_s, twins[0].plan.cache_file) == (1.5, tmp_path / "plan.json")
    assert not twins[0].plan.decisions
    assert list(layer.state_dict()) == ["weight", "bias"]


def test_an_unpickled_layer_uses_the_default_plan() -> None:
    layer = GemmConv2d(3, 4, 3)
    assert layer.plan is DEFAULT_PLAN
    layer.plan = DEFAULT_PLAN
    assert pickle.loads(pickle.dumps(layer)).plan is DEFAULT_PLAN
    assert copy.deepcopy(layer).plan is DEFAULT_PLAN
