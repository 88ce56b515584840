"""Draws a run's state with rich: a panel of short lines that fits 80 columns and 24 lines."""

from collections.abc import Iterator
from datetime import datetime

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from yolo_lightning.commands.monitor.judgement import name_of
from yolo_lightning.commands.monitor.red_flags import red_flags
from yolo_lightning.commands.monitor.run_state import ALIVE, Checkpoint, PastIncident, RunState, RunVerdict
from yolo_lightning.commands.monitor.wording import duration, moment, rate, share, size
from yolo_lightning.supervision.run_status import Status
from yolo_lightning.utils.sensors import GpuReading

COLOURS = {
    RunVerdict.STARTING: "cyan",
    RunVerdict.RUNNING: "green",
    RunVerdict.FINISHED: "green",
    RunVerdict.RESTARTING: "yellow",
    RunVerdict.INTERRUPTED: "yellow",
}
"""Red for the rest."""

BAR_WIDTH = 24
WORKERS_SHOWN = 8
CHECKPOINTS_SHOWN = 2
MAIN_LOSS = "train/loss"


def screen(state: RunState, deadline: datetime | None = None) -> RenderableType:
    """The whole picture.

    Args:
        state: What is known.
        deadline: When the run must be done.
    """
    rows = Table.grid(padding=(0, 1), expand=True)
    rows.add_column(style="bold", width=7, no_wrap=True)
    rows.add_column(ratio=1)
    for label, content in (*of_run(state), *of_pace(state, deadline), *of_scores(state.status), *of_machine(state)):
        rows.add_row(label, content)
    colour = COLOURS.get(state.judgement.verdict, "red")
    now = datetime.fromtimestamp(state.now_s).strftime("%a %d %b %Y %H:%M:%S")
    parts: list[RenderableType] = [headline(state), rows]
    parts += [Text(f"! {flag}", style="bold red") for flag in red_flags(state)]
    parts += [
        of_incident(one, state.now_s, whole=number == 0)
        for number, one in enumerate(reversed(state.incidents))
        if one.sentence != state.judgement.sentence
    ]
    title = Text(state.folder, style="bold", overflow="ellipsis")
    return Panel(
        Group(*parts), title=title, subtitle=now, title_align="left", subtitle_align="right", border_style=colour
    )


def headline(state: RunState) -> Text:
    """How the run stands, and since when."""
    judgement, verdict = state.judgement, state.judgement.verdict
    text = Text(verdict.value.upper(), style=f"bold {COLOURS.get(verdict, 'red')}")
    if judgement.since_s is not None:
        ago = duration(state.now_s - judgement.since_s)
        text.append(f" since {moment(judgement.since_s, state.now_s)} ({ago})", style="not bold default")
    if state.standing is not None and verdict in ALIVE:
        restarts = state.standing.restarts
        rung = f", loader '{state.standing.rung}'" if state.standing.rung else ""
        text.append(f"  restarts: {restarts}{rung}", style="not bold default")
    if judgement.sentence:
        text.append(f"\n{judgement.sentence}", style="not bold default")
        outcome = next((one.outcome for one in state.incidents if one.sentence == judgement.sentence), "")
        text.append(f" → {outcome}" if outcome else "", style="bold default")
    return text


def of_run(state: RunState) -> Iterator[tuple[str, RenderableType]]:
    """Phase, epoch and run with bars."""
    if state.phase is not None and state.judgement.verdict in ALIVE and state.phase_s is not None:
        allowed = f" of {duration(state.allowance_s)} allowed" if state.allowance_s is not None else ""
        pid = f", process {state.trainer.pid} ({state.trainer.state})" if state.trainer is not None else ""
        yield "phase", Text(f"{name_of(state.phase)} for {duration(state.phase_s)}{allowed}{pid}")
    status = state.status
    if status is None or state.epoch is None:
        return
    batch, per_epoch = state.batch or 0, status.batches_per_epoch
    epochs = f" of {status.epochs}" if status.epochs else ""
    epoch = min(state.epoch + 1, status.epochs or state.epoch + 1)
    yield "epoch", bar(batch, per_epoch, f"{epoch}{epochs}, batch {batch:,} of {per_epoch:,}")
    if status.epochs:
        total = status.epochs * per_epoch
        done = min(state.epoch * per_epoch + batch, total)
        yield "run", bar(done, total, f"{share(done / total if total else None)}, step {state.step:,}")


def bar(done: int, total: int, words: str) -> RenderableType:
    """A bar and words behind it."""
    line = Table.grid(padding=(0, 1))
    line.add_row(ProgressBar(total=max(total, 1), completed=done, width=BAR_WIDTH), Text(words))
    return line


def of_pace(state: RunState, deadline: datetime | None) -> Iterator[tuple[str, RenderableType]]:
    """Speed, and what is left."""
    status, verdict = state.status, state.judgement.verdict
    if status is None:
        return
    over_run = rate(status.trained_s / status.step) if status.step else "unknown"
    runs = verdict is RunVerdict.RUNNING
    now = rate(status.step_s) + (" now" if runs else " before")
    waits = f", {share(status.fetch_share)} of it waiting for data" if status.fetch_share is not None else ""
    yield "pace", Text(f"{now}, {over_run} over the run{waits}")
    if verdict in ALIVE:
        yield "left", time_left(state, deadline)


def time_left(state: RunState, deadline: datetime | None) -> Text:
    """Time to the end of epoch and run, with the date while it runs, and what is left to the deadline."""
    left = state.remaining
    text = Text("epoch " + ("unknown" if left.epoch_s is None else duration(left.epoch_s)))
    if left.run_s is None:
        text.append(", run unknown")
    else:
        text.append(f", run {duration(left.run_s)}")
        if left.unmeasured_validations:
            text.append(f" + {left.unmeasured_validations} validations not yet measured")
        elif state.judgement.verdict is RunVerdict.RUNNING:
            text.append(f", done {moment(state.now_s + left.run_s, state.now_s)}")
    if deadline is not None:
        text.append_text(buffer(state, deadline))
    return text


def buffer(state: RunState, deadline: datetime) -> Text:
    """What is left between the end of the run and the deadline."""
    left_s = buffer_s(state, deadline)
    if left_s is None:
        return Text(f"\ndeadline {moment(deadline.timestamp(), state.now_s)}")
    words = f"{duration(left_s)} to spare" if left_s >= 0 else f"{duration(-left_s)} too late"
    return Text(f"\ndeadline {moment(deadline.timestamp(), state.now_s)}: ") + Text(
        words, style="green" if left_s >= 0 else "bold red"
    )


def buffer_s(state: RunState, deadline: datetime) -> float | None:
    """Seconds between the end of the run and the deadline, negative for too late; None while that is unknown."""
    left = state.remaining
    if left.run_s is None or left.unmeasured_validations or state.judgement.verdict not in ALIVE:
        return None
    return deadline.timestamp() - state.now_s - left.run_s


def of_scores(status: Status | None) -> Iterator[tuple[str, RenderableType]]:
    """Losses, learning rate, scores."""
    if status is None:
        return
    losses = [f"{short(name)} {number(value)}" for name, value in status.losses.items() if name != MAIN_LOSS]
    if MAIN_LOSS in status.losses:
        losses.insert(0, number(status.losses[MAIN_LOSS]))
    rates = sorted({number(value) for value in status.learning_rates.values()})
    if losses:
        yield "loss", Text(", ".join(losses) + (f"; lr {' / '.join(rates)}" if rates else ""))
    maps = [
        f"{one.values['val/map_50']:.4f} (epoch {one.epoch + 1})"
        for one in status.scores
        if one.values.get("val/map_50") is not None
    ]
    if maps:
        yield "mAP50", Text(f"{', '.join(maps[-3:])}; best {number(status.best_map_50)}")


def of_machine(state: RunState) -> Iterator[tuple[str, RenderableType]]:
    """GPUs, memory, disk, loader, checkpoints."""
    machine = state.machine
    for gpu in machine.gpus:
        yield "GPU", Text(of_gpu(gpu))
    if machine.evicted_ms is not None:
        yield "", Text(f"queues stopped by the kernel for {machine.evicted_ms / 1e3:.1f} s so far")
    words = []
    if machine.memory is not None:
        words.append(f"memory {size(machine.memory.used_bytes)} of {size(machine.memory.total_bytes)}")
    processes = [one for one in (state.trainer, *state.workers) if one is not None]
    if processes:
        words.append(f"this run {size(sum(one.memory_bytes for one in processes))}")
    if machine.disk is not None:
        free_bytes = machine.disk.total_bytes - machine.disk.used_bytes
        words.append(f"disk {size(free_bytes)} free ({share(machine.disk.free_share)})")
    if words:
        yield "host", Text(", ".join(words))
    if state.trainer is not None and state.status is not None:
        yield "loader", of_workers(state)
    if state.checkpoints:
        yield "saved", Text("; ".join(of_checkpoint(one) for one in state.checkpoints[:CHECKPOINTS_SHOWN]))


def of_gpu(gpu: GpuReading) -> str:
    """One line; what the driver does not say is left out."""
    words = [gpu.name]
    if gpu.busy_share is not None:
        words.append(f"{share(gpu.busy_share)} busy")
    if gpu.temperature_c is not None:
        words.append(f"{gpu.temperature_c:.0f} °C")
    if gpu.power_w is not None:
        words.append(f"{gpu.power_w:.0f} W")
    if gpu.memory_used_bytes is not None and gpu.memory_bytes is not None:
        words.append(f"{size(gpu.memory_used_bytes)} of {size(gpu.memory_bytes)}")
    return ", ".join(words)


def of_workers(state: RunState) -> Text:
    """How many there are, and the state of each."""
    workers = state.workers
    text = Text(f"{len(workers)} workers" if len(workers) != 1 else "1 worker")
    for number, worker in enumerate(workers[:WORKERS_SHOWN]):
        text.append(", " if number else ": ")
        text.append(f"{worker.pid} ({worker.state})", style="" if worker.state in "RSI" else "bold red")
    return text.append(f" and {len(workers) - WORKERS_SHOWN} more" if len(workers) > WORKERS_SHOWN else "")


def of_checkpoint(one: Checkpoint) -> str:
    """Name, age, size."""
    return f"{one.name} {duration(one.age_s)} ago, {size(one.size_bytes)}"


def of_incident(one: PastIncident, now_s: float, *, whole: bool) -> Text:
    """When, what, and what was done about it, in one line where `whole` is not asked for."""
    sentence = one.sentence if one.sentence.startswith(one.kind) else f"{one.kind}: {one.sentence}"
    text = Text(f"{moment(one.time_s, now_s)} ", "yellow", no_wrap=not whole, overflow=None if whole else "ellipsis")
    text.append(sentence, style="default")
    return text.append(f" → {one.outcome}", style="bold default") if one.outcome else text


def short(name: str) -> str:
    """`train/box_loss` as `box`."""
    return name.rpartition("/")[2].removesuffix("_loss")


def number(value: float | None) -> str:
    """Four digits."""
    return "not finite" if value is None else f"{value:.4g}"
