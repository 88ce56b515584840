"""Two processes give the results of one: gradients, scores, gathered values; an error ends both."""

import subprocess
import sys
from typing import Any

import pytest
import torch

from tests.conftest import REPOSITORY
from tests.evaluation.detections import CLASS_NAMES, random_frames
from tests.training.test_guarded_step import Rig, make_batch
from yolo_lightning.data.batch import _slice
from yolo_lightning.evaluation.drift import drift_scores, named_scores
from yolo_lightning.evaluation.matching import match

HELPER = REPOSITORY / "tests" / "helpers" / "share_work.py"
EDGES = {"equal": (0, 6), "unequal, one without boxes": (0, 5)}

pytestmark = pytest.mark.whole_run

FRAMES = random_frames(9, frames=21, months=(202005, 202101), digits=1)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes found."""
    folder = tmp_path_factory.mktemp("shared")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*torchrun, str(HELPER), str(folder)], check=False, timeout=150, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("name", EDGES)
def test_gradients_and_losses_are_those_of_one_process(found: list[dict[str, Any]], name: str) -> None:
    """With normalization by running statistics; those of a batch differ, as each process has its own."""
    rig = Rig(batch_norm=False)
    batch = _slice(make_batch(), *EDGES[name])
    losses = rig.run(batch)
    for of_rank in found:
        of_share = of_rank["gradients"][name]
        torch.testing.assert_close(of_share["gradients"], rig.gradients(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(of_share["losses"], losses.parts, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(of_share["total"], losses.total / len(batch), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("fault", ["fails_forward", "fails_backward"])
def test_both_processes_split_where_the_second_runs_out_of_memory(found: list[dict[str, Any]], fault: str) -> None:
    rig = Rig(batch_norm=False)
    rig.step.images_at_once = 2  # the parts of the two processes: 2 + 1 images each
    rig.run(make_batch())
    for of_rank in found:
        split = of_rank["split"][fault]
        assert split["seen"] == [3, 1, 2]
        assert split["state"] == {"images_at_once": 2, "splits": 1}
        torch.testing.assert_close(split["gradients"], rig.gradients(), rtol=1e-5, atol=1e-5)
    first, second = (of_rank["split"][fault]["gradients"] for of_rank in found)
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_scores_are_those_of_one_process(found: list[dict[str, Any]]) -> None:
    matches = match([detections for detections, _ in FRAMES], [truth for _, truth in FRAMES], len(CLASS_NAMES))
    expected = named_scores(drift_scores(matches), CLASS_NAMES)
    for of_rank in found:
        assert of_rank["scores"]["scores"] == pytest.approx(expected, abs=1e-6, nan_ok=True)
        assert of_rank["scores"]["keys"] == tuple(detections.image_id for detections, _ in FRAMES)


def test_normalization_statistics_are_those_of_the_first_rank_or_the_mean_in_one_exchange(
    found: list[dict[str, Any]],
) -> None:
    first, second = (of_rank["statistics"] for of_rank in found)
    torch.testing.assert_close(second["shared"], first["shared"], rtol=0, atol=0)
    assert first["shared"]["1.running_mean"].tolist() == [1.0, 1.0, 1.0]
    torch.testing.assert_close(second["recomputed"], first["recomputed"], rtol=0, atol=0)
    assert first["exchanges"] == 1


def test_normalization_statistics_of_a_rank_without_a_batch_are_those_of_the_other_rank(
    found: list[dict[str, Any]],
) -> None:
    """Batches of one image as small as the stride are left out, and a rank can have no other batch."""
    for of_rank in found:
        torch.testing.assert_close(of_rank["statistics"]["of_second"], of_rank["statistics"]["of_batch"])


def test_predictions_are_gathered_once_each(found: list[dict[str, Any]]) -> None:
    for of_rank in found:
        assert sorted(of_rank["scores"]["ids"]) == sorted(detections.image_id for detections, _ in FRAMES)


def test_best_checkpoint_that_a_full_disk_rejects_is_written_later(found: list[dict[str, Any]]) -> None:
    """The disk rejects the best checkpoint of the first epoch, score 0.5; both ranks agree that it is saved later."""
    assert [of_rank["full_disk"]["best"] for of_rank in found] == pytest.approx([0.5, 0.5])
    assert [of_rank["full_disk"]["best_epoch"] for of_rank in found] == [0, 0]


def test_averaged_weights_are_equal_in_all_processes(found: list[dict[str, Any]]) -> None:
    first, second = (of_rank["full_disk"]["weights"] for of_rank in found)
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_each_process_of_a_resumed_fit_draws_what_it_would_have(found: list[dict[str, Any]]) -> None:
    first, second = (of_rank["draws"] for of_rank in found)
    assert first["whole"] != second["whole"]
    for draws in (first, second):
        assert len(draws["whole"]) == 4
        assert draws["resumed"] == draws["whole"][2:]


def test_all_ranks_stop_after_the_step_in_which_one_of_them_received_a_signal(found: list[dict[str, Any]]) -> None:
    expected = {"step": 3, "saved": ["step-000000003.ckpt"], "finished": False}
    assert [of_rank["stop"] for of_rank in found] == [expected, expected]
