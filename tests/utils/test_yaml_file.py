"""Tests of YAML files; `tests/fuzz` reads hostile ones."""

from yolo_lightning.utils.yaml_file import flatten


def test_flatten_joins_keys() -> None:
    assert flatten({"a": {"b": {"c": 1}, "d": [2]}, "e": None}) == {"a.b.c": 1, "a.d": [2], "e": None}
