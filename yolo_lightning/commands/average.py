"""`python -m yolo_lightning average RUN`: one checkpoint from the last few of a run."""

from pathlib import Path

from yolo_lightning.checkpoints.averaging import AVERAGED, average_checkpoints, newest_steps
from yolo_lightning.checkpoints.checkpoint_file import write_checkpoint
from yolo_lightning.checkpoints.remote import local_checkpoint
from yolo_lightning.utils.run_files import AVERAGE_CHECKPOINT, CHECKPOINTS


def average(run: str, *, last: int = 3, checkpoints: str | None = None, output: str | None = None) -> None:
    """Average the weights of a run's newest checkpoints, for `test`, `predict`, `export` and `--model.weights`.

    Args:
        run: Run folder.
        last: So many of its checkpoints `step-*.ckpt`, the newest ones; 2 and more.
        checkpoints: Others instead, as in `a.ckpt,b.ckpt`: names in the run's folder of checkpoints, paths, or
            addresses.
        output: File to write, ending in .ckpt; null takes `average.ckpt` among the run's checkpoints.

    Raises:
        ValueError: If a checkpoint cannot be used, the networks differ, or an option is not allowed.
    """
    if last < 2:
        raise ValueError(f"last is {last}, allowed are 2 and more")
    folder = Path(run).expanduser() / CHECKPOINTS
    if not folder.is_dir():
        raise ValueError(f"run {run} has no folder {CHECKPOINTS}")
    target = Path(output).expanduser() if output else folder / AVERAGE_CHECKPOINT
    if target.suffix != ".ckpt":
        raise ValueError(f"output is {target}, allowed are names that end in .ckpt")
    try:
        files = named(folder, checkpoints) if checkpoints else newest_steps(folder, last)
        if target.resolve() in [file.resolve() for file in files]:
            raise ValueError(f"output {target} is one of the checkpoints to average")
        content = average_checkpoints(files)
    except FileNotFoundError as error:
        raise ValueError(f"{error.filename} is gone: a fit in progress keeps only its newest checkpoints") from error
    try:
        write_checkpoint(content, target)
    except OSError as error:
        raise ValueError(f"output {target} cannot be written: {error.strerror}") from error
    print(f"{target}: average of {', '.join(content[AVERAGED])}")


def named(folder: Path, names: str) -> list[Path]:
    """The files that a list separated by commas names, those that exist in `folder` taken from there."""
    given = [name.strip() for name in names.split(",") if name.strip()]
    return [folder / name if (folder / name).is_file() else local_checkpoint(name) for name in given]
