"""The plan of a run is made without side effects."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints.test_resume_choice import RESUMABLE
from yolo_lightning.checkpoints.checkpoint_file import write_checkpoint
from yolo_lightning.checkpoints.run_folder import LaunchRecord, note_launch
from yolo_lightning.commands import run_plan
from yolo_lightning.commands.fit_start import choose_run
from yolo_lightning.commands.run_plan import Run, plan_evaluation, plan_fit, with_precision
from yolo_lightning.model.precision_choice import PrecisionChoice
from yolo_lightning.options.run_spec import CONFIG, RunSpec, Setting
from yolo_lightning.supervision.fallback_levels import FallbackState, LevelState
from yolo_lightning.supervision.trainer import MARKER_VARIABLE
from yolo_lightning.utils.distributed import LAUNCH_VARIABLE
from yolo_lightning.utils.files import write_json
from yolo_lightning.utils.run_files import FINISHED_FILE, STATE_FILE

LOOPS = {"fit_loop": {"epoch_progress": {"current": {"processed": 3}}}}


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(MARKER_VARIABLE, raising=False)
    monkeypatch.delenv(LAUNCH_VARIABLE, raising=False)


def options(**changed: Any) -> dict[str, Any]:
    defaults = {
        "trainer.default_root_dir": "run",
        "trainer.accelerator": "cpu",
        "trainer.devices": 1,
        "trainer.precision": "32-true",
        "trainer.max_epochs": 3,
        "supervision.enabled": False,
        "allow_pickle": False,
        "mirror": None,
        "resume": False,
        "ckpt_path": None,
        "data.format": "coco",
        "data.image_size": 640,
        "data.limits.quarantine": [],
        "data.loader.num_workers": 4,
        "model.weights": None,
        "model.variant": "yolov8n",
        "model.recipe.lr0": 0.01,
        "model.detections.score_threshold": 0.001,
    }
    return defaults | {name.replace("__", "."): value for name, value in changed.items()}


def fit_plan(**changed: Any) -> Run:
    configured = options(**changed)
    return plan_fit(choose_run(configured), configured)


def save(run: str, steps: int = 5, **content: Any) -> Path:
    path = Path(run) / "checkpoints" / f"step-{steps:09d}.ckpt"
    write_checkpoint({**RESUMABLE, "steps": steps, **content}, path)
    return path


def test_new_fit_has_a_fresh_folder_which_the_plan_does_not_create(tmp_path: Path) -> None:
    run = fit_plan()
    assert (run.folder, run.checkpoint, run.options) == (Path("run"), None, {})
    assert run.lines == ("run folder: run",)
    assert list(tmp_path.iterdir()) == []
    save("run")
    assert fit_plan().folder == Path("run-2")


def test_resumed_fit_has_checkpoint_quarantine_and_the_changed_options() -> None:
    checkpoint = save("run", hyper_parameters={"recipe": {"lr0": 0.02}, "class_width": 80}, loops=LOOPS)
    Path("run", STATE_FILE).write_text(json.dumps(asdict(FallbackState(quarantined=("index=3",)))))
    run = fit_plan(resume=True, data__limits__quarantine=["id=a"])
    assert (run.folder, run.checkpoint) == (Path("run"), checkpoint)
    assert run.options == {
        "data.limits.quarantine": ["id=a", "index=3"],
        "model.weights": None,
        "model.class_width": 80,
    }
    assert run.warnings == ("quarantined after repeated failures: index=3",)
    assert run.lines[0] == "changed since the checkpoint: model.recipe.lr0 was 0.02, now 0.01 (used)"


def test_finished_run_ends_the_process() -> None:
    save("run", loops=LOOPS)
    Path("run", FINISHED_FILE).write_text('{"epochs": 3}')
    run = fit_plan(resume=True)
    assert run.is_finished
    assert run.lines == (
        "run: the training is finished, 3 of 3 epochs are done. "
        "To train longer, set --trainer.max_epochs to 4 or more.",
    )
    assert not fit_plan(resume=True, trainer__max_epochs=4).is_finished


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> str:
    """Id of a launch of torchrun, whose agent has counted no failure."""
    monkeypatch.setenv(LAUNCH_VARIABLE, "launch-1")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    return "launch-1"


def test_launch_resumes_its_run_whatever_number_of_restarts_its_agent_has_counted(launch: str) -> None:
    checkpoint = save("run")
    save("run-2", steps=9)
    note_launch(Path("run"), LaunchRecord(launch, "token"))
    run = fit_plan()
    assert (run.folder, run.checkpoint) == (Path("run"), checkpoint)
    note_launch(Path("run"), LaunchRecord("launch-2", "token"))
    run = fit_plan()
    assert (run.folder, run.checkpoint) == (Path("run-3"), None)


def test_launch_whose_run_is_finished_ends_and_names_the_remedy(launch: str) -> None:
    save("run", loops=LOOPS)
    Path("run", FINISHED_FILE).write_text('{"epochs": 3}')
    note_launch(Path("run"), LaunchRecord(launch, "token"))
    run = fit_plan()
    assert run.is_finished
    assert "To start a new run, set another --rdzv-id than launch-1." in run.lines[0]
    assert not fit_plan(trainer__max_epochs=4).is_finished


def sent(run: Run) -> Run:
    """Return the plan as another rank receives it."""
    return Run.from_json(json.loads(json.dumps(asdict(run), default=str)))


def test_plan_of_another_rank_is_equal() -> None:
    run = Run(Path("run"), Path("run/a.ckpt"), options={"a": [1]}, warnings=("w",), lines=("l",))
    assert sent(run) == run


def test_missing_weights_of_an_evaluation_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"model\.weights must be an existing file \(nothing is downloaded\), got a\.pt"
    ):
        plan_evaluation(RunSpec(("test",)), options(model__weights="a.pt"))


def test_evaluation_takes_the_settings_of_the_weights_unless_they_are_typed() -> None:
    recorded = {"variant": "yolo11n", "recipe": {"lr0": 0.5}, "detections": {"score_threshold": 0.2}}
    save("run", hyper_parameters=recorded, input={"image_size": [96, 96]})
    configured = {"model": {"recipe": {"lr0": 0.01}}, "data": {"image_size": 640}}
    settings = (Setting(CONFIG, configured), Setting("model.detections.score_threshold", "0.001"))
    run = plan_evaluation(RunSpec(("test",), settings), options())
    assert run.options["model.variant"] == "yolo11n"
    assert run.options["data.image_size"] == [96, 96], "the record overrides a configuration file"
    assert "model.recipe.lr0" not in run.options, "a configuration file overrides other hyperparameters"
    assert "model.detections.score_threshold" not in run.options
    assert any("model.detections.score_threshold was 0.2, now 0.001" in line for line in run.lines)
    assert any(line.startswith("taken from the checkpoint: ") for line in run.lines)


def test_damaged_checkpoint_is_passed_over() -> None:
    whole = save("run", 1)
    torn = save("run", 2)
    torn.write_bytes(torn.read_bytes()[:-7])
    with pytest.warns(UserWarning, match="skipped .*step-000000002.ckpt: it has .* bytes instead of"):
        assert fit_plan(resume=True).checkpoint == whole


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"trainer__default_root_dir": "s3://bucket"}, "must be a local folder, got s3://bucket"),
        ({"resume": True}, "nothing to resume"),
        ({"ckpt_path": "last"}, "nothing to resume"),
        ({"ckpt_path": "torn.ckpt"}, "torn.ckpt cannot be used"),
        ({"ckpt_path": "nowhere.ckpt"}, "does not exist"),
    ],
)
def test_options_that_cannot_be_used(changed: dict[str, Any], message: str) -> None:
    Path("torn.ckpt").write_bytes(b"torn")
    with pytest.raises(ValueError, match=message):
        fit_plan(**changed)


@pytest.fixture
def bfloat16_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = PrecisionChoice("bf16-mixed", "half the time")
    monkeypatch.setattr(run_plan, "choose_precision", lambda *_: choice)


def precise(**changed: Any) -> Run:
    """Return the plan of a fit with `trainer.precision: auto`."""
    configured = options(trainer__precision="auto", **changed)
    return with_precision(plan_fit(choose_run(configured), configured), configured)


@pytest.mark.usefixtures("bfloat16_machine")
class TestAutomaticPrecision:
    def test_new_run_has_that_of_the_machine(self) -> None:
        run = precise()
        assert (run.precision, run.lines[-1]) == ("bf16-mixed", "trainer.precision auto: bf16-mixed; half the time")
        assert sent(run).precision == "bf16-mixed"

    @pytest.mark.parametrize(
        ("saved", "precision", "reason"),
        [
            ("bf16-mixed", "bf16-mixed", "as in the checkpoint"),
            ("32-true", "32-true", "as in the checkpoint; a new run would use bf16-mixed: half the time"),
            (None, "32-true", "as in the checkpoint; a new run would use bf16-mixed: half the time"),
        ],
    )
    def test_resumed_run_keeps_its_own(self, saved: str | None, precision: str, reason: str) -> None:
        save("run", config={"trainer": {"precision": saved}})
        run = precise(resume=True)
        assert run.lines == (
            "run folder: run, checkpoint: " + str(run.checkpoint),
            f"trainer.precision auto: {precision}; {reason}",
        )
        assert run.precision == precision

    def test_after_a_fallback_level_the_machine_decides_again(self) -> None:
        """The checkpoint is that of the fallback level."""
        save("run", config={"trainer": {"precision": "32-true"}})
        state = FallbackState(precision=LevelState(failures={"as configured": 1}))
        write_json(Path("run") / STATE_FILE, asdict(state))
        assert precise(resume=True).precision == "bf16-mixed"

    def test_at_the_fallback_level_float32_a_fit_without_a_supervisor_stays_in_float32(self) -> None:
        save("run", config={"trainer": {"precision": "32-true"}})
        state = FallbackState(precision=LevelState("float32", failures={"as configured": 1}))
        write_json(Path("run") / STATE_FILE, asdict(state))
        assert precise(resume=True).precision == "32-true"

    def test_other_values_are_used_as_they_are(self) -> None:
        run = fit_plan()
        assert with_precision(run, options()) == run

    def test_evaluation_is_in_float32(self) -> None:
        save("run")
        configured = options(trainer__precision="auto")
        run = plan_evaluation(RunSpec(("validate",)), configured)
        assert with_precision(run, configured).precision == "32-true"
