"""Fixtures for small annotation files."""

from tests.data.conftest import coco, write_json  # noqa: F401
