"""Settings of the files of a dataset."""

from yolo_lightning.utils.choices import settings_group


@settings_group("data.files")
class Files:
    """Files and folders of a dataset in the formats `ltdv2` and `coco`, relative to `data.root`.

    Attributes:
        train: JSON file of the training split.
        valid: JSON file of the validation split; null uses `data.split.valid_share` instead.
        test: Labelled JSON file for `test`; null uses Valid.json of LTDv2, otherwise the validation split.
        predict: JSON file of the frames for `predict`; null uses TestNoLabels.json of LTDv2, otherwise the split of
            `test`.
        image_folders: Image folders of a COCO dataset; empty searches the usual folders.
    """

    train: str = "Train.json"
    valid: str | None = "Valid.json"
    test: str | None = None
    predict: str | None = None
    image_folders: tuple[str, ...] = ()
