"""The page of several runs."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.commands.report.run_folder_maker import IMAGE_IDS, METRICS_TEXT, OTHER, make_run, record
from tests.commands.report.test_page import Page
from yolo_lightning.cli import main
from yolo_lightning.commands.report import run_comparison
from yolo_lightning.commands.report.metrics_curves import read_metrics
from yolo_lightning.commands.report.run_comparison import difference_of_evaluations, options_by_name, paired_intervals
from yolo_lightning.evaluation.score_intervals import BootstrapScores
from yolo_lightning.utils.run_files import METRICS, evaluation_record


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs `a` and `b` with different options and scores, and `c` without an evaluation and a configuration."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("a", "b"):
        make_run(folder / name)
    config = folder / "b" / "config.yaml"
    options = yaml.safe_load(config.read_text())
    options["data"]["root"] = "<elsewhere>"
    options["trainer"]["default_root_dir"] = "b"
    options["trainer"]["callbacks"] = [{"class_path": "callbacks.EMA", "init_args": {"decay": 0.99}}]
    config.write_text(yaml.safe_dump(options))
    record(("person", "bicycle"), first_box=OTHER).save(folder / "b" / evaluation_record("val"))
    (folder / "c").mkdir()
    (folder / "c" / METRICS).write_text(METRICS_TEXT)
    (folder / "c" / "environment.json").write_text("{")
    return folder


@pytest.fixture(scope="module")
def page(runs: Path) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_comparison, "SAMPLES", 100)
        patch.setattr("sys.argv", ["yolo_lightning"])
        main(["report", *(str(runs / name) for name in "abc")])
    return (runs / "comparison.html").read_text()


def rows(page: str, section: str, first: int = 1) -> dict[str, list[str]]:
    """Return the cells of each row of the tables of a section by the text of the first cells."""
    (text,) = re.findall(rf'<section id="{section}">.*?</section>', page, flags=re.DOTALL)
    lines = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", line) for line in re.findall(r"<tr>(.*?)</tr>", text)]
    return {" ".join(line[:first]): line[first:] for line in lines}


def test_page_is_complete_and_loads_nothing(page: str) -> None:
    parsed = Page(page)
    assert {load for load in parsed.loads if not load.startswith("#")} == set()
    assert len(parsed.ids) == len(set(parsed.ids))
    assert "Comparison of 3 runs" in page
    assert "c: environment.json cannot be read" in page
    assert len(re.findall("<svg", page)) == 4


def test_options_that_differ(page: str) -> None:
    options = rows(page, "options")
    assert options["trainer.callbacks.EMA.decay"] == ["–", "0.99"]  # noqa: RUF001 - an en dash
    assert options["data.root"] == ["–", "&lt;elsewhere&gt;"]  # noqa: RUF001 - an en dash
    assert not options.keys() & {"data.batch_size", "trainer.default_root_dir"}
    assert "option: not recorded by c." in page
    assert "The training data differ (data.root):" in page


def test_scores_have_intervals_and_differences(page: str) -> None:
    scores = rows(page, "val", 2)
    del scores["score run"]
    assert list(scores) == [f"{name} {run}" for name in ("balanced", "mAP50", "mAP50-95") for run in "ab"]
    first = scores["mAP50 a"]
    second = scores["mAP50 b"]
    assert first[:2] == ["3", "40"]
    assert first[4:] == ["–", "–"]  # noqa: RUF001 - an en dash
    assert float(second[4]) == pytest.approx(float(second[2]) - float(first[2]), abs=1e-4)
    assert re.fullmatch(r"[+-]\d\.\d{4} to [+-]\d\.\d{4}", second[5])
    assert "Without this evaluation: c." in page
    assert "these months have one clip only: 2020-05" in page


def test_time_per_epoch_is_compared(page: str) -> None:
    assert len(set(rows(page, "summary")["time per epoch"])) == 1


def test_differences_of_equal_runs_are_zero() -> None:
    samples = BootstrapScores({"map_50": np.array([0.1, 0.9, np.nan, 0.5])}, ())
    assert paired_intervals(samples, samples) == {"map_50": (0, 0, 0)}


def test_other_evaluations_are_not_compared() -> None:
    first = record(("person", "bicycle"))
    assert difference_of_evaluations(first, record(("person", "bicycle"), first_box=OTHER)) == ""
    assert difference_of_evaluations(first, record(("person", "cat"))) == "has other classes"
    assert "other annotations" in difference_of_evaluations(first, record(("person", "bicycle"), months=(0, 0, 0)))
    other = replace(first, image_ids=(*IMAGE_IDS[:2], "x"))
    assert "other frames, or in another order (2 frames in common)" in difference_of_evaluations(first, other)


def test_options_of_callbacks_are_named_by_class() -> None:
    ema = {"class_path": "yolo_lightning.callbacks.EMA", "init_args": {"decay": 0.9}}
    plain = {"class_path": "StopOnSignal"}
    named = options_by_name({"trainer.callbacks": [ema, plain], "data.image_size": [480, 640], "ckpt_path": "a"})
    assert named == {
        "trainer.callbacks.EMA.used": True,
        "trainer.callbacks.EMA.decay": 0.9,
        "trainer.callbacks.StopOnSignal.used": True,
        "data.image_size": [480, 640],
    }
    assert options_by_name({"trainer.callbacks": [ema, ema]}) == {"trainer.callbacks": [ema, ema]}


def test_epochs_have_fractions(tmp_path: Path) -> None:
    (tmp_path / METRICS).write_text(METRICS_TEXT)
    assert read_metrics(tmp_path / METRICS).trained_epochs().tolist() == [0.5, 1, 1, 1.5, 2, 2]


def test_a_run_is_given_once(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["report", str(runs / "a"), str(runs / "b" / ".." / "a")])
    assert "error: runs must be different run folders, got " in capsys.readouterr().err


def test_equal_names_have_their_parents(tmp_path: Path) -> None:
    for name in ("x", "y"):
        (tmp_path / name / "run").mkdir(parents=True)
        (tmp_path / name / "run" / METRICS).write_text(METRICS_TEXT)
    assert list(run_comparison.by_name([tmp_path / "x" / "run", tmp_path / "y" / "run"])) == ["x/run", "y/run"]
