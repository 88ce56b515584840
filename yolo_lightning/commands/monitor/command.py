"""`python -m yolo_lightning monitor`: shows the state of a run in the terminal."""

import json as json_format
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from yolo_lightning.commands.monitor.read_run import check_holds_run, read_run
from yolo_lightning.commands.monitor.run_state import RunState, red_flags
from yolo_lightning.commands.monitor.screen import buffer_s, planned_deadline, screen
from yolo_lightning.utils.machine_reader import MachineReader
from yolo_lightning.utils.moment import parse_moment

FIRST_READING_S, LIVE_READING_S = 5.0, 0.5
"""Seconds to wait for the first readings of the sensors: for a single output, and for the live display."""


def monitor(
    run: Path, *, once: bool = False, json: bool = False, deadline: str | None = None, interval_s: float = 2.0
) -> None:
    """Show the state of a run: phase, speed, ETA, losses, scores, GPU, loader workers, checkpoints, incidents.

    Works during a run and after its end. Reads only the run folder, /proc and the sensors. Ctrl-C exits. If the output
    is not a terminal, the state is shown once.

    Args:
        run: Run folder.
        once: Show the state once and exit.
        json: Print the state once as one JSON object.
        deadline: When the run must be finished, as YYYY-MM-DD or YYYY-MM-DDTHH:MM.
        interval_s: Seconds between two updates.
    """
    if not interval_s >= 0.1:
        raise ValueError(f"--interval_s must be >= 0.1, got {interval_s}.")
    until = parse_moment("--deadline", deadline) if deadline is not None else None
    check_holds_run(run)
    machine, console = MachineReader(run, interval_s), Console()
    if json:
        print(json_format.dumps(as_json(read_run(run, machine.latest(FIRST_READING_S)), until), indent=2))
    elif once or not sys.stdout.isatty():
        console.print(screen(read_run(run, machine.latest(FIRST_READING_S)), until))
    else:
        # The alternate screen: the previous content of the terminal is restored at the end.
        with suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(screen(read_run(run, machine.latest(LIVE_READING_S)), until), refresh=True)
                time.sleep(interval_s)


def as_json(state: RunState, deadline: datetime | None) -> dict[str, Any]:
    """Return the state as JSON data, with warnings, seconds until the deadline, and phases by name."""
    content = asdict(state)
    content["phase"] = None if state.phase is None else state.phase.name.lower()
    content["red_flags"] = red_flags(state)
    deadline = deadline or planned_deadline(state.status)
    content["buffer_s"] = buffer_s(state, deadline) if deadline is not None else None
    return content
