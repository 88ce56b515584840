"""Files of the drawn dataset: frames, one JSON file per split, and a manifest of its parameters."""

import json
import os
import shutil
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
from rich.console import Console
from rich.progress import track

from synthetic.camera import Box, draw_frame
from synthetic.clips import cast_clip, gain_curve, image_entry, plan_clips
from synthetic.objects import CLASS_NAMES
from synthetic.scene import REFERENCE_HEIGHT, REFERENCE_WIDTH, Scene, weather_at
from synthetic.surveillance import cast_surveillance, veiled
from yolo_lightning.errors import UserError
from yolo_lightning.utils.choices import checked_arguments

VERSION = 2  # Version of the drawing; a folder drawn by another version is not reused
MANIFEST_NAME = "synthetic.json"
SPLIT_FILES = {"train": "Train.json", "valid": "Valid.json", "test": "TestNoLabels.json"}
CATEGORIES = [{"id": number, "name": name} for number, name in enumerate(("background", *CLASS_NAMES))]
_JPEG = (cv2.IMWRITE_JPEG_QUALITY, 95)


@checked_arguments(
    **dict.fromkeys(("train_frames", "valid_frames", "width", "height", "clip_frames"), ">= 1"),
    **dict.fromkeys(("test_frames", "seed", "speed", "gain_drift"), ">= 0"),
)
def draw_dataset(
    root: str | Path,
    *,
    train_frames: int = 480,
    valid_frames: int = 96,
    test_frames: int = 48,
    seed: int = 0,
    width: int = REFERENCE_WIDTH,
    height: int = REFERENCE_HEIGHT,
    clip_frames: int | None = None,
    speed: float = 1.0,
    gain_drift: float = 0.0,
    surveillance: bool = False,
    bits: Literal[8, 16] = 8,
    progress: bool = False,
) -> Path:
    """Draw a synthetic LTDv2 dataset, or return the folder if it contains one with the same parameters.

    The dataset is drawn into a temporary folder beside `root`, which is renamed when it is complete.

    Args:
        root: New or empty folder, or one drawn by this function with the same parameters.
        train_frames: Frames of Train.json.
        valid_frames: Frames of Valid.json.
        test_frames: Frames of TestNoLabels.json.
        seed: Seed; equal parameters give equal files.
        width: Frame width in pixels; objects shrink with the frame to at most 0.75 of their size.
        height: Frame height in pixels.
        clip_frames: Frames of each clip, one second apart; None for at most 8, and all months in each split.
        speed: Factor of the speed of the objects, which move 0.5 to 8 pixels per frame; > 0 with `surveillance`.
        gain_drift: Largest relative change of the camera's gain within a clip.
        surveillance: Whether objects enter, leave, stop and stand as before a surveillance camera, on the paths, lanes
            and parking places of the scene, in fog and rain too; see `surveillance.py`.
        bits: 8 for JPEG files, or 16 for PNG files of the same frames with 16-bit values (`camera.RAW_LOW`).
        progress: Whether to show a progress bar on stderr.

    Raises:
        UserError: If the folder cannot be written or has other content.
    """
    counts = {"train": train_frames, "valid": valid_frames, "test": test_frames}
    root = Path(root)
    parameters: dict[str, Any] = {"version": VERSION, "frames": counts, "seed": seed, "width": width, "height": height}
    changed = {"clip_frames": clip_frames, "speed": speed, "gain_drift": gain_drift, "surveillance": surveillance}
    parameters |= {**changed, "bits": bits}
    temporary = root.with_name(root.name + ".part")
    try:
        if root.exists() and (root.is_file() or any(root.iterdir())):
            if _is_drawn(root, parameters):
                return root
            raise UserError(f"root must be a new or empty folder, or one drawn with the same parameters, got {root}")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        _draw(temporary, parameters, Scene(width, height, seed), progress)
        (temporary / MANIFEST_NAME).write_text(json.dumps({"parameters": parameters, "complete": True}))
        os.replace(temporary, root)
    except OSError as error:
        raise UserError(f"cannot draw a dataset into {root}: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return root


def _is_drawn(root: Path, parameters: dict[str, Any]) -> bool:
    try:
        manifest = json.loads((root / MANIFEST_NAME).read_text())
        return bool(manifest["parameters"] == parameters and manifest["complete"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _draw(root: Path, parameters: dict[str, Any], scene: Scene, progress: bool) -> None:
    counts, bits, speed = parameters["frames"], parameters["bits"], parameters["speed"]
    images: dict[str, list[dict[str, Any]]] = defaultdict(list)
    annotations: dict[str, list[dict[str, Any]]] = defaultdict(list)
    boxes = {split: dict.fromkeys(CLASS_NAMES, 0) for split in counts}
    clips = plan_clips(counts, scene.seed, parameters["clip_frames"])
    for index, clip in enumerate(track(clips, "drawing clips", console=Console(stderr=True), disable=not progress)):
        rng = np.random.default_rng([scene.seed, 3000, index])
        weather = weather_at(clip.month, clip.start, rng)
        if parameters["surveillance"]:
            weather = veiled(weather, rng)
            actors = [] if clip.empty else cast_surveillance(scene, clip.frames, rng, speed)
        else:
            actors = [] if clip.empty else cast_clip(scene, clip.frames, boxes[clip.split], rng, speed)
        gains = gain_curve(clip.frames, parameters["gain_drift"], np.random.default_rng([scene.seed, 4000, index]))
        background = scene.background(weather)
        (root / clip.folder).mkdir(parents=True)
        for frame in range(clip.frames):
            exposed = replace(weather, gain=weather.gain * gains[frame])
            image, labels = draw_frame(scene, background, actors, exposed, frame, rng, bits)
            entry = image_entry(clip, frame, weather, scene.width, scene.height)
            if bits == 16:
                entry["file_name"] = entry["file_name"].removesuffix(".jpg") + ".png"
            _, encoded = cv2.imencode(Path(entry["file_name"]).suffix, image, _JPEG if bits == 8 else [])
            (root / entry["file_name"]).write_bytes(encoded.tobytes())
            images[clip.split].append(entry)
            entries = annotations[clip.split]
            for class_index, box in labels:
                boxes[clip.split][CLASS_NAMES[class_index]] += 1
                entries.append(_annotation_entry(len(entries) + 1, entry["id"], class_index + 1, box))
    for split, name in SPLIT_FILES.items():
        content = {"info": {"description": "Synthetic LTDv2 look-alike"}, "images": images[split]}
        labelled = {} if split == "test" else {"annotations": annotations[split]}
        (root / name).write_text(json.dumps({**content, **labelled, "categories": CATEGORIES}))


def _annotation_entry(number: int, image_id: int, category_id: int, box: Box) -> dict[str, Any]:
    return {
        "id": number,
        "image_id": image_id,
        "category_id": category_id,
        "bbox": list(box),
        "area": box[2] * box[3],
        "iscrowd": 0,
    }
