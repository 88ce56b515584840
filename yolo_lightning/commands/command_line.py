"""The command line of the tools: the arguments of a function as options. Loads torch only for a tool that does.

A tool is a function, or a dictionary of functions where it has several commands. Where a function sets some of its
arguments apart as keywords, its other required ones are positional.
"""

import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from inspect import Parameter, signature
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, auto_cli

from yolo_lightning.commands import WITHOUT_TORCH

PROGRAM = "python -m yolo_lightning"
PACKAGE = "yolo_lightning"
BOUND = "bound_by_weights"
"""Function of a tool's module: the data options that follow from the weights which its options name."""
SWITCH_VALUES = ("true", "false", "yes", "no")
UNKNOWN_KEY = re.compile(
    r"(?:unrecognized arguments: --(?P<typed>[\w.]+)|does not accept (?:option|nested key) '(?P<configured>[\w.]+)')"
)
RENAMED_KEYS = {
    "data.keep_decoded_mib": "data.image_cache_mib",
    "data.loader.start_method": "data.loader.multiprocessing_context",
    "data.loader.workers": "data.loader.num_workers",
    "data.frames": "data.storage",
    "data.source": "data.format",
    "data.train_subset": "data.train_fraction",
    "data.valid_subset": "data.valid_fraction",
    "model.activations": "model.activation_checkpointing",
    "model.augment": "model.tta",
    "model.confidence": "model.score_threshold",
    "model.conv": "model.conv_backend",
    "model.conv_plan": "model.conv_algorithm",
    "model.conv_plan_budget_s": "model.conv_algorithm_budget_s",
    "model.max_halvings": "model.max_oom_splits",
    "model.nonfinite_in_a_row": "model.max_consecutive_nonfinite",
    "model.overlap": "model.iou_threshold",
    "supervision.floors": "supervision.phase_timeouts",
    "supervision.floors.exit_s": "supervision.phase_timeouts.exit_s",
    "supervision.floors.save_s": "supervision.phase_timeouts.save_s",
    "supervision.floors.step_s": "supervision.phase_timeouts.step_s",
    "augment": "tta",
    "confidence": "score_threshold",
    "overlap": "iou_threshold",
    "overlaps": "iou_thresholds",
    "confidences": "score_thresholds",
    "conv": "conv_backend",
    "conv_plan": "conv_algorithm",
    "conv_plan_budget_s": "conv_algorithm_budget_s",
    "trust": "allow_pickle",
}
"""Keys of earlier configurations whose new names `difflib` does not find."""

WRONG_OPTION = 2
"""Exit code of a command that was given what is not allowed, as argparse has it."""


def main() -> None:
    """Run the tool that the command line names, one that needs no torch."""
    name, *words = sys.argv[1:]
    assert name in WITHOUT_TORCH, name
    with user_errors():
        run_tool(name, words)


def run_tool(name: str, words: Sequence[str]) -> None:
    """Run a tool; its options are the arguments of its function, and the configuration of the data where it takes them.

    Args:
        name: Of the tool, its file and its function.
        words: What was typed after it.
    """
    module = import_module(f"yolo_lightning.commands.{name}")
    if hasattr(module, "__path__"):  # a command with a folder of its own
        module = import_module(f"yolo_lightning.commands.{name}.command")
    function: Callable[..., Any] | dict[str, Callable[..., Any]] = getattr(module, name)
    program = f"{PROGRAM} {name}"
    if isinstance(function, dict):
        auto_cli(
            function,
            args=list(words),
            as_positional=True,
            parser_class=ShortErrorToolParser,
            prog=program,
            description=module.__doc__,
        )
        return
    parameters = signature(function).parameters
    if "data" in parameters:
        from yolo_lightning.commands.data_options import call_with_data

        call_with_data(function, words, program, getattr(module, BOUND, None), ShortErrorToolParser)
        return
    purpose, _, _ = (function.__doc__ or "").partition("Args:")
    auto_cli(
        function,
        args=spelled_out(words, parameters),
        as_positional=any(one.kind is Parameter.KEYWORD_ONLY for one in parameters.values()),
        parser_class=ShortErrorToolParser,
        prog=program,
        description=purpose.strip(),
    )


def spelled_out(words: Sequence[str], parameters: Mapping[str, Parameter]) -> list[str]:
    """A switch without a value as `--json=true`, hyphens in an option's name as underscores; the rest as typed."""
    found = []
    for at, word in enumerate(words):
        typed, equals, value = word.removeprefix("--").partition("=")
        name = typed.replace("-", "_")
        if not word.startswith("--") or name not in parameters:
            found.append(word)
            continue
        has_value = bool(equals) or "".join(words[at + 1 : at + 2]).lower() in SWITCH_VALUES
        is_switch = parameters[name].annotation is bool
        found.append(f"--{name}=true" if is_switch and not has_value else f"--{name}{equals}{value}")
    return found


@contextmanager
def user_errors() -> Iterator[None]:
    """A `ValueError` of our own is a message to the user and ends with exit code 2; anything else keeps its traceback.

    Raises:
        SystemExit: With code 2.
    """
    try:
        yield
    except ValueError as error:
        if not is_ours(error):
            raise
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(WRONG_OPTION) from None


def is_ours(error: ValueError) -> bool:
    """Whether our own code raised the error, so that its text is meant for the user."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    module = frame.tb_frame.f_globals.get("__name__", "") if frame is not None else ""
    return module.split(".")[0] == PACKAGE


class ShortErrors:
    """Parser mixin: error messages without the list of all options, with the nearest key for an unknown one."""

    def print_usage(self, file: Any = None) -> None:
        """Print nothing: the hint at `--help` that follows is enough."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Exit with code 2; an unknown key is named together with the nearest known one."""
        super().error(with_nearest_key(message, known_keys(self)), ex)  # type: ignore[misc]
        raise SystemExit(WRONG_OPTION)


def known_keys(parser: Any) -> set[str]:
    """Return the keys that a parser and its subcommands accept, without leading hyphens."""
    keys = set()
    for action in parser._actions:
        keys |= {option.removeprefix("--") for option in action.option_strings if option.startswith("--")}
        for subparser in (getattr(action, "_name_parser_map", None) or {}).values():
            keys |= known_keys(subparser)
    return keys


def with_nearest_key(message: str, keys: Collection[str]) -> str:
    """Return an error message of jsonargparse; for an unknown key, name the key and the nearest of `keys`."""
    found = UNKNOWN_KEY.search(message)
    if found is None:
        return message
    key = found["typed"] or found["configured"]
    nearest = RENAMED_KEYS.get(key) or next(iter(get_close_matches(key, keys, 1)), None)
    return f"unknown key {key}" + (f". Did you mean {nearest}?" if nearest else "")


class ShortErrorToolParser(ShortErrors, ArgumentParser):  # type: ignore[misc]
    """Of a tool."""
