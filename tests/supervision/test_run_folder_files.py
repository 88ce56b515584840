import json
import os
import subprocess
import sys
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from yolo_lightning import supervision
from yolo_lightning.checkpoints import checkpoint_file
from yolo_lightning.supervision import run_disk
from yolo_lightning.supervision.helper_process import Helper
from yolo_lightning.supervision.job import Job, SuperviseSettings, has_saved, saved_marks
from yolo_lightning.supervision.phase_timeouts import PhaseTimeouts
from yolo_lightning.supervision.run_disk import Recorder
from yolo_lightning.supervision.run_lock import Holder, RunInUseError, read_holder, run_lock
from yolo_lightning.supervision.trainer import Output
from yolo_lightning.utils import run_files
from yolo_lightning.utils.process_identity import started_ticks
from yolo_lightning.utils.run_files import FINISHED_FILE, HEARTBEAT_FILE, LOCK_FILE


def test_names_of_step_checkpoints_agree() -> None:
    name = run_files.STEP_CHECKPOINT.format(steps=25)
    match = checkpoint_file.STEP_NAME.fullmatch(name)
    assert match is not None
    assert match[1] == "000000025"
    assert fnmatch(name, run_files.STEP_CHECKPOINTS)


def test_saved_steps_are_those_of_whole_step_checkpoints(tmp_path: Path) -> None:
    """A run that crashes after each validation would write `best.ckpt` again in each attempt."""
    (tmp_path / "checkpoints").mkdir()
    for file, steps in (("step-000000500.ckpt", "500"), ("best.ckpt", "900"), ("step-000000900.ckpt", "{")):
        (tmp_path / "checkpoints" / f"{file}.json").write_text(f'{{"steps": {steps}}}')
    assert run_disk.saved_steps(tmp_path) == {500}


@pytest.mark.parametrize(
    ("before", "after", "is_saved"),
    [((), (500,), True), ((1000,), (600,), True), ((500, 1000), (500,), False), ((500,), (500,), False)],
    ids=["first", "in place of a damaged one", "deleted", "none"],
)
def test_checkpoint_of_another_step_is_progress(before: tuple[int], after: tuple[int], is_saved: bool) -> None:
    assert has_saved(frozenset(before), frozenset(after)) is is_saved


def test_what_an_earlier_attempt_said_is_cleared(tmp_path: Path) -> None:
    run_disk.clear_attempt(tmp_path)
    for name in (HEARTBEAT_FILE, FINISHED_FILE, "heartbeat.stacks", "metrics.csv"):
        (tmp_path / name).write_text("")
    run_disk.clear_attempt(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.csv"]


def test_incidents_of_one_second_have_their_own_folders(tmp_path: Path) -> None:
    folders = {run_files.incident_folder(tmp_path, taken) for taken in [set[str]()] for _ in range(3)}
    assert len(folders) == 3
    for folder in folders:
        folder.mkdir(parents=True)
    assert run_files.incident_names(tmp_path) == {folder.name for folder in folders}


def test_lock_says_who_held_it_and_is_free_after_the_block(tmp_path: Path) -> None:
    with run_lock(tmp_path, "token") as before:
        assert before is None
        assert read_holder(tmp_path / LOCK_FILE) == Holder(
            os.getpid(), os.uname().nodename, "token", started_ticks(os.getpid())
        )
        for marker in ("x" * 300, "../../home", "- -"):
            (tmp_path / "other").write_text(json.dumps(asdict(Holder(1, "host", marker))))
            assert read_holder(tmp_path / "other") is None
        with pytest.raises(RunInUseError, match=f"process {os.getpid()} on .* trains in"), run_lock(tmp_path):
            pass
        assert read_holder(tmp_path / LOCK_FILE) is not None  # the refused process wrote nothing
    with run_lock(tmp_path) as before:
        assert before is not None
        assert before.marker == "token"


def test_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom yolo_lightning.supervision.run_lock import run_lock\n"
        "with run_lock(Path(sys.argv[1]), 'killed'):\n    os.kill(os.getpid(), 9)"
    )
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=environment, check=False).returncode == -9
    with run_lock(tmp_path) as before:
        assert before is not None
        assert before.marker == "killed"


def test_job_survives_its_command_line() -> None:
    settings = SuperviseSettings(phase_timeouts=PhaseTimeouts(step_s=3.5), attempts=7)
    job = Job(("python", "a b", "--x='1'"), ("python", "--resume"), 4, settings)
    assert Job.from_json(job.to_json()) == job


def test_without_a_pattern_of_checkpoints_nothing_is_saved(tmp_path: Path) -> None:
    job = Job(("program",), ("program",), any_command=True)
    assert saved_marks(tmp_path, job) == frozenset()


@pytest.mark.parametrize("name", ["poll_s", "attempts", "factor", "patience_h"])
def test_settings_that_make_no_sense_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"supervision.{name} must be > 0, got 0"):
        SuperviseSettings(**{name: 0})


def output_of(code: str, log: Path) -> Output:
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    disk = Helper()
    recorder = Recorder(log, disk)
    output = Output(process.stdout, recorder.record)
    process.wait()
    for _ in range(20):
        output.pump(0.0)
    recorder.close(20)
    disk.close(20)
    return output


def test_output_is_passed_on_and_kept(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    output = output_of("for i in range(60): print('line', i)", tmp_path / "run.log")
    assert output.lines() == tuple(f"line {number}" for number in range(10, 60))
    assert (tmp_path / "run.log").read_bytes().count(b"\n") == 60
    assert capfdbinary.readouterr().out == (tmp_path / "run.log").read_bytes()


def test_of_a_progress_bar_the_last_state_is_kept(tmp_path: Path) -> None:
    code = "import sys; sys.stdout.write('\\r1/3\\r2/3\\r3/3\\nError')"
    assert output_of(code, tmp_path / "run.log").lines() == ("3/3", "Error")


def test_log_keeps_two_files_of_limited_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_disk, "LOG_BYTES", 10)
    for number in range(7):
        run_disk.append_to_log(tmp_path / "run.log", b"line%d" % number)
    assert [(tmp_path / name).read_bytes() for name in ("run.log.1", "run.log")] == [b"line4line5", b"line6"]


def test_log_that_cannot_be_written_costs_nothing_else(tmp_path: Path) -> None:
    assert output_of("print('line')", tmp_path / "missing" / "run.log").lines() == ("line",)


def test_supervision_needs_the_standard_library_alone() -> None:
    """Without the module `site`, other packages cannot be imported."""
    names = [f"yolo_lightning.supervision.{path.stem}" for path in Path(supervision.__file__).parent.glob("[!_]*.py")]
    code = f"import sys; sys.path.insert(0, {str(REPOSITORY)!r}); import {', '.join(names)}"
    subprocess.run([sys.executable, "-S", "-c", code], check=True)
