"""`python -m yolo_lightning average RUN`: averages of checkpoints, interpolation with start weights or other runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from yolo_lightning.checkpoints.averaging import AVERAGED, average_checkpoints, newest_steps, shares
from yolo_lightning.checkpoints.checkpoint_file import write_checkpoint
from yolo_lightning.checkpoints.mirror import local_checkpoint
from yolo_lightning.commands.console import writing
from yolo_lightning.model.graph import INPUT_CHANNELS, build_graph, read_network
from yolo_lightning.utils.paths import real_path, user_path
from yolo_lightning.utils.run_files import AVERAGE_CHECKPOINT, CHECKPOINTS

PREFIX = "graph."  # of the network's tensors in a checkpoint
CLASS_HEAD = ".cv3."  # layers whose shapes depend on the classes, also in the one-to-one branch (`one2one_cv3`)


def average(
    run: str,
    *,
    last: int = 3,
    checkpoints: list[str] | None = None,
    weights: list[float] | None = None,
    output: str | None = None,
) -> None:
    """Average the weights of the newest checkpoints of a run, for `test`, `predict`, `export` and `--model.weights`.

    `--checkpoints best.ckpt yolov8n.pt --weights 0.7 0.3` interpolates between trained weights and start weights.

    Args:
        run: Run folder.
        last: Number of the newest `step-*.ckpt` checkpoints to average, >= 2.
        checkpoints: Checkpoints to average instead, such as `a.ckpt b.ckpt` or `a.ckpt,b.ckpt`: names in the checkpoint
            folder of the run, paths, or addresses. Ultralytics `.pt` files of the same graph are accepted as start
            weights; layers of classes that they lack keep the values of the newest checkpoint.
        weights: Weight of each of `checkpoints`, > 0, such as `0.7 0.3`; they are divided by their sum. null: equal.
        output: File to write, with the suffix .ckpt; null: `average.ckpt` in the checkpoint folder of the run.

    Raises:
        ValueError: If a checkpoint cannot be used, the networks differ, or an option is invalid.
    """
    if last < 2:
        raise ValueError(f"last must be >= 2, got {last}.")
    if weights is not None and checkpoints is None:
        raise ValueError(f"weights requires --checkpoints, which names the file of each weight, got {weights}.")
    folder = user_path(run) / CHECKPOINTS
    if not folder.is_dir():
        raise ValueError(f"run must be a run folder with a folder {CHECKPOINTS}, got {run}.")
    target = user_path(output) if output else folder / AVERAGE_CHECKPOINT
    if target.suffix != ".ckpt":
        raise ValueError(f"output must end in .ckpt, got {target}.")
    try:
        files = named(folder, checkpoints) if checkpoints else newest_steps(folder, last)
        if real_path(target) in [real_path(file) for file in files]:
            raise ValueError(f"output must differ from the checkpoints to average, got {target}.")
        content = average_checkpoints(files, weights, _start_state)
    except FileNotFoundError as error:
        raise ValueError(
            f"{error.filename} was deleted while it was read: a running fit keeps only its newest checkpoints."
        ) from error
    with writing(target):
        write_checkpoint(content, target)
    if weights is None:
        print(f"{target}: average of {', '.join(content[AVERAGED])}")
    else:
        parts = zip(shares(weights, len(files)), files, strict=True)
        print(f"{target}: {' + '.join(f'{share:.4g} x {file}' for share, file in parts)}")


def named(folder: Path, names: Sequence[str]) -> list[Path]:
    """Return the files of a list; names that exist in `folder` refer to that folder."""
    return [folder / name if (folder / name).is_file() else local_checkpoint(name) for name in names]


def _start_state(file: Path, checkpoint: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the `state_dict` of the checkpoint's network after loading the start weights of a `.pt` file.

    As in a fit with `model.weights`, rows of the class head are copied for classes with the same name. Layers of the
    class head that have another shape keep the values of the checkpoint, so that an average does not change them.

    Raises:
        ValueError: If the file contains another graph.
    """
    parameters, own = checkpoint["hyper_parameters"], checkpoint["state_dict"]
    names = tuple(parameters["class_names"])
    graph: Any = build_graph(
        parameters["variant"],
        names,
        "native",
        class_width=parameters["class_width"],
        architecture=parameters.get("architecture"),
        input_channels=parameters.get("input_channels", INPUT_CHANNELS),
    )
    graph.load_state_dict({name.removeprefix(PREFIX): one for name, one in own.items() if name.startswith(PREFIX)})
    try:
        source = read_network(file)
    except ValueError as error:
        raise ValueError(str(error).removeprefix("model.weights ")) from error
    shapes = {name: tensor.shape for name, tensor in source.state_dict().items()}
    state = graph.state_dict()
    different = [
        name
        for name, one in state.items()
        if CLASS_HEAD not in name.replace("one2one_cv3", "cv3") and shapes.get(name) != one.shape
    ]
    if different:
        raise ValueError(f"{file} does not fit {parameters['variant']}: the networks differ in {different[0]}")
    graph.load(source, verbose=False)  # also gives the class head the width of the source
    loaded = {PREFIX + name: tensor for name, tensor in graph.state_dict().items()}
    started = {name: one if one.shape == own[name].shape else own[name] for name, one in loaded.items()}
    bad = [name for name, tensor in started.items() if not tensor.isfinite().all()]
    if bad:
        raise ValueError(f"{file} cannot be averaged: {bad[0]} contains non-finite values")
    return dict(own) | started
