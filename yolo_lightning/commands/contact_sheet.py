"""`contact_sheet`: a picture of the inputs of the network with their boxes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from yolo_lightning.commands.console import check_writable
from yolo_lightning.commands.option_limits import SHEET_SAMPLES
from yolo_lightning.data.batch import Sample
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.dataset import EvaluationDataset, TrainingDataset
from yolo_lightning.data.index.sampled_names import sampled_positions
from yolo_lightning.data.labelled_frames import LabelledFrames
from yolo_lightning.data.sampling.resumable_loader import SampleKey
from yolo_lightning.evaluation.drawing import (
    FONT,
    FONT_SCALE,
    Image,
    bgr,
    class_colour,
    resized,
    with_boxes,
    write,
)
from yolo_lightning.utils.choices import check_range
from yolo_lightning.utils.files import replacing
from yolo_lightning.utils.plain_text import one_line

CELL_PX = 306
GAP_PX = 6
BAND_PX = 28
"""Width of a sample, gap beside it, and height of a line of text, pixels."""
TEXT_SCALE = 0.35
BLACK = (0, 0, 0)
WHITE = (255, 255, 255)


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
    width = max(map(len, rows.values())) * (CELL_PX + GAP_PX)
    bands: list[Image] = []
    for heading, samples in rows.items():
        cells = np.concatenate([draw_sample(sample) for sample in samples], axis=1)
        cells = np.pad(cells, ((0, 0), (0, width - cells.shape[1]), (0, 0)), constant_values=255)
        bands += [_text_band([(heading, BLACK)], cells.shape[1]), cells]
    legend = [(name, bgr(class_colour(label))) for label, name in enumerate(class_names)]
    bands.append(_text_band(legend, bands[-1].shape[1]))
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_bytes(cv2.imencode(".png", np.concatenate(bands))[1].tobytes())


def _text_band(words: Sequence[tuple[str, tuple[int, int, int]]], width: int) -> Image:
    """Return a white band with words in their colours, one after the other, in as many lines as they need."""
    lines = 1
    x = GAP_PX
    places = []
    for text, colour in words:
        text_width = cv2.getTextSize(one_line(text), FONT, FONT_SCALE, 1)[0][0]
        if x + text_width > width and x > GAP_PX:
            lines += 1
            x = GAP_PX
        places.append((one_line(text), colour, (x, lines * BAND_PX - 8)))
        x += text_width + 3 * GAP_PX
    band = np.full((lines * BAND_PX, width, 3), 255, np.uint8)
    for text, colour, place in places:
        cv2.putText(band, text, place, FONT, FONT_SCALE, colour, 1, cv2.LINE_AA)
    return band


def draw_sample(sample: Sample) -> Image:
    """Return one cell of the picture as BGR: a sample with its boxes, its id and its number of boxes."""
    height, width = sample.image.shape[:2]
    gain = CELL_PX / width
    shown = np.asarray(np.clip(sample.image, 0, 255), np.uint8)
    if sample.image.shape[2:] == (2,):
        shown = shown[..., 1]
    cell = resized(shown, CELL_PX, max(1, round(height * gain)))
    cell = with_boxes(cell, sample.boxes * gain, sample.labels.tolist(), width=1)
    if not sample.readable:
        write(cell, "unreadable frame", CELL_PX // 3, len(cell) // 2, WHITE, TEXT_SCALE)
    text = f"{sample.image_id}, {len(sample.labels)} box{'' if len(sample.labels) == 1 else 'es'}"
    write(cell, text, 0, len(cell) - 1, WHITE, TEXT_SCALE)
    return cv2.copyMakeBorder(cell, 0, 0, 0, GAP_PX, cv2.BORDER_CONSTANT, value=(255, 255, 255)).astype(np.uint8)
