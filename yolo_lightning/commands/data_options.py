"""Options of commands that read the data of a run: its configuration files and `--data.*`, as in `fit`."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from yolo_lightning.commands.option_layers import configuration_file
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.utils.yaml_file import read_yaml

SECTION = "data"


def call_with_data(
    function: Callable[..., Any],
    arguments: Sequence[str] | None = None,
    prog: str | None = None,
    bound: Callable[[Namespace], dict[str, Any]] | None = None,
    parser_class: type[ArgumentParser] = ArgumentParser,
) -> Any:
    """Call the function of a command with a data module as argument `data` and further arguments from options.

    The docstring of the function is the help text. `bound` returns the data options that are stored in the given
    weights. They override those of configuration files, but not those on the command line.
    """
    summary = (function.__doc__ or "").partition("\n\n")[0]
    parser = parser_class(prog=prog, description=summary, allow_abbrev=False)
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="FILE",
        help="Configuration file of a run; later files override earlier ones. Only the section `data` is read.",
    )
    parser.add_class_arguments(DetectionDataModule, SECTION)
    parser.add_function_arguments(function, skip={SECTION}, as_group=False)
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--config", action="append", default=[], type=configuration_file)
    for file in first.parse_known_args(arguments)[0].config:
        set_defaults(parser, Path(file))
    options = parser.parse_args(arguments)
    if bound is not None:
        from lightning.pytorch.utilities import rank_zero_info

        from yolo_lightning.model.network_settings import precedence

        values = bound(options)
        parser.set_defaults(values)
        configured, options = options, parser.parse_args(arguments)
        for line in precedence(
            values, *({name: found.get(name) for name in values} for found in (configured, options))
        ):
            rank_zero_info(line)
    given = parser.instantiate_classes(options).as_dict()
    del given["config"]
    return function(**given)


def set_defaults(parser: ArgumentParser, file: Path) -> None:
    """Use the data options of a configuration file as defaults; raise `ValueError` if the file is invalid."""
    try:
        content = read_yaml(file)
    except (OSError, ValueError) as error:
        raise ValueError(f"configuration {file} cannot be read: {error}") from error
    section = content.get(SECTION, {}) if isinstance(content, dict) else None
    if not isinstance(section, dict):
        raise ValueError(f"configuration {file} must have a section '{SECTION}' of options")
    known = parser.get_defaults()
    for name, value in flattened(section, SECTION, known).items():
        if name not in known:
            raise ValueError(f"configuration {file} has the unknown option {name}")
        parser.set_defaults({name: value})


def flattened(section: dict[str, Any], prefix: str, known: Any) -> dict[str, Any]:
    """Return the options of nested sections by their full name; dictionaries that are values are not flattened."""
    flat: dict[str, Any] = {}
    for name, value in section.items():
        full = f"{prefix}.{name}"
        nested = isinstance(value, dict) and hasattr(known.get(full), "keys")
        flat |= flattened(value, full, known) if nested else {full: value}
    return flat
