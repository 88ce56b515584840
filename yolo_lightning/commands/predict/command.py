"""`python -m yolo_lightning predict PICTURES`: detection in images and videos."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import chain
from os.path import commonpath
from pathlib import Path
from typing import Any, NoReturn

from yolo_lightning.challenge.rescoring import read_models
from yolo_lightning.checkpoints.resume import checkpoint_to_evaluate
from yolo_lightning.checkpoints.run_folder import DEFAULT_RUN
from yolo_lightning.commands.console import counter, writing
from yolo_lightning.commands.option_limits import check_output_folder, refuse_runs
from yolo_lightning.commands.predict.rescored import in_clips, rescored
from yolo_lightning.commands.predict.results import PICTURES_FOLDER, WRITERS, Result, ResultWriter
from yolo_lightning.data.formats.frame_checks import refuse_other_depth
from yolo_lightning.data.formats.ltdv2 import CLASS_NAMES
from yolo_lightning.data.input_clips import ClipReader
from yolo_lightning.data.input_images import InputImage, absolute, find_files, image_count
from yolo_lightning.data.storage.frames import BitDepthError, FrameError, reason_of
from yolo_lightning.data.transforms.pixel_range import PixelRange
from yolo_lightning.detector import Detector
from yolo_lightning.errors import UserError
from yolo_lightning.model.detection_settings import SCORING_THRESHOLD
from yolo_lightning.utils.exit_codes import ExitCode
from yolo_lightning.utils.files import first_free
from yolo_lightning.utils.paths import user_path
from yolo_lightning.utils.plain_text import name_some, one_line
from yolo_lightning.utils.rank_zero import rank_zero_warn


def predict(
    sources: list[str],
    *,
    run: str = DEFAULT_RUN,
    weights: str | None = None,
    output: str = "runs/predictions",
    save: Result | tuple[Result, ...] = ("pictures", "json"),
    pixel_range: PixelRange = PixelRange(),  # noqa: B008 - frozen
    rescore: str | None = None,
    **options: Any,
) -> None:
    """Detect objects in images, folders, glob patterns and videos.

    If some of the files cannot be read, or some of the results cannot be written, their names are printed, the other
    results are written and the exit code is 1.

    Args:
        sources: Images, videos, folders, glob patterns.
        run: Run folder; the best checkpoint of its newest run is used.
        weights: A `.ckpt` file or address, an Ultralytics `.pt` file, or a run folder, instead of `run`.
        output: Folder for the results; a number is appended if the folder exists.
        save: Kinds of results: `pictures` (annotated images and videos), `json`, `csv`, `txt` (YOLO format); one, or a
            list such as `[json,txt]`.
        pixel_range: Mapping of 16-bit images to 8 bits; mode null: as in training.
        rescore: JSON file of `submission rescore --models`: scores change by the evidence of a whole clip (a video, or
            the images of a folder) of the same camera, with the same time between frames. `score_threshold` applies to
            the new scores.
        **options: Options of `Detector`.

    Raises:
        UserError: If an option is invalid, no file is found, or none of the files can be read.
        SystemExit: With code 1, if some of the files cannot be read or some of the results cannot be written.
    """
    refuse_runs(sources)
    check_output_folder(output)
    files = find_files(sources)
    _report_earlier_results(files, output)
    models = None if rescore is None else read_models(user_path(rescore))
    detector = Detector(
        weights or checkpoint_to_evaluate(user_path(run)),
        pixel_range=None if pixel_range.mode is None else pixel_range,
        **options,
    )
    threshold = detector.settings.detections.score_threshold
    if models is not None:
        _prepare_rescoring(detector)
        files = in_clips(files)
    unreadable: dict[str, Exception] = {}
    pictures = 0
    detections = 0
    base = Path(commonpath([absolute(file).parent for file in files]))
    with counter("predicted", sum(map(image_count, files))) as advance:
        reader = ClipReader(detector.settings.background, detector.settings.pixel_range)
        images = _pictures_of(files, reader, unreadable, advance)
        first_image = next(images, None)
        if first_image is None:
            _refuse_all(unreadable)
        folder = first_free(user_path(output))
        with writing(folder):
            folder.mkdir(parents=True)
            names = [save] if isinstance(save, str) else dict.fromkeys(save)
            writers = [WRITERS[name](folder, base) for name in names]
        with ExitStack() as stack:  # closes every writer, even after an error
            for writer in writers:
                stack.enter_context(closing(writer))
            detected = detector.detect(chain([first_image], images))
            if models is not None:
                detected = rescored(detected, models, files, detector.settings.pixel_range, threshold)
            for result in detected:
                for writer in writers:
                    writer.write(result)
                pictures += 1
                detections += len(result)
                advance(1)
    is_complete = _report_failures(unreadable, writers)
    print(f"{detections:,} detections in {pictures:,} images, weights {detector.file}, results in {folder}")
    if not detections:
        print(
            f"no box has a score >= {threshold:g}; --score_threshold {threshold / 10:g} shows boxes with lower scores"
        )
    if not is_complete:
        raise SystemExit(ExitCode.FAILED)


def _report_earlier_results(files: Sequence[Path], output: str) -> None:
    """Warn of inputs that are annotated pictures in the folder for results, or in one of its numbered siblings."""
    folder = re.escape(str(absolute(user_path(output))))
    results = re.compile(rf"{folder}(-\d+)?/{PICTURES_FOLDER}/")
    earlier = [file for file in files if results.match(str(absolute(file)))]
    if earlier:
        rank_zero_warn(
            f"{len(earlier):,} of the {len(files):,} inputs are results of an earlier prediction, such as "
            f"{one_line(str(earlier[0]))}; --output outside of the folders of the inputs avoids this"
        )


def _report_failures(unreadable: Mapping[str, Exception], writers: Sequence[ResultWriter]) -> bool:
    """Print which files could not be read or written; return whether there are none."""
    if unreadable:
        print(f"skipped {len(unreadable)} unreadable files: {name_some(reasons(unreadable))}")
    unwritten: dict[str, str] = {}
    for writer in writers:
        unwritten |= writer.failures
    if unwritten:
        print(f"results of {len(unwritten)} files cannot be written: {name_some(unwritten)}")
    return not unreadable and not unwritten


def _prepare_rescoring(detector: Detector) -> None:
    """Lower the score threshold of a detector to that of evaluations, because rescoring raises scores.

    Raises:
        UserError: If the network has other classes than LTDv2.
    """
    if tuple(detector.names) != CLASS_NAMES:
        raise UserError(f"rescore needs a network with the classes {[*CLASS_NAMES]}, got {detector.names}.")
    detections = detector.settings.detections
    threshold = min(detections.score_threshold, SCORING_THRESHOLD)
    detections = replace(detections, score_threshold=threshold, multi_label=True)
    detector.settings = replace(detector.settings, detections=detections)


def _refuse_all(unreadable: Mapping[str, Exception]) -> NoReturn:
    """Raise a `UserError`: none of the files can be read."""
    depths = [error for error in unreadable.values() if isinstance(error, BitDepthError)]
    if len(depths) == len(unreadable):
        refuse_other_depth(depths, 0, "files")
    raise UserError(f"no file can be read: {name_some(reasons(unreadable))}")


def _pictures_of(
    files: Sequence[Path], reader: ClipReader, unreadable: dict[str, Exception], advance: Callable[[int], None]
) -> Iterator[InputImage]:
    """Yield the images of all files, mapped by `ranges` if they have 16 bits.

    The error of an unreadable file is recorded in `unreadable`, and the progress advances by one.
    """
    for path in files:
        try:
            yield from reader.read(path)
        except (FrameError, OSError, ValueError) as error:
            unreadable[str(path)] = error
            advance(1)


def reasons(unreadable: Mapping[str, Exception]) -> dict[str, str]:
    """Return the reason for each unreadable file, without the file name that the message starts with."""
    return {name: reason_of(error, name) for name, error in unreadable.items()}
