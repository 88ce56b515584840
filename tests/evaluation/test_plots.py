from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pytest
import torch
from matplotlib.colors import to_rgb

from yolo_lightning.data.batch import Prediction, Target
from yolo_lightning.evaluation.class_colours import CLASS_COLOURS, class_colour
from yolo_lightning.evaluation.detection_result import DetectionResult
from yolo_lightning.evaluation.plots import DOTS_PER_INCH, FRAME_WIDTH_INCHES, LabelledImage, draw_pictures

CLASS_NAMES = ["person", "bicycle", "motorcycle", "vehicle"]
HEIGHT, WIDTH = 96, 128
BOX = [32.0, 40.0, 96.0, 80.0]
Image = npt.NDArray[np.float64]


def picture(
    boxes: list[list[float]], scores: list[float], labels: list[int], target: Target | None = None
) -> LabelledImage:
    found = Prediction("a", torch.tensor(boxes).reshape(-1, 4), torch.tensor(scores), torch.tensor(labels).long())
    return LabelledImage(np.zeros((HEIGHT, WIDTH), np.uint8), found, target)


def draw(folder: Path, *pictures: LabelledImage, columns: int = 3) -> Image:
    """Return the picture as RGB from 0 to 1."""
    draw_pictures(pictures, CLASS_NAMES, folder / "new/out.png", columns)
    drawn = cv2.imread(str(folder / "new/out.png"), cv2.IMREAD_COLOR)
    assert drawn is not None
    return drawn[:, :, ::-1] / 255


def share_of(image: Image, colour: str | tuple[float, ...]) -> float:
    """Return the share of pixels close to a colour."""
    return float((np.abs(image - np.array(to_rgb(colour))).max(axis=2) < 0.12).mean())


def frame_part(image: Image) -> Image:
    """Return the first frame, which is black on the white sheet."""
    black = (image.max(axis=2) < 0.1).astype(np.uint8)
    rows, columns = np.flatnonzero(black.mean(axis=1) > 0.3), np.flatnonzero(black.mean(axis=0) > 0.3)
    return image[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def edge_shares(frame: Image, box: list[float], colour: str) -> list[float]:
    """Return the share of a colour on the left, right and lower edge of a box; text covers the upper edge."""
    scale = frame.shape[1] / WIDTH
    left, top, right, bottom = (round(side * scale) for side in box)
    near = round(scale)  # one pixel of the frame
    strips = (
        frame[top + 9 : bottom - 9, left - near : left + near + 1],
        frame[top + 9 : bottom - 9, right - near : right + near + 1],
        frame[bottom - near : bottom + near + 1, left + 9 : right - 9].transpose(1, 0, 2),
    )
    return [float((np.abs(strip - np.array(to_rgb(colour))).max(axis=2).min(axis=1) < 0.25).mean()) for strip in strips]


@pytest.mark.parametrize(("frames", "columns", "wide"), [(1, 3, 1), (2, 3, 2), (3, 3, 3), (4, 3, 3), (5, 2, 2)])
def test_sheet_is_as_wide_as_its_columns(tmp_path: Path, frames: int, columns: int, wide: int) -> None:
    image = draw(tmp_path, *[picture([], [], [])] * frames, columns=columns)
    assert image.shape[1] == round(wide * FRAME_WIDTH_INCHES * DOTS_PER_INCH)


def test_sheet_grows_by_rows(tmp_path: Path) -> None:
    one, three = (draw(tmp_path, *[picture([], [], [])] * frames).shape[0] for frames in (3, 7))
    cell = (FRAME_WIDTH_INCHES * HEIGHT / WIDTH + 0.25) * DOTS_PER_INCH
    assert three - one == pytest.approx(2 * cell, abs=2)


def test_frame_keeps_its_shape(tmp_path: Path) -> None:
    height, width, _ = frame_part(draw(tmp_path, picture([], [], []))).shape
    assert width / height == pytest.approx(WIDTH / HEIGHT, rel=0.01)
    assert width > 0.9 * FRAME_WIDTH_INCHES * DOTS_PER_INCH


def test_grays_are_shown_as_they_are(tmp_path: Path) -> None:
    """The contrast of a frame with few gray levels is not stretched."""
    gray = LabelledImage(np.full((HEIGHT, WIDTH), 100, np.uint8), picture([], [], []).prediction)
    assert share_of(draw(tmp_path, gray), (100 / 255,) * 3) > 0.7


@pytest.mark.parametrize("label", range(4))
def test_prediction_is_drawn_in_its_place_and_the_colour_of_its_class(tmp_path: Path, label: int) -> None:
    frame = frame_part(draw(tmp_path, picture([BOX], [0.9], [label])))
    assert min(edge_shares(frame, BOX, class_colour(label))) > 0.95


def test_box_elsewhere_is_not_taken_for_it(tmp_path: Path) -> None:
    frame = frame_part(draw(tmp_path, picture([BOX], [0.9], [0])))
    assert max(edge_shares(frame, [side + 6 for side in BOX], class_colour(0))) < 0.2


def test_target_is_drawn_dashed_in_white(tmp_path: Path) -> None:
    target = Target("a", torch.tensor([BOX]), torch.tensor([0]))
    frame = frame_part(draw(tmp_path, picture([], [], [], target)))
    assert all(0.4 < share < 0.95 for share in edge_shares(frame, BOX, "white"))


def test_without_targets_nothing_white_is_drawn(tmp_path: Path) -> None:
    frame = frame_part(draw(tmp_path, picture([BOX], [0.9], [0])))
    assert share_of(frame, "white") == 0


def test_low_scores_are_not_drawn(tmp_path: Path) -> None:
    frame = frame_part(draw(tmp_path, picture([BOX], [0.2], [0])))
    assert frame.max() < 0.1


def test_frame_without_detections_is_drawn(tmp_path: Path) -> None:
    frame = frame_part(draw(tmp_path, picture([], [], [])))
    assert frame.max() < 0.1


def test_box_lies_on_the_edge_of_what_it_encloses(tmp_path: Path) -> None:
    """The outline of a box has the same distance to both sides of a square that fills the box."""
    plain = picture([BOX], [0.9], [0])
    left, top, right, bottom = map(int, BOX)
    plain.frame[top:bottom, left:right] = 90
    frame = frame_part(draw(tmp_path, plain))
    row = frame[round(frame.shape[0] * 60 / HEIGHT)]
    gray = np.flatnonzero(np.abs(row - 90 / 255).max(axis=1) < 0.06)
    line = np.flatnonzero(np.abs(row - np.array(to_rgb(class_colour(0)))).max(axis=1) < 0.5)
    inside_left = gray[0] - line[line < gray.mean()].mean()
    inside_right = line[line > gray.mean()].mean() - gray[-1]
    assert inside_left == pytest.approx(inside_right, abs=1.5)


def label_area(folder: Path, left: float, top: float) -> float:
    """Return the share of a frame of LTDv2's size covered by the slightly transparent label of a box."""
    found = picture([[left, top, left + 40, top + 60]], [0.9], [2]).prediction
    frame = frame_part(draw(folder, LabelledImage(np.zeros((288, 384), np.uint8), found)))
    return share_of(frame, tuple(0.85 * part for part in to_rgb(class_colour(2))))


def test_label_of_a_box_at_the_top_is_not_cut(tmp_path: Path) -> None:
    assert label_area(tmp_path, 100, 0) > 0.9 * label_area(tmp_path, 100, 100) > 0


def test_label_of_a_box_at_the_right_is_not_cut(tmp_path: Path) -> None:
    assert label_area(tmp_path, 344, 100) > 0.9 * label_area(tmp_path, 100, 100) > 0


@pytest.mark.parametrize("frames", [1, 3])
def test_legend_names_every_class_beside_the_annotations(tmp_path: Path, frames: int) -> None:
    target = Target("a", torch.tensor([BOX]), torch.tensor([0]))
    image = draw(tmp_path, *[picture([], [], [], target)] * frames)
    legend = image[-100:]
    assert min(share_of(legend, colour) for colour in CLASS_COLOURS[:4]) > 0
    assert legend[:, :4].min() > 0.9, "something is cut at the left"
    assert legend[:, -4:].min() > 0.9, "something is cut at the right"


def test_result_is_drawn_in_the_colour_of_its_class() -> None:
    image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    numbers = np.array([BOX], np.float32), np.array([0.9], np.float32), np.array([2])
    drawn = DetectionResult(image, *numbers, ("a", "b", "c")).plot() / 255
    assert share_of(drawn, class_colour(2)) > 0
