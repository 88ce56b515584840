import resource
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from yolo_lightning.utils import tensorboard
from yolo_lightning.utils.tensorboard import Curves

pytestmark = pytest.mark.usefixtures("any_uptime")


def steps(folder: Path) -> list[int]:
    events = EventAccumulator(str(folder))
    events.Reload()
    # Files of the same second are read in the order of their names, which end in a count: 10 comes before 9.
    return sorted(event.step for event in events.Scalars("loss"))


def write_on_a_full_disk(logger: Curves) -> None:
    """No file of this process may grow meanwhile."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, before[1]))
    try:
        for step in (2, 3, 4):
            logger.log_metrics({"loss": 1.0}, step)
            logger.save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_full_disk_leaves_a_gap_and_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "RETRY_AFTER_S", 0.0)
    logger = Curves(tmp_path, name="", version="tensorboard")
    logger.log_metrics({"loss": 1.0}, 1)
    logger.save()
    with pytest.warns(UserWarning, match="could not write curves .*File too large.*; training continues"):
        write_on_a_full_disk(logger)
    logger.log_metrics({"loss": 1.0}, 5)
    logger.finalize("success")
    assert steps(tmp_path / "tensorboard") == [1, 5]


def test_after_a_failure_it_waits_before_it_begins_another_file(tmp_path: Path) -> None:
    logger = Curves(tmp_path / "run", name="", version="tensorboard")
    (tmp_path / "run").write_text("no folder")
    with pytest.warns(UserWarning, match="could not write curves"):
        logger.log_metrics({"loss": 1.0}, 1)
    logger.experiment.add_text("note", "dropped")
    (tmp_path / "run").unlink()
    logger.log_metrics({"loss": 1.0}, 2)
    assert not (tmp_path / "run").exists()


def test_steps_that_are_trained_again_replace_those_of_the_killed_process(tmp_path: Path) -> None:
    for process, losses in enumerate(({9: 5.0, 19: 4.0, 29: 3.0}, {19: 2.0, 29: 1.0})):
        logger = Curves(tmp_path, name="", version="tensorboard")
        logger.log_hyperparams({"lr0": 0.01})
        for step, loss in losses.items():
            logger.log_metrics({"loss": loss}, step)
        logger.finalize("success")
        (written,) = (tmp_path / "tensorboard").glob("events.*")
        written.rename(tmp_path / f"events.out.tfevents.{process}")  # files are read in the order of their names
    events = EventAccumulator(str(tmp_path)).Reload().Scalars("loss")
    assert [(event.step, event.value) for event in events] == [(9, 5.0), (19, 2.0), (29, 1.0)]


def test_hyperparameters_have_no_chart(tmp_path: Path) -> None:
    curves = Curves(tmp_path)
    curves.log_hyperparams({"lr0": 0.01})
    curves.log_metrics({"loss": 1.0}, 0)
    curves.finalize("success")
    assert EventAccumulator(curves.log_dir).Reload().Tags()["scalars"] == ["loss"]
