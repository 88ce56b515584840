"""Renders the state of a run with rich, as a panel that fits into 80 columns and 24 lines."""

import re
from collections.abc import Iterator, Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from yolo_lightning.commands.console import count_text, gigabytes, rate, share
from yolo_lightning.commands.monitor.run_state import RunState, RunVerdict, red_flags
from yolo_lightning.supervision.fallback_levels import AS_CONFIGURED
from yolo_lightning.supervision.incident import IncidentReport
from yolo_lightning.supervision.run_status import Status, buffer_s
from yolo_lightning.utils.moment import duration, moment
from yolo_lightning.utils.process_identity import Process
from yolo_lightning.utils.sensors import GpuReading

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
    for incident in reversed(state.incidents):
        if incident.sentence != state.judgement.sentence:
            parts.append(_incident_line(incident, state.now_s, whole=incident is state.incidents[-1]))
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
    judgement = state.judgement
    plain = "not bold default"
    line = Text(judgement.verdict.value.upper(), style=f"bold {COLOURS.get(judgement.verdict, 'red')}")
    if judgement.since_s is not None:
        elapsed = duration(state.now_s - judgement.since_s)
        line.append(f" since {moment(judgement.since_s, state.now_s)} ({elapsed})", style=plain)
    if state.standing is not None and state.is_alive:
        line.append(f"  restarts: {state.standing.restarts}", style=plain)
        if state.standing.fallback_level == AS_CONFIGURED:
            line.append(f", fallback level: {AS_CONFIGURED}", style=plain)
    if judgement.sentence:
        line.append(f"\n{judgement.sentence}", style=plain)
        outcomes = [incident.outcome for incident in state.incidents if incident.sentence == judgement.sentence]
        if outcomes and outcomes[0]:
            line.append(f" → {outcomes[0]}", style="bold default")
    return line


def _progress_rows(state: RunState) -> Rows:
    """Yield lowered fallback levels, the phase of the training loop, and progress bars of epoch and run."""
    standing = state.standing
    if standing is not None and state.is_alive and standing.fallback_level not in ("", AS_CONFIGURED):
        day, zone = datetime.fromtimestamp(state.now_s).astimezone().strftime("%Y-%m-%dT %z").split()
        yield "level", Text(re.sub(rf"{day}([\d:]+){re.escape(zone)}", r"\1", standing.fallback_level))
    if state.phase is not None and state.is_alive and state.phase_s is not None:
        phase = f"{state.phase.label} for {duration(state.phase_s)}"
        if state.phase_timeout_s is not None:
            phase += f", timeout {duration(state.phase_timeout_s)}"
        if state.trainer is not None:
            phase += f", process {state.trainer.pid} ({state.trainer.state})"
        yield "phase", Text(phase)
    # Ranks that do not wait for other ranks come first.
    for rank in sorted(state.ranks, key=lambda rank: rank.is_waiting)[:RANKS_SHOWN]:
        line = f"{rank.rank} on {rank.place} for {duration(rank.waited_s)}, step {rank.step:,}"
        reported_s = max(0.0, state.now_s - rank.written_s)
        if reported_s > LATE_REPORT_S:
            line += f" ({duration(reported_s)} ago)"
        yield "rank", Text(line)
    status = state.status
    if status is None or state.epoch is None:
        return
    batch = state.batch or 0
    batches = status.batches_of(state.epoch)
    epochs = status.epochs
    epoch = f"{state.epoch + 1}"
    if epochs:
        epoch = f"{min(state.epoch + 1, epochs)} of {epochs}"
    yield "epoch", bar(batch, batches, f"{epoch}, batch {batch:,} of {batches:,}")
    if epochs:
        total = status.steps_after(-1)
        trained = min(state.epoch * status.batches_per_epoch + batch, total)
        yield "run", bar(trained, total, f"{share(trained / total if total else None)}, step {state.step:,}")


def bar(completed: int, total: int, label: str) -> RenderableType:
    """Return a progress bar followed by a label."""
    line = Table.grid(padding=(0, 1))
    line.add_row(ProgressBar(total=max(total, 1), completed=completed, width=BAR_WIDTH), Text(label))
    return line


def _time_rows(state: RunState) -> Rows:
    """Yield speed, estimated time of arrival and the deadline that the run is planned for."""
    status = state.status
    if status is None:
        return
    yield "speed", Text(_speed(status, state.judgement.verdict))
    if state.is_alive:
        yield "ETA", Text(_arrival(state))
        if status.deadline_s is not None:
            yield "", _deadline(state, status, status.deadline_s)


def _speed(status: Status, verdict: RunVerdict) -> str:
    parts = []
    if status.step_s is not None:
        when = "now" if verdict is RunVerdict.RUNNING else "last"
        parts.append(f"{rate(status.step_s)} {when}")
    if status.step:
        parts.append(f"{rate(status.trained_s / status.step)} on average")
    if status.fetch_share is not None:
        parts.append(f"{share(status.fetch_share)} waiting for data")
    return ", ".join(parts) or "not timed yet"


def _arrival(state: RunState) -> str:
    """Return the remaining time of the epoch and of the run, and the time of the end."""
    remaining = state.remaining
    if remaining.run_s is None and remaining.epoch_s is None:
        return "estimating"
    epoch = "epoch estimating"
    if remaining.epoch_s is not None:
        epoch = f"epoch {duration(remaining.epoch_s)}"
    if remaining.run_s is None:
        return f"{epoch}, run unknown: no trainer.max_epochs"
    arrival = f"{epoch}, run {duration(remaining.run_s)}"
    validations = remaining.unmeasured_validations
    if validations:
        return f"{arrival} + {count_text(validations, 'validation')} not yet timed"
    if state.judgement.verdict is RunVerdict.RUNNING:
        arrival += f", done {moment(state.now_s + remaining.run_s, state.now_s)}"
    return arrival


def _deadline(state: RunState, status: Status, deadline_s: float) -> Text:
    line = Text(f"deadline {moment(deadline_s, state.now_s)}")
    margin_s = buffer_of(state)
    if margin_s is not None and margin_s >= 0:
        line.append(": ").append(f"{duration(margin_s)} to spare", style="green")
    elif margin_s is not None:
        line.append(": ").append(f"{duration(-margin_s)} too late", style="bold red")
    if status.deadline_problem:
        line.append(f"; {status.deadline_problem}", style="bold red")
    return line


def buffer_of(state: RunState) -> float | None:
    """Return the seconds from the estimated end of the run to its deadline, negative if late; None if unknown."""
    if state.status is None or not state.is_alive:
        return None
    return buffer_s(state.status, state.remaining, state.now_s)


def _score_rows(status: Status | None) -> Rows:
    """Yield losses, learning rates and the latest scores."""
    if status is None:
        return
    losses = []
    for name in sorted(status.losses, key=lambda name: name != MAIN_LOSS):
        label = "" if name == MAIN_LOSS else name.rpartition("/")[2].removesuffix("_loss")
        losses.append(f"{label} {number(status.losses[name])}".lstrip())
    if losses:
        line = ", ".join(losses)
        rates = sorted({number(value) for value in status.learning_rates.values()})
        if rates:
            line += f"; lr {' / '.join(rates)}"
        yield "loss", Text(line)
    maps = []
    for scores in status.scores:
        map_50 = scores.values.get("val/map_50")
        if map_50 is not None:
            maps.append(f"{map_50:.4f} (epoch {scores.epoch + 1})")
    if maps:
        yield "mAP50", Text(f"{', '.join(maps[-3:])}; best {number(status.best_map_50)}")


def _machine_rows(state: RunState) -> Rows:
    """Yield GPUs, memory, disk, loader workers and checkpoints."""
    for gpu in state.machine.gpus:
        yield "GPU", Text(_gpu(gpu))
    host = _host(state)
    if host:
        yield "host", Text(host)
    if state.trainer is not None and state.status is not None:
        yield "loader", _workers(state.workers)
    if state.checkpoints:
        saved = []
        for checkpoint in state.checkpoints[:CHECKPOINTS_SHOWN]:
            saved.append(f"{checkpoint.name} {duration(checkpoint.age_s)} ago, {gigabytes(checkpoint.size_bytes)}")
        yield "saved", Text("; ".join(saved))


def _gpu(gpu: GpuReading) -> str:
    readings = [gpu.name]
    if gpu.busy_share is not None:
        readings.append(f"{share(gpu.busy_share)} busy")
    if gpu.temperature_c is not None:
        readings.append(f"{gpu.temperature_c:.0f} °C")
    if gpu.power_w is not None:
        readings.append(f"{gpu.power_w:.0f} W")
    if gpu.memory_used_bytes is not None and gpu.memory_bytes is not None:
        readings.append(f"{gigabytes(gpu.memory_used_bytes)} of {gigabytes(gpu.memory_bytes)}")
    return ", ".join(readings)


def _host(state: RunState) -> str:
    """Return main memory, memory of the run, and free disk space; empty if all are unknown."""
    memory = state.machine.memory
    disk = state.machine.disk
    readings = []
    if memory is not None:
        readings.append(f"memory {gigabytes(memory.used_bytes)} of {gigabytes(memory.total_bytes)}")
    processes = [process for process in (state.trainer, *state.workers) if process is not None]
    if processes:
        readings.append(f"this run {gigabytes(sum(process.memory_bytes for process in processes))}")
    if disk is not None:
        readings.append(f"disk {gigabytes(disk.free_bytes)} free ({share(disk.free_share)})")
    return ", ".join(readings)


def _workers(workers: Sequence[Process]) -> Text:
    line = Text(count_text(len(workers), "worker"))
    separator = ": "
    for worker in workers[:WORKERS_SHOWN]:
        style = "" if worker.state in "RSI" else "bold red"
        line.append(separator).append(f"{worker.pid} ({worker.state})", style=style)
        separator = ", "
    if len(workers) > WORKERS_SHOWN:
        line.append(f" and {len(workers) - WORKERS_SHOWN} more")
    return line


def _incident_line(incident: IncidentReport, now_s: float, *, whole: bool) -> Text:
    """Return time, cause and outcome of an incident; cut to one line unless `whole` is set."""
    line = Text(f"{moment(incident.time_s, now_s)} ", "yellow")
    if not whole:
        line.no_wrap = True
        line.overflow = "ellipsis"
    if not incident.sentence.startswith(incident.kind):
        line.append(f"{incident.kind}: ", style="default")
    line.append(incident.sentence, style="default")
    if incident.outcome:
        line.append(f" → {incident.outcome}", style="bold default")
    return line


def number(value: float | None) -> str:
    """Return a value with four significant digits."""
    if value is None:
        return "not finite"
    return f"{value:.4g}"
