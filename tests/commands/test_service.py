"""`service`: the systemd unit of a run, and the command that the unit runs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from yolo_lightning.commands import fit_start, service
from yolo_lightning.commands.command_line import run_tool
from yolo_lightning.commands.service import unit_file, unit_text
from yolo_lightning.errors import UserError
from yolo_lightning.options.run_spec import RunSpec
from yolo_lightning.supervision.job import Job, SuperviseSettings
from yolo_lightning.supervision.run_lock import run_lock

STRANGE = 'a "b" 100% $HOME \\x'


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace systemctl by a program that records its words, and use an empty folder; return the file of the record."""
    record, tools = tmp_path / "calls", tmp_path / "bin"
    tools.mkdir()
    (tools / "systemctl").write_text(f'#!/bin/sh\necho "$@" >> {record}\n')
    (tools / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text("trainer: {default_root_dir: runs/x, max_epochs: 3}\n")
    return record


def test_install_starts_and_remove_deletes_the_unit(calls: Path) -> None:
    run_tool(RunSpec(("service", "install", "c.yaml", "--", "--data.root", "d")))
    run = Path("runs/x").absolute()
    unit = unit_file(run)
    assert calls.read_text().splitlines() == ["--user daemon-reload", f"--user enable --now {unit.name}"]
    assert unit.stat().st_mode & 0o777 == 0o600
    assert (
        f'"service" "run" "{run}" "--" "fit" "--config" "{Path("c.yaml").absolute()}" "--data.root" "d"'
        in unit.read_text()
    )
    run_tool(RunSpec(("service", "remove", "runs/x")))
    assert f"--user disable {unit.name}" in calls.read_text()
    assert not unit.exists()
    with pytest.raises(ValueError, match="there is no service for"):
        run_tool(RunSpec(("service", "remove", "runs/x")))


def test_run_in_progress_is_not_started_twice(calls: Path) -> None:
    Path("runs/x").mkdir(parents=True)
    shutil.copy("c.yaml", "runs/x/config.yaml")
    with run_lock(Path("runs/x")):
        run_tool(RunSpec(("service", "install", "runs/x")))
    assert calls.read_text().splitlines()[1] == f"--user enable {unit_file(Path('runs/x')).name}"


def test_finished_run_gets_no_service(calls: Path) -> None:
    Path("runs/x").mkdir(parents=True)
    shutil.copy("c.yaml", "runs/x/config.yaml")
    Path("runs/x/finished.json").write_text("{}")
    with pytest.raises(ValueError, match="is finished"):
        run_tool(RunSpec(("service", "install", "runs/x")))
    assert not calls.exists()


def test_unit_records_variables_that_options_name(
    calls: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MY_HOOK", "https://example.com/1")
    monkeypatch.setenv("OTHER", "secret")
    monkeypatch.setenv("MIOPEN_FIND_MODE", "2")
    run_tool(RunSpec(("service", "install", "c.yaml", "--show", "--", "--supervision.notify.ping", "$MY_HOOK")))
    text = capsys.readouterr().out
    assert 'Environment="MY_HOOK=https://example.com/1"' in text
    assert 'Environment="MIOPEN_FIND_MODE=2"' in text
    assert "secret" not in text
    assert '"$$MY_HOOK"' in text
    assert not calls.exists()


def verified(unit: Path) -> subprocess.CompletedProcess[str]:
    """Return the result of `systemd-analyze verify` for a unit."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    command = ["systemd-analyze", "--user", "verify", "--man=no", str(unit)]
    environment = os.environ | {"XDG_RUNTIME_DIR": str(unit.parent)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    if "Failed to initialize manager" in done.stderr:
        pytest.skip("systemd-analyze cannot run here")
    return done


@pytest.mark.parametrize("name", ["run", STRANGE])
def test_systemd_accepts_the_unit(name: str, tmp_path: Path) -> None:
    words = ["fit", "--config", f"{name}.yaml"]
    text = unit_text(tmp_path / name, words, SuperviseSettings(), {"MY_NAME": name}, tmp_path)
    unit = tmp_path / "yolo-lightning-x.service"
    unit.write_text(text)
    done = verified(unit)
    assert (done.returncode, done.stderr) == (0, "")
    unit.write_text(text.replace("Type=exec", "Type=nothing"))
    assert "nothing" in verified(unit).stderr


def test_systemd_accepts_the_unit_of_torchrun_in_the_documentation(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs/scaling.md").read_text()
    text = page.partition("```ini\n")[2].partition("```")[0]
    unit = tmp_path / "torchrun.service"
    unit.write_text(text.replace("/srv/training/.venv/bin/torchrun", sys.executable).replace("/srv/training", "/tmp"))
    done = verified(unit)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_run_resumes_exactly_its_folder(has_checkpoint: bool, calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisors: list[tuple[Path, Job]] = []

    def note(folder: Path, job: Job) -> None:
        supervisors.append((folder, job))
        raise SystemExit(0)

    monkeypatch.setattr(fit_start, "become_supervisor", note)
    for folder in ("runs/x/checkpoints", "runs/x-2/checkpoints"):
        Path(folder).mkdir(parents=True)
    Path("runs/x-2/checkpoints/step-000000009.ckpt").touch()
    if has_checkpoint:
        Path("runs/x/checkpoints/step-000000001.ckpt").touch()
    words = ["fit", "--config", "c.yaml", "--detach", "--finish_by", "2020-01-01"]
    with pytest.raises(SystemExit):
        run_tool(RunSpec(("service", "run", "runs/x", "--", *words)))
    ((folder, job),) = supervisors
    assert job.is_service
    assert folder == Path("runs/x")
    assert job.command[:3] == (sys.executable, "-m", "yolo_lightning")
    resume = ("--resume",) if has_checkpoint else ()
    assert job.command[3:] == ("fit", "--config=runs/x/spec.json", *resume)


def test_finished_run_ends_at_once(calls: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs/x").mkdir(parents=True)
    Path("runs/x/finished.json").write_text('{"epochs": 3}')
    with pytest.raises(SystemExit) as ended:
        run_tool(RunSpec(("service", "run", "runs/x", "--", "fit", "--config", "c.yaml")))
    assert ended.value.code == 0
    assert "3 of 3 epochs are done" in capsys.readouterr().err


def test_run_that_cannot_start_says_why(calls: Path) -> None:
    with pytest.raises(ValueError, match="needs a fit after"):
        run_tool(RunSpec(("service", "run", "runs/x", "--", "test")))


def test_run_waits_for_its_folder_and_for_its_configuration(
    calls: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pauses = list[float]()

    def pause(pause_s: float) -> None:
        pauses.append(pause_s)
        if len(pauses) == 1:
            Path("runs/x/checkpoints").mkdir(parents=True)
            Path("runs/x/checkpoints/step-000000001.ckpt").touch()
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(service.time, "sleep", pause)
    with pytest.raises(KeyboardInterrupt):
        run_tool(RunSpec(("service", "run", "runs/x", "--", "fit", "--config", "missing.yaml")))
    lines = capsys.readouterr().err.splitlines()
    assert pauses == [1, 2, 4]
    assert "waits 1 s: the run folder runs/x does not exist: mount its disk" in lines[0]
    assert lines[1].startswith("waits 2 s: ")
    assert "missing.yaml" in lines[1]


def test_a_run_without_a_checkpoint_reports_its_mistake(calls: Path) -> None:
    Path("runs/x").mkdir(parents=True)
    with pytest.raises((ValueError, SystemExit)):
        run_tool(RunSpec(("service", "run", "runs/x", "--", "fit", "--config", "missing.yaml")))


def test_without_systemd_the_error_names_the_page(calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(REPOSITORY))
    with pytest.raises(ValueError, match=r"systemctl --user daemon-reload failed: .*docs/walk_away.md"):
        run_tool(RunSpec(("service", "install", "c.yaml")))
    assert not unit_file(Path("runs/x")).exists()


@pytest.mark.parametrize("name", ["backslash\\", "two\nlines"])
def test_unit_cannot_name_every_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a systemd unit cannot name a folder with control characters or"):
        unit_text(tmp_path / name, ["fit"], SuperviseSettings(), {}, tmp_path)
    with pytest.raises(UserError, match="a systemd unit cannot name a folder with control characters or"):
        unit_text(tmp_path, ["fit"], SuperviseSettings(), {}, tmp_path / name)
