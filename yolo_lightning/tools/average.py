"""`python -m yolo_lightning average RUN`: one checkpoint from the last few of a run."""

from pathlib import Path

from yolo_lightning.averaging import AVERAGED, average_checkpoints, newest_steps
from yolo_lightning.checkpoint_file import write_checkpoint
from yolo_lightning.run_folder import CHECKPOINTS

SUFFIX = ".ckpt"


def average(
    run: str | None = None,
    last: int = 3,
    checkpoints: tuple[str, ...] = (),
    output: str | None = None,
) -> None:
    """Average the weights of a run's newest checkpoints, for `test`, `predict`, `export` and `--model.weights`.

    Args:
        run: Run folder.
        last: So many of its numbered checkpoints, the newest ones, 2 and more.
        checkpoints: Checkpoint files instead, as in `[a.ckpt,b.ckpt]`.
        output: File to write, ending in .ckpt; null takes `checkpoints/average.ckpt` of the run, or `average.ckpt` in
            the folder of the last of `checkpoints`.

    Raises:
        ValueError: If a checkpoint cannot be used, the networks differ, or an option is not allowed.
    """
    if bool(run) == bool(checkpoints):
        raise ValueError("give either a run folder or --checkpoints")
    if last < 2:
        raise ValueError(f"last is {last}, allowed are 2 and more")
    files = [Path(file).expanduser() for file in checkpoints] or newest_steps(Path(run or ""), last)
    folder = Path(run) / CHECKPOINTS if run else files[-1].parent
    target = Path(output).expanduser() if output else folder / f"average{SUFFIX}"
    if target.suffix != SUFFIX:
        raise ValueError(f"output is {target}, allowed are names that end in {SUFFIX}")
    if target.resolve() in [file.resolve() for file in files]:
        raise ValueError(f"output {target} is one of the checkpoints to average")
    content = average_checkpoints(files)
    try:
        write_checkpoint(content, target)
    except OSError as error:
        raise ValueError(f"output {target} cannot be written: {error.strerror}") from error
    print(f"{target}: average of {', '.join(content[AVERAGED])}")
