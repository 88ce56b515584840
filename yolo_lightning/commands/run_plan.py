"""The plan of a run: run folder, checkpoint and changed options, found before the model and the data are constructed.

The plan reads checkpoints and the state of the supervisor. `YOLOCLI` prints the plan and carries it out.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.accelerators import CUDAAccelerator, MPSAccelerator

from yolo_lightning.checkpoints import run_folder
from yolo_lightning.checkpoints.checkpoint_file import require_whole, steps_trained
from yolo_lightning.checkpoints.resume import (
    check_resumable,
    checked,
    checkpoint_to_resume,
    checkpoint_to_score,
    differences,
    download,
    remembered,
)
from yolo_lightning.checkpoints.torch_archive import check_module, load_checkpoint
from yolo_lightning.commands.fit_start import ChosenRun, finished_line, reserve_run
from yolo_lightning.commands.trainer_limits import check_accelerator, check_devices
from yolo_lightning.data.formats.choose_format import format_class
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
from yolo_lightning.supervision.fallback_levels import (
    AS_CONFIGURED,
    FLOAT32,
    PRECISION_OPTION,
    FallbackState,
    level_of_launch,
    quarantined,
)
from yolo_lightning.supervision.trainer import is_supervised
from yolo_lightning.utils import run_files
from yolo_lightning.utils.accelerator import accelerator_or_cpu
from yolo_lightning.utils.choices import AUTO
from yolo_lightning.utils.distributed import launch_id
from yolo_lightning.utils.host import worker_count
from yolo_lightning.utils.nested_keys import flatten, section
from yolo_lightning.utils.slurm import is_slurm_task

FROM_DATA = frozenset({"class_names", "input_channels"})
"""Arguments of the model that the data module determines."""


@dataclass(frozen=True, slots=True)
class Run:
    """What happens before a training or an evaluation begins."""

    folder: Path  # run folder
    checkpoint: Path | None = None  # to resume or to evaluate
    is_fit: bool = False  # whether the run trains
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


def prepared_plan(spec: RunSpec, options: Mapping[str, Any], at_end: ExitStack) -> Run:
    """Return the plan of a run whose checkpoint is on this machine, and whose folder exists and is reserved.

    Args:
        spec: Options that the user has set.
        options: All options of the subcommand by full name, parsed.
        at_end: Gets the removal of the folder of a new run that fails before it has written anything.
    """
    check_machine(options)
    if spec.command != "fit":
        run = plan_evaluation(spec, options)
        run_folder.prepare(run.folder)
        return with_precision(run, options)
    chosen = reserve_run(options)
    if chosen.is_new:
        at_end.callback(run_folder.remove_unused, chosen.folder)
    if chosen.resumes and options["mirror"] is not None:
        download(chosen.folder, options["mirror"])
    run = plan_fit(chosen, options)
    if run.is_finished:
        return run
    run_folder.prepare(run.folder)
    if not is_supervised():
        run_folder.forget_loggers(run.folder)
    return with_precision(run, options)


def plan_fit(chosen: ChosenRun, options: Mapping[str, Any]) -> Run:
    """Return the plan of a fit: the checkpoint at which the fit begins, and the options of a restart.

    Args:
        chosen: Run folder, which contains a checkpoint if the fit resumes.
        options: All options of the subcommand by full name, parsed.

    Raises:
        UserError: If the checkpoint or the weights cannot be used.
    """
    end_line = _end_line(chosen, options)
    if end_line is not None:
        return Run(chosen.folder, is_fit=True, is_finished=True, lines=(end_line,))
    checkpoint = None  # random or pretrained weights
    if chosen.resumes:
        checkpoint = checkpoint_to_resume(chosen.folder)
    elif chosen.checkpoint is not None:
        checkpoint = checked(chosen.checkpoint, chosen.folder)
    run = _after_failures(Run(chosen.folder, checkpoint, is_fit=True), options)
    if checkpoint is not None:
        run = _resumed(run, checkpoint, options)
        if chosen.resumes:
            steps = steps_trained(checkpoint)
            run = replace(
                run, epochs_trained=run_files.epochs_trained(run.folder, steps, options["trainer.max_epochs"])
            )
    lines = [*run.lines, _place_line(run.folder, checkpoint)]
    if options["supervision.enabled"] and not is_supervised():
        restarter = "SLURM restarts the job (--requeue)" if is_slurm_task() else "torchrun restarts (--max-restarts)"
        lines.append(f"supervision.enabled is ignored: {restarter}")
    if checkpoint is None and options["model.weights"] is not None:
        weights = weights_file(options["model.weights"])
        lines += changes(_bound_by(weights, options), options, f"the weights {weights}")
    return replace(run, lines=tuple(lines))


def _after_failures(run: Run, options: Mapping[str, Any]) -> Run:
    """Return the plan without the samples, and without the loader, that caused failures of the run."""
    changed: dict[str, Any] = {}
    lines = []
    warnings = []
    quarantine = options["data.limits.quarantine"]
    suspects = [frame for frame in quarantined(run.folder) if frame not in quarantine]
    if suspects:
        warnings.append(f"quarantined after repeated failures: {', '.join(suspects)}")
        changed["data.limits.quarantine"] = [*quarantine, *suspects]
    launch = launch_id()
    if launch is not None:  # no supervisor restarts the fit with other options
        level = level_of_launch(run.folder, launch, worker_count(options["data.loader.num_workers"]))
        changed |= level.settings
        if level.settings:
            lines.append(f"loader: fallback level '{level.name}' after a loader stall")
    return replace(run, options=changed, lines=tuple(lines), warnings=tuple(warnings))


def _resumed(run: Run, checkpoint: Path, options: Mapping[str, Any]) -> Run:
    """Return the plan with the network and the precision of the checkpoint, and a line for each changed option."""
    content = load_checkpoint(checkpoint, "meta")
    check_resumable(content, checkpoint)
    check_module(content, f"checkpoint {checkpoint}")
    saved = remembered(content)
    precision = _kept_precision(run.folder, options, saved)
    class_width = content.get("hyper_parameters", {}).get("class_width")
    changed = {**run.options, "model.weights": None, "model.class_width": class_width}
    compared = {**options, **changed}
    if precision is not None:
        del compared[PRECISION_OPTION]
    lines = (*run.lines, *differences(saved, compared))
    return replace(run, precision=precision, options=changed, lines=lines)


def _end_line(chosen: ChosenRun, options: Mapping[str, Any]) -> str | None:
    """Return the line that ends the process because the run is finished; None if there is something to do."""
    if is_supervised() or not chosen.resumes:  # a supervised training has to record the end
        return None
    line = finished_line(chosen.folder, options)
    if line is not None and chosen.is_restart:
        remedy = "submit a new job" if is_slurm_task() else f"set another --rdzv-id than {launch_id()}"
        line += f" To start a new run, {remedy}."
    return line


def _place_line(folder: Path, checkpoint: Path | None) -> str:
    line = f"run folder: {folder}"
    if checkpoint is not None:
        line += f", checkpoint: {checkpoint}"
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
    convolution = ConvolutionSettings(**section(options, "model.convolution"))
    choice: PrecisionChoice = choose_precision(training_device(options), convolution, verdicts_file())
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


def plan_evaluation(spec: RunSpec, options: Mapping[str, Any]) -> Run:
    """Return run folder and checkpoint of an evaluation, and the settings that are stored with the weights.

    Options on the command line and in the environment override the settings of the input and of the detections;
    configuration files override all other hyperparameters.

    Args:
        spec: Options that the user has set. The settings in a checkpoint replace all other options.
        options: All options of the subcommand by full name, parsed.

    Raises:
        UserError: If an option cannot be used, or there is no checkpoint to evaluate.
    """
    base = run_folder.configured_folder(options["trainer.default_root_dir"])
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
        bound = _bound_by(weights_file(options["model.weights"]), options)
    changed |= {name: value for name, value in bound.items() if name not in spec.typed}
    lines = precedence(bound, options, {**options, **changed})
    folder = base
    if checkpoint is not None:
        folder = run_folder.run_of(checkpoint) or base
        if "model.weights" in spec.typed:
            unused = options["model.weights"]
            lines.append(f"model.weights {unused} is not used: there is a run; for the weights, use a new run folder")
    return Run(folder, checkpoint, options=changed, lines=(*lines, _place_line(folder, checkpoint)))


def weights_file(weights: str) -> Path:
    """Return the file of `model.weights`; raise a UserError if it is missing or damaged."""
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


def check_machine(options: Mapping[str, Any]) -> None:
    """Raise a UserError for an accelerator or a number of devices that this machine does not have."""
    accelerators = {"cuda": CUDAAccelerator, "mps": MPSAccelerator}
    gpus = [name for name, accelerator in accelerators.items() if accelerator.is_available()]
    check_accelerator(options["trainer.accelerator"], gpus)
    check_devices(options["trainer.devices"], is_cpu=training_device(options).type == "cpu")
