"""Text from files and other processes, made safe for a terminal, a log, a CSV file or a picture.

An escape sequence in a class name can rewrite lines of a terminal, a line feed can add lines to a log, and a
spreadsheet runs a cell that begins with `=`. Standard library only.
"""

import re
from codecs import getincrementaldecoder
from collections.abc import Mapping, Sequence

ZIP_START = b"PK"
"""Beginning of a zip archive, such as a submission or a file of torch.save."""

WRONG_KINDS = {
    "is compressed with gzip; decompress it": (b"\x1f\x8b",),
    "is a zip archive, or the first part of one": (b"pk\3\4",),
    "is UTF-16 text; save it as UTF-8": (b"\xff\xfe", b"\xfe\xff"),
    "is a pointer of Git LFS; run git lfs pull": (b"version https://git-lfs",),
    "is a web page, not the file to download": (b"<!doctype", b"<html"),
}
"""What a file is that begins with one of these bytes in lower case, and what to do."""

SHOWN_BYTES = 8  # of a file that is not text
SHOWN_CHARACTERS = 40  # of the text before a byte that is not UTF-8

UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0 and C1 control characters, which begin escape sequences
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional controls, which reorder a line
    "\u2028\u2029\ufeff\ud800-\udfff]"  # line separators, byte order mark, lone surrogates
)
UNSAFE_IN_LINES = re.compile(UNSAFE.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))
FORMULA_STARTS = ("=", "+", "-", "@")  # beginnings of a formula in spreadsheets
SPACES = re.compile(r"[\r\n\t\v\f\u2028\u2029 ]+")
LONGEST_LINE = 2000  # characters
LONGEST_NAME = 500  # characters of a name with its reason
MOST_NAMES = 5


def escaped(character: re.Match[str]) -> str:
    code = ord(character[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def printable(text: str) -> str:
    """Return a text of one or more lines; control characters are written as hexadecimal numbers."""
    return UNSAFE_IN_LINES.sub(escaped, text.replace("\r\n", "\n"))


def one_line(text: str, longest: int = LONGEST_LINE) -> str:
    """Return a text as one line without control characters, cut to `longest` characters."""
    line = UNSAFE.sub(escaped, SPACES.sub(" ", text).strip())
    if len(line) > longest:
        line = line[: longest - 4] + " ..."
    return line


def name_some(names: Mapping[str, str] | Sequence[str]) -> str:
    """Return the first few names in one line, with the reasons if `names` is a dictionary."""
    shown = list(names)[:MOST_NAMES]
    if isinstance(names, Mapping):
        shown = [f"{name}: {names[name]}" for name in shown]
    text = "; ".join(one_line(name, LONGEST_NAME) for name in shown)
    if len(names) > MOST_NAMES:
        text += f"; and {len(names) - MOST_NAMES:,} more"
    return text


def csv_text(text: str) -> str:
    """Return a text for a cell of a CSV file; a cell that a spreadsheet would run begins with an apostrophe.

    Spaces are kept, because a file name can begin with one or contain several in a row.
    """
    line = UNSAFE.sub(escaped, text)
    if line.lstrip().startswith(FORMULA_STARTS):
        return f"'{line}"
    return line


def first_look(content: bytes) -> str:
    """Return what a file seems to be that its reader refuses, as the end of a sentence that begins with `it`."""
    wrong_kind = _wrong_kind(content)
    if wrong_kind:
        return wrong_kind
    head = _head(content)
    if not head:
        return "is empty"
    try:
        text = getincrementaldecoder("utf-8")().decode(head)  # the last character can be cut
    except UnicodeDecodeError:
        return f"begins with the bytes {head[:SHOWN_BYTES].hex(' ')}"
    return f"begins with '{one_line(text)}'"


def _wrong_kind(content: bytes) -> str:
    """Return the description of a file in `WRONG_KINDS`; an empty string for another file."""
    for description, starts in WRONG_KINDS.items():
        if _head(content).lower().startswith(starts):
            return description
    return ""


def _head(content: bytes) -> bytes:
    return content.lstrip()[:24]


def undecodable(error: UnicodeDecodeError) -> str:
    """Return why a text file cannot be read: what the file is, or the text before the first byte that is not UTF-8."""
    content = error.object
    wrong_kind = _wrong_kind(content)
    if wrong_kind:
        return f"not UTF-8 text at byte {error.start}: it {wrong_kind}"
    line = content.count(b"\n", 0, error.start) + 1
    text = content[: error.start].rpartition(b"\n")[2][-SHOWN_CHARACTERS:].decode(errors="replace")
    byte = content[error.start]
    return f"not UTF-8 text, line {line}: byte 0x{byte:02x} after {one_line(text)!r}; save the file as UTF-8"


def without_math(text: str) -> str:
    """Return a text of one line for matplotlib, which interprets text between two dollar signs as mathematics."""
    return one_line(text).replace("$", r"\$")
