"""YAML files of unknown origin: limited in size, nesting and aliases."""

import math
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

from yolo_lightning.errors import UserError, log_unexpected
from yolo_lightning.utils.plain_text import one_line, undecodable
from yolo_lightning.utils.regular_files import read_regular

FASTEST: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where PyYAML was built with libyaml
LARGEST_BYTES = 1 << 20  # 10,000 class names take 0.3 MB
MOST_ALIASES = 16  # ten lists of ten aliases each stand for ten thousand million values
DEEPEST = 64
TAB = re.compile(r" *\t")
TAG_PREFIX = "tag:yaml.org,2002:"
TEXT_TAG = f"{TAG_PREFIX}str"
NUMBER_TAGS = frozenset(f"{TAG_PREFIX}{name}" for name in ("float", "int"))
CONVERTED_TAGS = NUMBER_TAGS | {f"{TAG_PREFIX}bool"}
"""Types that `PlainLoader` gives to texts without quotes."""
DATE_TAG = f"{TAG_PREFIX}timestamp"


class _TimesAsTexts:
    """Mixin of loaders for which dates, `1:30` and `10:00:00:00` are texts.

    YAML 1.1 reads `1:30` as a number of base 60, and a date as an object that is written in another form.
    """

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        tag = super().resolve(kind, value, implicit)  # type: ignore[misc]
        if tag == DATE_TAG or (tag in NUMBER_TAGS and ":" in value):
            return TEXT_TAG
        return tag


class _ValueLoader(_TimesAsTexts, yaml.SafeLoader):
    """Loader of a value on the command line."""


class PlainLoader(_TimesAsTexts, FASTEST):  # type: ignore[misc]
    """Loader of plain values that refuses a key that is given twice, of which YAML would use the second value."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        doubled = [key for at, key in enumerate(keys) if key in keys[:at]]
        if doubled:
            raise UserError(f"the key {doubled[0]} is given twice, line {node.start_mark.line + 1} and following")
        return super().construct_mapping(node, deep)


class _LineDumper(yaml.SafeDumper):
    """Writer of one line in which all texts have quotes, so that no other reader of YAML converts them."""


_LineDumper.add_representer(str, lambda dumper, text: dumper.represent_scalar(TEXT_TAG, text, style='"'))


def read_yaml(path: Path, text_keys: Collection[str] = ()) -> Any:
    """Return the content of a YAML file of plain values.

    The values of `text_keys`, or their entries if they are lists or mappings, are texts as written: `007`, `1.50`,
    `yes` and `2024-01-01` are not converted to numbers, truth values and dates. `null` stays null.

    Raises:
        OSError: If the file cannot be read, is not a regular file or is too large.
        UserError: If it is not YAML, or has too many aliases or levels; the message is one line without the file name.
    """
    try:
        content = read_regular(path, LARGEST_BYTES).decode("utf-8-sig")
        aliases = 0
        opened = []
        for event in yaml.parse(content, Loader=PlainLoader):
            if isinstance(event, yaml.CollectionStartEvent):
                opened.append(event.anchor)
            elif isinstance(event, yaml.CollectionEndEvent):
                opened.pop()
            elif isinstance(event, yaml.AliasEvent):
                aliases += 1
                if event.anchor in opened:
                    raise UserError(f"the alias {event.anchor} contains itself")
            if aliases > MOST_ALIASES or len(opened) > DEEPEST:
                raise UserError(f"more than {MOST_ALIASES} aliases or {DEEPEST} levels")
        return _construct(content, text_keys)
    except (OSError, UserError):
        raise
    except UnicodeDecodeError as error:
        raise UserError(undecodable(error)) from error
    except Exception as error:  # PyYAML raises errors of many types
        log_unexpected(error, yaml.YAMLError, ValueError, TypeError, OverflowError, RecursionError, LookupError)
        lines = content.splitlines()
        tab = next((number for number, line in enumerate(lines, 1) if TAB.match(line)), None)
        if tab is not None:
            raise UserError(f"line {tab} begins with a tab: YAML is indented by spaces") from error
        raise UserError(_explained(error)) from error


def _explained(error: Exception) -> str:
    """Return an error of PyYAML in one line that begins with its place."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return one_line(str(error)) or type(error).__name__
    text = f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"  # type: ignore[attr-defined]
    if error.context:  # type: ignore[attr-defined]
        text += f" {error.context}"  # type: ignore[attr-defined]
    if "mapping" in text:
        text += "; keys of one level begin in the same column, and a space follows each colon"
    return one_line(text)


def _construct(text: str, text_keys: Collection[str]) -> Any:
    """Return the content of a YAML text; `text_keys` as in `read_yaml`."""
    loader = PlainLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        if isinstance(root, yaml.MappingNode):
            for key, value in root.value:
                if isinstance(key, yaml.ScalarNode) and key.value in text_keys:
                    _keep_texts(value)
        return loader.construct_document(root)
    finally:
        loader.dispose()


def _keep_texts(node: Any) -> None:
    """Let a value, the entries of a list or the values of a mapping be constructed as the texts that were written."""
    entries = [node]
    if isinstance(node, yaml.MappingNode):
        entries = [value for _, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        entries = node.value
    for entry in entries:
        if entry.tag in CONVERTED_TAGS:
            entry.tag = TEXT_TAG


def value_of(text: str) -> Any:
    """Return the plain value that YAML reads from a text, or the text itself if YAML cannot read it."""
    try:
        return yaml.load(text, _ValueLoader)
    except (yaml.YAMLError, ValueError):
        return text


def yaml_line(value: Any) -> str:
    """Return plain values as YAML in one line. Unlike JSON, YAML has infinity and NaN."""
    return yaml.dump(
        value, Dumper=_LineDumper, default_flow_style=True, width=math.inf, allow_unicode=True, sort_keys=False
    ).removesuffix("\n")
