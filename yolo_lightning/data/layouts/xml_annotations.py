"""Reader of XML files: Pascal VOC, one file per image, and CVAT's export "CVAT for images"."""

import os
from collections import Counter
from xml.etree import ElementTree

from yolo_lightning.data.formats.suspicious_boxes import CORNERS
from yolo_lightning.data.layouts.labelled_folder import LabelledFolder, SourceFolder, split_of
from yolo_lightning.data.layouts.source_dataset import Advance, SourceDataset, located
from yolo_lightning.errors import UserError

VOC = "Pascal VOC XML"
CVAT = "CVAT for images"
SIZE = ("width", "height")


def xml_files(folder: SourceFolder) -> list[str]:
    """Return the XML files of a folder if the first of them contains annotations of images."""
    files = folder.of(".xml")
    if files and b"<annotation" in folder.read(files[0]):
        return files
    return []


def read_xml(folder: SourceFolder, files: list[str], advance: Advance) -> SourceDataset:
    labelled = LabelledFolder(VOC, CORNERS)
    for file in files:
        try:
            root = ElementTree.fromstring(folder.read(file))
        except ElementTree.ParseError as error:
            raise UserError(f"{folder.root / file}: not XML: {error}") from error
        if root.tag == "annotation":
            _read_voc(folder, file, root, labelled)
        elif root.find("track") is not None:
            raise UserError(
                f"{folder.root / file}: the export 'CVAT for video' is not read, because its tracks do not name "
                f"images. Export the task from CVAT as '{CVAT}'"
            )
        elif root.find("image") is not None:
            _read_cvat(folder, file, root, labelled)
        else:
            labelled.notes[f"XML files left out, which are neither {VOC} nor {CVAT}"].append(file)
    if labelled.layout == VOC:
        _count_from_zero(labelled)
    return located(folder, labelled, advance)


def _read_voc(folder: SourceFolder, file: str, root: ElementTree.Element, labelled: LabelledFolder) -> None:
    image = labelled.images[file]
    image.split = split_of(file)
    image.size = folder.numbers((root.findtext(f"size/{key}", "0") for key in SIZE), file)
    for item in root.iterfind("object"):
        box = item.find("bndbox")
        if box is None:
            labelled.notes["objects without a box left out"].append(file)
            continue
        if item.findtext("difficult", "").strip() not in ("", "0"):
            labelled.notes["objects marked as difficult, which are kept"].append(file)
        image.class_names.append(item.findtext("name", "").strip())
        image.boxes.append(folder.numbers((box.findtext(key) for key in ("xmin", "ymin", "xmax", "ymax")), file))


def _read_cvat(folder: SourceFolder, file: str, root: ElementTree.Element, labelled: LabelledFolder) -> None:
    labelled.layout = CVAT
    labelled.class_names = list(dict.fromkeys(name.text or "" for name in root.iterfind(".//labels/label/name")))
    elements = list(root.iterfind("image"))
    # Tasks of a project may have images of equal names, in several subsets or in one.
    paths = [os.path.join(os.path.dirname(file), image.get("subset", ""), image.get("name", "")) for image in elements]
    counts = Counter(paths)
    for path, element in zip(paths, elements, strict=True):
        name = element.get("name", "")
        if counts[path] > 1:
            labelled.notes["annotations left out, because several of a file name the same image"].append(path)
            continue
        image = labelled.images[path]
        image.split = split_of(f"{element.get('subset', '')}/{name}")
        image.size = folder.numbers((element.get(key) for key in SIZE), file)
        for shape in element:
            (rotation,) = folder.numbers([shape.get("rotation", 0)], f"{file}, rotation in {name}")
            if shape.tag != "box" or rotation:
                labelled.notes["shapes left out that are not upright boxes"].append(f"{shape.tag} of {name}")
                continue
            image.class_names.append(shape.get("label", ""))
            image.boxes.append(folder.numbers((shape.get(key) for key in ("xtl", "ytl", "xbr", "ybr")), file))


def _count_from_zero(labelled: LabelledFolder) -> None:
    """Subtract 1 from xmin and ymin if boxes name their first and last pixel from 1, the rule of Pascal VOC."""
    boxes = [box for image in labelled.images.values() for box in image.boxes]
    if boxes and all(min(box) >= 1 and all(map(float.is_integer, box)) for box in boxes):
        for box in boxes:
            box[0] -= 1
            box[1] -= 1
        labelled.notes["images with pixels counted from 1: 1 was subtracted from xmin and ymin"] = list(labelled.images)
