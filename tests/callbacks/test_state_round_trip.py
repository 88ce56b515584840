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


@pytest.mark.parametrize("name", callbacks.__all__)
def test_every_name_is_a_class_of_this_package(name: str) -> None:
    assert getattr(callbacks, name).__module__.startswith("yolo_lightning.callbacks.")


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
