"""Mean of checkpoints: values, and rejected combinations."""

import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from yolo_lightning.checkpoints.averaging import AVERAGED, average_checkpoints, average_states
from yolo_lightning.checkpoints.checkpoint_file import write_checkpoint
from yolo_lightning.commands.average import check_files, newest_steps

NETWORK = {"variant": "yolov8n", "class_names": ["a"], "class_width": 64, "lr0": 0.1}


def state(value: float, batches: int = 0) -> dict[str, Tensor]:
    return {
        "weight": torch.full((2, 3), value),
        "bn.running_mean": torch.full((3,), -value),
        "count": torch.tensor(batches),
    }


def checkpoint(folder: Path, steps: int, value: float, **changes: Any) -> Path:
    content: dict[str, Any] = {
        "state_dict": state(float(value), steps),
        "hyper_parameters": NETWORK,
        "steps": steps,
        "epoch": steps,
        "optimizer_states": [{"state": {}, "param_groups": []}],
        "pytorch-lightning_version": "2.6.6",
    }
    path = folder / f"step-{steps:09d}.ckpt"
    write_checkpoint(content | changes, path)
    return path


@given(st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=1, max_size=9))
def test_floating_tensors_are_averaged_in_float64(values: list[float]) -> None:
    average = average_states([state(value) for value in values])
    expected = torch.tensor(math.fsum(values) / len(values))
    rounding = 1e-14 * max(map(abs, values)) + 1e-30  # of a sum in float64 whose terms cancel
    torch.testing.assert_close(average["weight"], expected.expand(2, 3), rtol=1e-6, atol=rounding)
    torch.testing.assert_close(average["bn.running_mean"], -expected.expand(3), rtol=1e-6, atol=rounding)
    assert average["weight"].dtype == torch.float32


def test_result_shares_no_memory() -> None:
    newest = state(2, 5)
    average_states([state(1), newest])["count"].add_(1)
    assert newest["count"] == 5


def test_checkpoint_holds_the_network_and_its_origin_alone(tmp_path: Path) -> None:
    files = [checkpoint(tmp_path, steps, steps) for steps in (2, 1, 6)]
    content = average_checkpoints(files)
    assert content[AVERAGED] == ["step-000000001.ckpt", "step-000000002.ckpt", "step-000000006.ckpt"]
    assert set(content) == {"state_dict", "hyper_parameters", "epoch", "pytorch-lightning_version", AVERAGED}
    assert content["state_dict"]["weight"][0, 0] == 3
    assert (content["state_dict"]["count"], content["epoch"]) == (6, 6)


def test_newest_are_taken_by_steps_and_last_is_no_checkpoint_of_its_own(tmp_path: Path) -> None:
    files = [checkpoint(tmp_path, steps, steps) for steps in (5, 40, 9)]
    os.link(files[1], tmp_path / "last.ckpt")
    assert newest_steps(tmp_path, 2) == [files[2], files[1]]
    with pytest.raises(ValueError, match=r"last must not exceed the 3 .* got 4"):
        newest_steps(tmp_path, 4)


def test_damaged_files_are_all_named(tmp_path: Path) -> None:
    files = [checkpoint(tmp_path, steps, steps) for steps in (1, 2, 3)]
    files[0].write_bytes(files[0].read_bytes()[:-9])
    files[2].unlink()
    with pytest.raises(ValueError, match=r"step-000000001.ckpt: it has .*step-000000003.ckpt: it does not exist"):
        check_files(files)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hyper_parameters": NETWORK | {"class_names": ["b"]}}, r"model.class_names is \['b'\] in .* and \['a'\] in"),
        (
            {"hyper_parameters": NETWORK | {"detections": {"one_to_one": True}}},
            "model.detections.one_to_one is True in .* and None in",
        ),
        ({"hyper_parameters": NETWORK | {"single_class": True}}, "model.single_class is True in .* and None in"),
        (
            {"state_dict": state(1) | {"more": torch.zeros(1)}},
            "000002.ckpt does not fit .*000003.ckpt: tensor more is missing",
        ),
        (
            {"state_dict": state(float("nan"))},
            "000002.ckpt cannot be used: its tensor weight contains NaN or infinity",
        ),
        ({AVERAGED: ["x.ckpt"]}, "000002.ckpt is already an average of x.ckpt"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    files = [checkpoint(tmp_path, 1, 1), checkpoint(tmp_path, 2, 2, **changes), checkpoint(tmp_path, 3, 3)]
    with pytest.raises(ValueError, match=message):
        average_checkpoints(files)


GRAY = {"channels": 1, "image_size": 640, "background": False, "letterbox": "square", "normalisation": "uint8 / 255"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("channels", 3),
        ("image_size", 320),
        ("background", True),
        ("letterbox", "rectangle"),
        ("normalisation", "other"),
        ("pixel_range", {"low": 0, "high": 100}),
    ],
)
def test_networks_of_other_inputs_are_refused(tmp_path: Path, name: str, value: object) -> None:
    files = [checkpoint(tmp_path, 4, 4, input=GRAY), checkpoint(tmp_path, 8, 8, input=GRAY | {name: value})]
    with pytest.raises(ValueError, match=f"the input's {name} is .*step-000000004.* and .*step-000000008"):
        average_checkpoints(files)


def test_a_file_counts_once(tmp_path: Path) -> None:
    file = checkpoint(tmp_path, 1, 1)
    os.link(file, tmp_path / "last.ckpt")
    shutil.copy(file, tmp_path / "best.ckpt")
    for name in ("last.ckpt", "best.ckpt"):
        with pytest.raises(ValueError, match="contain the same weights: they would count twice"):
            average_checkpoints([file, tmp_path / name])
    with pytest.raises(ValueError, match="checkpoints must name 2 or more files, got 1"):
        check_files([file])
