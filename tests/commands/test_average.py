"""The command `average`: its file is accepted by other commands and rejected by `fit`."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from yolo_lightning.checkpoints.averaging import AVERAGED
from yolo_lightning.checkpoints.checkpoint_file import find_damage
from yolo_lightning.cli import main

RUN = Path("runs/yolo")
FOLDER = RUN / "checkpoints"
AVERAGE = FOLDER / "average.ckpt"
SHORT = ["--model.recipe.nominal_batch", "16"]
"""One batch an epoch."""


def fails(call: Callable[[], None], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stopped:
        call()
    assert stopped.value.code == 2
    return capsys.readouterr().err


def weight(path: Path) -> torch.Tensor:
    state = torch.load(path, weights_only=True)["state_dict"]
    return state["graph.model.0.conv.weight"].double()


@pytest.mark.whole_run
def test_average_is_taken_by_other_commands_but_not_by_training(
    run: Callable[..., None], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    run("fit", *SHORT, "--trainer.max_epochs", "2")
    main(["average", str(RUN), "--last", "2"])
    assert "average of step-000000001.ckpt, step-000000002.ckpt" in capsys.readouterr().out
    assert find_damage(AVERAGE) is None
    parts = [weight(FOLDER / f"step-00000000{number}.ckpt") for number in (1, 2)]
    assert not torch.equal(*parts)
    torch.testing.assert_close(weight(AVERAGE), sum(parts) / 2, rtol=1e-6, atol=1e-9)  # type: ignore[arg-type]

    run("test", *SHORT, "--ckpt_path", str(AVERAGE))
    assert (RUN / "test_scores.json").is_file()
    main(["export", "--checkpoint", str(AVERAGE)])
    assert AVERAGE.with_suffix(".pt").is_file()
    run("fit", *SHORT, "--trainer.max_epochs", "1", "--model.weights", str(AVERAGE), "--model.recipe.lr0", "1e-9")
    torch.testing.assert_close(weight(Path("runs/yolo-2/checkpoints/last.ckpt")), weight(AVERAGE), rtol=0, atol=0.02)

    text = fails(lambda: run("fit", *SHORT, "--ckpt_path", str(AVERAGE)), capsys)
    assert f"checkpoint {AVERAGE} has no optimizer_states, loops, callbacks and cannot be resumed" in text
    assert f"--model.weights {AVERAGE}" in text

    torch.save({**torch.load(FOLDER / "last.ckpt", weights_only=True), "optimizer_states": [{}]}, "part.ckpt")
    text = fails(lambda: run("fit", *SHORT, "--trainer.max_epochs", "3", "--ckpt_path", "part.ckpt"), capsys)
    assert (
        "checkpoint part.ckpt is damaged: checkpoint.optimizer_states must have the keys state and param_groups" in text
    )


@pytest.mark.whole_run
def test_resuming_passes_an_average_by_and_refuses_it_where_nothing_else_is_left(
    run: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    run("fit", *SHORT, "--trainer.max_epochs", "2")
    main(["average", str(RUN), "--checkpoints", "step-000000001.ckpt", "last.ckpt"])
    run("fit", "--resume", *SHORT, "--trainer.max_epochs", "3")
    assert torch.load(FOLDER / "last.ckpt", weights_only=True)["steps"] == 3
    for path in FOLDER.glob("*.ckpt"):
        if path != AVERAGE:
            path.unlink()
    assert "has no optimizer_states" in fails(
        lambda: run("fit", "--resume", *SHORT, "--trainer.max_epochs", "4"), capsys
    )
    assert AVERAGED in torch.load(AVERAGE, weights_only=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--last", "1"], "last must be >= 2, got 1"),
        (["--last", "4"], "last must not exceed the 0"),
        (["--output", "x.pt"], "output must end in .ckpt, got x.pt"),
        (["--checkpoints", "gone.ckpt", "other.ckpt"], "gone.ckpt: it does not exist; other.ckpt: it does not exist"),
    ],
)
def test_what_is_not_allowed_is_said(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "checkpoints").mkdir()
    assert message in fails(lambda: main(["average", str(tmp_path), *words]), capsys)


def test_a_folder_that_is_no_run_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "must be a run folder with a folder checkpoints" in fails(lambda: main(["average", str(tmp_path)]), capsys)
