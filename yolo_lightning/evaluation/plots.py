"""Contact sheets of frames with predictions and annotations."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from yolo_lightning.data.batch import Prediction, Target
from yolo_lightning.evaluation.class_colours import class_colour
from yolo_lightning.utils.plain_text import without_math

SHOWN_SCORE = 0.25  # minimum score of a drawn prediction

FRAME_WIDTH_INCHES = 4.2
DOTS_PER_INCH = 120


@dataclass(frozen=True, slots=True)
class LabelledImage:
    """One frame of a contact sheet."""

    frame: npt.NDArray[np.uint8]  # `(H, W)` uint8, gray, or `(H, W, 3)`, RGB
    prediction: Prediction  # boxes in pixels of `frame`, drawn as solid lines with class and score
    target: Target | None = None  # boxes in pixels of `frame`, drawn as dashed white lines; None without annotations


def draw_pictures(pictures: Sequence[LabelledImage], class_names: Sequence[str], path: Path, columns: int = 3) -> None:
    """Draw one or more frames with their boxes into a PNG file, `columns` frames per row."""
    columns = min(columns, len(pictures))
    rows = -(-len(pictures) // columns)
    height, width = pictures[0].frame.shape[:2]
    cell_height = FRAME_WIDTH_INCHES * height / width + 0.25
    lines = _legend_lines(pictures, class_names)
    per_row = (2, 5, 8)[min(columns, 3) - 1]
    legend_height = 0.25 + 0.25 * -(-len(lines) // per_row)
    figure = Figure(figsize=(FRAME_WIDTH_INCHES * columns, cell_height * rows + legend_height), dpi=DOTS_PER_INCH)
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for axis in axes:
        axis.set_axis_off()
    for axis, picture in zip(axes, pictures, strict=False):
        _draw_picture(axis, picture, class_names)
    figure.legend(handles=lines, loc="lower center", ncols=per_row, frameon=False, fontsize=9)
    inches = figure.get_figheight()
    figure.subplots_adjust(0.005, legend_height / inches, 0.995, 1 - 0.22 / inches, 0.02, 0.1)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _draw_picture(axis: Axes, picture: LabelledImage, class_names: Sequence[str]) -> None:
    height, width = picture.frame.shape[:2]
    axis.imshow(picture.frame, cmap="gray", vmin=0, vmax=255, extent=(0, width, height, 0))
    axis.set_title(without_math(picture.prediction.image_id), fontsize=8, pad=3)
    if picture.target is not None:
        for box in picture.target.boxes.tolist():
            axis.add_patch(outline(box, "white", "--", 1.4))
    shown = picture.prediction.scores >= SHOWN_SCORE
    boxes, labels = picture.prediction.boxes[shown].tolist(), picture.prediction.labels[shown].tolist()
    scores = picture.prediction.scores[shown].tolist()
    for box, label, score in reversed(list(zip(boxes, labels, scores, strict=True))):  # the highest score on top
        colour = class_colour(label)
        axis.add_patch(outline(box, colour, "-", 1.2))
        axis.text(
            box[0] if box[0] < 0.75 * width else box[2],
            box[1] - 1.5 if box[1] > 12 else box[3] + 1.5,
            f"{without_math(class_names[label])} {score:.2f}",
            fontsize=5.5,
            color="black",
            va="bottom" if box[1] > 12 else "top",
            ha="left" if box[0] < 0.75 * width else "right",
            clip_on=True,
            bbox={"facecolor": colour, "edgecolor": "none", "pad": 0.6, "alpha": 0.85},
        )


def outline(box: Sequence[float], colour: str, style: str, width: float) -> Rectangle:
    """Return the outline of a box, xyxy in pixels."""
    left, top, right, bottom = box
    size = right - left, bottom - top
    return Rectangle((left, top), *size, fill=False, edgecolor=colour, linestyle=style, linewidth=width)


def false_colour(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return an image with channels that can be drawn: one, or the first, middle and last one as red, green and blue.

    Static parts of neighbouring frames are gray; moving objects have coloured edges.
    """
    count = image.shape[2] if image.ndim == 3 else 1
    return image if count in (1, 3) else image[..., [0, count // 2, count - 1]]


def _legend_lines(pictures: Sequence[LabelledImage], class_names: Sequence[str]) -> list[Line2D]:
    """Return the legend: a line per class, and one for annotations if there are any."""
    lines = [Line2D([], [], color=class_colour(i), label=without_math(name)) for i, name in enumerate(class_names)]
    if any(picture.target is not None for picture in pictures):
        lines.append(Line2D([], [], color="black", linestyle="--", label="annotated (white in the frames)"))
    return lines
