"""`prepare --check`: errors of a dataset that harm training or its scores, as a table and a picture."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import combinations

import cv2
import numpy as np
import numpy.typing as npt
import torch
from torchvision.ops import box_iou

from yolo_lightning.commands.console import counter, name_some
from yolo_lightning.commands.doctor.machine_findings import Finding, Severity
from yolo_lightning.data.batch import Sample
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.dataset import EvaluationDataset
from yolo_lightning.data.formats.image_ids import ID_DIGITS, number_at
from yolo_lightning.data.index.splits import Split
from yolo_lightning.data.labelled_frames import LabelledFrames
from yolo_lightning.data.transforms.letterbox import Labelled
from yolo_lightning.evaluation.drift import month_name

THUMBNAIL = 16  # Pixels per side of the reduced frames that are compared
NEAR_LEVELS = 2.0  # Largest root mean square difference of the gray levels of near-duplicates
BLOCK = 256  # Frames that are compared at once with all frames of another split
TINY_PX = 4.0  # Pixels of the frame. A box with a shorter side is tiny.
DOUBLED_IOU = 0.9  # Smallest IoU of two boxes of the same class that count as one object
RARE_SHARE = 0.01  # Share of the boxes below which a class is rare
SHOWN = 8  # Frames per row of the picture
HOUR_COLUMNS = (11, 12)  # Digits of the hour in an LTDv2 image id

Thumbnails = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class CheckedSplit:
    """A split whose frames have been read. Lists contain positions of frames."""

    frames: LabelledFrames
    thumbnails: Thumbnails  # `(N, THUMBNAIL ** 2)` uint8
    digests: list[bytes]  # of the pixels; empty for an unreadable frame
    unreadable: dict[str, str]  # reason by file
    tiny: list[int]
    doubled: list[int]


def check_dataset(data: DetectionDataModule) -> tuple[list[Finding], dict[str, list[Sample]]]:
    """Read all frames of a dataset; return the findings, and rows of suspicious frames for `draw_rows`.

    `test` is read if it differs from `valid`.
    """
    splits: list[Split] = ["train", "valid"]
    if data.dataset_format.name("test") != data.dataset_format.name("valid"):
        splits.append("test")
    opened = {split: data.open(split) for split in splits}
    with counter("checked", sum(map(len, opened.values()))) as advance:
        checked = {split: _read(frames, advance) for split, frames in opened.items()}
    datasets = {split: EvaluationDataset(one.frames, data.image_size) for split, one in checked.items()}
    rows: dict[str, list[Sample]] = {}

    def show(heading: str, places: Sequence[tuple[Split, int]]) -> None:
        if places:
            rows[heading] = [datasets[split][place] for split, place in places[:SHOWN]]

    findings = [_of_files(checked)]
    for first, second in combinations(checked, 2):
        equal, near = twins(checked[first], checked[second])
        findings += _of_twins(first, second, len(checked[second].frames), equal, near)
        for heading, pairs in (("equal frames", equal), ("near-duplicates", near)):
            places = [place for own, other in pairs for place in ((first, own), (second, other))]
            show(f"{heading} of {first} and {second}, in pairs", places)
    for split, one in checked.items():
        findings += _of_boxes(split, one)
        show(f"{split}: boxes with a side below {TINY_PX:g} pixels", [(split, place) for place in one.tiny])
        show(f"{split}: several boxes for one object", [(split, place) for place in one.doubled])
    findings += [_of_classes(checked), _of_empty_frames(checked), *_of_times(checked)]
    return findings, rows


def _read(frames: LabelledFrames, advance: Callable[[int], None]) -> CheckedSplit:
    count = len(frames)
    found = CheckedSplit(frames, np.zeros((count, THUMBNAIL**2), np.uint8), [], {}, [], [])
    for place in range(count):
        labelled = frames.read(place)
        if labelled.problem is None:
            gray = labelled.image if labelled.image.ndim == 2 else labelled.image.mean(axis=2).astype(np.uint8)
            small = cv2.resize(gray, (THUMBNAIL, THUMBNAIL), interpolation=cv2.INTER_AREA)
            found.thumbnails[place] = np.asarray(small, np.uint8).ravel()
            found.digests.append(sha256(labelled.image.tobytes()).digest())
        else:
            name, _, reason = labelled.problem.partition(": ")
            found.unreadable[name] = reason
            found.digests.append(b"")
        boxes, labels = frames.index.boxes(place), frames.index.labels(place)
        if len(boxes) and (boxes[:, 2:] - boxes[:, :2]).min() < TINY_PX:
            found.tiny.append(place)
        if doubled(labelled._replace(boxes=boxes, labels=labels)):
            found.doubled.append(place)
        advance(1)
    return found


def doubled(labelled: Labelled) -> bool:
    """Return whether two boxes of the same class have an IoU of at least `DOUBLED_IOU`."""
    boxes = torch.from_numpy(labelled.boxes)
    same = labelled.labels[:, None] == labelled.labels
    overlap = box_iou(boxes, boxes).numpy() >= DOUBLED_IOU
    return bool(np.triu(overlap & same, 1).any())


def twins(first: CheckedSplit, second: CheckedSplit) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the pairs of equal frames of two splits, and of near-duplicates, one per frame of `second`."""
    known = {digest: place for place, digest in enumerate(first.digests) if digest}
    equal = [(known[digest], place) for place, digest in enumerate(second.digests) if digest in known]
    places = [place for place, digest in enumerate(second.digests) if digest and digest not in known]
    own = np.array(list(known.values()), np.int64)
    near = []
    if len(own):
        others = first.thumbnails[own].astype(np.float32) - 128
        squares = (others**2).mean(axis=1)
        for start in range(0, len(places), BLOCK):
            block = places[start : start + BLOCK]
            rows = second.thumbnails[block].astype(np.float32) - 128
            squared = (rows**2).mean(axis=1)[:, None] + squares - 2 / THUMBNAIL**2 * rows @ others.T
            nearest = squared.argmin(axis=1)
            is_near = squared[np.arange(len(block)), nearest] <= NEAR_LEVELS**2
            near += [(int(own[at]), place) for at, place, yes in zip(nearest, block, is_near, strict=True) if yes]
    return equal, near


def _of_files(checked: dict[Split, CheckedSplit]) -> Finding:
    bad = {name: reason for one in checked.values() for name, reason in one.unreadable.items()}
    if bad:
        return Finding("files", f"{len(bad):,} unreadable frames: {name_some(bad)}", Severity.BAD, "replace the files")
    return Finding("files", f"all {sum(len(one.frames) for one in checked.values()):,} frames can be read")


def _of_twins(first: str, second: str, count: int, equal: Sequence[object], near: Sequence[object]) -> list[Finding]:
    """Return the findings about the `count` frames of split `second`."""
    advice = f"separate {first} and {second} by clip or day (data.split.valid_share keeps clips together)"
    text = f"{len(equal):,} of {count:,} frames of {second} are also in {first}"
    limit = f"by at most {NEAR_LEVELS:g} gray levels"
    near_text = f"{len(near):,} of {count:,} frames of {second} differ from a frame of {first} {limit}"
    kinds = (("equal frames", equal, text, Severity.BAD), ("near-duplicates", near, near_text, Severity.WARNING))
    return [
        Finding(check, found, severity, advice) if pairs else Finding(check, found)
        for check, pairs, found, severity in kinds
    ]


def _of_boxes(split: str, one: CheckedSplit) -> list[Finding]:
    index, check = one.frames.index, f"boxes, {split}"
    severity = Severity.NOTE if index.facts.clipped or index.facts.dropped else Severity.OK
    found = [Finding(check, index.facts.describe_boxes(), severity)]
    found += [Finding(check, note, Severity.NOTE) for note in index.facts.notes]
    if text := index.facts.impossible or index.facts.unlikely:
        found.append(Finding(check, text, Severity.BAD if index.facts.impossible else Severity.WARNING))
    if one.tiny:
        text = f"{len(one.tiny):,} of {len(index):,} frames have boxes whose shorter side is below {TINY_PX:g} pixels"
        found.append(Finding(check, text, Severity.NOTE))
    if one.doubled:
        frames = f"{len(one.doubled):,} of {len(index):,} frames"
        text = f"{frames} have boxes of one class whose IoU is at least {DOUBLED_IOU:g}"
        found.append(Finding(check, text, Severity.WARNING, "remove the repeated boxes"))
    return found


def _of_classes(checked: dict[Split, CheckedSplit]) -> Finding:
    index = checked["train"].frames.index
    counts = np.bincount(index.all_labels(), minlength=len(index.facts.class_names))
    share = counts / max(1, counts.sum())
    text = ", ".join(f"{index.facts.class_names[label]} {share[label]:.1%}" for label in np.argsort(-share).tolist())
    rare = [index.facts.class_names[label] for label in np.flatnonzero(share < RARE_SHARE).tolist()]
    advice = f"less than {RARE_SHARE:.0%} of the training boxes: {', '.join(rare)}; see data.sampling" if rare else ""
    return Finding("classes", text, Severity.WARNING if rare else Severity.OK, advice)


def _of_empty_frames(checked: dict[Split, CheckedSplit]) -> Finding:
    shares = {split: float((np.diff(one.frames.index.box_offsets()) == 0).mean()) for split, one in checked.items()}
    text = ", ".join(f"{split} {share:.1%}" for split, share in shares.items())
    return Finding("empty frames", text, Severity.NOTE if any(shares.values()) else Severity.OK)


def _of_times(checked: dict[Split, CheckedSplit]) -> list[Finding]:
    """Return the frames per month and hour of each split; times of another split that training lacks are a note."""
    months = {split: Counter(one.frames.index.months().tolist()) for split, one in checked.items()}
    hours = {split: Counter(_hours(one.frames.index.image_ids())) for split, one in checked.items()}
    names: tuple[tuple[str, dict[Split, Counter[int]], Callable[[int], str]], ...] = (
        ("months", months, month_name),
        ("hours", hours, "{:02d}".format),
    )
    findings = []
    for check, found, name in names:
        known = {split: [time for time in sorted(own) if check == "hours" or time] for split, own in found.items()}
        texts = {
            split: ", ".join(f"{name(time)}: {found[split][time]:,}" for time in own) for split, own in known.items()
        }
        lacking = set().union(*known.values()) - set(known["train"]) if known["train"] else set()
        advice = f"not in train: {', '.join(map(name, sorted(lacking)))}" if lacking else ""
        text = "; ".join(f"{split} {one or 'unknown'}" for split, one in texts.items())
        findings.append(Finding(check, text, Severity.NOTE if lacking else Severity.OK, advice))
    return findings


def _hours(image_ids: Sequence[str]) -> list[int]:
    """Return the hours of LTDv2 image ids, without other ids."""
    known = [image_id for image_id in image_ids if len(image_id) == ID_DIGITS and image_id.isdecimal()]
    hours: list[int] = number_at(np.array(known, dtype=np.bytes_), HOUR_COLUMNS).tolist() if known else []
    return hours
