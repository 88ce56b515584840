"""The files of the dataset: frames, the JSON file of every split, and a manifest that tells what a root holds."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from yolo_lightning.data.synthetic.camera import draw_frame
from yolo_lightning.data.synthetic.climate import weather_at
from yolo_lightning.data.synthetic.clips import Clip, cast_clip, image_entry, plan_clips
from yolo_lightning.data.synthetic.objects import CLASS_NAMES
from yolo_lightning.data.synthetic.scene import REFERENCE_HEIGHT, REFERENCE_WIDTH, Scene

VERSION = 1
"""Version of the drawing; a root drawn by another version is not taken for a finished one."""
MANIFEST_NAME = "synthetic.json"
SPLIT_FILES = {"train": "Train.json", "valid": "Valid.json", "test": "TestNoLabels.json"}
_LARGEST_SPLIT = 20_000
_SMALLEST_SIDE, _LARGEST_SIDE = 32, 4096
_JPEG_QUALITY = 95
_UNFINISHED = ".part"
_CATEGORIES = [{"id": number, "name": name} for number, name in enumerate(("background", *CLASS_NAMES))]


@dataclass(frozen=True)
class SyntheticSummary:
    """What a drawn dataset holds.

    Attributes:
        root: Folder of the dataset.
        frames: Frames per split ("train", "valid", "test").
        boxes: Boxes per split and class name; those of the test split were drawn, but are in no file.
    """

    root: Path
    frames: dict[str, int]
    boxes: dict[str, dict[str, int]]


@dataclass
class _SplitRecord:
    """What is collected of one split while it is drawn."""

    images: list[dict[str, Any]] = field(default_factory=list)
    annotations: list[dict[str, Any]] = field(default_factory=list)
    boxes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CLASS_NAMES, 0))


def draw_dataset(
    root: str | Path,
    *,
    train_frames: int = 480,
    valid_frames: int = 96,
    test_frames: int = 48,
    seed: int = 0,
    width: int = REFERENCE_WIDTH,
    height: int = REFERENCE_HEIGHT,
    progress: bool = False,
) -> SyntheticSummary:
    """Draw a synthetic LTDv2, finish an interrupted draw, or return the one that is already there.

    Args:
        root: Folder to draw into: a new or empty one, or one drawn by this function with the same parameters.
        train_frames: Frames of Train.json.
        valid_frames: Frames of Valid.json.
        test_frames: Frames of TestNoLabels.json.
        seed: Seed of everything that is left to chance; the same parameters always give the same files.
        width: Frame width in pixels; objects shrink with the frame down to 0.75 of their size.
        height: Frame height in pixels.
        progress: Whether to show a progress bar on stderr.

    Raises:
        ValueError: A number is out of its range, the root cannot be written, or it holds something else.
    """
    counts = {"train": train_frames, "valid": valid_frames, "test": test_frames}
    for split, count in counts.items():
        _check_range(f"{split}_frames", count, 1, _LARGEST_SPLIT)
    _check_range("seed", seed, 0, 2**32 - 1)
    _check_range("width", width, _SMALLEST_SIDE, _LARGEST_SIDE)
    _check_range("height", height, _SMALLEST_SIDE, _LARGEST_SIDE)
    root = Path(root)
    parameters = {"version": VERSION, "frames": counts, "seed": seed, "width": width, "height": height}
    if finished := _open_root(root, parameters):
        return finished
    records = _draw_splits(root, plan_clips(counts, seed), Scene(width, height, seed), progress)
    for split, record in records.items():
        content: dict[str, Any] = {"info": {"description": "Synthetic LTDv2 look-alike"}, "images": record.images}
        if split != "test":
            content["annotations"] = record.annotations
        _write_json(root / SPLIT_FILES[split], {**content, "categories": _CATEGORIES})
    boxes = {split: record.boxes for split, record in records.items()}
    _write_json(root / MANIFEST_NAME, {"parameters": parameters, "complete": True, "boxes": boxes})
    return SyntheticSummary(root, counts, boxes)


def _check_range(name: str, value: int, lowest: int, highest: int) -> None:
    if not lowest <= value <= highest:
        raise ValueError(f"{name} is {value}; allowed are {lowest} to {highest}")


def _open_root(root: Path, parameters: dict[str, Any]) -> SyntheticSummary | None:
    """Return the finished dataset of a root, or make the root ready to draw into and return None."""
    try:
        if root.is_file():
            raise ValueError(f"root {root} is a file; give a new or empty folder")
        root.mkdir(parents=True, exist_ok=True)
        # A draw that was interrupted before its first frame leaves at most the beginning of its manifest.
        if {path.name for path in root.iterdir()} - {MANIFEST_NAME + _UNFINISHED}:
            manifest = _read_manifest(root)
            if manifest.get("parameters") != parameters:
                raise ValueError(
                    f"root {root} is not empty and does not hold this dataset ({_describe(manifest)}); "
                    "give a new or empty folder, or the same parameters"
                )
            if manifest.get("complete"):
                return _finished(root, manifest)
        # The manifest is there before the first frame, so that a root without its end is known to be ours.
        _write_json(root / MANIFEST_NAME, {"parameters": parameters, "complete": False})
    except OSError as error:
        raise ValueError(f"root {root} cannot be read or written ({error}); give a writable folder") from error
    return None


def _read_manifest(root: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((root / MANIFEST_NAME).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def _describe(manifest: dict[str, Any]) -> str:
    if "parameters" not in manifest:
        return f"it has no readable {MANIFEST_NAME}"
    state = "finished" if manifest.get("complete") else "interrupted"
    return f"it holds a {state} draw with {json.dumps(manifest['parameters'])}"


def _finished(root: Path, manifest: dict[str, Any]) -> SyntheticSummary:
    """The summary of a finished root, if its files are still all there."""
    frames: dict[str, int] = manifest["parameters"]["frames"]
    missing = [name for name in SPLIT_FILES.values() if not (root / name).is_file()]
    found = sum(1 for _ in root.glob("frames/*/*/image_*.jpg"))
    if missing or found != sum(frames.values()):
        raise ValueError(
            f"root {root} was drawn completely, but now {found} of {sum(frames.values())} frames are there and "
            f"{', '.join(missing) or 'no JSON file'} is missing; delete the folder or give another one"
        )
    return SyntheticSummary(root, frames, manifest["boxes"])


def _write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file so that it is either there in full or not at all."""
    unfinished = path.with_name(path.name + _UNFINISHED)
    unfinished.write_text(json.dumps(content), encoding="utf-8")
    os.replace(unfinished, path)


def _draw_splits(root: Path, clips: list[Clip], scene: Scene, progress: bool) -> dict[str, _SplitRecord]:
    """Draw all clips and write their frames."""
    records = {split: _SplitRecord() for split in SPLIT_FILES}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not progress) as bar:
        task = bar.add_task("drawing frames", total=sum(clip.frames for clip in clips))
        for index, clip in enumerate(clips):
            _draw_clip(root, clip, scene, np.random.default_rng([scene.seed, 3000, index]), records[clip.split])
            bar.advance(task, clip.frames)
    return records


def _draw_clip(root: Path, clip: Clip, scene: Scene, rng: np.random.Generator, record: _SplitRecord) -> None:
    """Draw one clip, write its frames and add them to the record of its split."""
    weather = weather_at(clip.month, clip.start, rng)
    actors = [] if clip.empty else cast_clip(scene, clip.frames, record.boxes, rng)
    background = scene.background(weather)
    (root / clip.folder).mkdir(parents=True, exist_ok=True)
    for frame in range(clip.frames):
        image, labels = draw_frame(scene, background, actors, weather, frame, rng)
        entry = image_entry(clip, frame, weather, scene)
        _, encoded = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY])
        (root / entry["file_name"]).write_bytes(encoded.tobytes())
        record.images.append(entry)
        for class_index, box in labels:
            record.boxes[CLASS_NAMES[class_index]] += 1
            record.annotations.append(
                {
                    "id": len(record.annotations) + 1,
                    "image_id": entry["id"],
                    "category_id": class_index + 1,
                    "bbox": list(box),
                    "area": box[2] * box[3],
                    "iscrowd": 0,
                }
            )
