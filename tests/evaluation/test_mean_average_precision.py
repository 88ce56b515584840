"""The metric equals torchmetrics' own for its arguments, and with several processes."""

import socket
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch.multiprocessing.spawn import spawn
from torch.overrides import TorchFunctionMode
from torchmetrics.detection import MeanAveragePrecision as Reference

from tests.evaluation.detections import random_boxes, small_boxes
from yolo_lightning.evaluation import matching
from yolo_lightning.evaluation.mean_average_precision import MeanAveragePrecision

Frame = tuple[dict[str, Tensor], dict[str, Tensor]]


def frames_of(seed: int, count: int = 12, digits: int = 9, crowds: bool = False, areas: bool = False) -> list[Frame]:
    """Random images: sizes in all ranges, sparse labels, images without boxes, one with more than 100 detections."""
    generator = torch.Generator().manual_seed(seed)
    names = torch.tensor([2, 3, 17, 90])
    frames = []
    for number in range(count):
        objects = int(torch.randint(0, 9, (), generator=generator)) if number != 5 else 0
        boxes = random_boxes(objects, generator)
        boxes[:, 2:] += 220 * torch.rand(objects, 2, generator=generator) ** 2
        labels = torch.randint(0, 3, (objects,), generator=generator)
        extra = 230 if number == 3 else 0 if number in (5, 6) else int(torch.randint(0, 6, (), generator=generator))
        shift = torch.randn(2 * objects, 2, generator=generator).repeat(1, 2) * 3
        detected_boxes = torch.cat([boxes.repeat(2, 1) + shift, random_boxes(extra, generator)])
        guesses = torch.cat([labels, labels, torch.randint(0, 2 if number == 3 else 4, (extra,), generator=generator)])
        scores = torch.rand(len(detected_boxes), generator=generator).round(decimals=digits)
        target = {"boxes": boxes, "labels": names[labels]}
        if crowds:
            target["iscrowd"] = (torch.rand(objects, generator=generator) < 0.3).long()
        if areas:
            target["area"] = (boxes[:, 2] - boxes[:, 0]) * torch.randint(0, 90, (objects,), generator=generator)
        frames.append(({"boxes": detected_boxes, "scores": scores, "labels": names[guesses]}, target))
    return frames


def filled(metric: Any, frames: Sequence[Frame], batch: int = 5) -> Any:
    metric.warn_on_many_detections = False
    for start in range(0, len(frames), batch):
        part = frames[start : start + batch]
        metric.update([detections for detections, _ in part], [truth for _, truth in part])
    return metric


def assert_as_torchmetrics(frames: Sequence[Frame], **options: Any) -> dict[str, Tensor]:
    expected = filled(Reference(backend="faster_coco_eval", **options), frames).compute()
    scores: dict[str, Tensor] = filled(MeanAveragePrecision(**options), frames).compute()
    assert scores.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            scores[name], value, rtol=0, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
        )
    return scores


@pytest.mark.parametrize("digits", [9, 1], ids=["distinct", "ties"])
@pytest.mark.parametrize("crowds", [False, True], ids=["objects", "crowds"])
def test_scores_are_those_of_torchmetrics(crowds: bool, digits: int) -> None:
    for seed in range(2):
        frames = frames_of(seed, digits=digits, crowds=crowds, areas=seed == 1)
        scores = assert_as_torchmetrics(frames, class_metrics=True)
        sizes = [float(scores[f"map_{size}"]) for size in ("small", "medium", "large")]
        assert all(0.005 < value < 0.95 for value in sizes), sizes


def test_chunks_do_not_change_the_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "PAIRS_PER_CHUNK", 40)
    assert_as_torchmetrics(frames_of(4, digits=1, crowds=True), class_metrics=True)


OPTIONS: dict[str, dict[str, Any]] = {
    "thresholds": {"iou_thresholds": [0.3, 0.75, 1.0]},
    "defaults": {"box_format": "xyxy", "iou_type": "bbox", "average": "macro", "rec_thresholds": None},
    "limits": {"max_detection_thresholds": [30, 2, 7], "class_metrics": True},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_every_argument_does_what_it_does_in_torchmetrics(options: dict[str, Any]) -> None:
    assert_as_torchmetrics(frames_of(1, crowds=True), **options)


@st.composite
def drawn(draw: st.DrawFn) -> list[Frame]:
    """A few images on a coarse grid with many equal boxes, scores and IoUs, crowds and boxes without area."""
    frames = []
    for _ in range(draw(st.integers(1, 3))):
        detected = draw(st.lists(st.tuples(small_boxes(), st.integers(1, 4), st.integers(0, 2)), max_size=12))
        truth = draw(st.lists(st.tuples(small_boxes(), st.integers(0, 2), st.integers(0, 1)), max_size=7))
        boxes = [torch.tensor([box for box, _, _ in part]).reshape(-1, 4) for part in (detected, truth)]
        corners = boxes[1].split(2, 1)  # an annotated box with a negative size is an error here
        boxes[1] = torch.cat([corners[0].minimum(corners[1]), corners[0].maximum(corners[1])], 1)
        numbers = [torch.tensor([number for _, number, _ in part]) for part in (detected, truth)]
        lasts = [torch.tensor([last for _, _, last in part]).long() for part in (detected, truth)]
        detections = {"boxes": boxes[0], "scores": numbers[0] / 4, "labels": lasts[0]}
        frames.append((detections, {"boxes": boxes[1], "labels": numbers[1].long(), "iscrowd": lasts[1]}))
    return frames


@pytest.mark.whole_run
@settings(max_examples=40)
@given(frames=drawn())
def test_scores_of_any_images_are_those_of_torchmetrics(frames: list[Frame]) -> None:
    if any(len(labelled["labels"]) for frame in frames for labelled in frame):  # torchmetrics fails without any label
        assert_as_torchmetrics(frames, class_metrics=True)


def test_nothing_annotated_is_minus_one() -> None:
    empty = {"boxes": torch.zeros(0, 4), "scores": torch.zeros(0), "labels": torch.zeros(0, dtype=torch.long)}
    for frames in ([], [(empty, empty)]):
        scores = filled(MeanAveragePrecision(), frames).compute()
        assert all(float(value) == -1 for name, value in scores.items() if name != "classes")


def test_forward_returns_the_scores_of_the_batch_and_adds_it() -> None:
    frames = frames_of(3)
    metric = MeanAveragePrecision()
    for part in (frames[:6], frames[6:]):
        scores = metric([detections for detections, _ in part], [truth for _, truth in part])
        torch.testing.assert_close(scores, filled(MeanAveragePrecision(), part).compute())
    torch.testing.assert_close(metric.compute(), filled(MeanAveragePrecision(), frames).compute())
    metric.reset()
    assert not metric.detection_boxes


def test_arguments_may_be_arrays_and_tensors() -> None:
    lists = {"iou_thresholds": [0.25, 0.5], "max_detection_thresholds": [2, 7, 30]}
    frames = frames_of(4, count=4)
    expected = filled(MeanAveragePrecision(**lists), frames).compute()
    for convert in (np.array, torch.tensor):
        options = {name: convert(values) for name, values in lists.items()}
        scores = filled(MeanAveragePrecision(**options, rec_thresholds=torch.linspace(0, 1, 101)), frames).compute()
        assert {name: value.tolist() for name, value in scores.items()} == {
            name: value.tolist() for name, value in expected.items()
        }


def test_wrong_arguments() -> None:
    for options, message in (
        ({"iou_thresholds": []}, r"iou_thresholds must contain 1 to 16 values, got \[\]"),
        ({"max_detection_thresholds": [1, 2]}, "max_detection_thresholds must contain 3 numbers"),
        ({"box_format": "xywh"}, r"box_format must be 'xyxy', got 'xywh': convert boxes with torchvision\.ops"),
        ({"iou_type": ("bbox", "segm")}, "iou_type must be 'bbox', got .*: masks are scored by torchmetrics"),
        ({"rec_thresholds": [0.5]}, r"rec_thresholds must be None, got \[0.5\]"),
        ({"rec_thresholds": np.linspace(0, 1, 11)}, r"rec_thresholds must be None, got \[0.0, 0.1"),
        ({"iou_thresholds": np.array(["a"])}, r"iou_thresholds must be a list of numbers or null, got \['a'\]"),
        ({"max_detection_thresholds": torch.rand(3)}, "max_detection_thresholds must be a list of integers or null"),
        ({"average": "micro"}, "average must be 'macro', got 'micro': .* set all labels to 0"),
        ({"extended_summary": True}, "extended_summary must be False, got True"),
    ):
        with pytest.raises(ValueError, match=message):
            MeanAveragePrecision(**options)


def test_wrong_images() -> None:
    ((detections, truth),) = frames_of(0, count=1)
    metric = MeanAveragePrecision()
    for preds, target, message in (
        ([detections], [], "must have the same length, got 1 and 0"),
        ([truth], [truth], r"preds\[0\] must contain the tensor 'scores'"),
        ([detections | {"scores": detections["scores"][:1]}], [truth], r"preds\[0\]\['scores'\] must have shape"),
        ([detections], [truth | {"boxes": torch.zeros(2, 5)}], r"target\[0\]\['boxes'\] must have shape \(N, 4\)"),
        ([detections | {"labels": detections["labels"].float()}], [truth], "must be integers"),
    ):
        with pytest.raises(ValueError, match=message):
            metric.update(preds, target)


class Copies(TorchFunctionMode):
    """Records the targets of the copies between devices that do not block."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.to and (kwargs or {}).get("non_blocking"):
            self.targets.append(torch.device(args[1]).type)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("device", "targets"), [("cpu", set()), ("meta", {"meta"})])
def test_copies_to_the_cpu_are_complete_when_they_are_read(device: str, targets: set[str]) -> None:
    metric = MeanAveragePrecision().to(device)
    with Copies() as copies:
        filled(metric, frames_of(0))
    assert set(copies.targets) == targets


def synchronise(rank: int, port: int, shares: list[list[Frame]]) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=len(shares)
    )
    scores = filled(MeanAveragePrecision(class_metrics=True), shares[rank]).compute()
    all_frames = [frame for share in shares for frame in share]
    whole = filled(Reference(backend="faster_coco_eval", class_metrics=True, sync_on_compute=False), all_frames)
    for name, value in whole.compute().items():
        torch.testing.assert_close(scores[name], value, rtol=0, atol=1e-6)
    torch.distributed.destroy_process_group()


@pytest.mark.whole_run
@pytest.mark.parametrize("split", [(7, 12), (12, 12)], ids=["unequal", "a rank without images"])
def test_ranks_score_the_images_of_all(split: tuple[int, int]) -> None:
    frames = frames_of(6, crowds=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn(synchronise, (port, [frames[: split[0]], frames[split[0] : split[1]]]), nprocs=2)
