"""Reader of CSV files with one box per row, whose first row names the columns, as `CSV_HEADER`."""

import csv
import os
import re
from collections.abc import Sequence

from yolo_lightning.data.formats.suspicious_boxes import CORNER_AND_SIDES, CORNERS
from yolo_lightning.data.formats.yolo_files import stem
from yolo_lightning.data.layouts.labelled_folder import LabelledFolder, SourceFolder, split_of
from yolo_lightning.data.layouts.source_dataset import Advance, SourceDataset, located
from yolo_lightning.errors import UserError

CSV = "CSV"
CSV_HEADER = "filename,width,height,class,xmin,ymin,xmax,ymax"
IMAGE = ("filename", "file", "image", "imagename", "imagepath", "filepath", "path", "imageid")
CLASS = ("class", "label", "classname", "labelname", "category", "name")
SIZE = (("width", "imagewidth"), ("height", "imageheight"))
BOXES = {
    CORNERS: (("xmin", "x1", "left"), ("ymin", "y1", "top"), ("xmax", "x2", "right"), ("ymax", "y2", "bottom")),
    CORNER_AND_SIDES: (("x", "xmin", "left"), ("y", "ymin", "top"), ("w", "width"), ("h", "height")),
}
"""Names of columns in lower case and without other characters than letters and digits."""


class Columns:
    """Positions of the columns of a CSV file; `box_format` is empty if images, classes or boxes have no column."""

    def __init__(self, header: Sequence[str]) -> None:
        self._names = [re.sub(r"[^a-z0-9]", "", name.lower()) for name in header]
        self.described = self.positions((IMAGE, CLASS))
        formats = [name for name, columns in BOXES.items() if len(self.positions(columns)) == len(columns)]
        self.box_format = formats[0] if formats and len(self.described) == 2 else ""
        self.box = self.positions(BOXES.get(self.box_format, ()))
        sizes = [position for position in self.positions(SIZE) if position not in self.box]
        self.size = sizes if len(sizes) == len(SIZE) else []  # else sizes are read from the image files

    def positions(self, columns: Sequence[Sequence[str]]) -> list[int]:
        """Return the position of each column that exists, given its possible names."""
        matches = (next((self._names.index(name) for name in names if name in self._names), None) for names in columns)
        return [position for position in matches if position is not None]


def csv_files(folder: SourceFolder) -> list[str]:
    """Return the CSV files whose first row names the columns of boxes."""
    return [file for file in folder.of(".csv") if Columns(_rows(folder, file)[0]).box_format]


def read_csv(folder: SourceFolder, files: list[str], advance: Advance) -> SourceDataset:
    labelled = LabelledFolder(CSV, CORNERS)
    for file in files:
        header, *rows = _rows(folder, file)
        columns = Columns(header)
        if file != files[0] and columns.box_format != labelled.box_format:
            raise UserError(
                f"{folder.root / file}: the boxes must be {labelled.box_format}, as in {files[0]}, got "
                f"{columns.box_format}: give all CSV files the same columns"
            )
        labelled.box_format = columns.box_format
        for number, row in enumerate(rows, start=2):
            place = f"{file}, row {number}"
            if len(row) != len(header):
                raise UserError(f"{folder.root / place}: must have {len(header)} columns, got {len(row)}")
            name, class_name = (row[position].strip() for position in columns.described)
            image = labelled.images[os.path.join(os.path.dirname(file), name)]
            image.split = split_of(f"{stem(file)}/") or split_of(name)
            size = [row[position] for position in columns.size]
            if any(size):
                image.size = folder.numbers(size, place)
            box = [row[position] for position in columns.box]
            if any(box):  # a row without numbers is an image without objects
                image.class_names.append(class_name)
                image.boxes.append(folder.numbers(box, place))
    return located(folder, labelled, advance)


def _rows(folder: SourceFolder, file: str) -> list[list[str]]:
    """Return the rows of a CSV file with the separator of its first row, at least one row."""
    text = folder.read(file).decode("utf-8-sig", errors="replace")
    # Tabs at the end of a row separate empty columns.
    lines = [line.strip(" ") for line in text.splitlines() if line.strip()] or [""]
    separator = max(",;\t", key=lines[0].count)
    try:
        return list(csv.reader(lines, delimiter=separator))
    except csv.Error as error:  # a field of more than 131,072 characters
        raise UserError(f"{folder.root / file}: not CSV: {error}") from error
