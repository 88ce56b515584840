"""Cache file of `TimedPlan`: stored timings, ignored files, corrupt content, concurrent writers."""

import errno
import json
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conv.test_plan import OTHER, PROBLEM, Table
from yolo_lightning.conv import TimedPlan, autotune_cache
from yolo_lightning.conv.autotune_cache import PlanCache, TimingEnvironment, describe_environment, read_tables

CPU = torch.device("cpu")


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    return Table(monkeypatch)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "made" / "on" / "demand" / "plan.json"


def move(monkeypatch: pytest.MonkeyPatch, **changes: str) -> None:
    """Change the reported environment."""
    original = describe_environment
    monkeypatch.setattr(autotune_cache, "describe_environment", lambda device: original(device)._replace(**changes))


def warnings_of(table: Table, plan: TimedPlan) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for problem in (PROBLEM, OTHER, PROBLEM):
            table.run(plan, problem)
    return [str(warning.message) for warning in caught]


def test_another_process_chooses_the_same_without_timing(table: Table, file: Path) -> None:
    table.run(TimedPlan(100, file))
    table.seconds = {"slow": 0.1, "quick": 9.0, "middling": 0.1}
    for budget_s in (100, 0):
        plan = TimedPlan(budget_s, file)
        assert table.run(plan) == ["quick"]
        assert plan.spent_s == 0
        assert dict(plan.describe()[0].seconds) == {"slow": 3.0, "quick": 1.0, "middling": 2.0}
    assert os.listdir(file.parent) == [file.name]


TRAIN_A_STEP = """
import sys
import torch
from yolo_lightning.conv import TimedPlan, conv2d

def step(file):
    plan = TimedPlan(60, file)
    leaves = [torch.ones(1, 2, 6, 6, requires_grad=True), torch.ones(2, 2, 3, 3, requires_grad=True)]
    conv2d(*leaves, plan=plan).sum().backward()
    return {entry.problem: entry.algorithm for entry in plan.describe()}, plan.spent_s
"""


def test_a_real_second_process(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    script = TRAIN_A_STEP + "import json; torch.set_num_threads(1); print(json.dumps(step(sys.argv[1])))"
    first, spent_s = json.loads(subprocess.check_output([sys.executable, "-W", "error", "-c", script, file], text=True))
    here: dict[str, Any] = {}
    exec(TRAIN_A_STEP, here)
    second, spent_here_s = here["step"](file)
    assert len(first) == 4, "forward, both gradients, and each of them"
    assert second.items() <= first.items()
    assert spent_s > 0
    assert spent_here_s == 0


@pytest.mark.parametrize("field", TimingEnvironment._fields)
def test_a_changed_environment_is_named_in_one_warning_and_timed_anew(
    field: str, table: Table, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.run(TimedPlan(100, file))
    move(monkeypatch, **{field: "changed"})
    plan = TimedPlan(1000, file)
    messages = warnings_of(table, plan)
    assert plan.spent_s > 0
    if field == "device_type":
        assert messages == [], "another kind of device has a table of its own beside the first"
        assert len(read_tables(file)) == 2
    else:
        assert len(messages) == 1
        assert f"{file} is ignored" in messages[0]
        assert f"{field} is 'changed', was" in messages[0]
        assert len(read_tables(file)) == 1, "the old timings are replaced"
    assert warnings_of(table, TimedPlan(0, file)) == []


FIELDS = {field: "x" for field in TimingEnvironment._fields}
BROKEN = {
    "empty": b"",
    "torn": b'{"format": 1, "tables": [{"envi',
    "binary": bytes(range(256)),
    "a list": b"[]",
    "another format": b'{"format": 2, "tables": []}',
    "no tables": b'{"format": 1}',
    "tables of another kind": b'{"format": 1, "tables": [7]}',
    "another environment": b'{"format": 1, "tables": [{"environment": {"torch": "2"}, "seconds": {}}]}',
    "deep": b"[" * 200_000,
    "seconds of another kind": json.dumps(
        {"format": 1, "tables": [{"environment": FIELDS, "seconds": {"p": {"slow": "fast"}}}]}
    ).encode(),
    "not a number": b'{"format": 1, "tables": [{"environment": %s, "seconds": {"p": {"slow": NaN}}}]}'
    % json.dumps(FIELDS).encode(),
    "endless": b'{"format": 1, "tables": [{"environment": %s, "seconds": {"p": {"slow": Infinity}}}]}'
    % json.dumps(FIELDS).encode(),
    "unhashable": b'{"format": 1, "tables": [{"environment": %s, "seconds": {}}]}'
    % json.dumps({field: [] for field in TimingEnvironment._fields}).encode(),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_corrupt_file_is_ignored_with_one_warning_and_replaced(content: bytes, table: Table, file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    messages = warnings_of(table, TimedPlan(1000, file))
    assert len(messages) == 1
    assert f"{file} is ignored and will be replaced" in messages[0]
    assert warnings_of(table, TimedPlan(0, file)) == []
    assert table.run(TimedPlan(0, file)) == ["quick"]


def test_one_warning_for_all_devices(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = describe_environment
    monkeypatch.setattr(
        autotune_cache, "describe_environment", lambda device: original(CPU)._replace(device_type=device.type)
    )
    file.parent.mkdir(parents=True)
    file.write_text("torn")
    cache = PlanCache(file)
    with pytest.warns(UserWarning, match="ignored"):
        assert cache.lookup(CPU, "problem") == {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.lookup(torch.device("cuda"), "problem") == {}


def test_timings_of_unknown_algorithms_do_not_count(table: Table, file: Path) -> None:
    table.run(TimedPlan(100, file))
    content = file.read_text().replace('"quick"', '"of another house"')
    file.write_text(content)
    assert table.run(TimedPlan(0, file)) == ["middling"]


def test_a_disk_that_is_full_costs_one_warning(table: Table, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(autotune_cache.os, "replace", full)
    plan = TimedPlan(1000, file)
    messages = warnings_of(table, plan)
    assert len(messages) == 1
    assert f"cannot write {file}" in messages[0]
    assert "No space left" in messages[0]
    assert os.listdir(file.parent) == [], "nothing half written is left"
    assert table.run(plan) == ["quick"]


def test_a_path_that_cannot_be_a_file_costs_one_warning_each_way(table: Table, tmp_path: Path) -> None:
    messages = warnings_of(table, TimedPlan(1000, tmp_path))
    assert ["ignored" in messages[0], "cannot write" in messages[1]] == [True, True]
    assert len(messages) == 2
    assert list(tmp_path.iterdir()) == []


def test_what_another_process_wrote_in_the_meantime_stays(file: Path) -> None:
    one, two = PlanCache(file), PlanCache(file)
    assert [cache.lookup(CPU, "first") for cache in (one, two)] == [{}, {}]
    one.store(CPU, "first", {"slow": 1.0})
    two.store(CPU, "second", {"slow": 2.0})
    later = PlanCache(file)
    assert [later.lookup(CPU, problem) for problem in ("first", "second")] == [{"slow": 1.0}, {"slow": 2.0}]


def test_many_writers_never_tear_the_file(file: Path) -> None:
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            cache = PlanCache(file)
            for step in range(20):
                cache.store(CPU, f"{number} {step}", {"slow": 1.0})
                read_tables(file)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert os.listdir(file.parent) == [file.name]
    # A writer may overwrite what another added at the same moment, never what it knows itself.
    assert len(next(iter(read_tables(file).values()))) >= 20


def test_no_file_keeps_timings_in_memory(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = TimedPlan(100)
    table.run(plan)
    assert table.run(plan) == ["quick"]
    assert list(tmp_path.iterdir()) == []


def test_the_environment_of_a_cpu_names_model_threads_torch_and_algorithms() -> None:
    environment = describe_environment(CPU)
    assert environment.device_type == "cpu"
    assert environment.device.endswith(f"{torch.get_num_threads()} threads")
    assert environment.torch == torch.__version__
    assert "im2col" in environment.algorithms
    assert all(environment)


def test_the_environment_of_an_accelerator_names_its_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    class Device:
        @staticmethod
        def get_device_name(device: torch.device) -> str:
            return "AMD Radeon RX 5600 XT"

        @staticmethod
        def get_device_properties(device: torch.device) -> object:
            return type("Properties", (), {"gcnArchName": "gfx1010:xnack-"})

    monkeypatch.setattr(torch, "get_device_module", lambda device: Device)
    environment = describe_environment(torch.device("cuda", 0))
    assert environment.device == "AMD Radeon RX 5600 XT gfx1010:xnack-"
    assert "CUDA" in environment.driver or "ROCm" in environment.driver
