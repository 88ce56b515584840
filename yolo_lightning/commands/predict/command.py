"""`python -m yolo_lightning predict PICTURES`: detection in images and videos."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from os.path import commonpath
from pathlib import Path

from yolo_lightning.challenge.rescoring import read_models
from yolo_lightning.checkpoints.resume import checkpoint_to_evaluate
from yolo_lightning.checkpoints.run_folder import DEFAULT_RUN
from yolo_lightning.commands.console import counter, name_some
from yolo_lightning.commands.predict.rescored import rescored
from yolo_lightning.commands.predict.results import Result, Results
from yolo_lightning.data.formats.frame_checks import refuse_other_depth
from yolo_lightning.data.formats.ltdv2 import CLASS_NAMES
from yolo_lightning.data.input_clips import ClipReader
from yolo_lightning.data.input_images import InputImage, absolute, find_files, image_count
from yolo_lightning.data.storage.frames import BitDepthError, FrameError
from yolo_lightning.data.transforms.pixel_range import PixelRange
from yolo_lightning.detector import Detector
from yolo_lightning.model.detection_settings import SCORING_THRESHOLD
from yolo_lightning.model.layers import Convolution
from yolo_lightning.utils.exit_codes import ExitCode
from yolo_lightning.utils.files import first_free
from yolo_lightning.utils.paths import user_path


def predict(
    sources: list[str],
    *,
    run: str = DEFAULT_RUN,
    weights: str | None = None,
    allow_pickle: bool = False,
    output: str = "runs/predictions",
    save: Result | tuple[Result, ...] = ("pictures", "json"),
    image_size: int | Sequence[int] | None = None,
    score_threshold: float | None = None,
    iou_threshold: float | None = None,
    max_detections: int | None = None,
    class_agnostic: bool | None = None,
    one_to_one: bool | None = None,
    pixel_range: PixelRange = PixelRange(),  # noqa: B008 - frozen
    tta: bool = False,
    rescore: str | None = None,
    batch_size: int = 8,
    device: str = "auto",
    conv_backend: Convolution = "auto",
) -> None:
    """Detect objects in images, folders, glob patterns and videos.

    If some of the files cannot be read, their names are printed, the results of the others are written and the exit
    code is 1.

    Args:
        sources: Images, videos, folders, glob patterns.
        run: Run folder; the best checkpoint of its newest run is used.
        weights: A `.ckpt` file or address, an Ultralytics `.pt` file, or a run folder, instead of `run`.
        allow_pickle: Open a `.pt` file even if it contains arbitrary pickled code.
        output: Folder for the results; a number is appended if the folder exists.
        save: Kinds of results: `pictures` (annotated images and videos), `json`, `txt` (YOLO format); one, or a list
            such as `[json,txt]`.
        image_size: Size of the input in pixels, multiples of 32: the side of a square, or `[height, width]`; null: as
            in training.
        score_threshold: Minimum score of a detection, 0 to 1; null: as in training if that is above 0.001, the
            threshold for computing mAP, else 0.25.
        iou_threshold: IoU above which NMS removes the lower-scoring box of a class, 0 to 1; null: as in training.
        max_detections: Maximum detections per image; null: as in training.
        class_agnostic: Apply NMS across classes; null: as in training.
        one_to_one: Use the one-to-one branch of the head (yolov10, yolo26), which needs no NMS; null: as in training.
        pixel_range: Mapping of 16-bit images to 8 bits; mode null: as in training.
        tta: Test-time augmentation: weighted boxes fusion of the detections of six scaled and mirrored copies of each
            image; 4.3 times the computation.
        rescore: JSON file of `submission rescore --models`: scores change by the evidence of a whole clip (a video, or
            the images of a folder) of the same camera, with the same time between frames. `score_threshold` applies to
            the new scores.
        batch_size: Images per batch.
        device: `cpu`, `cuda`, `cuda:1`, ...; `auto` uses a GPU if there is one.
        conv_backend: As `model.convolution.backend` of `fit`.

    Raises:
        ValueError: If an option is invalid, no file is found, or none of the files can be read.
        SystemExit: With code 1, if some of the files cannot be read.
    """
    files = find_files(sources)
    kinds = (save,) if isinstance(save, str) else save
    models = None if rescore is None else read_models(user_path(rescore))
    detector = Detector(
        weights or checkpoint_to_evaluate(Path(run)),
        image_size=image_size,
        score_threshold=score_threshold,
        iou_threshold=iou_threshold,
        max_detections=max_detections,
        class_agnostic=class_agnostic,
        one_to_one=one_to_one,
        pixel_range=None if pixel_range.mode is None else pixel_range,
        tta=tta,
        batch_size=batch_size,
        device=device,
        conv_backend=conv_backend,
        allow_pickle=allow_pickle,
    )
    threshold = detector.settings.detections.score_threshold
    if models is not None:
        if tuple(detector.names) != CLASS_NAMES:
            raise ValueError(f"rescore needs a network with the classes {[*CLASS_NAMES]}, got {detector.names}.")
        weak = replace(detector.settings.detections, score_threshold=min(threshold, SCORING_THRESHOLD))
        detector.settings = replace(detector.settings, detections=weak)
    bad: dict[str, Exception] = {}
    pictures = detections = 0
    base = Path(commonpath([absolute(file).parent for file in files]))
    with counter("predicted", sum(map(image_count, files))) as advance:
        reader = ClipReader(detector.settings.neighbours, detector.settings.pixel_range)
        found = _pictures_of(files, reader, bad, advance)
        first = next(found, None)
        if first is None:
            depths = [error for error in bad.values() if isinstance(error, BitDepthError)]
            if len(depths) == len(bad):
                refuse_other_depth(depths, 0, "files")
            raise ValueError(f"none of the {len(bad):,} files can be read: {name_some(reasons(bad))}")
        folder = first_free(user_path(output))
        folder.mkdir(parents=True)
        with Results(folder, kinds, base) as results:
            detected = detector.detect(chain([first], found))
            if models is not None:
                detected = rescored(detected, models, files, detector.settings.pixel_range, threshold)
            for result in detected:
                results.write(result)
                pictures += 1
                detections += len(result)
                advance(1)
    if bad:
        print(f"skipped {len(bad)} unreadable files: {name_some(reasons(bad))}")
    print(f"{detections:,} detections in {pictures:,} images, weights {detector.file}, results in {folder}")
    if bad:
        raise SystemExit(ExitCode.FAILED)


def _pictures_of(
    files: Sequence[Path], reader: ClipReader, bad: dict[str, Exception], advance: Callable[[int], None]
) -> Iterator[InputImage]:
    """Yield the images of all files, mapped by `ranges` if they have 16 bits.

    The error of an unreadable file is recorded in `bad`, and the progress advances by one.
    """
    for path in files:
        try:
            yield from reader.read(path)
        except (FrameError, OSError, ValueError) as error:
            bad[str(path)] = error
            advance(1)


def reasons(bad: Mapping[str, Exception]) -> dict[str, str]:
    """Return the reason for each unreadable file, without the file name that the message starts with."""
    return {name: str(error).removeprefix(f"{name}: ") for name, error in bad.items()}
