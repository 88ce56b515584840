"""The file of `model.weights`."""

from pathlib import Path

from yolo_lightning.errors import UserError
from yolo_lightning.utils.paths import user_path
from yolo_lightning.utils.suggestions import missing


def existing_weights(path: str) -> Path:
    """Return the path of `model.weights`.

    Raises:
        UserError: If there is no file with this path.
    """
    file = user_path(path)
    if not file.is_file():
        got = f"{path}, which {missing(file)}"
        raise UserError(f"model.weights must be an existing file (nothing is downloaded), got {got}")
    return file
