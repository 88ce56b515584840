"""`python -m yolo_lightning predict PICTURES`: detections in anybody's pictures and videos."""

from collections.abc import Callable, Iterator, Sequence
from os.path import commonpath
from pathlib import Path
from typing import TypeVar, get_args

import torch

from yolo_lightning.backend import Convolution
from yolo_lightning.checkpoint_file import find_damage
from yolo_lightning.data.frames import FrameError
from yolo_lightning.detecting.detector import Detector
from yolo_lightning.detecting.pictures import Picture, find_files, read_pictures
from yolo_lightning.detecting.results import Result, Results
from yolo_lightning.run_folder import checkpoint_to_evaluate, trained_image_size
from yolo_lightning.tools.console import counter, name_some

STRIDE = 32
ChoiceT = TypeVar("ChoiceT", bound=str)


def predict(
    sources: list[str],
    *,
    run: str = "runs/yolo",
    weights: str | None = None,
    trust: bool = False,
    output: str = "runs/predictions",
    save: Result | tuple[Result, ...] = ("pictures", "json"),
    image_size: int | None = None,
    confidence: float = 0.25,
    overlap: float = 0.7,
    max_detections: int = 300,
    augment: bool = False,
    batch_size: int = 8,
    device: str = "auto",
    conv: Convolution = "auto",
) -> None:
    """Detect objects in images, folders, patterns and videos. Without pictures, `predict` answers for a dataset.

    Args:
        sources: Images, videos, folders, patterns.
        run: Run folder; its newest run's best checkpoint is taken.
        weights: A `.ckpt` of ours or an Ultralytics `.pt`, instead of the checkpoint of `run`.
        trust: Open a `.pt` file whatever code it refers to.
        output: Folder for the results; a number is added where it is taken.
        save: What to write: `pictures` (annotated images and videos), `json`, `csv`, `txt` (YOLO's); one, or a
            list as in `[json,csv]`.
        image_size: Side of the square input, pixels, a multiple of 32; null takes that of the run, or 640.
        confidence: Detections must score more than this, 0 to 1.
        overlap: Intersection over union above which the weaker of two boxes of a class goes, 0 to 1.
        max_detections: Detections kept per picture.
        augment: Show each picture six times, mirrored and scaled, and suppress what was found in all of them together:
            4.3 times the work.
        batch_size: Pictures at once.
        device: `cpu`, `cuda`, `cuda:1`, ...; `auto` takes a GPU where there is one.
        conv: As `model.conv` of `fit`.

    Raises:
        ValueError: If a value is not allowed, or nothing can be found or opened.
    """
    files = find_files(sources)
    kinds = (save,) if isinstance(save, str) else save
    check_choices("save", kinds, get_args(Result))
    check_choices("conv", [conv], get_args(Convolution))
    for name, value in (("confidence", confidence), ("overlap", overlap)):
        if not 0 <= value <= 1:
            raise ValueError(f"{name} is {value}, allowed are 0 to 1")
    for name, count in (("max_detections", max_detections), ("batch_size", batch_size)):
        if count < 1:
            raise ValueError(f"{name} is {count}, allowed are 1 and more")
    file = Path(weights).expanduser() if weights else checkpoint_to_evaluate(Path(run))
    damage = find_damage(file) if file.suffix == ".ckpt" else None if file.is_file() else "it does not exist"
    if damage is not None:
        raise ValueError(f"weights {file} cannot be used: {damage}")
    side = image_size or trained_image_size(file)
    if side < STRIDE or side % STRIDE:
        raise ValueError(f"image_size is {side}, allowed are multiples of {STRIDE}")
    detector = Detector(
        file,
        image_size=side,
        device=chosen_device(device),
        convolution=conv,
        confidence=confidence,
        overlap=overlap,
        max_detections=max_detections,
        trust=trust,
        augment=augment,
    )
    folder = fresh_folder(Path(output).expanduser())
    bad: dict[str, str] = {}
    pictures = detections = 0
    base = Path(commonpath([file.parent for file in files]))
    with Results(folder, kinds, detector.names, base) as results, counter("looked at", len(files)) as advance:
        for group in groups(pictures_of(files, bad, advance), batch_size):
            for picture, prediction in zip(group, detector(group), strict=True):
                results.write(picture, prediction)
                pictures += 1
                detections += len(prediction.labels)
    if bad:
        print(f"left out {len(bad)} that cannot be read: {name_some(bad)}")
    print(f"{detections:,} detections in {pictures:,} pictures, from {file}: {folder}")


def pictures_of(files: Sequence[Path], bad: dict[str, str], advance: Callable[[int], None]) -> Iterator[Picture]:
    """The pictures of all files; one that cannot be read is noted in `bad` with its reason."""
    for path in files:
        try:
            yield from read_pictures(path)
        except (FrameError, OSError, ValueError) as error:
            bad[str(path)] = str(error)
        advance(1)


def groups(pictures: Iterator[Picture], size: int) -> Iterator[list[Picture]]:
    """Groups of at most `size`, in order."""
    group: list[Picture] = []
    for picture in pictures:
        group.append(picture)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def chosen_device(name: str) -> torch.device:
    """The device of a name, `auto` a GPU where there is one.

    Raises:
        ValueError: If it is unknown or absent.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device is {name!r}, which cannot be used: {str(error).splitlines()[0]}") from error
    return device


def fresh_folder(base: Path) -> Path:
    """Make `base`, or `base-2`, ... where it is taken."""
    folder, number = base, 1
    while folder.exists():
        number += 1
        folder = base.with_name(f"{base.name}-{number}")
    folder.mkdir(parents=True)
    return folder


def check_choices(name: str, given: Sequence[ChoiceT], allowed: tuple[str, ...]) -> None:
    """Refuse what is not allowed.

    Raises:
        ValueError: If one is not.
    """
    for value in given:
        if value not in allowed:
            raise ValueError(f"{name} is {value!r}, allowed are {', '.join(allowed)}")
