"""Random changes of a file: bytes, numbers, texts, pieces, and the structure of JSON."""

import json
import random
import re
from copy import deepcopy
from typing import Any

NUMBER = re.compile(rb"-?\d+(\.\d+)?([eE][-+]?\d+)?")
NUMBERS = (
    b"-1", b"0", b"1", b"255", b"65536", b"2147483647", b"4294967295", b"9223372036854775807", b"18446744073709551616",
    b"99999999999", b"-99999999999", b"1e400", b"-1e308", b"NaN", b"Infinity", b"-Infinity", b"0.1", b"1e-320",
    b"9" * 5000, b"null", b"true", b'"1"', b"[]", b"{}",
)  # fmt: skip
TEXTS = (
    b"\x1b[2J\x1b]0;title\x07", b"\xc2\x9b31m", b"\xe2\x80\xae", b"=cmd|' /C calc'!A0", b"$\\frac$", b"../../x",
    b"/dev/zero", b"\x00", b"\n", b"\r\n", b"\xff\xfe", b"\xed\xa0\x80", b"a" * 300, b"%s%n", b"\\ud800", b"'", b'"',
    b"{", b"[", b"}", b"]", b": ", b"- ", b"&a ", b"*a ", b"<<: ", b"!!python/object:os.x ", b"!!timestamp 2020-99-99 ",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1 << 31, 1 << 63, 1 << 64, 10**400, -(10**30), 0.5, 1e308, float("nan"), float("inf"),
    "", "a" * 300, "\x1b[31m", "=1+1", "$x$", "\ud800", "../../x", "/dev/zero", "a\nb\0c", [], {}, [[]], [None],
)  # fmt: skip
LARGEST_GROWTH = 1 << 20  # bytes


def mutated(content: bytes, chance: random.Random) -> bytes:
    """Return a file with one to eight random changes."""
    if chance.random() < 0.4 and (changed := _json_mutated(content, chance)) is not None:
        return changed
    for _ in range(1 if chance.random() < 0.5 else chance.randint(2, 8)):
        content = chance.choice(CHANGES)(content, chance)
    return content


def _json_mutated(content: bytes, chance: random.Random) -> bytes | None:
    """Return JSON in which values have been replaced, removed, repeated or nested; None if the file is not JSON."""
    try:
        tree = json.loads(content)
    except (ValueError, RecursionError):
        return None
    for _ in range(chance.randint(1, 3)):
        tree = _changed_tree(tree, chance)
    text = json.dumps(tree)
    if chance.random() < 0.03:
        depth = chance.choice((100, 2000, 200_000))
        text = text.replace("0", "[" * depth + "]" * depth, 1)
    return text.encode(errors="surrogatepass")


def _changed_tree(tree: Any, chance: random.Random) -> Any:
    if not isinstance(tree, dict | list) or not tree or chance.random() < 0.15:
        return deepcopy(chance.choice(VALUES))
    key = chance.choice(list(tree) if isinstance(tree, dict) else range(len(tree)))
    kind = chance.random()
    if kind < 0.1:
        del tree[key]
    elif kind < 0.2 and isinstance(tree, list):
        tree.insert(key, deepcopy(tree[key]))
    elif kind < 0.3 and isinstance(tree, dict):
        tree[str(chance.choice(VALUES))[:300]] = deepcopy(tree[key])
    else:
        tree[key] = _changed_tree(tree[key], chance)
    return tree


def flip(content: bytes, chance: random.Random) -> bytes:
    if not content:
        return b"\0"
    changed, place = bytearray(content), chance.randrange(len(content))
    changed[place] = changed[place] ^ 1 << chance.randrange(8) if chance.random() < 0.5 else chance.randrange(256)
    return bytes(changed)


def overwrite(content: bytes, chance: random.Random) -> bytes:
    """Replace 2, 4 or 8 bytes, as in a binary header, by a number at the edge of its range."""
    width = chance.choice((2, 4, 8))
    if len(content) < width:
        return content
    place = chance.randrange(len(content) - width + 1)
    top = 1 << 8 * width
    value = chance.choice((0, 1, top - 1, top // 2, top // 2 - 1, chance.randrange(top), len(content)))
    return content[:place] + (value % top).to_bytes(width, chance.choice(("little", "big"))) + content[place + width :]


def cut(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content) + 1)
    return content[:place] if chance.random() < 0.5 else content[:place] + content[place + chance.randint(1, 64) :]


def repeat(content: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(content) + 1)
    piece = content[start : start + chance.randint(1, 256)]
    times = min(chance.choice((1, 2, 10, 1000)), LARGEST_GROWTH // max(1, len(piece)))
    place = chance.randrange(len(content) + 1)
    return content[:place] + piece * times + content[place:]


def number(content: bytes, chance: random.Random) -> bytes:
    matches = list(NUMBER.finditer(content))
    if not matches:
        return flip(content, chance)
    match = chance.choice(matches)
    return content[: match.start()] + chance.choice(NUMBERS) + content[match.end() :]


def text(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content) + 1)
    return content[:place] + chance.choice(TEXTS) + content[place:]


def _nest(content: bytes, chance: random.Random) -> bytes:
    depth, place = chance.choice((100, 100, 100, 5000, 5000, 100_000)), chance.randrange(len(content) + 1)
    opening, closing = chance.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"- ", b"")))
    return content[:place] + opening * depth + closing * depth + content[place:]


CHANGES = (flip, flip, overwrite, overwrite, cut, repeat, number, number, text, text, _nest)
