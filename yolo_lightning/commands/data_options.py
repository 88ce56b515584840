"""Options `data.*` of commands that read the data of a run: from configuration files, and from weights."""

from collections.abc import Iterable, Sequence
from typing import Any

from jsonargparse import ArgumentParser, Namespace
from lightning.pytorch.utilities import rank_zero_info

from yolo_lightning.checkpoints.resume import chosen_checkpoint
from yolo_lightning.data.formats.choose_format import format_class
from yolo_lightning.model.network_settings import bound_options, precedence, read_record
from yolo_lightning.options.run_spec import CONFIG, Setting, read_configuration, separated
from yolo_lightning.utils.nested_keys import nested

SECTION = "data"


def with_recorded(words: Sequence[str], parser: ArgumentParser, *, has_weights: bool) -> list[str]:
    """Return a command line with the sections `data` of its configuration files, and the options that weights record.

    With `has_weights`, the data options of the checkpoint of `--run` or `--checkpoint` override those of configuration
    files, but not those on the command line; the differences are logged.
    """
    files, options = separated(words)
    configured = [_section(file) for file in files]
    if not has_weights:
        return [*configured, *options]
    before = parser.parse_args([*configured, *options])
    checkpoint = chosen_checkpoint(before.run, before.checkpoint)
    bound = bound_options(read_record(checkpoint), is_gray=format_class(before.data.format).is_gray)
    recorded = {name: value for name, value in bound.items() if name.startswith(f"{SECTION}.")}
    overridden = [*configured, Setting(CONFIG, nested(recorded)).word, *options]
    after = parser.parse_args(overridden)
    for line in precedence(recorded, _values(before, recorded), _values(after, recorded)):
        rank_zero_info(line)
    return overridden


def _values(arguments: Namespace, names: Iterable[str]) -> dict[str, Any]:
    """Return the values of options, with lists instead of tuples, as in YAML."""
    values = {name: arguments.get(name) for name in names}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _section(file: str) -> str:
    """Return the section `data` of a configuration file as a word of the command line."""
    return Setting(CONFIG, {SECTION: read_configuration(file).get(SECTION, {})}).word
