"""Operations of the supervisor on the files of a run folder. Standard library only."""

from pathlib import Path

from yolo_lightning.utils.files import flush, remove_leftovers
from yolo_lightning.utils.json_record import read_json
from yolo_lightning.utils.run_files import (
    CHECKPOINT_PATTERN,
    CHECKPOINTS,
    CHECKSUM_SUFFIX,
    FINISHED_FILE,
    HEARTBEAT_FILE,
    SELF_CHECK_FILE,
    STEP_CHECKPOINTS,
    stacks_path,
)

SUSPECT_SUFFIX = ".suspect"
"""Suffix of a checkpoint whose weights may be wrong: no self-check has passed since."""

PROBE_FILE = ".probe-supervisor"


def saved_steps(run: Path) -> frozenset[int]:
    """Return the numbers of trained steps of all step checkpoints in a run folder.

    `best.ckpt` does not count: a run that crashes after each validation would write `best.ckpt` again in each attempt.
    """
    paths = (run / CHECKPOINTS).glob(STEP_CHECKPOINTS + CHECKSUM_SUFFIX)
    return frozenset(steps for path in paths if (steps := _number_in(path, "steps")) is not None)


def _number_in(path: Path, key: str) -> int | None:
    """Return a number of a JSON file, or None if it cannot be read."""
    try:
        return int(read_json(path)[key])
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        return None


def set_aside_suspects(run: Path) -> list[str]:
    """Rename the checkpoints of more steps than the last passed self-check, so that none is resumed; return the names.

    Without a passed self-check, all checkpoints are renamed.
    """
    passed = _number_in(run / SELF_CHECK_FILE, "passed_step") or 0
    names = []
    for path in sorted((run / CHECKPOINTS).glob(CHECKPOINT_PATTERN)):
        checksum = path.with_name(path.name + CHECKSUM_SUFFIX)
        steps = _number_in(checksum, "steps")
        if steps is None or steps > passed:
            path.rename(path.with_name(path.name + SUSPECT_SUFFIX))
            checksum.unlink(missing_ok=True)
            names.append(path.name)
    return names


def clear(run: Path) -> None:
    """Delete heartbeat, stacks and finished marker of an earlier attempt.

    Raises:
        OSError: If a file cannot be deleted. A remaining finished marker would end the run too early.
    """
    heartbeat = run / HEARTBEAT_FILE
    for path in (heartbeat, stacks_path(heartbeat), run / FINISHED_FILE):
        path.unlink(missing_ok=True)


def clear_leftovers(run: Path) -> None:
    """Delete temporary files of a killed trainer, which can be as large as a checkpoint, before the next attempt."""
    for folder in (run, run / CHECKPOINTS):
        remove_leftovers(folder)


def probe(run: Path) -> None:
    """Write a small file to the disk of the run folder. The call blocks while the disk hangs."""
    path = run / PROBE_FILE
    path.unlink(missing_ok=True)  # can be a FIFO
    try:
        path.write_bytes(b"probe")
        flush(path)
    finally:
        path.unlink(missing_ok=True)
