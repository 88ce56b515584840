"""Suggestion of the name that was probably meant, without packages besides the standard library."""

import os
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

from yolo_lightning.utils.paths import has_drive

SYNONYMS = {
    "agnostic_nms": ("class_agnostic", "model.detections.class_agnostic"),
    "augment": ("tta", "model.detections.tta"),
    "batch": ("batch_size", "data.batch_size"),
    "box": ("model.loss.box_gain",),
    "cache": ("data.storage.image_cache_mib",),
    "close_mosaic": ("data.augmentation.close_mosaic_epochs",),
    "cls": ("model.loss.cls_gain",),
    "cls_pw": ("model.loss.class_weight_power",),
    "checkpoint_callback": ("trainer.enable_checkpointing",),
    "class_path": ("model.variant",),
    "conf": ("score_threshold", "model.detections.score_threshold"),
    "conf_thres": ("score_threshold", "model.detections.score_threshold"),
    "cos_lr": ("model.recipe.cosine",),
    "data": ("data.format",),
    "device": ("trainer.accelerator",),
    "devices": ("trainer.devices",),
    "dfl": ("model.loss.dfl_gain",),
    "distributed_backend": ("trainer.strategy",),
    "epoch": ("trainer.max_epochs",),
    "epochs": ("trainer.max_epochs",),
    "fliplr": ("data.augmentation.flip_horizontal",),
    "flipud": ("data.augmentation.flip_vertical",),
    "learning_rate": ("model.recipe.lr0",),
    "lr": ("model.recipe.lr0",),
    "hsv_h": ("data.augmentation.hsv_hue",),
    "hsv_s": ("data.augmentation.hsv_saturation",),
    "hsv_v": ("data.augmentation.hsv_value",),
    "gpus": ("trainer.devices",),
    "hyp": ("config",),
    "imgsz": ("image_size", "data.image_size"),
    "img": ("image_size", "data.image_size"),
    "iou": ("iou_threshold", "model.detections.iou_threshold"),
    "iou_thres": ("iou_threshold", "model.detections.iou_threshold"),
    "copy_paste": ("data.augmentation.paste.probability",),
    "max_det": ("max_detections", "model.detections.max_detections"),
    "model": ("weights", "checkpoint", "model.variant"),
    "nbs": ("model.recipe.nominal_batch",),
    "names": ("class_names",),
    "nc": ("class_names",),
    "num_classes": ("class_names",),
    "name": ("trainer.default_root_dir",),
    "num_gpus": ("trainer.devices",),
    "project": ("output", "trainer.default_root_dir"),
    "save_dir": ("output", "trainer.default_root_dir"),
    "seed": ("seed_everything",),
    "single_cls": ("model.single_class",),
    "time": ("max_hours",),
    "checkpoint": ("weights", "ckpt_path"),
    "resume_from": ("ckpt_path",),
    "resume_from_checkpoint": ("ckpt_path",),
    "amp": ("trainer.precision",),
    "cfg": ("config",),
    "config_file": ("config",),
    "fraction": ("data.split.train_fraction",),
    "half": ("trainer.precision",),
    "pretrained": ("model.weights",),
    "progress_bar_refresh_rate": ("trainer.enable_progress_bar",),
    "weights": ("checkpoint", "model.weights"),
    "weights_summary": ("trainer.enable_model_summary",),
    "workers": ("data.loader.num_workers",),
}
"""Keys for words of Ultralytics and Lightning; the first key that the parser or the constructor accepts is suggested.

The arguments of a constructor are keys without the first parts: `image_size`, `detections.score_threshold`.
"""

WEIGHTS_ADDRESS = "https://github.com/ultralytics/assets/releases/download/v8.4.0"
PUBLISHED_WEIGHTS = re.compile(
    r"(yolov3(-spp|-tiny)?u|yolov5[nsmlx]6?u|yolov8[nsmlx]|yolov9[tsmce]|yolov10[nsmblx]|yolo(11|12|26)[nsmlx])\.pt"
)
"""Names of the COCO weights for detection that Ultralytics publishes at this address."""

LEVELS_ABOVE = 2
FOLDERS_BELOW = 200
"""Folders above and below that of a missing file in which the file is searched."""

SEPARATORS = re.compile(r"[\W_]+")
NEAR = 0.75
"""Smallest similarity of a suggestion that shares no word with the text: `class_names` is not `class_agnostic`."""
SHORT = 4  # characters
NEAR_SHORT = 0.6  # of a short text: `rnu` and `run`


def similar(text: str, choices: Collection[str], most: int = 1, cutoff: float | None = None) -> list[str]:
    """Return at most `most` choices that are near to a text, the most similar first.

    A choice is near if its similarity is at least `cutoff`, which depends on the length by default, or if one of the
    names contains all words of the other: `warmup` and `warmup_epochs`.
    """
    if cutoff is None:
        cutoff = _usual_cutoff(text)
    matches = get_close_matches(text, choices, most, cutoff)
    words = _words(text)
    if matches or not words:
        return matches
    related = [choice for choice in choices if words <= _words(choice) or set() < _words(choice) <= words]
    return get_close_matches(text, related, most, 0)


def _usual_cutoff(text: str) -> float:
    return NEAR_SHORT if len(text) <= SHORT else NEAR


def _words(name: str) -> set[str]:
    return {word for word in SEPARATORS.split(name) if word}


def nearest_key(key: str, keys: Collection[str]) -> str | None:
    """Return the accepted key that most likely was meant: a synonym, the same or a similar part, or a similar text."""
    key = key.replace("-", "_").lower()
    last = last_part(key)
    same_last_part = sorted(name for name in keys if last_part(name) == key)
    exact = next((name for name in (*_synonyms(last), *same_last_part) if name in keys), None)
    if exact is not None or last in SYNONYMS:
        return exact
    section = key.partition(".")[0]
    in_section = {last_part(name): name for name in keys if name.startswith(f"{section}.")}
    similar_part = [in_section[name] for name in similar(last, in_section)]
    by_last_part = {last_part(name): name for name in keys}
    similar_last_part = [by_last_part[name] for name in similar(last, by_last_part, cutoff=NEAR)]
    return next(iter([*similar_part, *similar_last_part, *get_close_matches(key, keys, 1, _usual_cutoff(key))]), None)


def _synonyms(name: str) -> Iterator[str]:
    """Yield the keys of a synonym, each followed by the key without its first parts."""
    for key in SYNONYMS.get(name, ()):
        while key:
            yield key
            key = key.partition(".")[2]


def last_part(key: str) -> str:
    """Return the name behind the last dot of a key."""
    return key.rpartition(".")[2]


def did_you_mean(names: Collection[str]) -> str:
    """Return the end of an error message: a question that suggests the names, or a full stop without names."""
    return f". Did you mean {' or '.join(names)}?" if names else "."


def missing(path: Path, names: Collection[str] = ()) -> str:
    """Return the end of the error for a missing file or folder: a similar name of `names` or of its folder, if any.

    For weights that Ultralytics publishes, the command that downloads them is added.
    """
    paths = {name: name for name in names}
    with suppress(OSError, ValueError):
        paths |= {name: str(path.with_name(name)) for name in os.listdir(path.parent) if name != path.name}
    problem = "does not exist"
    if os.path.isfile(path):
        problem = "is not a folder"
    elif os.path.isdir(path):
        problem = "is a folder, not a file"
    elif os.path.lexists(path):
        problem = "is a pipe, a device or a broken link"
    elif PUBLISHED_WEIGHTS.fullmatch(path.name):
        problem += f" (download it: curl -L -o {path} {WEIGHTS_ADDRESS}/{path.name} )"
    elif os.path.expandvars(path) != str(path):
        problem += " (a shell replaces $NAME, but not in single quotes)"
    elif has_drive(str(path)) and os.sep == "/":
        problem += " (C:\\ is a drive of Windows; give the path on this machine, in WSL below /mnt/c)"
    near = [paths[name] for name in similar(path.name, paths)] or on_other_levels(path)
    return problem + did_you_mean(near)


def on_other_levels(path: Path) -> list[str]:
    """Return the file of the name of a missing file in a folder of a similar name, above or below, if any."""
    if not path.suffix or os.path.lexists(path):
        return []
    folder = path.parent
    tried = [parent / path.name for parent in list(folder.parents)[:LEVELS_ABOVE]]
    with suppress(OSError, ValueError):
        tried += [folder.with_name(name) / path.name for name in similar(folder.name, os.listdir(folder.parent))]
    with suppress(OSError, ValueError):
        tried += [folder / name / path.name for name in sorted(os.listdir(folder))[:FOLDERS_BELOW]]
    return [str(file) for file in tried if os.path.isfile(file)][:1]
