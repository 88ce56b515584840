"""`python -m yolo_lightning monitor`: shows the state of a run in the terminal."""

import json as json_format
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from yolo_lightning.commands.monitor.read_run import RUNS, check_holds_run, find_runs, read_run
from yolo_lightning.commands.monitor.run_list import run_table
from yolo_lightning.commands.monitor.run_state import RunState, red_flags
from yolo_lightning.commands.monitor.screen import buffer_of, screen
from yolo_lightning.errors import UserError
from yolo_lightning.utils.paths import user_path
from yolo_lightning.utils.sensors import MachineReader
from yolo_lightning.utils.terminal import has_cursor_control

INTERVAL_S = 2.0
FIRST_READING_S = 5.0
LIVE_READING_S = 0.5
"""Seconds to wait for the first readings of the sensors: for a single output, and for the live display."""


def monitor(*, run: Path | None = None, once: bool = False, json: bool = False) -> None:
    """Show the state of a run: phase, speed, ETA, losses, scores, GPU, loader workers, checkpoints, incidents.

    Works during a run and after its end. Reads only the run folder, /proc and the sensors. Ctrl-C exits. If the output
    is not a terminal, or one without cursor control (`TERM=dumb`), the state is shown once.

    Args:
        run: Run folder. Without a run, all runs in this folder and in its folder `runs` are listed once.
        once: Show the state once and exit.
        json: Print the state once as one JSON object.
    """
    if run is None:
        _list_runs(json)
        return
    run = user_path(run)
    check_holds_run(run)
    machine = MachineReader(run, INTERVAL_S)
    console = Console()
    if json:
        print(json_format.dumps(as_json(read_run(run, machine.latest(FIRST_READING_S))), indent=2))
    elif once or not has_cursor_control(sys.stdout):
        console.print(screen(read_run(run, machine.latest(FIRST_READING_S))))
    else:
        # The alternate screen: the previous content of the terminal is restored at the end.
        with suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(screen(read_run(run, machine.latest(LIVE_READING_S))), refresh=True)
                time.sleep(INTERVAL_S)


def _list_runs(json: bool) -> None:
    """Print state, epoch and best score of all runs of the working folder."""
    folders = find_runs(Path())
    if not folders:
        raise UserError(f"There is no run in {Path.cwd()} and its folder {RUNS}. Type: monitor RUN, a run folder.")
    states = [read_run(folder) for folder in folders]
    if json:
        print(json_format.dumps([as_json(state) for state in states], indent=2))
    else:
        Console().print(run_table(states))


def as_json(state: RunState) -> dict[str, Any]:
    """Return the state as JSON data, with warnings, seconds until the deadline, and phases by name."""
    content = asdict(state)
    content["phase"] = None if state.phase is None else state.phase.name.lower()
    content["red_flags"] = red_flags(state)
    content["buffer_s"] = buffer_of(state)
    return content
