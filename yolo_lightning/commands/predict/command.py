"""`python -m yolo_lightning predict PICTURES`: detections in anybody's pictures and videos."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from os.path import commonpath
from pathlib import Path
from typing import NoReturn

from yolo_lightning.checkpoints.checkpoint_file import require_whole
from yolo_lightning.checkpoints.remote import local_checkpoint
from yolo_lightning.checkpoints.run_folder import DEFAULT_RUN, checkpoint_to_evaluate
from yolo_lightning.commands.console import counter, name_some
from yolo_lightning.commands.export.suppression import Suppression
from yolo_lightning.commands.predict.detector import Detector
from yolo_lightning.commands.predict.inputs import InputImage, find_files, read_pictures
from yolo_lightning.commands.predict.results import Result, Results
from yolo_lightning.data.boxes import check_image_size
from yolo_lightning.data.formats.frame_checks import refuse_other_depth
from yolo_lightning.data.storage.frames import BitDepthError, FrameError
from yolo_lightning.model.layers import Convolution
from yolo_lightning.model.network_settings import read_settings
from yolo_lightning.utils.choices import check_choices, chosen_device
from yolo_lightning.utils.exit_codes import ExitCode
from yolo_lightning.utils.files import first_free


def predict(
    sources: list[str],
    *,
    run: str = DEFAULT_RUN,
    weights: str | None = None,
    allow_pickle: bool = False,
    output: str = "runs/predictions",
    save: Result | tuple[Result, ...] = ("pictures", "json"),
    image_size: int | None = None,
    score_threshold: float | None = None,
    iou_threshold: float | None = None,
    max_detections: int | None = None,
    class_agnostic: bool | None = None,
    tta: bool = False,
    batch_size: int = 8,
    device: str = "auto",
    conv_backend: Convolution = "auto",
) -> None:
    """Detect objects in images, folders, patterns and videos. Without pictures, `predict` answers for a dataset.

    Exit code 1 if some of the files cannot be read: they are named, and the results of the others are written.

    Args:
        sources: Images, videos, folders, patterns.
        run: Run folder; its newest run's best checkpoint is taken.
        weights: A `.ckpt` of ours (a file or an address) or an Ultralytics `.pt`, instead of the checkpoint of `run`.
        allow_pickle: Open a `.pt` file whatever code it refers to.
        output: Folder for the results; a number is added where it is taken.
        save: What to write: `pictures` (annotated images and videos), `json`, `csv`, `txt` (YOLO's); one, or a
            list as in `[json,csv]`.
        image_size: Side of the square input, pixels, a multiple of 32; null takes that of the training.
        score_threshold: Minimum score of a detection, 0 to 1; null takes the threshold of the training if that is above
            0.001, the threshold for computing mAP, else 0.25.
        iou_threshold: Intersection over union above which NMS drops the weaker of two boxes of a class, 0 to 1; null
            takes the threshold of the training.
        max_detections: Detections kept per picture; null takes that of the training.
        class_agnostic: Whether boxes of different classes suppress each other, too; null takes that of the training.
        tta: Show each picture six times, mirrored and scaled, and suppress what was found in all of them together:
            4.3 times the work.
        batch_size: Pictures at once.
        device: `cpu`, `cuda`, `cuda:1`, ...; `auto` takes a GPU where there is one.
        conv_backend: As `model.conv_backend` of `fit`.

    Raises:
        ValueError: If a value is not allowed, nothing can be found or opened, or none of the files can be read.
        SystemExit: With code 1, if some of the files cannot be read.
    """
    files = find_files(sources)
    kinds = (save,) if isinstance(save, str) else save
    check_choices("save", kinds, Result)
    check_choices("conv_backend", [conv_backend], Convolution)
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}, allowed are 1 and more")
    file = local_checkpoint(weights) if weights else checkpoint_to_evaluate(Path(run))
    if file.suffix == ".ckpt" or not file.is_file():
        require_whole(file, "weights")
    settings = read_settings(file, allow_pickle=allow_pickle).for_pictures(
        image_size=image_size,
        score_threshold=score_threshold,
        iou_threshold=iou_threshold,
        max_detections=max_detections,
        class_agnostic=class_agnostic,
    )
    assert settings.image_size is not None
    check_image_size("image_size", settings.image_size)
    Suppression.of(settings)  # checks
    detector = Detector(
        file, settings, device=chosen_device(device), convolution=conv_backend, allow_pickle=allow_pickle, tta=tta
    )
    bad: dict[str, Exception] = {}
    pictures = detections = 0
    base = Path(commonpath([file.parent for file in files]))
    with counter("looked at", len(files)) as advance:
        found = pictures_of(files, bad, advance)
        first = next(found, None)
        if first is None:
            refuse_unreadable(bad)
        folder = first_free(Path(output).expanduser())
        folder.mkdir(parents=True)
        with Results(folder, kinds, detector.names, base) as results:
            for group in groups(chain([first], found), batch_size):
                for picture, prediction in zip(group, detector(group), strict=True):
                    results.write(picture, prediction)
                    pictures += 1
                    detections += len(prediction.labels)
    if bad:
        print(f"left out {len(bad)} that cannot be read: {name_some(reasons(bad))}")
    print(f"{detections:,} detections in {pictures:,} pictures, from {file}: {folder}")
    if bad:
        raise SystemExit(ExitCode.FAILED)


def pictures_of(
    files: Sequence[Path], bad: dict[str, Exception], advance: Callable[[int], None]
) -> Iterator[InputImage]:
    """The pictures of all files; one that cannot be read is noted in `bad` with its error."""
    for path in files:
        try:
            yield from read_pictures(path)
        except (FrameError, OSError, ValueError) as error:
            bad[str(path)] = error
        advance(1)


def refuse_unreadable(bad: Mapping[str, Exception]) -> NoReturn:
    """Refuse files of which none can be read.

    Raises:
        ValueError: Always; it names the first few files with their reasons.
    """
    depths = [error for error in bad.values() if isinstance(error, BitDepthError)]
    if len(depths) == len(bad):
        refuse_other_depth(depths, 0, "files")
    raise ValueError(f"none of {len(bad):,} files can be read: {name_some(reasons(bad))}")


def reasons(bad: Mapping[str, Exception]) -> dict[str, str]:
    """Why each file cannot be read, by its name, which is not repeated in the reason."""
    return {name: str(error).removeprefix(f"{name}: ") for name, error in bad.items()}


def groups(pictures: Iterator[InputImage], size: int) -> Iterator[list[InputImage]]:
    """Groups of at most `size`, in order."""
    group: list[InputImage] = []
    for picture in pictures:
        group.append(picture)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group
