"""Annotation files whose content a test chooses, as for the data room."""

from tests.data.conftest import coco, write_json  # noqa: F401
