"""The hang study on a CPU, with arms of seconds."""

import csv
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "scripts"))

import hang_study as study_module
from hang_experiment.conclusion import ARMS, ArmResult, End
from hang_experiment.watch import StudyLimits
from hang_study import TABLE, Study, check_shared_memory, choose_device, read_result, run_study

from yolo_lightning.commands.doctor.probes import Outcome, Probe, ProbeOutcome
from yolo_lightning.utils.files import write_json

pytestmark = pytest.mark.whole_run  # real processes, seconds each

FORKED, SPAWNED = "fork-pinned", "spawn-staged"
QUICK = StudyLimits(interval_s=0.2, start_s=120.0, stall_s=1.0, poll_s=0.02)

STAND_IN = """
import os, struct, sys, time
with open(sys.argv[1], "ab") as file:
    for number in range(3):
        file.write(struct.pack("<dd", 0.01, 1))
        file.flush()
{then}
"""


def answer(outcome: Outcome = Outcome.WORKS, device: str = "cpu") -> ProbeOutcome:
    return ProbeOutcome(Probe.DEVICE, outcome, "no details", facts={"device": device, "name": ""})


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the probe of the device, which takes seconds, by a CPU."""
    monkeypatch.setattr(study_module, "run_probe", lambda probe, device, timeout_s: answer())


def quick(folder: Path, *arms: str, seconds: float = 0.3) -> Study:
    return Study(folder=folder, device="cpu", seconds=seconds, frames=1, arms=arms, limits=QUICK)


def stand_in(monkeypatch: pytest.MonkeyPatch, **ends: str) -> list[str]:
    """Replace arms by three steps followed by the code in `ends`; return the list of arms that were run."""
    run: list[str] = []

    def command(study: Study, arm: str, device: str, steps: Path) -> list[str]:
        run.append(arm)
        code = STAND_IN.format(then=ends.get(arm.replace("-", "_"), ""))
        return [sys.executable, "-S", "-c", code, str(steps)]

    monkeypatch.setattr(study_module, "arm_command", command)
    return run


def said_by(study: Study) -> tuple[int, str]:
    said: list[str] = []
    return run_study(study, said.append), "\n".join(said)


def test_a_real_arm_forks_and_leaves_its_steps(tmp_path: Path) -> None:
    study = replace(quick(tmp_path, FORKED), limits=replace(QUICK, stall_s=60.0))
    code, said = said_by(study)
    assert code == 0, said
    rows = list(csv.DictReader((tmp_path / "fork-pinned.csv").open()))
    assert int(rows[-1]["steps"]) >= 1
    assert int(rows[-1]["worker_starts"]) >= 1
    assert "| fork-pinned | complete |" in (tmp_path / TABLE).read_text()
    assert not list(tmp_path.glob("*.steps"))


@pytest.mark.slow
def test_the_whole_rehearsal(tmp_path: Path) -> None:
    code, said = said_by(replace(quick(tmp_path, *ARMS, seconds=1.0), limits=StudyLimits()))
    assert code == 0, said
    assert all((tmp_path / f"{arm}.csv").stat().st_size for arm in ARMS)


def test_a_hang_is_recorded_and_the_next_arm_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, fork_pinned="time.sleep(600)")
    code, said = said_by(quick(tmp_path, FORKED, SPAWNED))
    assert code == 0
    table = (tmp_path / TABLE).read_text()
    assert "| fork-pinned | hang |" in table
    assert "| spawn-staged | complete |" in table
    assert "fork-pinned hung after 3 steps; whether queues were stopped is unknown." in said


def test_only_crashed_arms_are_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = stand_in(monkeypatch, fork_pinned="time.sleep(600)", spawn_staged="os.abort()")
    code, said = said_by(quick(tmp_path, FORKED, SPAWNED))
    assert (code, run) == (1, ["fork-pinned", "spawn-staged"])
    assert "SIGABRT" in said
    run.clear()
    stand_in_again = stand_in(monkeypatch)
    assert said_by(quick(tmp_path, FORKED, SPAWNED))[0] == 0
    assert stand_in_again == ["spawn-staged"]


def test_stored_result_must_be_complete_and_of_the_same_conditions(tmp_path: Path) -> None:
    study = quick(tmp_path, FORKED)
    result = ArmResult("fork-pinned", End.HANG, 9.0, 3, 1, None, 2.0, None, 1.0, 1.0, 0)

    def write(result: ArmResult) -> None:
        write_json(tmp_path / "fork-pinned.json", {"conditions": "a card, 1 h", "result": asdict(result)})

    write(result)
    assert read_result(study, FORKED, "a card, 1 h") == result
    assert read_result(study, FORKED, "a card, 2 h") is None
    assert read_result(study, SPAWNED, "a card, 1 h") is None
    path = tmp_path / "fork-pinned.json"
    path.write_text(path.read_text()[:50])
    assert read_result(study, FORKED, "a card, 1 h") is None
    write(replace(result, end=End.CRASH))
    assert read_result(study, FORKED, "a card, 1 h") is None


def test_only_staged_arms_set_the_transfer_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPU_PINNED_MIN_XFER_SIZE", raising=False)
    code = f"open({str(tmp_path)!r} + '/' + sys.argv[1].split('/')[-1] + '.seen', 'w').write("
    code += "os.environ.get('GPU_PINNED_MIN_XFER_SIZE', 'none'))"
    stand_in(monkeypatch, fork_pinned=code, spawn_staged=code)
    said_by(quick(tmp_path, FORKED, SPAWNED))
    seen = {path.name: path.read_text() for path in tmp_path.glob("*.seen")}
    assert seen == {"fork-pinned.steps.seen": "none", "spawn-staged.steps.seen": "131072"}


def test_a_device_that_is_dead_after_a_hang_ends_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([answer(), answer(Outcome.HANGS)])
    monkeypatch.setattr(study_module, "run_probe", lambda probe, device, timeout_s: next(answers))
    run = stand_in(monkeypatch, fork_pinned="time.sleep(600)")
    code, said = said_by(quick(tmp_path, FORKED, SPAWNED))
    assert (code, run) == (1, ["fork-pinned"])
    assert "Reboot" in said


def test_study_without_a_gpu_needs_device_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"--device auto needs a GPU.*--device cpu"):
        choose_device("auto")
    assert choose_device("cpu")[0] == "cpu"
    monkeypatch.setattr(study_module, "run_probe", lambda *_: answer(Outcome.FAILS))
    with pytest.raises(ValueError, match="--device cuda cannot be used: it fails, no details"):
        choose_device("cuda")


def test_invalid_options_raise_value_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--hours_per_arm must be > 0, got 0"):
        said_by(quick(tmp_path, FORKED, seconds=0.0))
    with pytest.raises(ValueError, match="MiB free, the study needs"):
        check_shared_memory(1 << 60)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"--study_folder .* cannot be written"):
        said_by(quick(tmp_path / "file", FORKED))


def test_two_studies_do_not_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    with study_module.sole_writer(tmp_path / "study.lock"), pytest.raises(ValueError, match=f"process {os.getpid()}"):
        said_by(quick(tmp_path, FORKED))


def test_options_of_the_command_are_checked_and_passed_on(tmp_path: Path) -> None:
    script = str(REPOSITORY / "scripts" / "hang_study.py")
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    options = ["--device", "cpu", "--study_folder", str(tmp_path), "--hours_per_arm"]
    done = subprocess.run([sys.executable, script, *options, "0"], env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--hours_per_arm must be > 0, got 0" in done.stderr
    assert len(Study(tmp_path, "cpu", 1.0).arms) == 6
