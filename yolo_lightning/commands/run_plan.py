"""The plan of a run: run folder, checkpoint and changed options of a command line, found before anything is done.

`plan_run` reads run folders, checkpoints, the state of the supervisor and the names in a mirror, and changes nothing.
`YOLOCLI` prints the plan and carries it out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.accelerators import CUDAAccelerator, MPSAccelerator

from yolo_lightning.checkpoints import run_folder
from yolo_lightning.checkpoints.checkpoint_file import require_whole, steps_trained
from yolo_lightning.checkpoints.resume import (
    checkpoint_to_fit,
    checkpoint_to_score,
    differences,
    remembered,
    run_to_download,
)
from yolo_lightning.checkpoints.torch_archive import check_module, load_checkpoint
from yolo_lightning.commands.option_limits import resumes
from yolo_lightning.commands.start_supervisor import finished_line
from yolo_lightning.data.formats.choose_format import format_class
from yolo_lightning.errors import UserError
from yolo_lightning.model.convolution_settings import ConvolutionSettings
from yolo_lightning.model.native_failures import verdicts_file
from yolo_lightning.model.network_settings import (
    bound_options,
    changes,
    checkpoint_record,
    precedence,
    read_record,
)
from yolo_lightning.model.precision_choice import PrecisionChoice, choose_precision
from yolo_lightning.model.weights_file import existing_weights
from yolo_lightning.options.run_spec import RunSpec
from yolo_lightning.supervision import in_use, is_supervised, level_of_launch, quarantined
from yolo_lightning.supervision.fallback_levels import AS_CONFIGURED, FLOAT32, PRECISION_OPTION, FallbackState
from yolo_lightning.utils import run_files
from yolo_lightning.utils.accelerator import accelerator_or_cpu
from yolo_lightning.utils.choices import AUTO
from yolo_lightning.utils.distributed import NO_LAUNCH_ID, launch_id
from yolo_lightning.utils.host import available_cores, worker_count
from yolo_lightning.utils.nested_keys import flatten
from yolo_lightning.utils.slurm import is_slurm_task

FROM_DATA = frozenset({"class_names", "input_channels"})
"""Arguments of the model that the data module determines."""

PROCESSES_PER_CORE = 4
"""Largest number of training processes per available core of a CPU."""


@dataclass(frozen=True, slots=True)
class Run:
    """What happens before a training or an evaluation begins."""

    folder: Path  # run folder
    checkpoint: Path | None = None  # to resume or to evaluate
    is_fit: bool = False  # whether the run trains
    is_reserved: bool = False  # whether this process reserves `folder`, which is that of a new run
    download: str | None = None  # run of the mirror that is downloaded before a second plan is made
    is_finished: bool = False  # whether all epochs are trained, so that the process ends
    precision: str | None = None  # of the Trainer instead of `auto`; None if not chosen or not `auto`
    precision_reason: str = ""
    epochs_trained: int | None = None  # of a fit without its last files; see `run_files.epochs_trained`
    options: dict[str, Any] = field(default_factory=dict)  # changed options by full name
    warnings: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> "Run":
        """Return a plan whose fields were sent as JSON, paths as text."""
        checkpoint = content["checkpoint"]
        paths = {"folder": Path(content["folder"]), "checkpoint": None if checkpoint is None else Path(checkpoint)}
        texts = {name: tuple(content[name]) for name in ("warnings", "lines")}
        return Run(**{**content, **paths, **texts})


def plan_run(spec: RunSpec, options: Mapping[str, Any], *, may_download: bool = True) -> Run:
    """Return the plan of a run.

    Args:
        spec: Options that the user has set. The settings in a checkpoint replace all other options.
        options: All options of the subcommand by full name, parsed.
        may_download: Whether the run may be downloaded from the mirror.

    Raises:
        UserError: If an option cannot be used, or there is no checkpoint to resume or to evaluate.
    """
    base = run_folder.configured_folder(options["trainer.default_root_dir"])
    is_fit = spec.command == "fit"
    check_accelerator(options["trainer.accelerator"])
    check_devices(options["trainer.devices"], training_device(options))
    if is_fit and resumes(options) and may_download and options["mirror"] is not None:
        name = run_to_download(base, options["mirror"], exactly=is_supervised())
        if name is not None:
            return Run(base.absolute().with_name(name), download=name)
    run = _plan_fit(base, options) if is_fit else _plan_evaluation(base, options, spec)
    if run.is_finished:
        return run
    place = f"run folder: {run.folder}"
    if run.checkpoint is not None:
        place += f", checkpoint: {run.checkpoint}"
    lines = [*run.lines, place]
    if is_fit and options["supervision.enabled"] and not is_supervised():
        restarter = "SLURM restarts the job (--requeue)" if is_slurm_task() else "torchrun restarts (--max-restarts)"
        lines.append(f"supervision.enabled is ignored: {restarter}")
    if is_fit and run.checkpoint is None:
        weights = weights_file(options)
        if weights is not None:
            lines += changes(_bound_by(weights, options), options, f"the weights {weights}")
    return replace(run, is_fit=is_fit, lines=tuple(lines))


def _plan_fit(base: Path, options: Mapping[str, Any]) -> Run:
    """Return the run folder of a fit, the checkpoint to resume from, and the options of a restart."""
    launch = launch_id()
    # A launch has one run: torchrun, or one of its agents, has been restarted. The number of restarts that an agent
    # counts is not read: the agent of a machine that returns begins with 0.
    restarted = None
    if launch not in (None, NO_LAUNCH_ID):
        restarted = run_folder.run_of_launch(base, launch)
    checkpoint = _checkpoint_of_fit(base, options, restarted)
    # The supervisor has chosen the folder of its training process.
    mirror = None if is_supervised() else options["mirror"]
    is_taken = in_use if chooses_folder() else None
    folder = restarted or run_folder.folder_to_fit(base, checkpoint, mirror, is_taken)
    changed: dict[str, Any] = {}
    lines = []
    warnings = []
    quarantine = options["data.limits.quarantine"]
    suspects = [frame for frame in quarantined(folder) if frame not in quarantine]
    if suspects:
        warnings.append(f"quarantined after repeated failures: {', '.join(suspects)}")
        changed["data.limits.quarantine"] = [*quarantine, *suspects]
    if launch is not None:  # no supervisor restarts the fit with other options
        level = level_of_launch(folder, launch, worker_count(options["data.loader.num_workers"]))
        changed |= level.settings
        if level.settings:
            lines.append(f"loader: fallback level '{level.name}' after a loader stall")
    epochs = None
    if checkpoint is not None and (resumes(options) or restarted is not None):
        epochs = run_files.epochs_trained(folder, steps_trained(checkpoint), options["trainer.max_epochs"])
        line = _end_line(folder, options, is_restarted=restarted is not None)
        if line is not None:
            return Run(folder, is_finished=True, lines=(line,))
    precision = None
    if checkpoint is not None:
        content = load_checkpoint(checkpoint, "meta")
        check_module(content, f"checkpoint {checkpoint}")
        saved = remembered(content)
        precision = _kept_precision(folder, options, saved)
        changed |= {"model.weights": None, "model.class_width": content.get("hyper_parameters", {}).get("class_width")}
        compared = {**options, **changed}
        if precision is not None:
            del compared[PRECISION_OPTION]
        lines += differences(saved, compared)
    return Run(
        folder,
        checkpoint,
        precision=precision,
        is_reserved=checkpoint is None and chooses_folder(),
        epochs_trained=epochs,
        options=changed,
        lines=tuple(lines),
        warnings=tuple(warnings),
    )


def _checkpoint_of_fit(base: Path, options: Mapping[str, Any], restarted: Path | None) -> Path | None:
    """Return the checkpoint to resume from: that of the run of the launch, or the one that the options name."""
    if restarted is not None and run_files.has_checkpoint(restarted):
        return checkpoint_to_fit(restarted, None, True, exactly=True)
    return checkpoint_to_fit(base, options["ckpt_path"], options["resume"], exactly=is_supervised())


def _end_line(folder: Path, options: Mapping[str, Any], *, is_restarted: bool) -> str | None:
    """Return the line that ends the process because the run is finished; None if there is something to do.

    Args:
        folder: Run folder.
        options: All options by full name.
        is_restarted: Whether the launch has started this run before.
    """
    if is_supervised():  # training has to record the end
        return None
    line = finished_line(folder, options)
    if line is not None and is_restarted:
        remedy = "submit a new job" if is_slurm_task() else f"set another --rdzv-id than {launch_id()}"
        line += f" To start a new run, {remedy}."
    return line


def _kept_precision(folder: Path, options: Mapping[str, Any], saved: Mapping[str, Any]) -> str | None:
    """Return the precision of the run to resume if the option is `auto`; None if the precision is not known."""
    if options[PRECISION_OPTION] != AUTO or PRECISION_OPTION not in saved:
        return None
    state = FallbackState.read(folder / run_files.STATE_FILE)
    if state.precision.name != AS_CONFIGURED:
        return FLOAT32
    if state.was_lowered:
        return None
    return str(saved[PRECISION_OPTION] or FLOAT32)


def with_precision(run: Run, options: Mapping[str, Any]) -> Run:
    """Return the plan with the precision that replaces `trainer.precision: auto`; a fit may test the device first.

    A resumed fit keeps its precision. Evaluations compute in float32, so that scores do not depend on the machine.
    """
    if options[PRECISION_OPTION] != AUTO:
        return run
    if not run.is_fit:
        return replace(run, precision=FLOAT32)
    prefix = "model.convolution."
    fields = {key.removeprefix(prefix): value for key, value in options.items() if key.startswith(prefix)}
    choice: PrecisionChoice = choose_precision(training_device(options), ConvolutionSettings(**fields), verdicts_file())
    reason = choice.reason
    if run.precision is not None:
        reason = "as in the checkpoint"
        if run.precision != choice.precision:
            reason += f"; a new run would use {choice.precision}: {choice.reason}"
    precision = run.precision or choice.precision
    line = f"{PRECISION_OPTION} auto: {precision}; {reason}"
    return replace(run, precision=precision, precision_reason=reason, lines=(*run.lines, line))


def training_device(options: Mapping[str, Any]) -> torch.device:
    """Return the first device of `trainer.accelerator` and `trainer.devices`."""
    if options["trainer.accelerator"] == "cpu":
        return torch.device("cpu")
    device = accelerator_or_cpu()
    numbers = options["trainer.devices"]
    if device.type == "cuda" and isinstance(numbers, list) and numbers:
        return torch.device("cuda", numbers[0])
    return device


def _plan_evaluation(base: Path, options: Mapping[str, Any], spec: RunSpec) -> Run:
    """Return run folder and checkpoint of an evaluation, and the settings that are stored with the weights.

    Options on the command line and in the environment override the settings of the input and of the detections;
    configuration files override all other hyperparameters.
    """
    checkpoint = checkpoint_to_score(base, options["ckpt_path"], options["model.weights"])
    changed = {}
    if checkpoint is not None:
        content = load_checkpoint(checkpoint, "meta")
        check_module(content, f"checkpoint {checkpoint}")
        bound = _bound_by(content, options)
        saved = flatten({"model": content.get("hyper_parameters", {})})
        of_data = {f"model.{name}" for name in FROM_DATA}
        restored = options.keys() & saved.keys() - of_data - spec.given.keys()
        changed = {name: saved[name] for name in restored} | {"model.weights": None}
    else:
        weights = weights_file(options)
        if weights is None:
            return Run(base)
        bound = _bound_by(weights, options)
    changed |= {name: value for name, value in bound.items() if name not in spec.typed}
    lines = precedence(bound, options, {**options, **changed})
    folder = None
    if checkpoint is not None:
        folder = run_folder.run_of(checkpoint)
    return Run(folder or base, checkpoint, options=changed, lines=tuple(lines))


def chooses_folder() -> bool:
    """Return whether this process or its parent process chooses the run folder. No supervisor or launcher does."""
    return not is_supervised() and launch_id() is None


def weights_file(options: Mapping[str, Any]) -> Path | None:
    """Return the file of `model.weights`, None if it is null; raise a ValueError if it is missing or damaged."""
    weights = options["model.weights"]
    if weights is None:
        return None
    path = existing_weights(weights)
    if path.suffix == ".ckpt":
        require_whole(path, "model.weights")
    return path


def _bound_by(weights: Path | dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a file of weights, or the content of a checkpoint, records."""
    if isinstance(weights, Path):
        record = read_record(weights, allow_pickle=options["allow_pickle"])
    else:
        record = checkpoint_record(weights)
    return bound_options(record, is_gray=format_class(options["data.format"]).is_gray)


def check_devices(devices: Any, device: torch.device) -> None:
    """Raise a UserError if a CPU would have to start many more processes than it has cores: one for each device."""
    cores = available_cores()
    most = PROCESSES_PER_CORE * cores
    is_number = isinstance(devices, int | str) and str(devices).isdigit()
    if device.type == "cpu" and is_number and int(devices) > most:
        raise UserError(
            f"trainer.devices must be at most {most} with {cores} available cores, as each device is a process, "
            f"got {devices}"
        )


def check_accelerator(accelerator: Any) -> None:
    """Raise a UserError if the name of an accelerator is unknown or this machine does not have it."""
    gpus = {"cuda": CUDAAccelerator.is_available(), "mps": MPSAccelerator.is_available()}
    available = ["auto", "cpu"]
    remedy = " PyTorch finds no GPU; the command doctor inspects the machine."
    if any(gpus.values()):
        available += ["gpu", *(name for name in gpus if gpus[name])]
        remedy = ""
    if isinstance(accelerator, str) and accelerator not in available:
        accepted = " or ".join(available)
        raise UserError(f"trainer.accelerator must be {accepted} on this machine, got {accelerator!r}.{remedy}")
