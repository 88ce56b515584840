"""A small look-alike of LTDv2 in its official layout, drawn from a seed.

It lets the whole trainer be tried in minutes, without a download: one harbour camera, eight months whose thermal look
drifts, clips of consecutive one-second frames, and the JSON files with the same ids, names and categories as the real
data set. Run `python -m yolo_lightning.data.synthetic ROOT` to draw one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from yolo_lightning.data.synthetic_scene import (
    CLASS_NAMES,
    MONTHS,
    REFERENCE_HEIGHT,
    REFERENCE_WIDTH,
    Actor,
    Month,
    Scene,
    Weather,
    cast_actor,
    draw_frame,
    weather_at,
)

VERSION = 1
"""Version of the drawing; a root drawn by another version is not taken for a finished one."""

MANIFEST_NAME = "synthetic.json"
SPLIT_FILES = {"train": "Train.json", "valid": "Valid.json", "test": "TestNoLabels.json"}

_LARGEST_SPLIT = 20_000
_SMALLEST_SIDE, _LARGEST_SIDE = 32, 4096
_CLIP_FRAMES = 8
_EMPTY_SHARE = 0.08
_MOST_OBJECTS = 7
_CLASS_SHARES = np.array([0.45, 0.18, 0.12, 0.25])
_JPEG_QUALITY = 95
_CATEGORIES = [{"id": number, "name": name} for number, name in enumerate(("background", *CLASS_NAMES))]


@dataclass(frozen=True)
class SyntheticSummary:
    """What a drawn data set holds.

    Attributes:
        root: Folder of the data set.
        frames: Frames per split ("train", "valid", "test").
        boxes: Boxes per split and class name; those of the test split were drawn, but are in no file.
    """

    root: Path
    frames: dict[str, int]
    boxes: dict[str, dict[str, int]]


@dataclass(frozen=True)
class _Clip:
    """A planned clip: where it belongs, when it starts, how long it is and whether anything moves in it."""

    split: str
    month: Month
    start: datetime
    number: int
    frames: int
    empty: bool

    @property
    def folder(self) -> str:
        return f"frames/{self.start:%Y%m%d}/clip_{self.number}_{self.start:%H%M}"


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
    """Draw a synthetic LTDv2, or return the one that is already there.

    The same parameters always give the same files. A draw that was interrupted is taken up again by a call with the
    same parameters.

    Args:
        root: Folder to draw into: a new or empty one, or one drawn by this function with the same parameters.
        train_frames: Frames of Train.json.
        valid_frames: Frames of Valid.json.
        test_frames: Frames of TestNoLabels.json.
        seed: Seed of everything that is left to chance, 0 or more.
        width: Frame width in pixels; objects shrink with the frame down to 0.75 of their size.
        height: Frame height in pixels.
        progress: Whether to show a progress bar on stderr.

    Returns:
        Frames and boxes per split.

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
    finished = _open_root(root, parameters)
    if finished is not None:
        return finished
    records = _draw_splits(root, _plan_clips(counts, seed), Scene(width, height, seed), progress)
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
    """Return the finished data set of a root, or make the root ready to draw into and return None."""
    manifest_path = root / MANIFEST_NAME
    try:
        if root.exists() and not root.is_dir():
            raise ValueError(f"root {root} is a file; give a new or empty folder")
        if root.is_dir() and any(root.iterdir()):
            manifest = _read_manifest(manifest_path)
            if manifest.get("parameters") != parameters:
                raise ValueError(
                    f"root {root} is not empty and does not hold this data set ({_describe(manifest)}); "
                    f"give a new or empty folder, or the same parameters"
                )
            if manifest.get("complete"):
                return _finished(root, manifest)
        root.mkdir(parents=True, exist_ok=True)
        # The manifest is there before the first frame, so that a root without its end is known to be ours.
        _write_json(manifest_path, {"parameters": parameters, "complete": False})
    except OSError as error:
        raise ValueError(f"root {root} cannot be read or written ({error}); give a writable folder") from error
    return None


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def _describe(manifest: dict[str, Any]) -> str:
    if "parameters" not in manifest:
        return f"it has no readable {MANIFEST_NAME}"
    state = "finished" if manifest.get("complete") else "interrupted"
    return f"it holds a {state} draw with {json.dumps(manifest['parameters'])}"


def _finished(root: Path, manifest: dict[str, Any]) -> SyntheticSummary:
    """Return the summary of a finished root after a look at whether its files are still all there."""
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
    temporary = path.with_name(f"{path.name}.part")
    temporary.write_text(json.dumps(content), encoding="utf-8")
    os.replace(temporary, path)


def _plan_clips(counts: dict[str, int], seed: int) -> list[_Clip]:
    """Spread the clips of every split over the months; no clip is in two splits."""
    rng = np.random.default_rng([seed, 2000])
    taken: set[tuple[int, int, int]] = set()
    clips: list[_Clip] = []
    for split, count in counts.items():
        empty = max(round(_EMPTY_SHARE * count), 1 if count >= len(MONTHS) else 0)
        # Shorter clips where frames are few, so that a small split still sees all months.
        longest = min(max((count - empty) // len(MONTHS), 1), _CLIP_FRAMES)
        lengths = [(length, False) for length in _cut(count - empty, longest)]
        lengths += [(length, True) for length in _cut(empty, longest)]
        for index, (length, is_empty) in enumerate(lengths):
            month_index = index % len(MONTHS)
            month = MONTHS[month_index]
            while True:
                # Half hours keep the clips of a day apart: the number of a clip is its half hour.
                day, half_hour = int(rng.integers(1, 29)), int(rng.integers(0, 48))
                if (month_index, day, half_hour) not in taken:
                    break
            taken.add((month_index, day, half_hour))
            start = datetime(month.year, month.month, day) + timedelta(
                minutes=30 * half_hour + int(rng.integers(0, 26)), seconds=int(rng.integers(0, 60))
            )
            clips.append(_Clip(split, month, start, half_hour, length, is_empty))
    return clips


def _cut(total: int, longest: int) -> list[int]:
    return [min(longest, total - done) for done in range(0, total, longest)]


def _draw_splits(root: Path, clips: list[_Clip], scene: Scene, progress: bool) -> dict[str, _SplitRecord]:
    """Draw all clips and write their frames."""
    records = {split: _SplitRecord() for split in SPLIT_FILES}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not progress) as bar:
        task = bar.add_task("drawing frames", total=sum(clip.frames for clip in clips))
        for index, clip in enumerate(clips):
            rng = np.random.default_rng([scene.seed, 3000, index])
            record = records[clip.split]
            weather = weather_at(clip.month, clip.start, rng)
            actors = [] if clip.empty else _cast(scene, clip.frames, record, rng)
            background = scene.background(weather)
            (root / clip.folder).mkdir(parents=True, exist_ok=True)
            for frame in range(clip.frames):
                image, labels = draw_frame(scene, background, actors, weather, frame, rng)
                entry = _image_entry(clip, frame, weather, scene)
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
                bar.advance(task)
    return records


def _cast(scene: Scene, frames: int, record: _SplitRecord, rng: np.random.Generator) -> list[Actor]:
    """Choose the objects of a clip; a frame with less room gets fewer."""
    room = (scene.width * scene.height / (REFERENCE_WIDTH * REFERENCE_HEIGHT)) ** 0.5 / scene.scale
    most = int(np.clip(round(_MOST_OBJECTS * room), 2, _MOST_OBJECTS))
    expected = np.array([record.boxes[name] for name in CLASS_NAMES], float)
    actors: list[Actor] = []
    for _ in range(int(rng.integers(1, most + 1))):
        # The class that lags most behind its share comes next: even a tiny split then holds all four.
        class_index = int(np.argmax(_CLASS_SHARES * (expected.sum() + frames) - expected))
        expected[class_index] += frames
        actors.append(cast_actor(scene, class_index, frames, actors, rng))
    return actors


def _image_entry(clip: _Clip, frame: int, weather: Weather, scene: Scene) -> dict[str, Any]:
    """Describe a frame as the official JSON does; its id reads YYYYMM, clip, DD, HHMMSS."""
    moment = clip.start + timedelta(seconds=frame)
    return {
        "id": int(f"{moment:%Y%m}{clip.number:03d}{moment:%d%H%M%S}"),
        "file_name": f"{clip.folder}/image_{frame:04d}.jpg",
        "width": scene.width,
        "height": scene.height,
        "date_captured": moment.isoformat(),
        "meta": {
            "Temperature": round(weather.ambient, 1),
            "Humidity": round(weather.humidity, 1),
            "Precipitation": 0.0,
            "Dew Point": round(weather.ambient - (100 - weather.humidity) / 5, 1),
            "Wind Direction": (clip.start.day * 37 + clip.number * 11) % 360,
            "Wind Speed": round(2 + (clip.start.day * 7 + clip.number) % 60 / 10, 1),
            "Sun Radiation Intensity": round(weather.sun, 1),
            "Min of sunshine latest 10 min": int(weather.sun / clip.month.radiation * 10),
        },
    }


def main(arguments: list[str] | None = None) -> int:
    """Draw a data set from the command line and print what it holds.

    Args:
        arguments: Command line without the program name; that of the process when None.

    Returns:
        Exit status: 0, or 2 when the arguments or the root are refused.
    """
    parser = argparse.ArgumentParser(prog="python -m yolo_lightning.data.synthetic", description=__doc__)
    parser.add_argument("root", type=Path, metavar="ROOT", help="new or empty folder to draw into")
    parser.add_argument("--train-frames", type=int, default=480, help="frames of Train.json (default %(default)s)")
    parser.add_argument("--valid-frames", type=int, default=96, help="frames of Valid.json (default %(default)s)")
    parser.add_argument("--test-frames", type=int, default=48, help="frames of TestNoLabels.json (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the drawing (default %(default)s)")
    parser.add_argument("--width", type=int, default=REFERENCE_WIDTH, help="pixels (default %(default)s)")
    parser.add_argument("--height", type=int, default=REFERENCE_HEIGHT, help="pixels (default %(default)s)")
    try:
        summary = draw_dataset(**vars(parser.parse_args(arguments)), progress=True)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    table = Table("split", "frames", *CLASS_NAMES, title=str(summary.root))
    for split, frames in summary.frames.items():
        table.add_row(split, str(frames), *(str(summary.boxes[split][name]) for name in CLASS_NAMES))
    Console().print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
