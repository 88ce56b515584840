"""The command line: LightningCLI's fit, validate, test and predict, and the tools. Only this file knows all rooms."""

import json
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn

import torch
import yaml
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.plugins import CheckpointIO
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only, rank_zero_warn
from torch.distributed import DistStoreError

from yolo_lightning import callbacks
from yolo_lightning.checkpoints import run_folder
from yolo_lightning.checkpoints.checkpoint_file import CONFIGURATION
from yolo_lightning.checkpoints.checkpoint_io import AtomicCheckpointIO
from yolo_lightning.checkpoints.remote import is_address
from yolo_lightning.checkpoints.resume import (
    checkpoint_to_fit,
    checkpoint_to_score,
    content_of,
    epochs_done,
    fetch_from_mirror,
    flatten,
    folder_after_restart,
    folder_to_fit,
    remembered,
    report_differences,
    storable,
)
from yolo_lightning.commands import TOOLS
from yolo_lightning.commands.command_line import PROGRAM, ShortErrors, run_tool, user_errors
from yolo_lightning.commands.endings import full_disk_reported, reported
from yolo_lightning.commands.option_layers import layered
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.formats.dataset_format import LTDV2
from yolo_lightning.model.network_settings import (
    bound_options,
    checkpoint_record,
    read_record,
    report_changes,
    report_precedence,
)
from yolo_lightning.module import YOLOModule
from yolo_lightning.supervision import (
    SuperviseSettings,
    become_supervisor,
    end_with_launcher,
    heartbeat,
    is_supervised,
    level_of_launch,
    live_heartbeat,
    mark_process,
    quarantined,
    remove_files_of_dead_processes,
    remove_temporary_folder,
    run_lock,
)
from yolo_lightning.supervision.heartbeat import Phase
from yolo_lightning.supervision.supervised_fit import job
from yolo_lightning.utils.distributed import launch_id, machines_of_launch, restarts_are_unsafe
from yolo_lightning.utils.files import replacing
from yolo_lightning.utils.optional_file import OptionalFile
from yolo_lightning.utils.tensorboard import Curves

FROM_DATA = frozenset({"class_names"})
"""Model arguments that the data decide."""
START = frozenset({"resume", "ckpt_path"})
"""Arguments that say where a command begins, not what it does."""

HARMLESS_WARNINGS = (
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",  # Lightning 2.6 with torch 2.13 and newer
    "Consider setting `persistent_workers=True`",  # evaluation workers end on purpose
    "Checkpoint directory .* exists and is not empty",  # of course, in a resumed run
    "The '.*_dataloader' does not have many workers",  # the configuration says how many, with reasons
    "The number of training batches .* is smaller than the logging interval",  # small datasets
    r"Found \d+ module\(s\) in eval mode at the start of training",  # normalisation of frozen parts
    "You are using a custom batch sampler `FileOrderBatches`",  # it leaves nothing out
    r"It is recommended to use `self.log\('.*', ..., sync_dist=True\)`",  # scores are of all frames in every process
)


def main(args: ArgsType = None) -> None:
    """Parse `args` (the command line where None) and run.

    A `ValueError` of our own is a message to the user and ends with exit code 2; anything else keeps its traceback.
    """
    quieten()
    words = sys.argv[1:] if args is None else args
    with user_errors():
        if isinstance(words, list) and words and words[0] in TOOLS:
            run_tool(words[0], words[1:])
        elif isinstance(words, list) and words[:1] == ["predict"] and (pictures := leading_values(words[1:])):
            run_tool("predict", [json.dumps(pictures), *words[1 + len(pictures) :]])
        else:
            with full_disk_reported():
                run_trainer(args)


def run_trainer(args: ArgsType) -> None:
    """A subcommand of LightningCLI."""
    end_with_launcher(launch_id() is not None)
    YOLOCLI(
        YOLOModule,
        DetectionDataModule,
        args=args,
        parser_class=ShortErrorParser,
        trainer_class=callbacks.StoppableTrainer,
        save_config_callback=SaveRunConfig,
        save_config_kwargs={"save_to_log_dir": False},
        seed_everything_default=0,
        auto_configure_optimizers=False,
        trainer_defaults={
            "default_root_dir": run_folder.DEFAULT_RUN,
            "max_epochs": 100,
            "use_distributed_sampler": False,
        },
        parser_kwargs={
            "prog": PROGRAM,
            "description": "Train YOLOv8 on LTDv2 or your own images. Further commands: predict PICTURES: boxes in "
            f"images and videos; {'; '.join(map(': '.join, TOOLS.items()))}.",
            "default_env": True,
            "env_prefix": "YOLO_LIGHTNING",
        },
    )


def is_file(path: str | None) -> bool:
    """Whether a path names a file that exists."""
    return path is not None and Path(path).expanduser().is_file()


def leading_values(words: list[str]) -> list[str]:
    """The words before the first option."""
    return list(takewhile(lambda word: not word.startswith("-"), words))


class YOLOCLI(LightningCLI):
    """LightningCLI that knows run folders, and in which what the user types wins over what a checkpoint remembers."""

    def __init__(self, *positional: Any, **named: Any) -> None:
        self._arguments: ArgsType = named.get("args")
        self._bound: dict[str, Any] = {}
        super().__init__(*positional, **named)

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Command line over environment over the settings of the weights over configuration files over defaults."""
        words = sys.argv[1:] if args is None else args
        if not isinstance(words, list):
            super().parse_arguments(parser, words)
            return
        before = list(takewhile(lambda word: word not in self._subcommand_parsers, words))
        subcommand, typed = words[len(before) : len(before) + 1], words[len(before) + 1 :]
        if subcommand:
            typed = layered(typed, self._parser(subcommand[0]), os.environ, self._bound)
        self.config = parser.parse_args([*before, *subcommand, *typed])

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        """Lightning's, or the one that is asked for: to describe all takes four times as long."""
        known = LightningCLI.subcommands()
        words = sys.argv[1:] if self._arguments is None else self._arguments
        asked = words[0] if isinstance(words, list) and words else None
        return {asked: known[asked]} if asked in known else known

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """One seed and one list of classes for the whole run."""
        parser.add_argument(
            "--allow_pickle", action="store_true", help="Open `--model.weights` whatever code it refers to."
        )
        parser.link_arguments("allow_pickle", "model.allow_pickle")
        parser.link_arguments("seed_everything", "data.seed", compute_fn=seed_of)
        parser.link_arguments("data.class_names", "model.class_names", apply_on="instantiate")

    def _prepare_subcommand_parser(self, klass: type, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        parser = super()._prepare_subcommand_parser(klass, subcommand, **kwargs)
        if subcommand == "fit":
            parser.add_argument("--resume", action="store_true", help="Continue the newest run of the run folder.")
        # All subcommands share one configuration file; only fit follows these.
        parser.add_argument(
            "--supervise",
            type=bool,
            default=False,
            help="Let fit train in a child process that is watched, and started again after a hang or a crash.",
        )
        parser.add_argument("--supervision", type=SuperviseSettings, default=SuperviseSettings())
        parser.add_argument(
            "--mirror",
            type=str | None,
            default=None,
            help="Let fit copy its checkpoints to this address, such as s3://bucket/runs, below the name of the run.",
        )
        if subcommand == "predict":
            parser.set_defaults({"return_predictions": False})
        elif subcommand != "fit":
            parser.set_defaults({"verbose": False})  # MeanAP prints a table
        return parser

    def _parse_ckpt_path(self) -> None:
        """Find run folder and checkpoint. Replaces Lightning's version, which lets checkpoints override the user."""
        config = self.config[self.config.subcommand]
        if is_address(config.trainer.default_root_dir):
            raise ValueError(
                f"trainer.default_root_dir is {config.trainer.default_root_dir}, allowed are local folders: "
                "--mirror copies their checkpoints to an address"
            )
        base = Path(config.trainer.default_root_dir)
        if self.config.subcommand == "fit":
            restarted = folder_after_restart(base)
            if restarted is not None and run_folder.has_checkpoint(restarted):
                checkpoint = checkpoint_to_fit(restarted, None, True, exactly=True)
            else:
                if config.mirror is not None and (config.resume or config.ckpt_path == "last"):
                    fetch_from_mirror(base, config.mirror, exactly=is_supervised())
                checkpoint = checkpoint_to_fit(base, config.ckpt_path, config.resume, exactly=is_supervised())
            # The folder that a supervisor has chosen is as good as fresh.
            folder = restarted or folder_to_fit(base, checkpoint, None if is_supervised() else config.mirror)
            self._leave_out(quarantined(folder))
            self._use_fallback_level(folder)
            if checkpoint is not None:
                content = content_of(checkpoint)
                if config.resume or config.ckpt_path == "last":
                    self._end_if_finished(folder, content)
                self._continue_network(content.get("hyper_parameters", {}))
                report_differences(remembered(folder, content), self._options())
        else:
            checkpoint = checkpoint_to_score(base, config.ckpt_path, config.model.weights)
            folder = (run_folder.run_of(checkpoint) if checkpoint else None) or base
            if checkpoint is not None:
                content = content_of(checkpoint)
                self._use_as_defaults(content.get("hyper_parameters", {}))
                self._use_settings(checkpoint_record(checkpoint, content))
                self.config[self.config.subcommand].model.weights = None
            elif is_file(config.model.weights):
                weights = Path(config.model.weights).expanduser()
                self._use_settings(read_record(weights, allow_pickle=config.allow_pickle))
        config = self.config[self.config.subcommand]
        run_folder.prepare(folder)
        config.trainer.default_root_dir = str(folder)
        config.ckpt_path = None if checkpoint is None else str(checkpoint)
        rank_zero_info(f"run folder: {folder}" + (f", checkpoint: {checkpoint}" if checkpoint else ""))
        if self.config.subcommand == "fit" and config.supervise and not is_supervised():
            if launch_id() is None:
                self._become_supervisor(folder)
            rank_zero_info("supervise: not under torchrun, which starts all processes again (--max-restarts)")
        if self.config.subcommand == "fit" and checkpoint is None and is_file(config.model.weights):
            record = read_record(Path(config.model.weights).expanduser(), allow_pickle=config.allow_pickle)
            report_changes(self._bound_by(record), self._options(), f"the weights {config.model.weights}")
        if restarts_are_unsafe():
            rank_zero_warn("torchrun's restarts may hang: set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 before it starts")
        heartbeat.enter(Phase.INDEX)

    def _leave_out(self, suspects: Sequence[str]) -> None:
        """Add samples to those that the data module leaves out."""
        data = self.config[self.config.subcommand].data
        added = [suspect for suspect in suspects if suspect not in data.quarantine]
        if added:
            rank_zero_warn(f"left out, as training ended at them again and again: {', '.join(added)}")
            data.quarantine = (*data.quarantine, *added)

    def _use_fallback_level(self, folder: Path) -> None:
        """Apply the fallback level of a torchrun launch, which no supervisor restarts with other options."""
        launch, loader = launch_id(), self.config[self.config.subcommand].data.loader
        if launch is None:
            return
        level = level_of_launch(folder, launch, loader.num_workers)
        for name, value in level.settings.items():
            loader[name] = value
        if level.settings:
            rank_zero_info(f"loader: fallback level '{level.name}' after a loader stall")

    def _become_supervisor(self, folder: Path) -> NoReturn:
        config = self.config[self.config.subcommand]
        given = self.parser.instantiate_classes(self.config)[self.config.subcommand].supervision
        words = self._arguments if isinstance(self._arguments, list) else sys.argv[1:]
        on_gpu = config.trainer.accelerator != "cpu" and torch.cuda.is_available()
        workers = config.data.loader.num_workers
        become_supervisor(folder, job(words, folder, workers=workers, settings=given, on_gpu=on_gpu))

    def _end_if_finished(self, run: Path, content: dict[str, Any]) -> None:
        """Print that a finished run has nothing left to train, and end; a supervisor's trainer has to note the end."""
        done, wanted = epochs_done(content), self.config[self.config.subcommand].trainer.max_epochs
        if is_supervised() or wanted is None or not 0 < wanted <= done:
            return
        rank_zero_info(
            f"{run}: the training is finished, {done} of {wanted} epochs are done; "
            f"to train longer, give --trainer.max_epochs {done + 1} or more"
        )
        raise SystemExit(0)

    def _continue_network(self, saved: dict[str, Any]) -> None:
        """Build the network of the checkpoint; the weights that it once started from are not needed any more."""
        model = self.config[self.config.subcommand].model
        model.weights = None
        model.class_width = saved.get("class_width")

    def _use_as_defaults(self, saved: dict[str, Any]) -> None:
        """Take the network's arguments from the checkpoint where the user gives none."""
        subcommand = self.config.subcommand
        known = set(self.config[subcommand].model.keys()) - FROM_DATA
        defaults = {f"model.{name}": value for name, value in saved.items() if name in known}
        self._parser(subcommand).set_defaults(defaults)

    def _use_settings(self, record: dict[str, Any]) -> None:
        """Evaluate with the recorded settings of the weights, unless the user types others."""
        configured = self._options()
        self._bound = self._bound_by(record)
        self._parser(self.config.subcommand).set_defaults(self._bound)
        self.parse_arguments(self.parser, self._arguments)
        report_precedence(self._bound, configured, self._options())

    def _bound_by(self, record: dict[str, Any]) -> dict[str, Any]:
        return bound_options(record, is_gray=self.config[self.config.subcommand].data.format == LTDV2)

    def _options(self) -> dict[str, Any]:
        """All options of the subcommand by their full name, as plain Python."""
        return flatten(yaml.safe_load(self.parser.dump(self.config, skip_none=False))[self.config.subcommand])

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Add what every run has: TensorBoard files in the run folder, atomic checkpoints, the usual callbacks."""
        config = self._get(self.config_init, "trainer")
        folder = config["default_root_dir"]
        if config["use_distributed_sampler"]:
            raise ValueError("trainer.use_distributed_sampler is true, allowed is false: the data module deals frames")
        if (nodes := machines_of_launch()) is not None:
            kwargs["num_nodes"] = nodes
        if config["logger"] in (None, True):
            fitting = self.subcommand == "fit"
            kwargs["logger"] = fitting and Curves(folder, name="", version=run_folder.TENSORBOARD)
        plugins = config["plugins"] or []
        plugins = plugins if isinstance(plugins, list) else [plugins]
        if not any(isinstance(plugin, CheckpointIO) for plugin in plugins):
            kwargs["plugins"] = [*plugins, AtomicCheckpointIO()]
        chosen = usual_callbacks() if config["callbacks"] is None else list(config["callbacks"])
        if config["enable_progress_bar"] in (None, True) and not any(isinstance(one, ProgressBar) for one in chosen):
            terminal = sys.stderr.isatty()
            chosen.append(callbacks.RunProgressBar() if terminal else callbacks.ProgressLines())
            kwargs["enable_progress_bar"] = terminal
        if self.subcommand == "fit":
            if is_supervised():  # the supervisor detects stalls
                chosen = [one for one in chosen if not isinstance(one, callbacks.StallMonitor)]
            if not any(isinstance(one, callbacks.StatusFile) for one in chosen):
                chosen.insert(0, callbacks.StatusFile())
            if not any(isinstance(one, callbacks.EnvironmentFile) for one in chosen):
                chosen.append(callbacks.EnvironmentFile())
            mirror = self._get(self.config_init, "mirror")
            if mirror is not None:
                chosen.append(callbacks.CheckpointMirror(mirror))
            chosen[:0] = [callbacks.ProgressRecord(), callbacks.StopOnSignal()]
        kwargs["callbacks"] = chosen
        trainer = super().instantiate_trainer(**kwargs)
        place = trainer.strategy.root_device.type
        if config["sync_batchnorm"] and trainer.world_size > 1 and place == "cpu":
            raise ValueError("trainer.sync_batchnorm is true, allowed on a CPU is false: PyTorch's layer needs GPUs")
        return trainer

    def _run_subcommand(self, subcommand: str) -> None:
        """One fit in a run folder at a time; a supervisor holds the folder for its trainers."""
        alone = subcommand == "fit" and not is_supervised() and self.trainer.is_global_zero
        folder, launch = Path(self.trainer.default_root_dir), launch_id()
        if subcommand == "fit":
            mark_process()
        with run_lock(folder) if alone else nullcontext() as before:
            if alone:
                remove_files_of_dead_processes()
                if before is not None and before.marker:  # a supervisor that was killed with its trainer
                    remove_temporary_folder(before.marker)
                    live_heartbeat.remove(before.marker)
            if alone and launch is not None:
                run_folder.note_launch(folder, launch)
            words = self._arguments if isinstance(self._arguments, list) else sys.argv[1:]
            try:
                with reported(self.trainer, words) if subcommand == "fit" else nullcontext():
                    super()._run_subcommand(subcommand)
            except DistStoreError as error:
                raise SystemExit(
                    f"error: a process is missing, or has gone: {error} See configs/engine/ddp.yaml for the time limit"
                ) from None


class ShortErrorParser(ShortErrors, LightningArgumentParser):
    """Of LightningCLI."""


class SaveRunConfig(SaveConfigCallback):
    """Writes the resolved configuration of the subcommand into the run folder, for any subcommand to read."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._file = OptionalFile()

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Overwrite the file: a resumed run is described by what it was resumed with, not by where it went on."""
        assert trainer.state.fn is not None
        path = Path(trainer.default_root_dir) / run_folder.config_name(trainer.state.fn.value)
        with self._file.attempt(path), replacing(path) as temporary:
            temporary.write_text(yaml.safe_dump(self._content, sort_keys=False))

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Store the configuration, for a resume without the file."""
        checkpoint[CONFIGURATION] = storable(self._content)

    @cached_property
    def _content(self) -> dict[str, Any]:
        config = yaml.safe_load(self.parser.dump(self.config, skip_none=False))
        return {key: config[key] for key in config if key not in START}

    @rank_zero_only
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the file if a full disk prevented that at the start."""
        if self._file.failed:
            self.save_config(trainer, pl_module, "fit")


def usual_callbacks() -> list[Callback]:
    """The callbacks of a run whose configuration names none."""
    return [
        callbacks.EMA(),
        callbacks.MeanAP(),
        callbacks.FinalValidation(),
        callbacks.MetricsFile(),
        callbacks.ResultsFile(),
        callbacks.RandomState(),
        callbacks.StallMonitor(),
        callbacks.FrameGallery(),
        callbacks.PredictionPictures(),
        callbacks.SubmissionWriter(),
        callbacks.BestCheckpoint(),
        callbacks.LastCheckpoint(),
    ]


def seed_of(seed_everything: bool | int) -> int:
    """The seed of order and augmentation.

    Raises:
        ValueError: If a random seed is asked for, or a negative one.
    """
    if seed_everything is True or seed_everything < 0:
        raise ValueError(f"seed_everything is {seed_everything}, allowed are 0 and more: the order derives from it")
    return int(seed_everything)


def quieten() -> None:
    """Drop Lightning's advertisements, and warnings about what is meant to be so, from the log."""
    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.rank_zero"):
        logging.getLogger(name).addFilter(lambda record: "Tip:" not in record.getMessage())
    for message in HARMLESS_WARNINGS:
        warnings.filterwarnings("ignore", message)
