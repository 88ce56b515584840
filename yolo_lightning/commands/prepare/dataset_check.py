"""`prepare --check`: errors of a dataset that harm training or its scores, as a table and a picture."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import chain, combinations

import cv2
import numpy as np
import torch
from torchvision.ops import box_iou

from yolo_lightning.commands.console import counter
from yolo_lightning.commands.doctor.machine_findings import Finding, Severity
from yolo_lightning.data.array_types import AnyArray, Float32Array, Int64Array, UInt8Array
from yolo_lightning.data.batch import Sample
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.dataset import EvaluationDataset
from yolo_lightning.data.formats.image_ids import ID_DIGITS
from yolo_lightning.data.index.split_index import SplitIndex
from yolo_lightning.data.index.splits import Split
from yolo_lightning.data.labelled_frames import LabelledFrames
from yolo_lightning.data.storage.jpeg_damage import has_damaged_data
from yolo_lightning.data.storage.storage import EncodedStorage
from yolo_lightning.evaluation.drift import month_name
from yolo_lightning.utils.plain_text import name_some

THUMBNAIL = 16  # Pixels per side of the reduced frames that are compared
NEAR_LEVELS = 2.0  # Largest root mean square difference of the gray levels of near-duplicates
BLOCK = 256  # Frames that are compared at once with all frames of another split
TINY_PX = 4.0  # Pixels of the frame. A box with a shorter side is tiny.
DOUBLED_IOU = 0.9  # Smallest IoU of two boxes of the same class that count as one object
RARE_SHARE = 0.01  # Share of the boxes below which a class is rare
SHOWN = 8  # Frames per row of the picture
HOUR = slice(11, 13)  # Digits of the hour in an LTDv2 image id


@dataclass(frozen=True, slots=True)
class CheckedSplit:
    """A split whose frames have been read. Lists contain positions of frames."""

    frames: LabelledFrames
    thumbnails: UInt8Array  # `(N, THUMBNAIL ** 2)` uint8
    digests: list[bytes]  # of the pixels; empty for an unreadable frame
    unreadable: dict[str, str]  # reason by file
    tiny: list[int]
    doubled: list[int]
    damaged: list[int] = field(default_factory=list)  # with damaged JPEG data


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
    datasets = {split: EvaluationDataset(frames, data.image_size) for split, frames in opened.items()}
    rows: dict[str, list[Sample]] = {}

    def show(heading: str, places: Sequence[tuple[Split, int]]) -> None:
        if places:
            rows[heading] = [datasets[split][place] for split, place in places[:SHOWN]]

    findings = [_of_files(checked.values())]
    for split, other in combinations(checked, 2):
        equal, near = twins(checked[split], checked[other])
        findings += _of_twins(split, other, len(checked[other].frames), equal, near)
        for heading, pairs in (("equal frames", equal), ("near-duplicates", near)):
            places: list[tuple[Split, int]] = []
            for place, other_place in pairs:
                places += [(split, place), (other, other_place)]
            show(f"{heading} of {split} and {other}, in pairs", places)
    for split, content in checked.items():
        findings += _of_damage(split, content)
        show(f"{split}: damaged JPEG data", [(split, place) for place in content.damaged])
        findings += _of_boxes(split, content)
        show(f"{split}: boxes with a side below {TINY_PX:g} pixels", [(split, place) for place in content.tiny])
        show(f"{split}: several boxes for one object", [(split, place) for place in content.doubled])
    findings += _of_indexes({split: frames.index for split, frames in opened.items()})
    return findings, rows


def _read(frames: LabelledFrames, advance: Callable[[int], None]) -> CheckedSplit:
    split = CheckedSplit(frames, np.zeros((len(frames), THUMBNAIL**2), np.uint8), [], {}, [], [])
    for place in range(len(frames)):
        labelled = frames.read(place)
        if labelled.problem is None:
            split.thumbnails[place] = _thumbnail(labelled.image)
            split.digests.append(sha256(labelled.image.tobytes()).digest())
        else:
            name, _, reason = labelled.problem.partition(": ")
            split.unreadable[name] = reason
            split.digests.append(b"")
        if labelled.problem is None and isinstance(frames.storage, EncodedStorage):
            content = frames.storage.content(frames.index.file_name(place))
            if has_damaged_data(content):
                split.damaged.append(place)
        boxes = frames.index.boxes(place)
        if len(boxes) and (boxes[:, 2:] - boxes[:, :2]).min() < TINY_PX:
            split.tiny.append(place)
        if doubled(boxes, frames.index.labels(place)):
            split.doubled.append(place)
        advance(1)
    return split


def _thumbnail(image: AnyArray) -> UInt8Array:
    """Return the gray levels of a reduced frame, `(THUMBNAIL ** 2,)`."""
    if image.ndim == 3:
        image = image.mean(axis=2).astype(np.uint8)
    small = cv2.resize(image, (THUMBNAIL, THUMBNAIL), interpolation=cv2.INTER_AREA)
    return np.asarray(small, np.uint8).ravel()


def doubled(boxes: Float32Array, labels: Int64Array) -> bool:
    """Return whether two boxes, xyxy `(N, 4)`, of the same class have an IoU of at least `DOUBLED_IOU`."""
    corners = torch.from_numpy(boxes)
    overlaps = box_iou(corners, corners).numpy() >= DOUBLED_IOU
    same_class = labels[:, None] == labels
    return bool(np.triu(overlaps & same_class, 1).any())


def twins(split: CheckedSplit, other: CheckedSplit) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the pairs of equal frames of two splits, and of near-duplicates, one per frame of `other`."""
    places = {digest: place for place, digest in enumerate(split.digests) if digest}
    equal = [(places[digest], place) for place, digest in enumerate(other.digests) if digest in places]
    if not places:
        return equal, []
    candidates = list(places.values())
    unequal = [place for place, digest in enumerate(other.digests) if digest and digest not in places]
    pixels = torch.from_numpy(split.thumbnails[candidates]).float()
    near = []
    for start in range(0, len(unequal), BLOCK):
        block = unequal[start : start + BLOCK]
        distances, nearest = torch.cdist(torch.from_numpy(other.thumbnails[block]).float(), pixels).min(dim=1)
        for place, distance, candidate in zip(block, distances.tolist(), nearest.tolist(), strict=True):
            if distance <= NEAR_LEVELS * THUMBNAIL:  # the norm of equal differences in all pixels
                near.append((candidates[candidate], place))
    return equal, near


def _of_files(splits: Collection[CheckedSplit]) -> Finding:
    unreadable: dict[str, str] = {}
    for split in splits:
        unreadable |= split.unreadable
    if unreadable:
        problem = f"{len(unreadable):,} unreadable frames: {name_some(unreadable)}"
        return Finding("files", problem, Severity.BAD, "replace the files")
    return Finding("files", f"all {sum(len(split.frames) for split in splits):,} frames can be read")


def _of_damage(split: str, content: CheckedSplit) -> list[Finding]:
    if not content.damaged:
        return []
    names = [content.frames.index.file_name(place) for place in content.damaged]
    problem = (
        f"{len(names):,} of {len(content.frames):,} frames of {split} have damaged JPEG data and are read with gray or "
        f"shifted areas: {name_some(names)}"
    )
    return [Finding("files", problem, Severity.BAD, "replace the files")]


def _of_twins(split: str, other: str, frames: int, equal: Sequence[object], near: Sequence[object]) -> list[Finding]:
    """Return the findings about the frames of split `other`, whose number is `frames`."""
    advice = f"separate {split} and {other} by clip or day (data.split.valid_share keeps clips together)"
    equal_frames = Finding("equal frames", f"{len(equal):,} of {frames:,} frames of {other} are also in {split}")
    near_frames = Finding(
        "near-duplicates",
        f"{len(near):,} of {frames:,} frames of {other} differ from a frame of {split} "
        f"by at most {NEAR_LEVELS:g} gray levels",
    )
    if equal:
        equal_frames = replace(equal_frames, verdict=Severity.BAD, advice=advice)
    if near:
        near_frames = replace(near_frames, verdict=Severity.WARNING, advice=advice)
    return [equal_frames, near_frames]


def _of_boxes(split: str, content: CheckedSplit) -> list[Finding]:
    check = f"boxes, {split}"
    facts = content.frames.index.facts
    frames = len(content.frames)
    severity = Severity.NOTE if facts.clipped or facts.dropped else Severity.OK
    findings = [Finding(check, facts.describe_boxes(), severity)]
    findings += [Finding(check, note, Severity.NOTE) for note in facts.notes]
    if facts.impossible:
        findings.append(Finding(check, facts.impossible, Severity.BAD))
    elif facts.unlikely:
        findings.append(Finding(check, facts.unlikely, Severity.WARNING))
    if content.tiny:
        share = f"{len(content.tiny):,} of {frames:,} frames"
        summary = f"{share} have boxes whose shorter side is below {TINY_PX:g} pixels"
        findings.append(Finding(check, summary, Severity.NOTE))
    if content.doubled:
        share = f"{len(content.doubled):,} of {frames:,} frames"
        summary = f"{share} have boxes of one class whose IoU is at least {DOUBLED_IOU:g}"
        findings.append(Finding(check, summary, Severity.WARNING, "remove the repeated boxes"))
    return findings


def _of_indexes(indexes: Mapping[Split, SplitIndex]) -> list[Finding]:
    """Return the findings about classes, empty frames, months and hours."""
    months = {split: _months(index) for split, index in indexes.items()}
    hours = {split: _hours(index.image_ids()) for split, index in indexes.items()}
    return [
        _of_classes(indexes["train"]),
        _of_empty_frames(indexes),
        _of_times("months", months),
        _of_times("hours", hours),
    ]


def _of_classes(train: SplitIndex) -> Finding:
    names = train.facts.class_names
    counts = np.bincount(train.all_labels(), minlength=len(names))
    shares = counts / max(1, counts.sum())
    listed = ", ".join(f"{names[label]} {shares[label]:.1%}" for label in np.argsort(-shares).tolist())
    rare = [names[label] for label in np.flatnonzero(shares < RARE_SHARE).tolist()]
    if not rare:
        return Finding("classes", listed)
    advice = f"less than {RARE_SHARE:.0%} of the training boxes: {', '.join(rare)}; see data.sampling"
    return Finding("classes", listed, Severity.WARNING, advice)


def _of_empty_frames(indexes: Mapping[Split, SplitIndex]) -> Finding:
    shares = {split: float((np.diff(index.box_offsets()) == 0).mean()) for split, index in indexes.items()}
    listed = ", ".join(f"{split} {share:.1%}" for split, share in shares.items())
    return Finding("empty frames", listed, Severity.NOTE if any(shares.values()) else Severity.OK)


def _of_times(check: str, times: Mapping[Split, Sequence[str]]) -> Finding:
    """Return the frames per month or hour of each split; times of another split that training lacks are a note."""
    parts = []
    for split, split_times in times.items():
        listed = ", ".join(f"{time}: {count:,}" for time, count in sorted(Counter(split_times).items()))
        parts.append(f"{split} {listed or 'unknown'}")
    lacking = set(chain.from_iterable(times.values())) - set(times["train"])
    if not lacking or not times["train"]:
        return Finding(check, "; ".join(parts))
    return Finding(check, "; ".join(parts), Severity.NOTE, f"not in train: {', '.join(sorted(lacking))}")


def _months(index: SplitIndex) -> list[str]:
    """Return the known months of the frames."""
    return [month_name(month) for month in index.months().tolist() if month]


def _hours(image_ids: Sequence[str]) -> list[str]:
    """Return the hours of LTDv2 image ids, without other ids."""
    with_time = [image_id for image_id in image_ids if len(image_id) == ID_DIGITS and image_id.isdecimal()]
    return [image_id[HOUR] for image_id in with_time]
