"""YOLO label files: valid and invalid lines."""

from pathlib import Path

import numpy as np
import pytest

from yolo_lightning.data.formats.yolo_labels import Labels, read_labels


def labels_in(tmp_path: Path, text: str, classes: int = 4, keypoint_columns: int = 0) -> Labels:
    path = tmp_path / "a.txt"
    path.write_text(text)
    labels = read_labels(path, classes, keypoint_columns)
    assert labels is not None
    return labels


def test_box_is_class_centre_and_size(tmp_path: Path) -> None:
    labels = labels_in(tmp_path, "3 0.5 0.25 0.125 0.0625\n0 0.1 0.2 0.3 0.4\n")
    assert labels.classes.tolist() == [3, 0]
    assert labels.centres.tolist() == [[0.5, 0.25, 0.125, 0.0625], [0.1, 0.2, 0.3, 0.4]]
    assert (labels.classes.dtype, labels.centres.dtype) == (np.int64, np.float64)


def test_polygon_is_the_box_around_it(tmp_path: Path) -> None:
    labels = labels_in(tmp_path, "1 0.25 0.5 0.75 0.25 0.5 1.0\n")
    assert labels.classes.tolist() == [1]
    assert labels.centres.tolist() == [[0.5, 0.625, 0.5, 0.75]]


@pytest.mark.parametrize("text", ["", "\n\n", "  \n"])
def test_empty_file_is_a_background_image(tmp_path: Path, text: str) -> None:
    assert len(labels_in(tmp_path, text).classes) == 0


def test_missing_file_is_told_from_an_empty_one(tmp_path: Path) -> None:
    assert read_labels(tmp_path / "absent.txt", 4) is None


def test_byte_order_mark_blank_lines_and_real_classes_are_accepted(tmp_path: Path) -> None:
    labels = labels_in(tmp_path, "\ufeff2.0 0.5 0.5 0.1 0.1\r\n\r\n1 0.5 0.5 0.1 0.1")
    assert labels.classes.tolist() == [2, 1]


def test_line_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    labels = labels_in(tmp_path, "1 0.5 0.5 0.1 0.1\n0 0.2 0.2 0.1 0.1\n1 0.50 0.5 0.1 0.10\n")
    assert labels.classes.tolist() == [1, 0]
    assert labels.duplicates == 1


def test_polygons_that_share_a_box_are_two_objects(tmp_path: Path) -> None:
    labels = labels_in(tmp_path, "1 0 0 1 0 1 1\n1 0 0 0 1 1 1\n")
    assert labels.centres.tolist() == [[0.5, 0.5, 1, 1]] * 2
    assert labels.duplicates == 0


def test_keypoints_behind_a_box_are_left_out(tmp_path: Path) -> None:
    labels = labels_in(tmp_path, "0 0.5 0.5 0.2 0.2 0.4 0.4 2 0.6 0.6 2\n", keypoint_columns=6)
    assert labels.centres.tolist() == [[0.5, 0.5, 0.2, 0.2]]


@pytest.mark.parametrize("line", ["0 1.009 0.5 0.1 0.1", "0 -0.009 0.5 0.1 0.1"])
def test_rounding_beyond_the_image_is_tolerated(tmp_path: Path, line: str) -> None:
    assert len(labels_in(tmp_path, line).classes) == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0 0.5 0.5 0.1", "must have a class and 4 coordinates of a box, or .* got 4 columns"),
        ("0 0.5 0.5 0.1 0.1 0.9", "got a sixth column, which is the score in text files of predictions"),
        ("0 0.5 0.5 0.1 0.1 7", "must have a class and 4 coordinates of a box, or .* got 6 columns"),
        ("0 0.1 0.1 0.2 0.2 0.3 0.3 0.4", "got 8 columns"),
        ("cat 0.5 0.5 0.1 0.1", "numbers .*, the first one the class number from 0, got the text 'cat'"),
        ("0 0,5 0,5 0,1 0,1", "numbers separated by spaces with a decimal point, got a comma"),
        ("0 0.5 nan 0.1 0.1", "all columns must be finite numbers"),
        ("0 0.5 inf 0.1 0.1", "all columns must be finite numbers"),
        (
            "0 320 240 50 60",
            "x, y, width, height must be fractions of the image from 0 to 1, got 320, 240, 50, 60; divide pixels",
        ),
        ("0 1.02 0.5 0.1 0.1", "got 1.02, 0.5, 0.1, 0.1"),
        ("0 -0.02 0.5 0.1 0.1", "got -0.02, 0.5, 0.1, 0.1"),
        ("0 0.5 0.5 -0.001 0.1", "got 0.5, 0.5, -0.001, 0.1"),
        ("4 0.5 0.5 0.1 0.1", "integer from 0 to 3, got 4: the class numbers begin at 0, .*; subtract 1 from numbers"),
        ("80 0.5 0.5 0.1 0.1", "integer from 0 to 3, got 80: .*; add the missing names to the data.yaml"),
        ("-1 0.5 0.5 0.1 0.1", "class must be .* got -1"),
        ("0.5 0.5 0.5 0.1 0.1", "class must be .* got 0.5"),
        ("0 0.1 0.1 0.2 0.1 0.2 0.2", "polygons and boxes, and line 1 is a box; replace each polygon"),
        ("0,0.5,0.5,0.1,0.1", "numbers separated by spaces, got commas between them"),
    ],
)
def test_line_that_means_nothing_is_named(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(ValueError, match=rf"a\.txt, line 3: .*{message}"):
        labels_in(tmp_path, f"1 0.5 0.5 0.1 0.1\n\n{line}\n")


def test_keypoints_without_their_number_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"box around a polygon must be fractions .* the data.yaml needs kpt_shape"):
        labels_in(tmp_path, "0 0.5 0.5 0.2 0.2 0.4 0.4 2 0.6 0.6 2\n")


def test_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"0 0.5 \xff\xfe")
    with pytest.raises(ValueError, match=r"a\.txt: not UTF-8 text"):
        read_labels(tmp_path / "a.txt", 4)
    (tmp_path / "a.txt").write_text("0 0.5 0.5 0.1 0.1", "utf-16")
    with pytest.raises(ValueError, match=r"a\.txt: not UTF-8 text at byte 0: it is UTF-16 text; save it as UTF-8"):
        read_labels(tmp_path / "a.txt", 4)


def test_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").mkdir()
    with pytest.raises(ValueError, match=r"a\.txt: cannot be read"):
        read_labels(tmp_path / "a.txt", 4)
