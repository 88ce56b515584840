"""The command line: fit, validate, test and predict of LightningCLI, and the commands of `yolo_lightning.commands`."""

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from traceback import walk_tb
from typing import Any

import yaml
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import Logger
from lightning.pytorch.plugins import CheckpointIO
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only, rank_zero_warn

import yolo_lightning
from yolo_lightning import callbacks
from yolo_lightning.callbacks.default_callbacks import with_default_callbacks
from yolo_lightning.callbacks.run_config import SaveRunConfig
from yolo_lightning.checkpoints import run_folder
from yolo_lightning.checkpoints.checkpoint_io import AtomicCheckpointIO
from yolo_lightning.commands.command_line import run_tool
from yolo_lightning.commands.endings import missing_process_reported, reported
from yolo_lightning.commands.fit_start import MAX_EPOCHS, start_supervisor
from yolo_lightning.commands.fit_summary import end_fit, start_lines
from yolo_lightning.commands.option_limits import seed_of
from yolo_lightning.commands.parser_errors import ShortErrors
from yolo_lightning.commands.rank_plan import plan_of_all_ranks
from yolo_lightning.commands.resolve import resolve
from yolo_lightning.commands.run_plan import FROM_DATA, Run, prepared_plan
from yolo_lightning.commands.user_errors import user_errors
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.errors import UserError
from yolo_lightning.module import YOLOModule
from yolo_lightning.options.command_names import PROGRAM
from yolo_lightning.options.option_errors import missing_package
from yolo_lightning.options.run_spec import RunSpec
from yolo_lightning.supervision import heartbeat
from yolo_lightning.supervision.heartbeat import Phase
from yolo_lightning.supervision.job import SuperviseSettings
from yolo_lightning.supervision.kill import mark_process
from yolo_lightning.supervision.run_lock import run_lock
from yolo_lightning.supervision.trainer import end_with_launcher, is_supervised
from yolo_lightning.utils import run_files
from yolo_lightning.utils.distributed import launch_id, machines_of_launch
from yolo_lightning.utils.logger_runs import LoggerRuns
from yolo_lightning.utils.message_filters import hide_harmless_messages
from yolo_lightning.utils.nested_keys import flatten, nested, section
from yolo_lightning.utils.optional_file import OptionalFile
from yolo_lightning.utils.plain_text import one_line
from yolo_lightning.utils.rank_store import RankStore, connect_ranks
from yolo_lightning.utils.rank_zero import count_as_only_process, mark_lines
from yolo_lightning.utils.slurm import is_slurm_task, require_whole_launch
from yolo_lightning.utils.tensorboard import Curves
from yolo_lightning.utils.terminal import has_cursor_control
from yolo_lightning.utils.trainer_callbacks import callbacks_of

SWITCH: dict[str, Any] = {"type": bool, "nargs": "?", "const": True, "default": False}
"""Arguments of an option that needs no value, as `--resume`, and accepts one, as an environment variable has."""

FIT_SWITCHES = {
    "resume": "Resume the newest run of the run folder.",
    "detach": "Start the supervisor in a session of its own and return; training continues after a log-out.",
}
RUN_OPTIONS: dict[str, tuple[Any, Any, str | None]] = {
    "best_pt": (bool, True, "Write best.pt, which opens with Ultralytics' YOLO(), beside best.ckpt after a fit."),
    "finish_by": (
        str | None,
        None,
        "Deadline, as 2026-11-30T23:59, local time or with zone. A plan replaces trainer.max_epochs, so that the "
        "training ends shortly before, with the last learning rate.",
    ),
    "max_hours": (float | None, None, "Hours from the first start of the run to its deadline, instead of --finish_by."),
    "deadline": (
        str | None,
        None,
        "Moment that `monitor` compares with the estimated end, as 2026-11-30T23:59. The length of the fit does not "
        "change; see --finish_by.",
    ),
    "default_callbacks": (bool, True, "Add the callbacks of callbacks/default_callbacks.py to trainer.callbacks."),
    "supervision": (SuperviseSettings, SuperviseSettings(), None),
    "mirror": (str | None, None, "Copy the checkpoints to a folder of the run at this address, as s3://bucket/runs."),
}
"""Type, default and help of options that all subcommands accept, because they share a configuration file."""


class YOLOCLI(LightningCLI):
    """LightningCLI with run folders and supervision; command-line options override settings stored in checkpoints."""

    _run: Run  # the plan, which `before_instantiate_classes` carries out
    _logger_runs: LoggerRuns | None = None  # of a fit
    _refusal: UserError | None = None  # the first one of the constructor of a callback or logger
    _ranks: RankStore | None = None  # of torchrun; the first rank holds the store

    def __init__(self, *positional: Any, **named: Any) -> None:
        self._spec: RunSpec = named["args"]
        self._options: dict[str, Any] = {}  # all options of the command, parsed, by full name
        with ExitStack() as self._at_end:
            super().__init__(*positional, **named)

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parse in descending precedence: command line, environment, weights, configuration files, defaults."""
        command = self._spec.command
        self.config = parser.parse_args(self._spec.parser_words())
        self._options = flatten(yaml.safe_load(parser.dump(self.config, skip_none=False))[command])
        self.config[command].ckpt_path = None  # whose hyperparameters would override the command line in LightningCLI

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        """Return only the requested subcommand, if any: building the parsers of all takes four times as long."""
        arguments = LightningCLI.subcommands()
        return {self._spec.command: arguments[self._spec.command]}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Share the seed, the class names and the number of channels between model and data."""
        parser.add_argument(
            "--allow_pickle",
            **SWITCH,
            help="Open `--model.weights` even if it contains arbitrary pickled code.",
        )
        parser.add_instantiator(self._create, Callback)
        parser.add_instantiator(self._create, Logger)
        parser.link_arguments("allow_pickle", "model.allow_pickle")
        parser.link_arguments("seed_everything", "data.seed", compute_fn=seed_of)
        for name in sorted(FROM_DATA):
            parser.link_arguments(f"data.{name}", f"model.{name}", apply_on="instantiate")

    def _prepare_subcommand_parser(self, klass: type, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        parser = super()._prepare_subcommand_parser(klass, subcommand, **kwargs)
        parser.usage = f"{PROGRAM} {subcommand} [options]"  # not 200 lines of options, which follow with their help
        if subcommand == "fit":
            for name, text in FIT_SWITCHES.items():
                parser.add_argument(f"--{name}", **SWITCH, help=text)
        for name, (kind, default, help_text) in RUN_OPTIONS.items():
            parser.add_argument(f"--{name}", type=kind, default=default, help=help_text)
        if subcommand == "predict":
            parser.set_defaults({"return_predictions": False})
        elif subcommand != "fit":
            parser.set_defaults({"verbose": False})  # MeanAP prints its own table
        return parser

    def before_instantiate_classes(self) -> None:
        """Plan the run and carry the plan out."""
        command = self._spec.command
        options = self._options
        with missing_process_reported():
            self._ranks = connect_ranks(self.config[command].get("trainer.strategy.init_args.timeout"))
            run = plan_of_all_ranks(self._ranks, options, partial(prepared_plan, self._spec, options, self._at_end))
        announce(run)
        if run.is_finished:
            raise SystemExit(0)
        checkpoint = None if run.checkpoint is None else str(run.checkpoint)
        changed = {**run.options, "trainer.default_root_dir": str(run.folder), "ckpt_path": checkpoint}
        self.config[command] = self._parser(command).parse_object(nested(changed), cfg_base=self.config[command])
        self._run = run
        if run.is_fit:
            self._logger_runs = LoggerRuns(run.folder)
        heartbeat.enter(Phase.INDEX)

    def instantiate_classes(self) -> None:
        """Name the callback or logger whose constructor fails, where jsonargparse lists all types of the option."""
        try:
            super().instantiate_classes()
        except ValueError as error:
            message = missing_package(str(error))
            if message is not None:
                raise UserError(message) from error
            if self._refusal is not None:
                raise self._refusal from error
            raise

    def _create(self, kind: type[Callback | Logger], **options: Any) -> Callback | Logger:
        """Return a callback or a logger of the configuration, and record the error of its constructor.

        A logger of a fit continues the run of an earlier process.
        """
        try:
            if issubclass(kind, Logger) and self._logger_runs is not None:
                return self._logger_runs.create(kind, **options)
            return kind(**options)
        except Exception as error:
            # Another error of a class of this package is a mistake of the package.
            is_refusal = isinstance(error, UserError) or not is_of_package(kind.__module__)
            if is_refusal and self._refusal is None:
                option = "callbacks" if issubclass(kind, Callback) else "logger"
                problem = one_line(str(error)).removeprefix(f"{kind.__name__}.")
                self._refusal = UserError(f"trainer.{option}: {kind.__name__}: {problem}")
            raise

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Add the TensorBoard logger, atomic checkpoints and the default callbacks."""
        config = self._get(self.config_init, "trainer")
        nodes = machines_of_launch()
        if nodes is not None:
            kwargs["num_nodes"] = nodes
        options = self.config_init[self.subcommand]
        is_fit = self.subcommand == "fit"
        if config["logger"] in (None, True):
            kwargs["logger"] = is_fit and Curves(config["default_root_dir"], name="", version=run_files.TENSORBOARD)
        plugins = as_list(config["plugins"])
        if not any(isinstance(plugin, CheckpointIO) for plugin in plugins):
            kwargs["plugins"] = [*plugins, AtomicCheckpointIO()]
        chosen = chosen_callbacks(as_list(config["callbacks"]), options, is_fit=is_fit)
        self._complete(chosen)
        has_progress_bar = any(isinstance(callback, ProgressBar) for callback in chosen)
        if config["enable_progress_bar"] in (None, True) and not has_progress_bar:
            chosen += progress_callbacks(is_fit=is_fit)
            kwargs["enable_progress_bar"] = has_cursor_control(sys.stderr)
        kwargs["callbacks"] = chosen
        if self._run.precision is not None:
            kwargs["precision"] = self._run.precision
        require_whole_launch()
        try:
            trainer = super().instantiate_trainer(**kwargs)
        except (MisconfigurationException, TypeError, ValueError) as error:
            if is_of_lightning(error):
                raise self._trainer_refusal(error) from error
            raise
        self._check_ranks(trainer)
        if trainer.world_size == 1 and vars(rank_zero_only)["rank"]:
            count_as_only_process()
            announce(self._run)  # what the rank has omitted
        return trainer

    def _check_ranks(self, trainer: Trainer) -> None:
        """Raise a UserError for options that several processes cannot have."""
        place = trainer.strategy.root_device.type
        is_synchronized = self._get(self.config_init, "trainer")["sync_batchnorm"]
        if is_synchronized and trainer.world_size > 1 and place == "cpu":
            raise UserError("trainer.sync_batchnorm must be false on a CPU, got true: PyTorch's layer requires GPUs.")
        if self._ranks is not None and trainer.num_devices * trainer.num_nodes != self._ranks.size:
            # Lightning compares them after the setup of a fit, and never for one device.
            starter = "srun" if is_slurm_task() else "torchrun"
            raise UserError(
                f"trainer.devices x trainer.num_nodes must be {self._ranks.size}, the number of processes that "
                f"{starter} has started, got {trainer.num_devices} x {trainer.num_nodes}: set trainer.devices to the "
                "number of processes of each machine"
            )

    def _complete(self, chosen: list[Callback]) -> None:
        """Set what only the command line knows: the file of a fit without its last files, the reason of a precision."""
        for callback in chosen:
            if isinstance(callback, callbacks.HeartbeatFile):
                callback.marker = run_files.TRAINED_FILE  # `after_fit`
            if isinstance(callback, callbacks.EnvironmentFile) and self._run.precision_reason:
                callback.facts["precision reason"] = self._run.precision_reason

    def _trainer_refusal(self, error: Exception) -> UserError:
        """Return the error for values of a valid type that Lightning's Trainer refuses."""
        of_trainer = section(self._spec.typed, "trainer")
        named = {name: value for name, value in of_trainer.items() if name in str(error)}
        options = ", ".join(f"trainer.{name}={value}" for name, value in (named or of_trainer).items())
        return UserError(f"the options {options or 'trainer.*'} cannot be used: {one_line(str(error))}")

    def before_fit(self) -> None:
        options = self.config["fit"]
        weights = options.ckpt_path or options.model.weights
        start = f"weights {weights}" if weights else "random weights"
        for line in start_lines(self.trainer, self.model, start):
            rank_zero_info(line)
        self.model.lowers_precision = is_supervised()
        if self._run.epochs_trained is not None:
            self.trainer.fit_loop.max_epochs = self._run.epochs_trained

    def after_fit(self) -> None:
        """Write best.pt and the report, and log the results; LightningCLI calls this method after a complete fit."""
        if self.trainer.is_global_zero:
            heartbeat.enter(Phase.SAVE)
            evaluators = callbacks_of(self.trainer, callbacks.MeanAP)
            scores = evaluators[0].last_scores if evaluators else None
            end_fit(self.trainer, self.model, scores, with_pt=self.config_init["fit"]["best_pt"])
            folder = Path(self.trainer.default_root_dir)
            with OptionalFile().attempt(folder / run_files.FINISHED_FILE, "the next start repeats the last files"):
                (folder / run_files.TRAINED_FILE).replace(folder / run_files.FINISHED_FILE)
            heartbeat.enter(Phase.EXIT)

    def _run_subcommand(self, subcommand: str) -> None:
        """Run a subcommand. A lock, or the lock of the supervisor, allows one fit per run folder."""
        with ExitStack() as contexts:
            if subcommand == "fit" and not is_supervised() and self.trainer.is_global_zero:
                folder = Path(self.trainer.default_root_dir)
                contexts.enter_context(run_lock(folder))
                with OptionalFile().attempt(folder / run_files.SPEC_FILE, "resume with the command line of this start"):
                    self._spec.write(folder)
            contexts.enter_context(missing_process_reported())
            if subcommand == "fit":
                mark_process()
                contexts.enter_context(reported(self.trainer))
            super()._run_subcommand(subcommand)


class ShortErrorParser(ShortErrors, LightningArgumentParser):
    """Parser of LightningCLI."""


def main(args: list[str] | None = None) -> None:
    """Run a command line within a program, which keeps its signal handlers.

    A `UserError` is printed in one line and ends the process with exit code 2; other errors keep their traceback.

    Args:
        args: Words after the program name; None for the words of the process.
    """
    with user_errors():
        spec = resolve(sys.argv[1:] if args is None else args)
        start_supervisor(spec)
        if spec.is_tool:
            run_tool(spec)
        else:
            run(spec)


def run(spec: RunSpec, cli_class: type[YOLOCLI] = YOLOCLI) -> None:
    """Run fit, validate, test or predict with a dataset, which is not supervised by this process.

    Args:
        spec: Options that the user has set.
        cli_class: Class of the command line.
    """
    hide_harmless_messages()
    end_with_launcher(launch_id() is not None)
    mark_lines()
    cli_class(
        YOLOModule,
        DetectionDataModule,
        args=spec,
        parser_class=ShortErrorParser,
        trainer_class=callbacks.StoppableTrainer,
        save_config_callback=SaveRunConfig,
        save_config_kwargs={"save_to_log_dir": False},
        seed_everything_default=0,
        auto_configure_optimizers=False,
        trainer_defaults={
            "default_root_dir": run_folder.DEFAULT_RUN,
            "max_epochs": MAX_EPOCHS,
            "use_distributed_sampler": False,
            "enable_model_summary": False,  # `start_lines` instead
        },
        parser_kwargs={"prog": PROGRAM},
    )


def announce(run: Run) -> None:
    """Print the warnings and lines of a plan, from the first rank."""
    for warning in run.warnings:
        rank_zero_warn(warning)
    for line in run.lines:
        rank_zero_info(line)


def chosen_callbacks(configured: list[Callback], options: Mapping[str, Any], *, is_fit: bool) -> list[Callback]:
    """Return the configured callbacks, the default ones and those of options of the run."""
    deadline = options["deadline"]
    if is_fit and deadline is not None:
        if any(isinstance(callback, callbacks.StatusFile) for callback in configured):
            raise UserError(
                f"deadline must not be set if trainer.callbacks contains StatusFile, got {deadline}: set "
                "init_args.deadline of StatusFile"
            )
        configured = [*configured, callbacks.StatusFile(deadline=deadline)]
    chosen = with_default_callbacks(configured, is_fit=is_fit, use_defaults=options["default_callbacks"])
    if is_fit and options["mirror"] is not None:
        chosen.append(callbacks.CheckpointMirror(options["mirror"]))
    finish_by = options["finish_by"]
    max_hours = options["max_hours"]
    if is_fit and (finish_by is not None or max_hours is not None):
        chosen.append(callbacks.FinishBy(finish_by, max_hours))
    return chosen


def progress_callbacks(*, is_fit: bool) -> list[Callback]:
    """Return the display of the progress: a bar in a terminal, lines in a log file, and the scores of each epoch."""
    display: Callback = callbacks.ProgressLines()
    if has_cursor_control(sys.stderr):
        display = callbacks.RunProgressBar()
    if is_fit:
        return [display, callbacks.EpochTable()]
    return [display]


def is_of_lightning(error: Exception) -> bool:
    """Return whether the constructor of Lightning's Trainer has raised an error, not code of this package."""
    _, *frames = (frame for frame, _ in walk_tb(error.__traceback__))
    constructor = callbacks.StoppableTrainer.__init__.__code__  # only calls the constructor of Lightning's Trainer
    callers = [frame for frame in frames if frame.f_code is not constructor]
    return not any(is_of_package(frame.f_globals["__name__"]) for frame in callers)


def as_list(values: Any) -> list[Any]:
    """Return the values of an option of Lightning's Trainer that accepts one value, a list of values or null."""
    if values is None:
        return []
    if isinstance(values, list):
        return values
    return [values]


def is_of_package(module: str) -> bool:
    """Return whether a module belongs to this package."""
    return module.partition(".")[0] == yolo_lightning.__name__
