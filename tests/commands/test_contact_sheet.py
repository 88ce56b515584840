"""`contact_sheet`, from the options on the command line to the picture."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from tests.conftest import REPOSITORY
from tests.helpers.annotations import open_ltdv2
from tests.helpers.data_module import data_module
from yolo_lightning.cli import main
from yolo_lightning.commands import contact_sheet as tool
from yolo_lightning.commands.command_line import call
from yolo_lightning.commands.contact_sheet import (
    contact_sheet,
    draw_rows,
    draw_sample,
    sample_rows,
    spread_frames,
    title_of,
)
from yolo_lightning.data.batch import Sample
from yolo_lightning.data.boxes import Letterbox
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.labelled_frames import LabelledFrames
from yolo_lightning.data.storage.folder_frames import FolderFrames
from yolo_lightning.data.transforms.augmentation_settings import Augmentation, BoxPaste
from yolo_lightning.data.transforms.letterbox import PADDING
from yolo_lightning.evaluation.drawing import bgr, class_colour

Make = Callable[..., DetectionDataModule]


@pytest.fixture
def make(look_alike: Path, index_root: Path) -> Make:
    def build(**changed: Any) -> DetectionDataModule:
        return data_module(str(look_alike), index_root=str(index_root), **{"image_size": 96} | changed)

    return build


@pytest.fixture
def frames(look_alike: Path, index_root: Path) -> LabelledFrames:
    return LabelledFrames(open_ltdv2(look_alike / "Train.json", index_root), FolderFrames(look_alike))


def test_picture_has_four_rows_of_samples(make: Make, tmp_path: Path) -> None:
    output = tmp_path / "new" / "sheet.png"
    contact_sheet(data=make(image_size=[64, 96]), output=output, samples=3)
    picture = cv2.imread(str(output))
    assert picture is not None
    height, width = picture.shape[:2]
    assert width == 3 * tool.CELL_PX
    assert height == 4 * (tool.CELL_PX * 64 // 96 + tool.TEXT_PX) + tool.LINE_PX
    assert (np.ptp(picture.astype(int), axis=2) > 60).any()  # coloured boxes


def test_difference_from_the_background_is_drawn(make: Make, tmp_path: Path) -> None:
    output = tmp_path / "sheet.png"
    contact_sheet(data=make(background=True, augmentation=Augmentation(mosaic=0)), output=output, samples=1)
    picture = cv2.imread(str(output))
    assert picture is not None
    first_row = picture[tool.TEXT_PX : tool.CELL_PX, tool.CELL_PX // 4 : tool.CELL_PX // 2]
    assert abs(np.median(first_row) - PADDING) <= 2  # most pixels are background


def test_samples_are_those_of_the_training(make: Make, frames: LabelledFrames) -> None:
    data = make(augmentation=Augmentation(mosaic=0.3, photometric=1), seed=5)
    rows = list(sample_rows(data, frames, [0, 7], 3).values())
    recorded, plain, mixed, repeated = rows
    assert [sample.image_id for sample in plain] == [frames.index.image_id(index) for index in (0, 7)]
    assert not np.array_equal(plain[0].image, recorded[0].image)
    assert not np.array_equal(plain[0].image, mixed[0].image)
    assert {sample.image_id for sample in repeated} == {frames.index.image_id(3)}
    assert not np.array_equal(repeated[0].image, repeated[1].image)
    again = list(sample_rows(data, frames, [0, 7], 3).values())
    pairs = [pair for row, other in zip(rows, again, strict=True) for pair in zip(row, other, strict=True)]
    assert all(np.array_equal(drawn.image, other.image) for drawn, other in pairs)


def test_box_paste_and_mixup_have_rows(make: Make, frames: LabelledFrames) -> None:
    augmentation = Augmentation(mixup=0.1, paste=BoxPaste(0.3))
    rows = sample_rows(make(augmentation=augmentation), frames, [0, 4, 8], 0)
    assert [heading.split(" (")[0] for heading in rows] == [
        "without augmentation",
        "augmented, without mosaic",
        "augmented, with box paste",
        "augmented, with mosaic",
        "augmented, with mixup",
        "one frame in consecutive epochs, without mosaic",
    ]
    boxes = [sum(len(sample.boxes) for sample in row) for row in rows.values()]
    assert boxes[2] > boxes[1]


def coloured(cell: npt.NDArray[np.uint8]) -> int:
    """Return the number of pixels in the colour of the first class."""
    return int((cell == bgr(class_colour(0))).all(axis=2).sum())


def test_without_mosaic_there_is_no_row_of_mosaics(make: Make, frames: LabelledFrames) -> None:
    rows = sample_rows(make(augmentation=Augmentation(mosaic=0)), frames, [0], 0)
    assert len(rows) == 3
    assert not any("with mosaic" in heading for heading in rows)


def test_frames_are_spread_over_the_split(frames: LabelledFrames) -> None:
    chosen = spread_frames(frames, 4)
    assert chosen == sorted(chosen)
    assert len(chosen) == 4
    assert chosen[0] < 8 <= chosen[-1]
    assert sorted(set(spread_frames(frames, 16))) == sorted(spread_frames(frames, 16))
    assert len(spread_frames(frames, len(frames) + 3)) == len(frames)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"samples": 0}, "samples must be >= 1 and <= 16, got 0"),
        ({"samples": 17}, "samples must be >= 1 and <= 16, got 17"),
        ({"output": Path("sheet.jpg")}, r"output must end in \.png, got sheet\.jpg"),
    ],
)
def test_option_out_of_range_is_refused(make: Make, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        contact_sheet(data=make(), **changed)


def sample(count: int, readable: bool = True) -> Sample:
    boxes = np.array([[4, 4, 20, 20]] * count, dtype=np.float32).reshape(-1, 4)
    image = np.full((64, 64), 90, dtype=np.uint8)
    return Sample(image, boxes, np.zeros(count, np.int64), "7", (64, 64), Letterbox(1, 0, 0), readable)


@pytest.mark.parametrize(
    ("shown", "title"),
    [
        (sample(0), "7, 0 boxes"),
        (sample(1), "7, 1 box"),
        (sample(13), "7, 13 boxes"),
        (sample(0, readable=False), "7, 0 boxes, unreadable frame"),
    ],
)
def test_boxes_are_drawn_below_a_title(shown: Sample, title: str) -> None:
    assert (coloured(draw_sample(shown)) > 0) == (len(shown.boxes) > 0)
    assert title_of(shown) == title


def test_rows_of_unequal_lengths_and_many_classes_have_one_picture(tmp_path: Path) -> None:
    names = [f"class {number} of a dataset 日本 $" for number in range(80)]
    draw_rows({"one": [sample(1)], "two": [sample(0), sample(13)]}, names, tmp_path / "sheet.png")
    picture = cv2.imread(str(tmp_path / "sheet.png"))
    assert picture is not None
    assert picture.shape[:2] == (2 * (tool.CELL_PX + tool.TEXT_PX) + 20 * tool.LINE_PX, 2 * tool.CELL_PX)


def options(*arguments: str) -> dict[str, Any]:
    seen: dict[str, Any] = {}

    def show(*, data: DetectionDataModule, samples: int = 8) -> None:
        """Show.

        Args:
            data: The dataset.
            samples: How many.
        """
        seen.update(data=data, samples=samples)

    call(show, arguments)
    return seen


def test_command_line_takes_configurations_and_overrides() -> None:
    recipe, overlay = REPOSITORY / "configs" / "ltdv2.yaml", REPOSITORY / "configs" / "loader" / "spawn2.yaml"
    flags = ("--data.root", "here", "--samples", "3", "--data.augmentation.gain", "0.7")
    data = options("--config", str(recipe), f"--config={overlay}", *flags)["data"]
    assert (data.root, data.batch_size) == (Path("here").absolute(), 8)
    assert (data.loader.num_workers, data.loader.persistent_workers) == (2, False)
    assert (data.augmentation.gain, data.augmentation.inversion) == (0.7, 0.02)
    assert options("--data.root", "here", "--samples", "3")["samples"] == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("data: {rooot: x}", "unknown key data.rooot in {file}. Did you mean data.root?"),
        ("data: [1]", "data in {file} must be set by its keys"),
        ("- 1", "the file {file} of --config must contain keys and values"),
    ],
)
def test_configuration_that_cannot_be_used_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, message: str
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(content)
    with pytest.raises(SystemExit):
        main(["contact_sheet", "--config", str(path), "--data.root", "x"])
    assert message.format(file=path) in capsys.readouterr().err
