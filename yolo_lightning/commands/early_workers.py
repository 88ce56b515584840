"""Starts the fork server of the loader's workers before this process imports torch and Lightning, which takes seconds.

The server imports torch in the same seconds on another core. Otherwise the first batch waits for that import.
"""

from collections.abc import Sequence
from pathlib import Path

from yolo_lightning.commands.option_layers import FILE_OPTION, separated
from yolo_lightning.data.worker_processes import start_fork_server
from yolo_lightning.supervision import is_supervised
from yolo_lightning.utils.yaml_file import flatten, read_yaml

COMMANDS = ("fit", "validate", "test")
DEFAULTS = {
    "supervision.enabled": "false",
    "data.loader.multiprocessing_context": "spawn",
    "data.loader.num_workers": "auto",
    "data.loader.worker_threads": "1",
}


def start_early(words: Sequence[str]) -> None:
    """Start the fork server if the command will start workers that are forked from it.

    Environment variables and options of a whole group (`--data.loader '{...}'`) are not read: the first worker starts
    the server then.

    Args:
        words: Command line from the command on; `quick_answers` has checked its configuration files.
    """
    if not words or words[0] not in COMMANDS:
        return
    supervision, context, number, threads = (stated(words[1:], name, DEFAULTS[name]) for name in DEFAULTS)
    becomes_supervisor = words[0] == "fit" and supervision == "true" and not is_supervised()
    if context == "forkserver" and number != "0" and threads == "1" and not becomes_supervisor:
        start_fork_server(threads=1)


def stated(words: Sequence[str], key: str, default: str) -> str:
    """Return the value of an option by the configuration files and the command line, in lower case."""
    files, options = separated(words)
    value = default
    for file in (Path(word.removeprefix(f"{FILE_OPTION}=")) for word in files):
        if file.is_file():
            value = str(flatten(read_yaml(file)).get(key, value))
    for at, word in enumerate(options):
        name, equals, own = word.partition("=")
        if name == f"--{key}":
            value = own if equals else next(iter(options[at + 1 : at + 2]), "")
    return value.lower()
