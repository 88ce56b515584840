"""`contact_sheet`: a picture of the inputs of the network with their boxes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from yolo_lightning.data.batch import Sample
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.dataset import EvaluationDataset, TrainingDataset
from yolo_lightning.data.labelled_frames import LabelledFrames
from yolo_lightning.data.transforms.augmentation_settings import BoxPaste
from yolo_lightning.evaluation.class_colours import class_colour
from yolo_lightning.evaluation.plots import DOTS_PER_INCH, false_colour, outline

CELL_INCHES = 2.6
TITLE_INCHES = 0.34
LEGEND_INCHES = 0.4

ALL_EPOCHS = 2**31  # Value of `mosaic_epochs` that enables mosaic in every epoch


class Shown(NamedTuple):
    """A sample in the picture."""

    sample: Sample
    pasted: frozenset[int] = frozenset()  # Positions of its boxes of pasted objects


def contact_sheet(
    *,
    data: DetectionDataModule,
    output: Path = Path("contact_sheet.png"),
    samples: int = 8,
    epoch: int = 0,
    frame: int | None = None,
) -> None:
    """Draw the inputs of the network: training samples after augmentation, with their boxes.

    The picture has four rows: frames without augmentation, the same frames augmented as in the last epochs (without
    mosaic, mixup and box paste), mosaics with the same frames, and one frame in several epochs. With
    `data.augmentation.paste`, a further row shows frames with pasted objects, without mosaic, and boxes of pasted
    objects are dashed. With `data.augmentation.mixup`, a further row shows mixtures. The samples of the other rows are
    identical to those of a training run with the same seed.
    With `data.input.neighbours`, the first, middle and last of the frames are drawn in false colour, as red, green and
    blue.

    Args:
        data: Dataset and augmentation.
        output: PNG file to write.
        samples: Samples per row, 1 to 16.
        epoch: Epoch of the samples.
        frame: Position in the training split of the frame in the last row; null selects a frame with many boxes.

    Raises:
        ValueError: If an option is out of range, or the data cannot be used.
    """
    if not 1 <= samples <= 16:
        raise ValueError(f"samples must be 1 to 16, got {samples}")
    if epoch < 0:
        raise ValueError(f"epoch must be >= 0, got {epoch}")
    if output.suffix.lower() != ".png":
        raise ValueError(f"output must be a file name with the suffix .png, got {output}")
    frames = data.open("train")
    if frame is not None and not 0 <= frame < len(frames):
        raise ValueError(f"frame must be 0 to {len(frames) - 1}, got {frame}")
    chosen = spread_frames(frames, samples)
    shown = _busiest(frames, chosen) if frame is None else frame
    rows = sample_rows(data, frames, chosen, shown, epoch)
    note = _neighbours_note(data.input.offsets)
    _draw_rows(rows, data.class_names, output, note, has_pasted=data.augmentation.paste.probability > 0)
    last = frames.index.file_name(shown)
    print(f"{output}: {len(chosen)} of {len(frames):,} training frames; the last row shows {last}")
    if note:
        print(note)


def _neighbours_note(offsets: Sequence[int]) -> str:
    """Return which frames are drawn as red, green and blue; empty without neighbours."""
    if not offsets:
        return ""
    red, green, blue = (offsets[place] for place in (0, len(offsets) // 2, -1))
    return (
        f"false colour of data.input.neighbours {list(offsets)}: red is the frame at {red}, green {green}, blue {blue}"
    )


def spread_frames(frames: LabelledFrames, count: int) -> list[int]:
    """Return positions spread evenly over the split, at most `count`, each with the most boxes of its neighbours.

    The neighbours are up to eight frames before the next position, so no frame is returned twice.
    """
    starts = np.linspace(0, len(frames), min(count, len(frames)), endpoint=False).astype(int).tolist()
    ends = [*starts[1:], len(frames)]
    return [_busiest(frames, range(start, min(start + 8, end))) for start, end in zip(starts, ends, strict=True)]


def _busiest(frames: LabelledFrames, indices: Sequence[int]) -> int:
    return max(indices, key=lambda index: len(frames.index.labels(index)))


def sample_rows(
    data: DetectionDataModule, frames: LabelledFrames, chosen: Sequence[int], shown: int, epoch: int
) -> dict[str, list[Shown]]:
    size, augmentation = data.image_size, data.augmentation
    recorded = EvaluationDataset(frames, size)
    plain = TrainingDataset(frames, size, augmentation, 0, data.seed)

    def mixed(**changed: float | BoxPaste) -> list[Shown]:
        """Return the chosen samples as in the first epochs, with changed settings and marked pasted objects."""
        settings = replace(augmentation, **changed)  # type: ignore[arg-type]
        without = replace(settings, paste=replace(settings.paste, probability=0.0))
        datasets = [TrainingDataset(frames, size, each, ALL_EPOCHS, data.seed) for each in (settings, without)]
        pairs = [[dataset[epoch, index] for dataset in datasets] for index in chosen]
        return [Shown(sample, _added_boxes(sample, other)) for sample, other in pairs]

    rows = {"without augmentation": [Shown(recorded[index]) for index in chosen]}
    rows["augmented, without mosaic"] = [Shown(plain[epoch, index]) for index in chosen]
    paste = augmentation.paste
    if paste.probability:
        heading = f"augmented, with box paste ({paste.probability:.0%} of the frames), without mosaic"
        rows[heading] = mixed(mosaic=0.0, mixup=0.0, paste=replace(paste, probability=1.0))
    if augmentation.mosaic:
        rows[f"augmented, with mosaic ({augmentation.mosaic:.0%} of the samples)"] = mixed(mosaic=1.0, mixup=0.0)
    if augmentation.mixup:
        rows[f"augmented, with mixup ({augmentation.mixup:.0%} of the samples)"] = mixed(mixup=1.0)
    heading = "one frame in consecutive epochs, without mosaic"
    rows[heading] = [Shown(plain[epoch + k, shown]) for k in range(len(chosen))]
    return rows


def _added_boxes(sample: Sample, other: Sample) -> frozenset[int]:
    """Return the positions of the boxes of `sample` that `other`, the same sample without box paste, lacks."""
    present = set(map(tuple, other.boxes.tolist()))
    return frozenset(place for place, box in enumerate(sample.boxes.tolist()) if tuple(box) not in present)


def _draw_rows(
    rows: dict[str, list[Shown]], class_names: Sequence[str], path: Path, note: str = "", *, has_pasted: bool = False
) -> None:
    """Draw rows of samples, all of the same length, with headings, a legend of the classes and a note into a PNG."""
    first = next(iter(rows.values()))
    columns, (rows_px, columns_px) = len(first), first[0].sample.image.shape[:2]
    cell_height = CELL_INCHES * rows_px / columns_px
    width, height = CELL_INCHES * columns, (cell_height + TITLE_INCHES) * len(rows) + LEGEND_INCHES
    figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH)
    FigureCanvasAgg(figure)
    for number, (heading, samples) in enumerate(rows.items()):
        top = 1 - number * (cell_height + TITLE_INCHES) / height
        figure.text(0.05 / width, top - 0.24 / height, heading, fontsize=11, fontweight="bold")
        bottom = top - (cell_height + TITLE_INCHES) / height
        for column, sample in enumerate(samples):
            left = (column * CELL_INCHES + 0.03) / width
            cell = figure.add_axes((left, bottom, (CELL_INCHES - 0.06) / width, (cell_height - 0.06) / height))
            draw_sample(cell, *sample)
    lines = [Line2D([], [], color=class_colour(i), lw=3, label=name) for i, name in enumerate(class_names)]
    if has_pasted:
        lines.append(Line2D([], [], color="black", lw=1.5, linestyle="--", label="pasted object"))
    figure.legend(handles=lines, loc="lower left", ncols=len(lines) if columns > 2 else 2, frameon=False, fontsize=9)
    figure.text(1 - 0.05 / width, 0.13 / height, note, ha="right", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def draw_sample(cell: Axes, sample: Sample, pasted: frozenset[int] = frozenset()) -> None:
    height, width = sample.image.shape[:2]
    pixels = false_colour(sample.image)
    cell.imshow(pixels, cmap="gray", vmin=0, vmax=255, extent=(0, width, height, 0), interpolation="antialiased")
    cell.set_axis_off()
    for place, (box, label) in enumerate(zip(sample.boxes.tolist(), sample.labels.tolist(), strict=True)):
        cell.add_patch(outline(box, class_colour(label), "--" if place in pasted else "-", 1.0))
    if not sample.readable:
        cell.text(width / 2, height / 2, "unreadable frame", color="white", ha="center", va="center", fontsize=8)
    cell.text(
        0.01 * width,
        0.99 * height,
        f"{sample.image_id}, {len(sample.labels)} box{'' if len(sample.labels) == 1 else 'es'}",
        fontsize=5.5,
        color="white",
        va="bottom",
        bbox={"facecolor": "black", "edgecolor": "none", "pad": 0.8, "alpha": 0.6},
    )
