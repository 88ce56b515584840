"""Text of unknown origin at the boundaries to a terminal, a log, a CSV file and a picture."""

import pytest

from yolo_lightning.utils.plain_text import csv_text, one_line, printable, without_math


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("person", "person"),
        ("Bär 人 🙂", "Bär 人 🙂"),
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("\x9b31mred", r"\x9b31mred"),
        ("abc\u202edcba", r"abc\u202edcba"),
        ("one\r\ntwo\tthree", "one two three"),
        ("null\0", r"null\x00"),
        ("\udcff", r"\udcff"),
    ],
)
def test_one_line_has_no_control_characters(text: str, expected: str) -> None:
    assert one_line(text) == expected
    assert one_line(text).encode()


def test_one_line_has_a_limit() -> None:
    assert len(one_line("a" * 10**6)) == 2000


def test_printable_keeps_lines() -> None:
    assert printable("one\n\ttwo\x1b[0m\r") == "one\n\ttwo" + r"\x1b[0m\x0d"


@pytest.mark.parametrize("start", ["=", "+", "-", "@", " ="])
def test_no_cell_begins_with_a_formula(start: str) -> None:
    assert csv_text(f"{start}cmd|' /C calc'!A0").startswith("'")
    assert csv_text("person") == "person"


@pytest.mark.parametrize("name", ["a  b.png", " c.png", "d.png ", f"{'long/' * 700}e.png"])
def test_cell_with_a_file_name_is_the_name(name: str) -> None:
    assert csv_text(name) == name
    assert csv_text("one\ntwo") == r"one\x0atwo"


def test_no_mathematics() -> None:
    assert without_math("$\\frac$ and\n$") == r"\$\frac\$ and \$"
