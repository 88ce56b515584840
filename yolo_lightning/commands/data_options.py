"""Options of tools that look at a run's data: its configuration files and `--data.*`, as `fit` takes them."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser, Namespace

from yolo_lightning.data.datamodule import DetectionDataModule

SECTION = "data"


def call_with_data(
    function: Callable[..., Any],
    arguments: Sequence[str] | None = None,
    prog: str | None = None,
    bound: Callable[[Namespace], dict[str, Any]] | None = None,
    parser_class: type[ArgumentParser] = ArgumentParser,
) -> Any:
    """Call a tool whose argument `data` is a datamodule and whose other arguments are options of their own.

    Args:
        function: The tool; its docstring becomes the help.
        arguments: What was typed after the tool's name; null takes the command line.
        prog: How the command is called, for the help.
        bound: Returns the data options that follow from the weights which the given options name. They take the place
            of configured ones, not of those on the command line.
        parser_class: Class of the parser.

    Raises:
        ValueError: If a configuration file cannot be read or names an unknown data option.
    """
    summary = (function.__doc__ or "").partition("\n\n")[0]
    parser = parser_class(prog=prog, description=summary, allow_abbrev=False)
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="FILE",
        help="Configuration of a run, several lie over one another; only its `data` section counts.",
    )
    parser.add_class_arguments(DetectionDataModule, SECTION)
    parser.add_function_arguments(function, skip={SECTION}, as_group=False)
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--config", action="append", default=[], type=Path)
    for file in first.parse_known_args(arguments)[0].config:
        set_defaults(parser, file)
    options = parser.parse_args(arguments)
    if bound is not None:
        from yolo_lightning.model.network_settings import report_precedence

        values = bound(options)
        parser.set_defaults(values)
        configured, options = options, parser.parse_args(arguments)
        report_precedence(values, *({name: found.get(name) for name in values} for found in (configured, options)))
    given = parser.instantiate_classes(options).as_dict()
    del given["config"]
    return function(**given)


def set_defaults(parser: ArgumentParser, file: Path) -> None:
    """Make the data options of a configuration file the defaults; options that it does not name stay.

    Raises:
        ValueError: If the file is not a configuration, or names an unknown data option.
    """
    try:
        content = yaml.safe_load(file.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"configuration {file} cannot be read: {error}") from error
    section = content.get(SECTION, {}) if isinstance(content, dict) else None
    if not isinstance(section, dict):
        raise ValueError(f"configuration {file} has no section '{SECTION}' of options")
    known = parser.get_defaults()
    for name, value in flattened(section, SECTION, known).items():
        if name not in known:
            raise ValueError(f"configuration {file} names {name}, which is no option")
        parser.set_defaults({name: value})


def flattened(section: dict[str, Any], prefix: str, known: Any) -> dict[str, Any]:
    """The options of nested sections by their full name; a dictionary that is itself a value stays one."""
    flat: dict[str, Any] = {}
    for name, value in section.items():
        full = f"{prefix}.{name}"
        nested = isinstance(value, dict) and hasattr(known.get(full), "keys")
        flat |= flattened(value, full, known) if nested else {full: value}
    return flat
