"""`contact_sheet`: a picture of what the network sees."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from yolo_lightning.data.batch import Sample
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.dataset import EvaluationDataset, LabelledFrames, TrainingDataset
from yolo_lightning.evaluation.plots import COLOURS, DOTS_PER_INCH, outline

CELL_INCHES = 2.6
TITLE_INCHES = 0.34
LEGEND_INCHES = 0.4

NAMED_BOXES = 12
"""So many boxes are named one by one; of more, the colours and the legend tell the class."""

ALL_EPOCHS = 2**31
"""Mosaic in any epoch."""


def contact_sheet(
    *,
    data: DetectionDataModule,
    output: Path = Path("contact_sheet.png"),
    samples: int = 8,
    epoch: int = 0,
    frame: int | None = None,
) -> None:
    """Draw what the network sees: training samples after augmentation, with their boxes.

    Four rows: frames as they are recorded, the same frames augmented as in the last epochs (without mosaic), mosaics
    around the same frames, and one frame augmented again and again. They are the samples of the training itself: sample
    `index` of `epoch` looks the same there.

    Args:
        data: The dataset and its augmentation.
        output: PNG file to write.
        samples: Pictures per row, 1 to 16.
        epoch: Epoch whose samples are drawn.
        frame: Position in the training split of the frame in the last row; null takes one with many boxes.

    Raises:
        ValueError: If an option is out of range, or the data cannot be used.
    """
    if not 1 <= samples <= 16:
        raise ValueError(f"samples is {samples}, allowed are 1 to 16")
    if epoch < 0:
        raise ValueError(f"epoch is {epoch}, allowed are 0 and more")
    if output.suffix.lower() != ".png":
        raise ValueError(f"output is {output}, allowed are names that end in .png")
    frames = data.open("train")
    if frame is not None and not 0 <= frame < len(frames):
        raise ValueError(f"frame is {frame}, allowed are 0 to {len(frames) - 1}")
    chosen = spread_frames(frames, samples)
    shown = busiest(frames, chosen) if frame is None else frame
    draw_rows(sample_rows(data, frames, chosen, shown, epoch), data.class_names, output)
    print(f"{output}: {samples} of {len(frames):,} training frames; the last row shows {frames.index.file_name(shown)}")


def spread_frames(frames: LabelledFrames, count: int) -> list[int]:
    """`count` frames spread evenly over the split, each the one with the most boxes of eight neighbours."""
    starts = np.linspace(0, len(frames), count, endpoint=False).astype(int).tolist()
    return [busiest(frames, range(start, min(start + 8, len(frames)))) for start in starts]


def busiest(frames: LabelledFrames, indices: Sequence[int]) -> int:
    """That of `indices` with the most boxes."""
    return max(indices, key=lambda index: len(frames.index.labels(index)))


def sample_rows(
    data: DetectionDataModule, frames: LabelledFrames, chosen: Sequence[int], shown: int, epoch: int
) -> dict[str, list[Sample]]:
    """The samples of each row under its heading."""
    size, augmentation = data.image_size, data.augmentation
    recorded = EvaluationDataset(frames, size)
    plain = TrainingDataset(frames, size, augmentation, 0, data.seed)
    mixed = TrainingDataset(frames, size, replace(augmentation, mosaic=1.0), ALL_EPOCHS, data.seed)
    rows = {"as recorded": [recorded[index] for index in chosen]}
    rows["augmented, without mosaic"] = [plain[epoch, index] for index in chosen]
    if augmentation.mosaic:
        rows[f"augmented, with mosaic ({augmentation.mosaic:.0%} of the samples)"] = [
            mixed[epoch, index] for index in chosen
        ]
    rows["the same frame in the epochs to come, without mosaic"] = [
        plain[epoch + number, shown] for number in range(len(chosen))
    ]
    return rows


def draw_rows(rows: dict[str, list[Sample]], class_names: Sequence[str], path: Path) -> None:
    """Draw rows of samples, each under its heading, above a legend of the classes.

    Args:
        rows: Heading and samples of each row; all as long.
        class_names: Index 0 first.
        path: PNG file to write.
    """
    columns = len(next(iter(rows.values())))
    width, height = CELL_INCHES * columns, (CELL_INCHES + TITLE_INCHES) * len(rows) + LEGEND_INCHES
    figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH)
    FigureCanvasAgg(figure)
    for number, (heading, samples) in enumerate(rows.items()):
        top = 1 - number * (CELL_INCHES + TITLE_INCHES) / height
        figure.text(0.05 / width, top - 0.24 / height, heading, fontsize=11, fontweight="bold")
        bottom = top - (CELL_INCHES + TITLE_INCHES) / height
        for column, sample in enumerate(samples):
            left = (column * CELL_INCHES + 0.03) / width
            cell = figure.add_axes((left, bottom, (CELL_INCHES - 0.06) / width, (CELL_INCHES - 0.06) / height))
            draw_sample(cell, sample, class_names)
    lines = [Line2D([], [], color=COLOURS[i % len(COLOURS)], lw=3, label=name) for i, name in enumerate(class_names)]
    figure.legend(handles=lines, loc="lower left", ncols=len(lines) if columns > 2 else 2, frameon=False, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def draw_sample(cell: Axes, sample: Sample, class_names: Sequence[str]) -> None:
    """Draw one network input with its boxes into one cell."""
    height, width = sample.image.shape[:2]
    cell.imshow(sample.image, cmap="gray", vmin=0, vmax=255, extent=(0, width, height, 0), interpolation="antialiased")
    cell.set_axis_off()
    named = len(sample.labels) <= NAMED_BOXES
    for box, label in zip(sample.boxes.tolist(), sample.labels.tolist(), strict=True):
        colour = COLOURS[label % len(COLOURS)]
        cell.add_patch(outline(box, colour, "-", 1.0))
        if named:
            below, right = box[1] < 0.07 * height, box[0] > 0.7 * width
            cell.text(
                box[2] if right else box[0],
                box[3] + 0.006 * height if below else box[1] - 0.006 * height,
                class_names[label],
                fontsize=5,
                color="black",
                va="top" if below else "bottom",
                ha="right" if right else "left",
                clip_on=True,
                bbox={"facecolor": colour, "edgecolor": "none", "pad": 0.5, "alpha": 0.8},
            )
    if not sample.readable:
        cell.text(width / 2, height / 2, "cannot be read", color="white", ha="center", va="center", fontsize=8)
    cell.text(
        0.01 * width,
        0.99 * height,
        f"{sample.image_id}, {len(sample.labels)} boxes" if len(sample.labels) != 1 else f"{sample.image_id}, 1 box",
        fontsize=5.5,
        color="white",
        va="bottom",
        bbox={"facecolor": "black", "edgecolor": "none", "pad": 0.8, "alpha": 0.6},
    )
