"""`contact_sheet`: a picture of the inputs of the network with their boxes."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from yolo_lightning.commands.console import check_writable
from yolo_lightning.commands.option_limits import SHEET_SAMPLES
from yolo_lightning.data.batch import Sample
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.dataset import EvaluationDataset, TrainingDataset
from yolo_lightning.data.index.sampled_names import sampled_positions
from yolo_lightning.data.labelled_frames import LabelledFrames
from yolo_lightning.data.sampling.resumable_loader import SampleKey
from yolo_lightning.evaluation.drawing import Image, class_colour, resized, with_boxes
from yolo_lightning.utils.choices import check_range
from yolo_lightning.utils.files import replacing
from yolo_lightning.utils.paths import user_path
from yolo_lightning.utils.plain_text import without_math

CELL_PX = 306
TEXT_PX = 44
LINE_PX = 20
"""Width of a sample, height of its heading and title, and height of a line of the legend, pixels."""
NAMES_PER_CELL = 2  # class names of the legend below each sample
DPI = 100


def contact_sheet(
    *,
    data: DetectionDataModule,
    output: Path = Path("contact_sheet.png"),
    samples: int = 8,
) -> None:
    """Draw the inputs of the network: training samples after augmentation, with their boxes.

    The picture has four rows: frames without augmentation, the same frames augmented as in the last epochs (without
    mosaic, mixup and box paste), mosaics with the same frames, and one frame in several epochs. With
    `data.augmentation.paste`, a further row shows frames with pasted objects, without mosaic. With
    `data.augmentation.mixup`, a further row shows mixtures. The samples of the other rows are identical to those of a
    training run with the same seed.
    With `data.input.background`, the difference from the background is drawn in place of the frame.

    Args:
        data: Dataset and augmentation.
        output: PNG file to write.
        samples: Samples per row, 1 to 16.

    Raises:
        UserError: If an option is out of range, or the data cannot be used.
    """
    check_range("samples", samples, *SHEET_SAMPLES.split(", "))
    output = user_path(output)
    check_writable(output, ".png")
    frames = data.open("train")
    chosen = spread_frames(frames, samples)
    shown = _busiest(frames, chosen)
    draw_rows(sample_rows(data, frames, chosen, shown), data.class_names, output)
    last = frames.index.file_name(shown)
    print(f"{output}: {len(chosen)} of {len(frames):,} training frames; the last row shows {last}")


def spread_frames(frames: LabelledFrames, count: int) -> list[int]:
    """Return positions sampled from the split, at most `count`, each with the most boxes of its neighbours.

    The neighbours are up to eight frames before the next position, so no frame is returned twice.
    """
    starts = sampled_positions(frames.index.file_names(), count)
    ends = [*starts[1:], len(frames)]
    return [_busiest(frames, range(start, min(start + 8, end))) for start, end in zip(starts, ends, strict=True)]


def _busiest(frames: LabelledFrames, indices: Sequence[int]) -> int:
    return max(indices, key=lambda index: len(frames.index.labels(index)))


def sample_rows(
    data: DetectionDataModule, frames: LabelledFrames, chosen: Sequence[int], shown: int
) -> dict[str, list[Sample]]:
    size = data.image_size
    augmentation = data.augmentation
    recorded = EvaluationDataset(frames, size)
    training = TrainingDataset(frames, size, augmentation, data.seed)

    rows = {"without augmentation": [recorded[index] for index in chosen]}
    rows["augmented, without mosaic"] = [training[SampleKey(0, index, has_mosaic=False)] for index in chosen]
    paste = augmentation.paste
    mixes: dict[str, tuple[float, dict[str, Any]]] = {
        "box paste": (paste.probability, {"mosaic": 0.0, "mixup": 0.0, "paste": replace(paste, probability=1.0)}),
        "mosaic": (augmentation.mosaic, {"mosaic": 1.0, "mixup": 0.0}),
        "mixup": (augmentation.mixup, {"mixup": 1.0}),
    }
    for name, (share, changed) in mixes.items():
        if share:
            dataset = TrainingDataset(frames, size, replace(augmentation, **changed), data.seed)
            rows[f"augmented, with {name} ({share:.0%} of the samples)"] = [dataset[0, index] for index in chosen]
    heading = "one frame in consecutive epochs, without mosaic"
    rows[heading] = [training[SampleKey(epoch, shown, has_mosaic=False)] for epoch in range(len(chosen))]
    return rows


def draw_rows(rows: dict[str, list[Sample]], class_names: Sequence[str], path: Path) -> None:
    """Draw rows of samples with headings and a legend of the classes into a PNG."""
    columns = max(map(len, rows.values()))
    legend_lines = math.ceil(len(class_names) / (NAMES_PER_CELL * columns))
    height, width = next(iter(rows.values()))[0].image.shape[:2]
    row_px = round(CELL_PX * height / width) + TEXT_PX
    height_px = len(rows) * row_px + legend_lines * LINE_PX
    figure = Figure((columns * CELL_PX / DPI, height_px / DPI), DPI, layout="constrained")
    for part, (heading, samples) in zip(figure.subfigures(len(rows), squeeze=False)[:, 0], rows.items(), strict=True):
        part.suptitle(without_math(heading), x=0.0, horizontalalignment="left", fontsize=9)
        row = part.subplots(1, columns, squeeze=False)[0]
        for axes in row:
            axes.axis("off")
        for axes, sample in zip(row, samples, strict=False):
            axes.imshow(draw_sample(sample)[..., ::-1])
            axes.set_title(title_of(sample), fontsize=6)
    handles = [Patch(color=class_colour(label), label=without_math(name)) for label, name in enumerate(class_names)]
    figure.legend(handles=handles, loc="outside lower left", ncols=NAMES_PER_CELL * columns, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from font")
        figure.savefig(temporary, format="png")


def title_of(sample: Sample) -> str:
    boxes = "1 box" if len(sample.labels) == 1 else f"{len(sample.labels)} boxes"
    title = f"{without_math(sample.image_id)}, {boxes}"
    if not sample.readable:
        title += ", unreadable frame"
    return title


def draw_sample(sample: Sample) -> Image:
    """Return the image of a sample with its boxes as BGR."""
    height, width = sample.image.shape[:2]
    gain = CELL_PX / width
    shown = np.asarray(np.clip(sample.image, 0, 255), np.uint8)
    if sample.image.shape[2:] == (2,):
        shown = shown[..., 1]
    cell = resized(shown, CELL_PX, max(1, round(height * gain)))
    return with_boxes(cell, sample.boxes * gain, sample.labels.tolist(), width=1)
