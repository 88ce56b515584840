"""The start of a supervised fit: decided without torch from command line, environment and configuration files."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.helpers.empty_checkpoints import empty_checkpoint
from tests.helpers.layouts import write_one_image
from tests.helpers.program import run_python
from tests.supervision.supervised import Supervised
from yolo_lightning.checkpoints.checkpoint_file import link_checkpoint
from yolo_lightning.checkpoints.resume import chosen_checkpoint
from yolo_lightning.commands import fit_start as module
from yolo_lightning.commands.fit_start import ChosenRun, choose_run, finished_line, reserve_run, start_supervisor
from yolo_lightning.commands.resolve import resolve, with_run
from yolo_lightning.commands.trainer_limits import check_deadline, check_trainer
from yolo_lightning.options.option_checks import check_options
from yolo_lightning.options.run_spec import configuration_file, read_spec
from yolo_lightning.supervision.job import Job, supervise_settings
from yolo_lightning.supervision.run_lock import in_use, reserve, run_lock
from yolo_lightning.supervision.trainer import MARKER_VARIABLE
from yolo_lightning.utils.distributed import LAUNCH_VARIABLE
from yolo_lightning.utils.files import write_json

KEY = "data.loader.num_workers"


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[Path, Job]]:
    """Return run folder and job of each supervisor that was started, in an empty folder."""
    supervisors: list[tuple[Path, Job]] = []

    def record(folder: Path, job: Job) -> None:
        supervisors.append((folder, job))
        raise SystemExit

    monkeypatch.setattr(module, "become_supervisor", record)
    monkeypatch.delenv(MARKER_VARIABLE, raising=False)
    monkeypatch.delenv(LAUNCH_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "on.yaml").write_text("supervision: {enabled: true, attempts: 5}\ndata: {loader: {num_workers: 3}}\n")
    return supervisors


@pytest.mark.parametrize(
    ("words", "environment", "value"),
    [
        ([], {}, None),
        (["--config", "first.yaml"], {}, 3),
        (["--config=first.yaml", "-c", "second.yaml"], {}, 4),
        (["-csecond.yaml", "--config", "{data: {loader: {num_workers: 7}}}"], {}, 7),
        ([f"--{KEY}", "5", "--config", "first.yaml"], {}, 5),
        ([f"--{KEY}=5", f"--{KEY}=auto"], {}, "auto"),
        (["--config", "first.yaml"], {"YOLO_LIGHTNING_FIT__DATA__LOADER__NUM_WORKERS": "6"}, 6),
        ([f"--{KEY}=5"], {"YOLO_LIGHTNING_FIT__DATA__LOADER__NUM_WORKERS": "6"}, 5),
        (["--config", "second.yaml"], {"YOLO_LIGHTNING_FIT__CONFIG": "first.yaml"}, 4),
        ([], {"YOLO_LIGHTNING_FIT__CONFIG": "first.yaml"}, 3),
        ([], {"YOLO_LIGHTNING_TEST__CONFIG": "first.yaml"}, None),
        (["-config", "first.yaml"], {}, None),  # a mistake that the parser reports, not the file `onfig`
        (["--data.loader", "{num_workers: 8}"], {}, 8),
        (["--data.loader", "loader.yaml"], {}, 9),
        (["--config", "{data: {loader: loader.yaml}}"], {}, 9),
        (["--config", "{data: {loader: loader.yaml}}", "--config", "second.yaml"], {}, 4),
    ],
)
def test_last_source_of_an_option_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], environment: dict[str, str], value: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("first.yaml").write_text(json.dumps({"data": {"loader": {"num_workers": 3}}}))
    Path("second.yaml").write_text(json.dumps({"data": {"loader": {"num_workers": 4}}, "model": {"lr0": 0.1}}))
    Path("loader.yaml").write_text("num_workers: 9\n")
    assert read_spec(["fit", *words], environment).given.get(KEY) == value


@pytest.mark.parametrize(("words", "images"), [(["recalibrate"], None), (["recalibrate", "--images", "9"], 9)])
def test_environment_variables_set_no_options_of_tools(words: list[str], images: int | None) -> None:
    environment = {"YOLO_LIGHTNING_RECALIBRATE__IMAGES": "many", "YOLO_LIGHTNING_RECALIBRATE__CONFIG": "nope.yaml"}
    assert read_spec(words, environment).given.get("images") == images


def test_date_that_does_not_exist_stays_a_text() -> None:
    assert read_spec(["fit", "--finish_by=2026-02-31"], {}).typed == {"finish_by": "2026-02-31"}


@pytest.mark.parametrize("text", ["2099-11-30", "2099-11-30T10:00:00Z", "2099-11-30 10:00"])
def test_moments_are_texts(text: str) -> None:
    spec = read_spec(["fit", f"--config=finish_by: {text}"], {})
    assert spec.given == {"finish_by": text}
    check_options(spec)


@pytest.mark.parametrize("text", ["10:00:00:00", "1:02:00:00", "00:12:00:00"])
def test_durations_are_no_numbers_of_base_60(text: str) -> None:
    check_trainer(read_spec(["fit", f"--trainer.max_time={text}"], {}).given)
    for quoted in (text, f"'{text}'"):
        spec = read_spec(["fit", f"--config=trainer: {{max_time: {quoted}}}"], {})
        assert spec.given == {"trainer.max_time": text}
        check_trainer(spec.given)


@pytest.mark.parametrize("words", [["--max_hours", "1:30"], ["--config", "file.yaml"]])
def test_hours_and_minutes_are_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file.yaml").write_text("max_hours: 1:30\n")
    with pytest.raises(ValueError, match=r"max_hours.* must be a number or null, got '1:30'"):
        check_options(read_spec(["fit", *words], {}))


@pytest.mark.parametrize("words", [["--config", "ltdv2"], ["--config=configs/ltdv2.yaml"], ["-cltdv2.yaml"]])
def test_configurations_of_the_package_are_found_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_spec(["fit", *words], {}).given["data.root"].endswith("LTDv2")
    for name in ("ltdv2", "ltdv2.yaml", "configs/ltdv2.yaml"):  # a file of the user comes first
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("data: {format: coco}")
    assert read_spec(["fit", *words], {}).given["data.format"] == "coco"


@pytest.mark.parametrize("name", ["missing", "../configs/ltdv2", "{data: {format: coco}}"])
def test_other_names_of_configurations_stay(name: str) -> None:
    assert configuration_file(name) == name


@pytest.mark.parametrize(
    "words",
    [
        ["validate", "--config", "on.yaml"],
        ["fit"],
        ["fit", "--config", "on.yaml", "--supervision.enabled", "false"],
        ["fit", "--config", "on.yaml", "--print_config"],
        ["fit", "--config", "on.yaml", "--help.full"],
    ],
)
def test_other_command_lines_start_no_supervisor(begun: list[tuple[Path, Job]], words: list[str]) -> None:
    start_supervisor(read_spec(words, os.environ))
    assert begun == []


@pytest.mark.parametrize("variable", [MARKER_VARIABLE, LAUNCH_VARIABLE])
def test_supervised_and_launched_processes_start_no_supervisor(
    begun: list[tuple[Path, Job]], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "token")
    start_supervisor(read_spec(["fit", "--config", "on.yaml"], os.environ))
    assert begun == []


def test_supervisor_gets_settings_folder_and_workers(begun: list[tuple[Path, Job]]) -> None:
    words = ["fit", "--config", "on.yaml", "--supervision.pause_s", "1e-1", "--trainer.accelerator=cpu"]
    with pytest.raises(SystemExit):
        start_supervisor(read_spec(words, os.environ))
    ((folder, job),) = begun
    assert (folder, job.workers, job.smoke_test) == (Path("runs/yolo"), 3, ())
    assert (job.settings.attempts, job.settings.pause_s) == (5, 0.1)
    assert job.command[3:] == ("fit", "--config=runs/yolo/spec.json")
    restarted = read_spec(job.command[3:], {})
    assert restarted.given == read_spec([*words, "--trainer.default_root_dir=runs/yolo"], {}).given
    assert Path("runs/yolo/checkpoints").is_dir()


def test_run_folders(begun: list[tuple[Path, Job]]) -> None:
    older, newer = empty_checkpoint("r", 1), empty_checkpoint("r", 2)
    for options, chosen in (
        ({}, ChosenRun(Path("r-2"), is_new=True)),
        ({"resume": True}, ChosenRun(Path("r"), resumes=True)),
        ({"ckpt_path": "last"}, ChosenRun(Path("r"), resumes=True)),
        ({"ckpt_path": str(newer)}, ChosenRun(Path("r"), str(newer))),
        ({"ckpt_path": str(older)}, ChosenRun(Path("r-2"), str(older), is_new=True)),
        ({"ckpt_path": f"file://{newer.absolute()}"}, ChosenRun(Path("r").absolute(), f"file://{newer.absolute()}")),
        ({"ckpt_path": "s3://bucket/a.ckpt"}, ChosenRun(Path("r-2"), "s3://bucket/a.ckpt", is_new=True)),
    ):
        assert choose_run({"trainer.default_root_dir": "r", **options}) == chosen, options
    with pytest.raises(ValueError, match="nothing to resume: no run folder x or x-<n>"):
        choose_run({"trainer.default_root_dir": "x", "resume": True})
    with pytest.raises(ValueError, match="must be a local folder, got s3://bucket"):
        choose_run({"trainer.default_root_dir": "s3://bucket"})


def test_run_folder_in_the_home_folder(begun: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    empty_checkpoint(home / "run", 1)
    (home / "fit.yaml").write_text("trainer: {default_root_dir: ~/run}\n")
    options = read_spec(["fit", "--config=~/fit.yaml"], {}).given
    assert choose_run(options).folder == home / "run-2"
    assert choose_run(options | {"resume": True}).folder == home / "run"
    assert with_run(["test", "--run=~/run"]) == ["test", f"--trainer.default_root_dir={home / 'run'}"]
    assert chosen_checkpoint("~/run", None).parent == home / "run" / "checkpoints"


def test_run_folder_null_is_the_default(begun: Any) -> None:
    options = read_spec(["fit", "--trainer.default_root_dir", "null"], {}).given
    assert choose_run(options).folder == Path("runs/yolo")


def test_supervised_trainer_uses_the_folder_of_its_supervisor(begun: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for run in ("r", "r-2"):
        empty_checkpoint(run, 1)
    monkeypatch.setenv(MARKER_VARIABLE, "token")
    options = {"trainer.default_root_dir": "r", "resume": True, "mirror": "s3://bucket"}
    assert choose_run(options) == ChosenRun(Path("r"), resumes=True)
    assert choose_run({"trainer.default_root_dir": "r-3"}) == ChosenRun(Path("r-3"))


CHOOSE = """
from yolo_lightning.commands.fit_start import choose_run
open("chosen", "w").write(str(choose_run({"trainer.default_root_dir": "r"}).folder))
"""


def test_fit_that_a_supervised_program_starts_replaces_no_earlier_run(begun: Any, tmp_path: Path) -> None:
    empty_checkpoint(str(tmp_path / "r"), 1)
    program = (sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHOOSE!r}])")
    assert Supervised(tmp_path / "run", "", program=program).wait() == 0
    assert (tmp_path / "chosen").read_text() == "r-2"


def test_run_of_a_mirror_is_resumed_in_a_folder_of_its_name(begun: Any, tmp_path: Path) -> None:
    for name in ("step-000000001.ckpt", "step-000000001.ckpt.json"):
        (tmp_path / "away" / "run-7" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "away" / "run-7" / name).write_text("{}")
    chosen = choose_run({"trainer.default_root_dir": "run", "mirror": f"file://{tmp_path}/away", "resume": True})
    assert (chosen.folder.name, chosen.resumes) == ("run-7", True)
    assert not chosen.folder.exists()


def test_best_checkpoint_is_passed_as_a_file(begun: list[tuple[Path, Job]]) -> None:
    best = Path("runs/yolo/checkpoints/best.ckpt")
    link_checkpoint(empty_checkpoint("runs/yolo", 1), best)
    empty_checkpoint("runs/yolo", 2)
    with pytest.raises(SystemExit):
        start_supervisor(read_spec(["fit", "--config", "on.yaml", "--ckpt_path", "best"], os.environ))
    ((folder, job),) = begun
    assert folder == Path("runs/yolo-2")  # the later checkpoints of runs/yolo are kept
    assert read_spec(job.command[3:], {}).given["ckpt_path"] == str(best)


def test_finished_run_is_reported_without_a_supervisor(
    begun: list[tuple[Path, Job]], capsys: pytest.CaptureFixture[str]
) -> None:
    empty_checkpoint("runs/yolo", 1)
    Path("runs/yolo/finished.json").write_text('{"epochs": 3}')
    words = ["fit", "--config", "on.yaml", "--resume", "--trainer.max_epochs"]
    with pytest.raises(SystemExit) as stopped:
        start_supervisor(read_spec([*words, "3"], os.environ))
    assert stopped.value.code == 0
    assert "the training is finished, 3 of 3 epochs are done" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        start_supervisor(read_spec([*words, "4"], os.environ))
    assert [folder for folder, _ in begun] == [Path("runs/yolo")]


def test_wrong_setting_of_the_supervisor_is_refused() -> None:
    with pytest.raises(ValueError, match=r"supervision\.attempts must be an integer, got 'many'"):
        supervise_settings({"supervision.attempts": "many"})


def test_credentials_on_the_command_line_are_refused() -> None:
    with pytest.raises(ValueError, match="must not contain credentials"):
        resolve(["fit", "--mirror", "https://user:secret@host/x"])


def test_start_loads_neither_torch_nor_lightning(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom yolo_lightning.commands import fit_start\n"
        "fit_start.become_supervisor = lambda *_: sys.exit(repr({'torch', 'lightning'} & sys.modules.keys()))\n"
        "sys.argv = ['x', 'fit', '--supervision.enabled=true', '--data.format=data.yaml', '--data.batch_size=1']\n"
        "from yolo_lightning.__main__ import main\nmain()"
    )
    write_one_image(tmp_path, "0 .5 .5 .2 .2\n")
    assert run_python(tmp_path, "-c", code).stderr == "set()\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"finish_by": "soon"}, "finish_by must be YYYY-MM-DD, YYYY-MM-DDTHH:MM or YYYY-MM-DDTHH:MM.HH:MM, got 'soon'"),
        ({"deadline": "soon"}, "deadline must be YYYY-MM-DD, "),
        ({"deadline": "2100-01-01", "max_hours": 1}, "deadline must not be set with finish_by or max_hours, got 2100"),
        ({"finish_by": "2020-01-01T00:00+00:00"}, "finish_by must be in the future, got 20"),
        ({"max_hours": 1, "trainer.max_time": "00:01:00"}, "trainer.max_time must be null with --max_hours, got 00"),
        ({"finish_by": "2100-01-01", "trainer.max_steps": 5}, "trainer.max_steps must be -1 with --finish_by, got 5"),
    ],
)
def test_deadline_of_a_new_run_is_checked(begun: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_deadline(options)


def test_past_deadline_is_no_error_on_resume(begun: Any) -> None:
    check_deadline({"finish_by": "2020-01-01", "resume": True})


@pytest.mark.parametrize(
    ("options", "finished"),
    [
        ({"max_hours": 2}, True),
        ({"max_hours": 3}, False),
        ({"finish_by": "2001-09-09T03:46:40+00:00"}, True),
        ({"finish_by": "2001-09-09T03:47+00:00"}, False),
        ({"trainer.max_epochs": 7}, True),
        ({"trainer.max_epochs": 8}, False),
    ],
)
def test_later_deadline_continues_a_finished_run(tmp_path: Path, options: dict[str, Any], finished: bool) -> None:
    write_json(tmp_path / "finished.json", {"epochs": 7, "began_s": 1e9, "deadline_s": 1e9 + 7200})
    assert (finished_line(tmp_path, options) is not None) == finished


@pytest.fixture
def finished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder with a checkpoint and a configuration, named relative to the working folder."""
    monkeypatch.chdir(tmp_path)
    run = Path("runs/a")
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints" / "best.ckpt").touch()
    (run / "config.yaml").touch()
    return run


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("test {run} --tta true", "test --config={run}/config.yaml --trainer.default_root_dir={run} --tta true"),
        ("predict --run {run}", "predict --config={run}/config.yaml --trainer.default_root_dir={run}"),
        ("test {run} --config x.yaml", "test --trainer.default_root_dir={run} --config x.yaml"),
        ("recalibrate {run}", "recalibrate --run={run}"),
        ("recalibrate --checkpoint a.ckpt", "recalibrate --checkpoint a.ckpt"),
        ("export {run} --format onnx", "export --run={run} --format onnx"),
        ("predict {run}/x.jpg --run {run}", "predict {run}/x.jpg --run {run}"),
        ("export --run elsewhere", "export --run elsewhere"),
        ("test --ckpt_path best", "test --ckpt_path best"),
        ("fit {run}", "fit {run}"),
    ],
)  # fmt: skip
def test_run_is_the_first_word_of_a_command(finished_run: Path, typed: str, meant: str) -> None:
    assert with_run(typed.format(run=finished_run).split()) == meant.format(run=finished_run).split()


def test_run_without_a_checkpoint_is_an_error(finished_run: Path) -> None:
    with pytest.raises(ValueError, match="RUN must be the folder of a run: elsewhere"):
        with_run(["test", "elsewhere"])


def test_second_fit_takes_the_next_folder(
    tmp_path: Path, begun: list[tuple[Path, Job]], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["fit", "--supervision.enabled=true", f"--trainer.default_root_dir={tmp_path / 'run'}"]
    code = (
        "import sys\nfrom pathlib import Path\nfrom yolo_lightning.supervision.run_lock import reserve\n"
        "print(reserve(Path(sys.argv[1])), flush=True)\nsys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        with pytest.raises(SystemExit):
            start_supervisor(read_spec(words, os.environ))
        assert not reserve(tmp_path / "run")
        monkeypatch.setenv(LAUNCH_VARIABLE, "second")
        launched = reserve_run(read_spec(words, os.environ).given)
    monkeypatch.delenv(LAUNCH_VARIABLE)
    assert reserve_run(read_spec(words, os.environ).given).folder == tmp_path / "run"

    assert [folder.name for folder, _ in begun] == ["run-2"]
    assert launched == ChosenRun(tmp_path / "run-2", is_new=True)


def test_launch_may_resume_its_run_after_the_deadline_and_begins_no_run_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restarted or requeued launch has the same options as its first start."""
    options = {"trainer.default_root_dir": str(tmp_path / "run"), "finish_by": "2020-01-01T00:00"}
    monkeypatch.delenv(MARKER_VARIABLE, raising=False)
    monkeypatch.setenv(LAUNCH_VARIABLE, "first")
    empty_checkpoint(tmp_path / "run", 1)
    write_json(tmp_path / "run/launch.json", {"id": "first", "attempt": "a"})
    check_deadline(options)
    assert choose_run(options) == ChosenRun(tmp_path / "run", resumes=True, is_restart=True)
    monkeypatch.setenv(LAUNCH_VARIABLE, "second")
    with pytest.raises(ValueError, match="finish_by must be in the future, got 2020-01-01T00:00"):
        choose_run(options)
    monkeypatch.delenv(LAUNCH_VARIABLE)
    with pytest.raises(ValueError, match="finish_by must be in the future, got 2020-01-01T00:00"):
        check_deadline(options)


def test_locked_folder_is_in_use_for_other_processes_only(tmp_path: Path) -> None:
    with run_lock(tmp_path):
        assert not in_use(tmp_path)
        code = (
            "import sys\nfrom pathlib import Path\nfrom yolo_lightning.supervision.run_lock import in_use\n"
            "print(in_use(Path(sys.argv[1])))"
        )
        command = ["sh", "-c", f'{sys.executable} -c "$0" "$1"; true', code, str(tmp_path)]  # no child of this process
        assert subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False).stdout == "True\n"


def test_another_clipping_than_that_of_the_recipe_is_refused() -> None:
    check_trainer({"trainer.gradient_clip_algorithm": "norm"})
    with pytest.raises(ValueError, match=r"clip_algorithm must not be set, got value: use model\.recipe\.clip_norm"):
        check_trainer({"trainer.gradient_clip_algorithm": "value"})


def test_whole_numbers_of_batches_may_be_floats_and_other_floats_above_1_are_refused() -> None:
    check_trainer({"trainer.limit_train_batches": 2.0, "trainer.limit_val_batches": 0.5})
    with pytest.raises(ValueError, match=r"limit_train_batches must be an integer >= 0 or a fraction .* got 1\.5"):
        check_trainer({"trainer.limit_train_batches": 1.5})
