"""The command `recalibrate`: written file, recommendation, and rejected input."""

from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import data_options
from tests.helpers.networks import lively_checkpoint
from yolo_lightning.checkpoints.checkpoint_file import RECALIBRATED, write_checkpoint
from yolo_lightning.checkpoints.resume import check_resumable
from yolo_lightning.cli import main
from yolo_lightning.commands import recalibrate as recalibration
from yolo_lightning.commands.half_scores import Comparison
from yolo_lightning.data.batch import Batch
from yolo_lightning.evaluation.drift import RankingScores
from yolo_lightning.supervision import heartbeat
from yolo_lightning.supervision.heartbeat import Phase


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lively_checkpoint(tmp_path_factory.mktemp("weights"), "detections", score_threshold=0.3)


@pytest.fixture
def recalibrate(look_alike: Path, index_root: Path, tmp_path: Path, weights: Path) -> Callable[..., dict[str, Any]]:
    def call(*words: str) -> dict[str, Any]:
        data = data_options(look_alike, index_root)
        more = ["--data.image_size", "64", "--device", "cpu", "--data.batch_size", "4", "--checkpoint", str(weights)]
        output = tmp_path / "recalibrated.ckpt"
        main(["recalibrate", *data, *more, "--output", str(output), *words])
        result: dict[str, Any] = torch.load(output, weights_only=True)[RECALIBRATED]
        return result

    return call


@pytest.mark.parametrize("backend", ["native", pytest.param("gemm", marks=pytest.mark.whole_run)])
def test_file_has_new_statistics_and_cannot_be_resumed(
    backend: str,
    recalibrate: Callable[..., dict[str, Any]],
    weights: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert recalibrate("--images", "10", "--conv_backend", backend) == {"from": "best.ckpt", "images": 8}
    assert "half 1" not in capsys.readouterr().out  # the drawn frames have one clip per month
    target = tmp_path / "recalibrated.ckpt"
    old, new = (torch.load(file, weights_only=True)["state_dict"] for file in (weights, target))
    changed = {name.rpartition(".")[2] for name in old if not torch.equal(old[name], new[name])}
    assert changed == {"running_mean", "running_var"}
    with pytest.raises(ValueError, match="has no optimizer_states, loops, callbacks and cannot be resumed"):
        check_resumable(torch.load(target, weights_only=True), target)


def test_frames_without_a_variance_are_not_counted(
    recalibrate: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    readable_positions = Batch.readable_positions
    batches: list[Batch] = []

    def one_frame_first(batch: Batch) -> list[int]:
        batches.append(batch)
        return readable_positions(batch)[: 1 if batch is batches[0] else None]

    monkeypatch.setattr(Batch, "readable_positions", one_frame_first)
    assert recalibrate("--images", "8", "--data.image_size", "32")["images"] == 4


def test_each_step_has_its_phase_timeout(
    recalibrate: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    phases: list[Phase] = []
    monkeypatch.setattr(heartbeat, "enter", phases.append)
    recalibrate("--images", "4")
    # The frames, whose batches report, then the scores of all frames, which take longer.
    assert [phase for phase, _ in groupby(phases)] == [Phase.VALIDATE, Phase.METRICS]


@pytest.mark.parametrize("after", [0.6, 0.4])
def test_file_is_written_after_its_scores(
    after: float,
    recalibrate: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def judged(*_: Any) -> Comparison:
        assert not (tmp_path / "recalibrated.ckpt").exists(), "a kill here would leave a file without scores"
        return Comparison(*([RankingScores(0.5, 0.1, balanced)] for balanced in (0.5, after)))

    monkeypatch.setattr(recalibration, "judged", judged)
    recalibrate("--images", "4")
    assert ("\nbetter on all frames" in capsys.readouterr().out) == (after > 0.5)
    assert (tmp_path / "recalibrated.ckpt").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--images", "1"], "images must be >= 2, got 1"),
        (["--output", "x.pt"], "output must end in .ckpt, got x.pt"),
        (["--checkpoint", "gone.ckpt"], "checkpoint gone.ckpt cannot be used: it does not exist"),
    ],
)
def test_what_is_not_allowed_is_said(
    words: list[str], message: str, recalibrate: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        recalibrate(*words)
    assert message in capsys.readouterr().err


def test_all_frames_and_both_halves_must_be_better() -> None:
    def is_better(after: tuple[float, ...], before: tuple[float, ...]) -> bool:
        new, old = ([RankingScores(0.5, 0.1, score) for score in part] for part in (after, before))
        return Comparison(old, new).is_better

    assert is_better((0.6, 0.6, 0.7), (0.5, 0.5, 0.6))
    assert not is_better((0.5, 0.6, 0.7), (0.9, 0.5, 0.6))
    assert not is_better((0.9, 0.4, 0.9), (0.5, 0.5, 0.6))
    assert not is_better((0.9, 0.5, 0.9), (0.5, 0.5, 0.6))
    assert is_better((0.6,), (0.5,))


def test_run_folder_can_be_given_without_its_name(
    look_alike: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["recalibrate", str(tmp_path / "gone"), "--data.root", str(look_alike)])
    assert f"no run folder {tmp_path / 'gone'}" in capsys.readouterr().err


def test_other_classes_are_refused(
    recalibrate: Callable[..., Any], weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = torch.load(weights, weights_only=True)
    changed["hyper_parameters"]["class_names"] = ["a", "b", "c", "d"]
    write_checkpoint(changed, tmp_path / "other.ckpt")
    with pytest.raises(SystemExit):
        recalibrate("--checkpoint", str(tmp_path / "other.ckpt"))
    assert "The classes of the data must be ['a', 'b', 'c', 'd'], as in checkpoint" in capsys.readouterr().err
