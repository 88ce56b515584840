"""List of the runs in a folder."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from yolo_lightning.commands.monitor.run_state import RunState
from yolo_lightning.utils.moment import duration

UNKNOWN = "-"


def run_table(states: Sequence[RunState]) -> Table:
    """Return a table with state, epoch and best mAP50 of each run."""
    table = Table("run", "state", "for", "epoch", "best mAP50", box=SIMPLE_HEAD, pad_edge=False)
    for state in states:
        judgement = state.judgement
        elapsed = UNKNOWN
        if judgement.since_s is not None:
            elapsed = duration(state.now_s - judgement.since_s)
        table.add_row(Text(state.folder), judgement.verdict.value, elapsed, _epoch(state), _best(state))
    return table


def _epoch(state: RunState) -> str:
    if state.epoch is None:
        return UNKNOWN
    epochs = None if state.status is None else state.status.epochs
    if epochs is None:
        return str(state.epoch + 1)
    return f"{min(state.epoch + 1, epochs)} of {epochs}"


def _best(state: RunState) -> str:
    if state.status is None or state.status.best_map_50 is None:
        return UNKNOWN
    return f"{state.status.best_map_50:.4f}"
