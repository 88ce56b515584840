"""Help, and errors for misspelled words, from a table of options in the user's cache folder, without importing torch.

The parser of a command stores the table when the command is used for the first time. The table is valid until a file of
this package or of Lightning changes.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from shutil import get_terminal_size
from types import NoneType
from typing import Any, Literal, get_args, get_origin
from zlib import crc32

from yolo_lightning.commands import OWN_OPTIONS, SUBCOMMANDS, TOOLS, WITH_RUN
from yolo_lightning.commands.option_errors import (
    SYNONYMS,
    fail,
    nearest_key,
    stray_word,
    unknown_command,
    unknown_key,
    wrong_choice,
    wrong_group,
)
from yolo_lightning.commands.option_layers import (
    HELP,
    PREFIX,
    TRUE,
    configuration_folder,
    divided,
    layers,
    named_values,
    stray_words,
    variable_of,
    with_run,
)
from yolo_lightning.commands.ultralytics_words import TASKS, command_of, options_of, translated
from yolo_lightning.errors import UserError
from yolo_lightning.utils.addresses import refuse_secrets
from yolo_lightning.utils.files import cache_folder, write_json
from yolo_lightning.utils.json_record import read_json
from yolo_lightning.utils.suggestions import did_you_mean, missing, similar
from yolo_lightning.utils.yaml_file import flatten, read_yaml

PROGRAM = "python -m yolo_lightning"
PACKAGE = Path(__file__).resolve().parents[1]
*HELP_WORDS, FULL_HELP = HELP
PICTURES = "predict PICTURES"
"""The command for images and videos, whose options differ from those of `predict` for a dataset."""
SHOWN = (
    *(
        "config",
        "resume",
        "detach",
        "ckpt_path",
        "mirror",
        "supervision.enabled",
        "data.root",
        "data.format",
        "data.image_size",
    ),
    *("data.batch_size", "data.loader.num_workers", "data.split.train_fraction", "data.augmentation.mosaic"),
    *("data.augmentation.close_mosaic_epochs", "model.variant", "model.weights", "model.recipe.optimizer"),
    *("model.recipe.lr0", "model.freeze", "model.convolution.backend", "model.detections.score_threshold"),
    *("model.detections.iou_threshold", "trainer.max_epochs", "trainer.accelerator", "trainer.devices"),
    *("trainer.precision", "trainer.default_root_dir", "seed_everything"),
)
"""Options in the short help of fit, validate, test and predict."""

SINGLE_HYPHEN = re.compile(r"-([a-zA-Z]\w[\w.]*)(?:=|$)")
SWITCH = [TRUE, "false"]
Table = Mapping[str, Any]  # `stamp`; `help`, a text; `options`: choices of each option by name, None for a group


def answer(words: Sequence[str]) -> list[str]:
    """Print the answer to a command line and exit, or return the command line that a parser has to read.

    Returns:
        The words, with RUN as the options of that run.

    Raises:
        SystemExit: After help, with code 0; after an error, with code 2.
        ValueError: If the command line contains credentials, or RUN is no run.
    """
    if not words or words[0] in HELP_WORDS:
        commands = "\n".join(f"  {name:<18}{purpose}" for name, purpose in {**SUBCOMMANDS, **TOOLS}.items())
        print(f"usage: {PROGRAM} COMMAND [options]\n\nTrain YOLO detectors on LTDv2 or your own images.\n")
        print(fitted(commands))
        print(f"\n{PROGRAM} COMMAND --help: options; --version: version")
        raise SystemExit(0 if words else 2)
    if (meant := command_of(words, [*SUBCOMMANDS, *TOOLS])) is not None:
        has_pictures = meant == "predict" and any(word.startswith("source=") for word in words)
        fail(translated(words, meant, _keys_of(PICTURES if has_pictures else meant)))
    if words[0] in TASKS:
        fail("a mode is missing: fit, validate, test, predict or export")
    if words[0] not in SUBCOMMANDS and words[0] not in TOOLS:
        fail(unknown_command(words[0], [*SUBCOMMANDS, *TOOLS]))
    refuse_secrets(words)
    command, *rest = words = with_run(words)
    rest = divided(rest, OWN_OPTIONS[command]) if command in OWN_OPTIONS else rest
    names = [PICTURES] if has_pictures_of(words) else [" ".join(words[:2]), command]  # with and without a section
    if (found := next(((name, table) for name in names if (table := stored(name)) is not None), None)) is not None:
        check(found[0], rest, found[1])
    if command in OWN_OPTIONS and (table := stored("fit")) is not None:
        check("fit", rest[rest.index("--") + 1 :], table)
    return words


def fitted(text: str) -> str:
    """Return a help text whose lines fit into the terminal; what follows a line is indented as its last column."""
    lines = []
    for line in text.splitlines():
        indent = " " * re.match(r"\s*(\S+\s{2,})?", line).end()  # type: ignore[union-attr] # matches every text
        lines += textwrap.wrap(line, get_terminal_size().columns, subsequent_indent=indent[:24]) or [""]
    return "\n".join(lines)


def _keys_of(command: str) -> list[str]:
    """Return the options of a command; at first use, its help stores their table."""
    if stored(command) is None:
        words = ["predict", "x"] if command == PICTURES else [command]
        line = [sys.executable, "-m", "yolo_lightning", *words, HELP_WORDS[1]]
        subprocess.run(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    options = (stored(command) or {"options": {}})["options"]
    return [key for key, choices in options.items() if choices is not None]


def has_pictures_of(words: Sequence[str]) -> bool:
    """Return whether a command line is `predict PICTURES`, not `predict` with a dataset."""
    return words[0] == "predict" and len(words) > 1 and not words[1].startswith("-")


def learn(command: str, parser: Any, words: Sequence[str]) -> list[str]:
    """Store the table of a parser and answer the words, unless `answer` did; return the words for the parser."""
    if FULL_HELP not in words and command.partition(" ")[0] in (*SUBCOMMANDS, *TOOLS) and stored(command) is None:
        table = {"stamp": stamp(), "help": _short_help(command, parser), "options": _options_of(parser)}
        with suppress(OSError):  # the next start learns again
            table_file(command).parent.mkdir(parents=True, exist_ok=True)
            write_json(table_file(command), table, indent=None)
        check(command, words, table)
    return [HELP_WORDS[1] if word == FULL_HELP else word for word in words]


def check(command: str, words: Sequence[str], table: Table) -> None:
    """Exit after help, or with an error for an unknown option, a value that is no choice, or a wrong file."""
    words = words[: list(words).index("--")] if "--" in words else words  # a command with options of its own follows
    if FULL_HELP in words:
        return
    if any(word in HELP_WORDS for word in words):
        print(fitted(table["help"]))
        raise SystemExit(0)
    options = table["options"]
    leaves = [key for key, choices in options.items() if choices is not None]
    for short in (found[1] for word in words if (found := SINGLE_HYPHEN.match(word))):
        if meant := short if accepts(options, short) else nearest_key(short, leaves):
            fail(f"options begin with two hyphens, got -{short}. Did you mean --{meant}?")
    source = layers([command, *words], os.environ)
    if command in SUBCOMMANDS:
        _check_variables(command)
    places = {name: f" in the environment variable {variable_of(command, name)}" for name in source.variables}
    given = [(name, text, places[name]) for name, text in source.variables.items()]
    for name, value, place in [*given, *((*one, "") for one in named_values(source.words))]:
        if not accepts(options, name):
            if command == "predict" and name == "source":
                fail(f"pictures have no option. Type: {PROGRAM} predict {shlex.quote(value)} --run RUN")
            if name.upper() in (usage := table["help"].partition("\n")[0]).split():
                fail(f"{name} has no option; {usage}")
            theirs = options_of(name, value, leaves) if name in ("device", "patience", "amp", "half") else None
            if theirs:
                fail(f"unknown key {name}. Did you mean {shlex.join(theirs)}?")
            value = "" if value.lower() in SWITCH else value  # of a switch; here it is a number or a name
            fail(unknown_key(name, leaves, source=place, value=value, hyphens="--"))
        if options.get(name) == SWITCH and value.lower() not in SWITCH:
            theirs = options_of(name, value, leaves)
            fail(f"{name} takes no value, got {value!r}{did_you_mean([shlex.join(theirs)] if theirs else [])}")
        if name in ("data", "model") and options.get(name, ()) is None and _is_of_ultralytics(value):
            theirs = options_of(name, value, leaves) or []
            fail(f"{name} must be set by its keys, got {value!r}. Did you mean {shlex.join(theirs)}?")
        if not value and command != "supervise":
            fail(f"{name}{place} must not be empty, got ''; leave the option out for its default")
        if (choices := options.get(name)) and value not in choices and choices != SWITCH:
            fail(wrong_choice(name, value, choices))
    if "trainer" in options and (stray := stray_words(source.words)):
        first = f"{stray[0]!r} follows no option; pictures come first: predict {stray[0]} --run RUN"
        fail(first if command == "predict" else stray_word(stray[0], leaves))
    for file in (file for file in source.files if ":" not in file):  # no configuration as text
        if os.path.isdir(file):
            fail(f"the file {file} of --config is a folder; pass a YAML file")
        if not os.path.isfile(file):
            known = sorted(file.stem for file in configuration_folder().glob("*.yaml"))
            fail(f"the file {file} of --config {missing(Path(file), known)} The package has {', '.join(known)}.")
        try:
            content = read_yaml(Path(file))
        except (OSError, UserError) as error:
            fail(f"the file {file} of --config cannot be read: {error}")
        if not isinstance(content, dict):
            got = "an empty file" if content is None else repr(content)
            fail(f"the file {file} of --config must contain keys and values, as 'data: {{root: PATH}}', got {got}")
        if "names" in content and "data.format" in options:
            fail(f"the file {file} of --config describes a dataset. Did you mean --config yolo --data.format {file}?")
        for key, value in flatten(content).items():
            is_read = "trainer" in options or key.startswith("data.")  # other commands read the section `data` only
            if is_read and not accepts(options, key):
                fail(unknown_key(key, leaves, source=f" in {file}"))
            is_file = isinstance(value, str) and os.path.isfile(value)
            if is_read and options.get(key, ()) is None and value not in (None, {}) and not is_file:
                fail(wrong_group(key, value, leaves, f" in {file}"))


def _check_variables(command: str) -> None:
    """Exit with an error for an environment variable that looks like an option and belongs to no command."""
    start, names = variable_of(command, ""), [variable_of(one, "") for one in SUBCOMMANDS]
    for name in os.environ:
        is_option = name.startswith(f"{PREFIX}_") and ("__" in name or name.startswith(start[:-1]))
        if is_option and not name.startswith(tuple(names)):
            meant = name.removeprefix(f"{PREFIX}_").removeprefix(f"{command.upper()}_")
            first, _, rest = meant.partition("__")
            meant = start + (rest if similar(first.lower(), SUBCOMMANDS) else meant)
            fail(f"the environment variable {name} is not used{did_you_mean([meant])}")


def _is_of_ultralytics(value: str) -> bool:
    """Return whether the value of --data or --model is weights, a variant or a data.yaml; no file with keys of both."""
    try:
        content = read_yaml(Path(value)) if value.endswith((".yaml", ".yml")) else {}
    except (OSError, ValueError):
        content = None
    return not value.startswith("{") and (not content or (isinstance(content, dict) and "names" in content))


def accepts(options: Mapping[str, Any], key: str) -> bool:
    """Return whether a key is an option, a group, or a part of an option that is no group, such as of a callback."""
    parts = key.split(".")
    known = next((".".join(parts[:n]) for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in options), None)
    return known is not None and (known == key or options[known] is not None)


def _options_of(parser: Any) -> dict[str, list[str] | None]:
    """Return the accepted values of each option of a parser; none for all values, None for a group of options.

    A switch, which needs no value, accepts `true` and `false`.
    """
    known = {name.removeprefix("--"): one for one in parser._actions for name in one.option_strings}
    groups = {key for key in known if any(other.startswith(f"{key}.") and other != f"{key}.help" for other in known)}
    switches = {key: SWITCH for key, action in known.items() if action.nargs == "?" and action.const is True}
    return {key: None if key in groups else _choices_of(action) for key, action in known.items()} | switches


def _choices_of(action: Any) -> list[str]:
    kind = getattr(action, "_typehint", None)
    kinds = [kind] if get_origin(kind) is Literal else get_args(kind)
    if any(get_origin(one) is not Literal and one is not NoneType for one in kinds):
        return []
    return list(dict.fromkeys(str(value) for one in kinds for value in get_args(one) or ("null",)))


def _short_help(command: str, parser: Any) -> str:
    """Return the help of a command: of fit, validate, test and predict the common options, of others all but `data.*`.

    Names of Ultralytics are in brackets.
    """
    is_tool = command not in SUBCOMMANDS
    shown = [one for one in parser._actions if one.dest in SHOWN or (is_tool and one.dest[:5] != "data.")]
    command = command.partition(" -")[0]  # `benchmark --help` is the help of no section
    places = [one.dest for one in shown if not one.option_strings and not (one.dest == "section" and " " in command)]
    lines = [f"usage: {' '.join((PROGRAM, command, *map(str.upper, places)))} [options]", ""]
    run_line = f"       {PROGRAM} {command} RUN [options]    with the configuration of a run"
    lines += [run_line, ""] * (command in WITH_RUN and command != "predict")
    lines += [f"       {PROGRAM} predict PICTURES [options]    any images and videos", ""] * (command == "predict")
    lines += [" ".join((SUBCOMMANDS.get(command) or parser.description or "").split()), ""]
    for one in shown:
        if type(one).__name__ in ("_ActionConfigLoad", "_ActionHelp", "_HelpAction", "_ActionPrintConfig"):
            continue
        default = "" if one.default is None else f" = {json.dumps(one.default, default=str)}".replace('"', "")
        theirs = ", ".join(name for name, keys in SYNONYMS.items() if one.dest in keys and name not in one.dest)
        name = f"--{one.dest}" if one.option_strings else one.dest.upper()
        lines.append(f"  {name}{default}{f' [{theirs}]' if theirs else ''}")
        purpose = " | ".join(_choices_of(one)) or (one.help or "").partition(". ")[0]
        lines.append(f"{'':6}{' '.join(purpose.split())}")
    return "\n".join([*lines, "", f"all options: {PROGRAM} {command} {FULL_HELP}"])


def stored(command: str) -> Table | None:
    """Return the valid table of a command, or None."""
    try:
        table = read_json(table_file(command))
        is_valid = table["stamp"] == stamp() and isinstance(table["help"], str) and isinstance(table["options"], dict)
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return table if is_valid else None


def table_file(command: str) -> Path:
    return cache_folder() / "options" / f"{command.replace(' ', '-')}-{crc32(bytes(PACKAGE)):08x}.json"


def stamp() -> list[int]:
    """Return the number of source files and their newest change."""
    lightning = find_spec("lightning")
    files = [*PACKAGE.rglob("*.py"), *([Path(lightning.origin)] if lightning and lightning.origin else [])]
    return [len(files), max(file.stat().st_mtime_ns for file in files)]
