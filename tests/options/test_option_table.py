"""The table of options: current, and types of values."""

from typing import Any

import pytest

from scripts.make_option_table import table, text_of
from yolo_lightning.options import option_table
from yolo_lightning.options.option_table import TABLE_FILE, find_command, has_type, is_known


@pytest.mark.skipif(not is_known("trainer.max_epochs"), reason="options of another version of Lightning")
def test_table_is_current() -> None:
    assert text_of(table()) == TABLE_FILE.read_text(encoding="utf-8"), "run make options"


def test_options_of_another_version_of_lightning_are_left_to_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(option_table, "lightning_version", lambda: "0")
    assert not is_known("trainer.new_option")
    assert is_known("model.variant")


@pytest.mark.parametrize(
    ("key", "is_accepted"),
    [
        ("model.recipe.lr0", True),
        ("model.recipe", True),
        ("model.recipe.lr1", False),
        ("trainer.callbacks+", True),
        ("trainer.callbacks.decay", True),
        ("model.recipe.optimizer.init_args.eps", True),
        ("trainer.logger.save_dir", True),
        ("nonsense", False),
    ],
)
def test_accepted_keys(key: str, is_accepted: bool) -> None:
    assert find_command("fit").accepts(key) is is_accepted


@pytest.mark.parametrize(
    ("types", "accepted", "refused"),
    [
        (["an integer"], [3, "3", "0x1f", "89_478_485", "1e3"], ["x", "1.5", 1.5, "true", True, "[1]", "", "null"]),
        (["a number"], [3, 0.5, "1e-3", ".5", "-1", "inf"], ["x", "true", None, "[1]"]),
        (["true or false"], [True, "true", "false", "True"], [1, "1", "maybe", None]),
        (["a text"], ["x", "1", "2024-02-31", 3], [["x"], {}]),
        (["auto", "an integer", "null"], ["auto", 2, None, "null"], ["many", 1.5]),
        (["a list of integers", "an integer"], ["[1, 2]", [1], 3], ["a", "{a: 1}"]),
    ],
)
def test_types_of_values(types: list[str], accepted: list[Any], refused: list[Any]) -> None:
    assert [value for value in accepted if not has_type(types, value)] == []
    assert [value for value in refused if has_type(types, value)] == []
