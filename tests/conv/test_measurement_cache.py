"""Cache file: stored timings, ignored files, corrupt content, concurrent writers."""

import errno
import os
import threading
import warnings
from pathlib import Path

import pytest
import torch

from tests.conv.test_plan import OTHER, PROBLEM, Table
from yolo_lightning.conv import AutotunedPlan, measurement_cache
from yolo_lightning.conv.measurement_cache import describe_environment, load, read_entries, store

CPU = torch.device("cpu")


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    return Table(monkeypatch)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "made" / "on" / "demand" / "plan.json"


def warnings_of(table: Table, plan: AutotunedPlan) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for problem in (PROBLEM, OTHER, PROBLEM):
            table.run(plan, problem)
    return [str(warning.message) for warning in caught]


def test_another_process_chooses_the_same_without_timing(table: Table, file: Path) -> None:
    table.run(AutotunedPlan(100, file))
    table.seconds = {"slow": 0.1, "quick": 9.0, "middling": 0.1}
    for budget_s in (100, 0):
        plan = AutotunedPlan(budget_s, file)
        assert table.run(plan) == ["quick"]
        assert plan.spent_s == 0
    assert os.listdir(file.parent) == [file.name]


@pytest.mark.parametrize("field", describe_environment(CPU))
def test_a_changed_environment_is_timed_anew(
    field: str, table: Table, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.run(AutotunedPlan(100, file))
    monkeypatch.setattr(
        measurement_cache, "describe_environment", lambda device: describe_environment(device) | {field: "new"}
    )
    plan = AutotunedPlan(1000, file)
    assert warnings_of(table, plan) == []
    assert plan.spent_s > 0
    assert len(read_entries(file)) == 2, "both environments are stored"
    table.run(again := AutotunedPlan(1000, file))
    assert again.spent_s == 0


BROKEN = {
    "empty": b"",
    "torn": b'{"format": 2, "environments": {"cp',
    "binary": bytes(range(256)),
    "a list": b"[]",
    "another format": b'{"format": 1, "environments": {}}',
    "no environments": b'{"format": 2}',
    "an environment of another kind": b'{"format": 2, "environments": {"cpu": 7}}',
    "deep": b"[" * 200_000,
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_corrupt_file_is_ignored_with_one_warning_and_replaced(content: bytes, table: Table, file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    messages = warnings_of(table, AutotunedPlan(1000, file))
    assert len(messages) == 1
    assert f"{file} is ignored and will be replaced" in messages[0]
    assert warnings_of(table, AutotunedPlan(0, file)) == []
    assert table.run(AutotunedPlan(0, file)) == ["quick"]


@pytest.mark.parametrize("seconds", ["fast", None, 7, {"slow": "fast", "quick": None}, {"slow": float("nan")}], ids=str)
def test_damaged_timings_are_measured_again(seconds: object, table: Table, file: Path) -> None:
    table.run(AutotunedPlan(100, file))
    ((environment, problems),) = read_entries(file).items()
    store(file, environment, dict.fromkeys(problems, seconds))
    plan = AutotunedPlan(100, file)
    assert table.run(plan)[-1] == "quick"
    assert plan.spent_s > 0


def test_timings_of_unknown_algorithms_do_not_count(table: Table, file: Path) -> None:
    table.run(AutotunedPlan(100, file))
    content = file.read_text().replace('"quick"', '"of another house"')
    file.write_text(content)
    assert table.run(AutotunedPlan(0, file)) == ["middling"]


def test_a_full_disk_causes_a_warning(table: Table, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(measurement_cache.os, "replace", full)
    plan = AutotunedPlan(1000, file)
    messages = warnings_of(table, plan)
    assert f"cannot write {file}" in messages[0]
    assert "No space left" in messages[0]
    assert os.listdir(file.parent) == [], "no partial file remains"
    assert table.run(plan) == ["quick"]


def test_a_folder_as_file_is_refused_and_one_that_appears_later_causes_warnings(table: Table, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cache_file must be the path of a file"):
        AutotunedPlan(1000, tmp_path)
    plan = AutotunedPlan(1000, tmp_path / "timings")
    (tmp_path / "timings").mkdir()
    messages = warnings_of(table, plan)
    assert ["ignored" in messages[0], "cannot write" in messages[1]] == [True, True]
    assert list((tmp_path / "timings").iterdir()) == []


def test_entries_of_other_processes_are_preserved(file: Path) -> None:
    store(file, "cpu", {"first": {"slow": 1.0}})
    store(file, "cpu", {"second": {"slow": 2.0}})
    assert load(file, "cpu") == {"first": {"slow": 1.0}, "second": {"slow": 2.0}}


def test_concurrent_writers_leave_a_valid_file(file: Path) -> None:
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for step in range(20):
                store(file, "cpu", {f"{number} {step}": 1.0})
                read_entries(file)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert os.listdir(file.parent) == [file.name]
    assert len(read_entries(file)["cpu"]) == 4 * 20, "simultaneous writers lose no entry"


def test_pipe_in_the_place_of_the_file_blocks_nobody(file: Path) -> None:
    file.parent.mkdir(parents=True)
    os.mkfifo(file)
    with pytest.warns(UserWarning, match="is ignored and will be replaced: .*not a regular file"):
        assert load(file, "cpu") == {}


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
    assert environment["device"] == "AMD Radeon RX 5600 XT gfx1010:xnack-"
    assert "CUDA" in environment["driver"] or "ROCm" in environment["driver"]
