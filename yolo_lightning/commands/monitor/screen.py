"""Renders the state of a run with rich, as a panel that fits into 80 columns and 24 lines."""

import re
from collections.abc import Iterator
from datetime import datetime

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from yolo_lightning.commands.console import duration, gigabytes, rate, share
from yolo_lightning.commands.monitor.run_state import (
    ALIVE,
    RunState,
    RunVerdict,
    red_flags,
)
from yolo_lightning.supervision.fallback_levels import AS_CONFIGURED
from yolo_lightning.supervision.incident import IncidentReport
from yolo_lightning.supervision.remaining_time import buffer_s
from yolo_lightning.supervision.run_status import Status
from yolo_lightning.utils.moment import moment

COLOURS = {
    RunVerdict.STARTING: "cyan",
    RunVerdict.RUNNING: "green",
    RunVerdict.FINISHED: "green",
    RunVerdict.RESTARTING: "yellow",
    RunVerdict.INTERRUPTED: "yellow",
}
"""Colours of states; all others are red."""

BAR_WIDTH = 24
WORKERS_SHOWN = RANKS_SHOWN = 8
LATE_REPORT_S = 30.0
CHECKPOINTS_SHOWN = 2
MAIN_LOSS = "train/loss"

Rows = Iterator[tuple[str, RenderableType]]  # label and content of each row


def screen(state: RunState) -> RenderableType:
    """Return the panel with all rows."""
    rows = Table.grid(padding=(0, 1), expand=True)
    rows.add_column(style="bold", width=7, no_wrap=True)
    rows.add_column(ratio=1)
    for part in (_progress_rows(state), _time_rows(state), _score_rows(state.status), _machine_rows(state)):
        for label, content in part:
            rows.add_row(label, content)
    parts: list[RenderableType] = [_headline(state), rows]
    parts += [Text(f"! {flag}", style="bold red") for flag in red_flags(state)]
    parts += [
        _incident_line(one, state.now_s, whole=number == 0)
        for number, one in enumerate(reversed(state.incidents))
        if one.sentence != state.judgement.sentence
    ]
    return Panel(
        Group(*parts),
        title=Text(state.folder, style="bold", overflow="ellipsis"),
        subtitle=datetime.fromtimestamp(state.now_s).strftime("%a %d %b %Y %H:%M:%S"),
        title_align="left",
        subtitle_align="right",
        border_style=COLOURS.get(state.judgement.verdict, "red"),
    )


def _headline(state: RunState) -> Text:
    """Return the state of the run, its start time, the number of restarts and the reason."""
    judgement, verdict, plain = state.judgement, state.judgement.verdict, "not bold default"
    text = Text(verdict.value.upper(), style=f"bold {COLOURS.get(verdict, 'red')}")
    if judgement.since_s is not None:
        elapsed = duration(state.now_s - judgement.since_s)
        text.append(f" since {moment(judgement.since_s, state.now_s)} ({elapsed})", style=plain)
    if state.standing is not None and verdict in ALIVE:
        level = f", fallback level: {AS_CONFIGURED}" if state.standing.fallback_level == AS_CONFIGURED else ""
        text.append(f"  restarts: {state.standing.restarts}{level}", style=plain)
    if judgement.sentence:
        text.append(f"\n{judgement.sentence}", style=plain)
        outcome = next((one.outcome for one in state.incidents if one.sentence == judgement.sentence), "")
        text.append(f" → {outcome}" if outcome else "", style="bold default")
    return text


def _progress_rows(state: RunState) -> Rows:
    """Yield lowered fallback levels, the phase of the training loop, and progress bars of epoch and run."""
    level = state.standing.fallback_level if state.standing is not None else ""
    if level not in ("", AS_CONFIGURED) and state.judgement.verdict in ALIVE:
        day, zone = datetime.fromtimestamp(state.now_s).astimezone().strftime("%Y-%m-%dT %z").split()
        yield "level", Text(re.sub(rf"{day}([\d:]+){re.escape(zone)}", r"\1", level))
    if state.phase is not None and state.judgement.verdict in ALIVE and state.phase_s is not None:
        timeout = f", timeout {duration(state.phase_timeout_s)}" if state.phase_timeout_s is not None else ""
        process = f", process {state.trainer.pid} ({state.trainer.state})" if state.trainer is not None else ""
        yield "phase", Text(f"{state.phase.label} for {duration(state.phase_s)}{timeout}{process}")
    # Ranks that do not wait for other ranks come first.
    for rank in sorted(state.ranks, key=lambda rank: rank.is_waiting)[:RANKS_SHOWN]:
        reported = max(0.0, state.now_s - rank.written_s)
        late = f" ({duration(reported)} ago)" if reported > LATE_REPORT_S else ""
        text = f"{rank.rank} on {rank.place} for {duration(rank.waited_s)}, step {rank.step:,}{late}"
        yield "rank", Text(text)
    status = state.status
    if status is None or state.epoch is None:
        return
    batch, per_epoch, epochs = state.batch or 0, status.batches_of(state.epoch), status.epochs
    epoch = f"{min(state.epoch + 1, epochs)} of {epochs}" if epochs else f"{state.epoch + 1}"
    yield "epoch", bar(batch, per_epoch, f"{epoch}, batch {batch:,} of {per_epoch:,}")
    if epochs:
        total = status.steps_after(-1)
        done = min(state.epoch * status.batches_per_epoch + batch, total)
        yield "run", bar(done, total, f"{share(done / total if total else None)}, step {state.step:,}")


def bar(done: int, total: int, text: str) -> RenderableType:
    """Return a progress bar followed by text."""
    line = Table.grid(padding=(0, 1))
    line.add_row(ProgressBar(total=max(total, 1), completed=done, width=BAR_WIDTH), Text(text))
    return line


def _time_rows(state: RunState) -> Rows:
    """Yield speed, estimated time of arrival and the deadline that the run is planned for."""
    status, verdict, left = state.status, state.judgement.verdict, state.remaining
    if status is None:
        return
    is_running = verdict is RunVerdict.RUNNING
    speed = []
    if status.step_s is not None:
        speed.append(f"{rate(status.step_s)} {'now' if is_running else 'last'}")
    if status.step:
        speed.append(f"{rate(status.trained_s / status.step)} on average")
    if status.fetch_share is not None:
        speed.append(f"{share(status.fetch_share)} waiting for data")
    yield "speed", Text(", ".join(speed) or "not timed yet")
    if verdict not in ALIVE:
        return
    epoch = "epoch " + ("estimating" if left.epoch_s is None else duration(left.epoch_s))
    if left.run_s is None:
        eta = "estimating" if left.epoch_s is None else f"{epoch}, run unknown: no trainer.max_epochs"
    else:
        eta = f"{epoch}, run {duration(left.run_s)}"
        if count := left.unmeasured_validations:
            eta += f" + {count} validation{'s' if count > 1 else ''} not yet timed"
        elif is_running:
            eta += f", done {moment(state.now_s + left.run_s, state.now_s)}"
    yield "ETA", Text(eta)
    if status.deadline_s is not None:
        text = Text(f"deadline {moment(status.deadline_s, state.now_s)}")
        if (margin_s := buffer_of(state)) is not None:
            words, style = ("to spare", "green") if margin_s >= 0 else ("too late", "bold red")
            text.append(": ").append(f"{duration(abs(margin_s))} {words}", style=style)
        if status.deadline_problem:
            text.append(f"; {status.deadline_problem}", style="bold red")
        yield "", text


def buffer_of(state: RunState) -> float | None:
    """Return the seconds from the estimated end of the run to its deadline, negative if late; None if unknown."""
    if state.status is None or state.judgement.verdict not in ALIVE:
        return None
    return buffer_s(state.status, state.remaining, state.now_s)


def _score_rows(status: Status | None) -> Rows:
    """Yield losses, learning rates and the latest scores."""
    if status is None:
        return
    losses = [
        number(value) if name == MAIN_LOSS else f"{name.rpartition('/')[2].removesuffix('_loss')} {number(value)}"
        for name, value in sorted(status.losses.items(), key=lambda item: item[0] != MAIN_LOSS)
    ]
    rates = sorted({number(value) for value in status.learning_rates.values()})
    if losses:
        yield "loss", Text(", ".join(losses) + (f"; lr {' / '.join(rates)}" if rates else ""))
    scores = [(one.values.get("val/map_50"), one.epoch + 1) for one in status.scores]
    maps = [f"{value:.4f} (epoch {epoch})" for value, epoch in scores if value is not None]
    if maps:
        yield "mAP50", Text(f"{', '.join(maps[-3:])}; best {number(status.best_map_50)}")


def _machine_rows(state: RunState) -> Rows:
    """Yield GPUs, memory, disk, loader workers and checkpoints."""
    machine = state.machine
    for gpu in machine.gpus:
        readings = [
            None if gpu.busy_share is None else f"{share(gpu.busy_share)} busy",
            None if gpu.temperature_c is None else f"{gpu.temperature_c:.0f} °C",
            None if gpu.power_w is None else f"{gpu.power_w:.0f} W",
        ]
        if gpu.memory_used_bytes is not None and gpu.memory_bytes is not None:
            readings.append(f"{gigabytes(gpu.memory_used_bytes)} of {gigabytes(gpu.memory_bytes)}")
        yield "GPU", Text(", ".join([gpu.name, *filter(None, readings)]))
    host = []
    if machine.memory is not None:
        host.append(f"memory {gigabytes(machine.memory.used_bytes)} of {gigabytes(machine.memory.total_bytes)}")
    processes = [one for one in (state.trainer, *state.workers) if one is not None]
    if processes:
        host.append(f"this run {gigabytes(sum(one.memory_bytes for one in processes))}")
    if machine.disk is not None:
        free_bytes = machine.disk.total_bytes - machine.disk.used_bytes
        host.append(f"disk {gigabytes(free_bytes)} free ({share(machine.disk.free_share)})")
    if host:
        yield "host", Text(", ".join(host))
    if state.trainer is not None and state.status is not None:
        count = len(state.workers)
        text = Text(f"{count} worker{'' if count == 1 else 's'}")
        for index, worker in enumerate(state.workers[:WORKERS_SHOWN]):
            style = "" if worker.state in "RSI" else "bold red"
            text.append(", " if index else ": ").append(f"{worker.pid} ({worker.state})", style=style)
        yield "loader", text.append(f" and {count - WORKERS_SHOWN} more" if count > WORKERS_SHOWN else "")
    if state.checkpoints:
        shown = (
            f"{one.name} {duration(one.age_s)} ago, {gigabytes(one.size_bytes)}"
            for one in state.checkpoints[:CHECKPOINTS_SHOWN]
        )
        yield "saved", Text("; ".join(shown))


def _incident_line(one: IncidentReport, now_s: float, *, whole: bool) -> Text:
    """Return time, cause and outcome of an incident; cut to one line unless `whole` is set."""
    sentence = one.sentence if one.sentence.startswith(one.kind) else f"{one.kind}: {one.sentence}"
    text = Text(f"{moment(one.time_s, now_s)} ", "yellow", no_wrap=not whole, overflow=None if whole else "ellipsis")
    text.append(sentence, style="default")
    return text.append(f" → {one.outcome}", style="bold default") if one.outcome else text


def number(value: float | None) -> str:
    """Return a value with four significant digits."""
    return "not finite" if value is None else f"{value:.4g}"
