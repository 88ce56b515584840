"""`monitor`: how a run stands, in a terminal."""

import json as json_format
import sys
import time
from dataclasses import asdict
from datetime import datetime
from enum import IntEnum
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from yolo_lightning.commands.monitor.machine_sensors import MachineReader
from yolo_lightning.commands.monitor.read_run import check_holds_run, read_run
from yolo_lightning.commands.monitor.red_flags import red_flags
from yolo_lightning.commands.monitor.run_state import RunState
from yolo_lightning.commands.monitor.screen import buffer_s, screen
from yolo_lightning.commands.monitor.time_left import parse_deadline

FIRST_READING_S = 5.0


def monitor(
    run: Path, *, once: bool = False, json: bool = False, deadline: str | None = None, interval_s: float = 2.0
) -> None:
    """Show how a run stands: state, pace, time left, losses, scores, GPU, loader, checkpoints, incidents.

    Reads the run folder, /proc and the sensors only, and never touches the training; works during and after a run.
    Ctrl-C ends it. Where the output is no terminal, it shows the state once.

    Args:
        run: Run folder.
        once: Show it once and end.
        json: Print it once as one JSON object.
        deadline: When the run must be done, as YYYY-MM-DD or YYYY-MM-DDTHH:MM.
        interval_s: Seconds between two looks.

    Raises:
        ValueError: If an option is out of range, or the folder holds no run.
    """
    if not interval_s >= 0.1:
        raise ValueError(f"interval_s is {interval_s}, allowed are 0.1 and more")
    until = parse_deadline(deadline) if deadline is not None else None
    check_holds_run(run)
    machine = MachineReader(run, interval_s)
    if json:
        print(json_format.dumps(as_json(look(run, machine, FIRST_READING_S), until), indent=2))
        return
    console = Console()
    if once or not sys.stdout.isatty():
        console.print(screen(look(run, machine, FIRST_READING_S), until))
        return
    try:
        watch(console, run, machine, until, interval_s)
    except KeyboardInterrupt:
        return


def watch(console: Console, run: Path, machine: MachineReader, deadline: datetime | None, interval_s: float) -> None:
    """Until Ctrl-C; on the terminal's other screen, so that what was there before comes back."""
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(screen(look(run, machine, 0.5), deadline), refresh=True)
            time.sleep(interval_s)


def look(run: Path, machine: MachineReader, wait_s: float) -> RunState:
    """The state now, the sensors' last answers with it; waits at most `wait_s` seconds for their first."""
    state = read_run(run)
    machine.trainer = state.trainer.pid if state.trainer is not None else None
    return read_run(run, machine.latest(wait_s))


def as_json(state: RunState, deadline: datetime | None) -> dict[str, Any]:
    """For programs: all that is known, the red flags, seconds to spare; names instead of numbers of phases."""
    content = asdict(state, dict_factory=lambda pairs: {name: plain(value) for name, value in pairs})
    content["red_flags"] = red_flags(state)
    content["buffer_s"] = buffer_s(state, deadline) if deadline is not None else None
    return content


def plain(value: Any) -> Any:
    """A phase by its name."""
    return value.name.lower() if isinstance(value, IntEnum) else value
