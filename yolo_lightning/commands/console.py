"""Output of the commands: progress (a bar in a terminal, lines in a log file), sizes, times."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from yolo_lightning.errors import UserError
from yolo_lightning.utils.paths import user_path
from yolo_lightning.utils.terminal import has_cursor_control

LINE_INTERVAL_S = 30.0


@contextmanager
def counter(verb: str, total: int) -> Iterator[Callable[[int], None]]:
    """Provide a function that advances the progress display by a number of items.

    Args:
        verb: Operation on the items, such as "packed".
        total: Number of items.
    """
    if has_cursor_control(sys.stdout):
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeElapsedColumn(), TextColumn("ETA"), TimeRemainingColumn()) as progress:
            task = progress.add_task(verb, total=total)
            yield lambda count: progress.advance(task, count)
    else:
        yield lines(verb, total)


def lines(verb: str, total: int, interval_s: float = LINE_INTERVAL_S) -> Callable[[int], None]:
    """Return a function that advances progress shown as lines of text, one per interval and one at the end.

    `total` may be an estimate, such as the frames of a video.
    """
    done = 0
    started_s = time.monotonic()
    printed_s = started_s

    def advance(count: int) -> None:
        nonlocal done, printed_s
        was_complete = done >= total
        done += count
        is_completed = done >= total and not was_complete
        now_s = time.monotonic()
        if now_s - printed_s < interval_s and not is_completed:
            return
        printed_s = now_s
        per_second = done / max(now_s - started_s, 1e-9)
        rate_text = f"{per_second:,.0f}" if per_second >= 9.95 else f"{per_second:.2g}"
        remaining_s = int(max(0, total - done) / per_second)
        remaining = f"{remaining_s // 60}:{remaining_s % 60:02d} left"
        print(f"{verb} {done:,} of {total:,}, {rate_text} per second, {remaining}", flush=True)

    return advance


def count_text(number: int, noun: str) -> str:
    """Return a number with its noun: 1 epoch, 2,000 epochs."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """Raise a UserError that names the output file `target` if the block, which writes the file, raises an OSError."""
    try:
        yield
    except OSError as error:
        reason = error.strerror
        if isinstance(error, FileExistsError | NotADirectoryError):
            reason = "its folder is a file"
        raise UserError(f"output {target} cannot be written: {reason}") from error


def check_writable(file: str | Path | None, suffix: str) -> None:
    """Raise a UserError if a file, unless it is None, cannot be written, before minutes of work for this file.

    The name must end in `suffix`, so that a mistyped path does not replace a file of another type.
    """
    if file is None:
        return
    target = user_path(file)
    if target.is_dir():
        raise UserError(f"{target} must be a file, got a folder. Did you mean {target / 'NAME'}?")
    if target.suffix.lower() != suffix:
        raise UserError(f"output must end in {suffix}, got {target}.")
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=target.parent).close()


def gigabytes(size_bytes: int) -> str:
    """Return a size in GB, or in MB below 1 GB."""
    if size_bytes >= 1e9:
        return f"{size_bytes / 1e9:.1f} GB"
    return f"{size_bytes / 1e6:.1f} MB"


def share(part: float | None) -> str:
    """Return a share from 0 to 1 in percent."""
    if part is None:
        return "?"
    return f"{100 * part:.0f} %"


def rate(step_s: float) -> str:
    """Return the rate of steps that take `step_s` seconds: it/s, or s/it from 10 s on.

    A damaged status file can contain 0 and negative numbers; their rate is unknown.
    """
    if step_s <= 0:
        return "? it/s"
    if step_s < 10:
        return f"{1 / step_s:.2f} it/s"
    return f"{step_s:.1f} s/it"
