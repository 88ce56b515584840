import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback

from yolo_lightning import callbacks

NAMES = [name for name in callbacks.__all__ if issubclass(getattr(callbacks, name), Callback)]

ARGUMENTS = {"CheckpointMirror": ("memory://bucket",), "FinishBy": (None, 36.0)}
"""Of those that need some."""


def make(name: str) -> Callback:
    callback: Callback = getattr(callbacks, name)(*ARGUMENTS.get(name, ()))
    return callback


def flat_keys(state: Any) -> set[str]:
    if not isinstance(state, dict):
        return set()
    return {str(key) for key in state}.union(*(flat_keys(value) for value in state.values()))


@pytest.mark.parametrize("name", NAMES)
def test_state_survives_file_and_new_callback(name: str, tmp_path: Path) -> None:
    state = make(name).state_dict()
    torch.save(state, tmp_path / "state.pt")
    other = make(name)
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    if name not in ("RandomState", "BestCheckpoint"):  # the first is loaded later, the second looks at its folder
        assert other.state_dict() == state


@pytest.mark.parametrize("name", NAMES)
def test_state_holds_no_argument_of_the_constructor(name: str) -> None:
    if name == "BestCheckpoint":
        pytest.skip("Lightning's ModelCheckpoint records `monitor`, but does not load it")
    arguments = set(inspect.signature(getattr(callbacks, name).__init__).parameters) - {"self"}
    assert not arguments & flat_keys(make(name).state_dict())


NAN = float("nan")
REFUSED: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("EMA", {"decay": -0.1}, "decay must be >= 0 and < 1, got -0.1"),
    ("EMA", {"decay": 1.0}, "decay must be >= 0 and < 1, got 1.0"),
    ("EMA", {"tau": 0.0}, "tau must be > 0, got 0.0"),
    ("FinishBy", {}, "either finish_by or max_hours must be set"),
    ("FinishBy", {"finish_by": "2100-01-01", "max_hours": 1.0}, "either finish_by or max_hours must be set"),
    ("FrameGallery", {"best": 0, "worst": 0}, "best and worst must not both be 0"),
    ("FrameGallery", {"best": -1}, "best must be >= 0, got -1"),
    ("FrameGallery", {"score_threshold": 1.5}, "score_threshold must be >= 0 and <= 1, got 1.5"),
    ("LastCheckpoint", {"interval_steps": -1}, "interval_steps must be >= 0, got -1"),
    ("LastCheckpoint", {"keep": 0}, "keep must be >= 1, got 0"),
    ("MeanAP", {"bootstrap_samples": 5}, "bootstrap_samples must be >= 100, got 5"),
    ("ProgressLines", {"interval_s": -1}, "interval_s must be >= 0, got -1"),
    ("StallMonitor", {"timeout_s": 0}, r"timeout_s must be > 0, got 0"),
    ("StatusFile", {"interval_s": NAN}, r"interval_s must be >= 1, got nan"),
    ("StatusFile", {"max_temperature_c": NAN}, r"max_temperature_c must be > 0, got nan"),
)


@pytest.mark.parametrize(("name", "arguments", "message"), REFUSED)
def test_arguments_out_of_range_are_refused(name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(callbacks, name)(**arguments)
