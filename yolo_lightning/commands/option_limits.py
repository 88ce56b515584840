"""Limits of option values, and files that a command reads or writes, checked without torch before a parser is built.

The limits are those of the constructors. Groups of settings whose files import no torch are constructed. Of the other
constructors, the limits are read. Imports in functions keep answers about words fast: they take a tenth of a second.
"""

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yolo_lightning.checkpoints.torch_archive import check_archive
from yolo_lightning.commands.trainer_limits import (
    check_deadline,
    check_length,
    check_processors,
    check_trainer,
    resumes,
)
from yolo_lightning.data.batch_size import BATCH_SIZE_LIMITS
from yolo_lightning.data.image_size import ImageSize
from yolo_lightning.errors import UserError
from yolo_lightning.model.detection_settings import CLASS_WIDTH_LIMITS, DetectionSettings
from yolo_lightning.model.variants import description_of
from yolo_lightning.model.weights_file import existing_weights
from yolo_lightning.options.command_names import PICTURES, SUBCOMMANDS
from yolo_lightning.options.option_table import NULL, CommandOptions
from yolo_lightning.options.run_spec import RunSpec
from yolo_lightning.supervision.trainer import is_supervised
from yolo_lightning.training.deadline import MAX_HOURS_LIMITS
from yolo_lightning.training.recipe_limits import RECIPE_LIMITS
from yolo_lightning.utils.choices import AUTO, as_settings, check_range
from yolo_lightning.utils.distributed import NO_LAUNCH_ID, launch_id, machines_of_launch, may_restart, uses_agent_store
from yolo_lightning.utils.nested_keys import nested, section
from yolo_lightning.utils.paths import user_path
from yolo_lightning.utils.run_files import CHECKPOINTS
from yolo_lightning.utils.suggestions import did_you_mean

if TYPE_CHECKING:
    from yolo_lightning.data.formats.dataset_format import DatasetFormat
    from yolo_lightning.data.index.split_index import SplitIndex
    from yolo_lightning.data.index.splits import Split

LIMITS: dict[str, str] = {
    "data.batch_size": BATCH_SIZE_LIMITS,
    "model.class_width": CLASS_WIDTH_LIMITS,
    **{f"model.recipe.{name}": limits for name, limits in RECIPE_LIMITS.items()},
    "max_hours": MAX_HOURS_LIMITS,
}
"""Limits of options that belong to no group of settings, by full name."""

SHEET_SAMPLES = ">= 1, <= 16"
LIMITS_OF_TOOLS = {
    "contact_sheet": {"samples": SHEET_SAMPLES},
    "recalibrate": {"images": ">= 2"},
    PICTURES: {"batch_size": ">= 1"},
}
"""Limits of the options of commands whose parser imports torch."""

DEVICE = re.compile(r"auto|cpu|mps|(cuda|xpu)(:\d+)?")
"""Device of a command besides fit, validate, test and predict."""

EVALUATED = ("fit", "validate", "test")  # commands that read annotations

SPLITS_OF_TOOLS: "dict[str, tuple[Split, ...]]" = {"contact_sheet": ("train",), "recalibrate": ("train", "valid")}
"""Splits whose files must exist before a command besides fit, validate, test and predict starts."""

OUTPUTS = {"contact_sheet": ".png", "recalibrate": ".ckpt"}
"""Suffix of the file `--output` of commands whose parser imports torch."""


def check_limits(spec: RunSpec) -> None:
    """Raise a UserError for an option that is out of range or contradicts another option."""
    options = spec.given
    _groups_of(spec)
    _check_values(spec.table, options)
    check_trainer(options)
    check_run(options)
    if spec.name in SUBCOMMANDS:
        check_launch(options, is_fit=spec.name == "fit")
    if spec.name == "fit":
        check_length(options)
        check_deadline(options)


def _check_values(command: CommandOptions, options: Mapping[str, Any]) -> None:
    """Raise a UserError for an option that belongs to no group of settings and is out of range."""
    for key, limits in (LIMITS | LIMITS_OF_TOOLS.get(command.name, {})).items():
        value = options.get(key)
        if value not in (None, AUTO) and key in command.options:
            types = command.options[key].types
            check_range(key, value, *limits.split(", "), or_null=NULL in types, or_auto=AUTO in types)
    for key in ("data.image_size", "image_size"):
        if options.get(key) is not None and key in command.options:
            ImageSize.of(key, options[key]).check(key)
    if command.name == PICTURES:
        _check_detections(options)
    check_device(str(options.get("device", AUTO)))


def _groups_of(spec: RunSpec) -> dict[str, Any]:
    """Return the groups of settings that the user has set, by full name; raise a UserError for a wrong value."""
    keys = spec.table.keys
    values = {key: value for key, value in spec.given.items() if key in keys}
    groups = {}
    for name, option in spec.table.options.items():
        settings = section(values, name)
        if option.settings and settings:
            module, _, class_name = option.settings.rpartition(".")
            groups[name] = as_settings(getattr(import_module(module), class_name), nested(settings))
    return groups


def _check_detections(options: Mapping[str, Any]) -> None:
    """Raise a UserError for a setting of the detections of `predict PICTURES` that is out of range."""
    try:
        DetectionSettings.of_weights(options)
    except UserError as error:
        raise UserError(str(error).removeprefix("model.detections.")) from error


def check_device(device: str) -> None:
    """Raise a UserError for a device that no machine has."""
    if DEVICE.fullmatch(device):
        return
    meant = [f"cuda:{device}"] if device.isdecimal() else []
    raise UserError(f"device must be one of auto, cpu, cuda, cuda:1, xpu, mps, got {device!r}{did_you_mean(meant)}")


def check_run(options: Mapping[str, Any]) -> None:
    """Raise a UserError for an option of the run that is out of range or contradicts another option."""
    if options.get("resume") and options.get("ckpt_path") is not None:
        raise UserError("--resume finds the checkpoint itself; give either --resume or --ckpt_path")
    seed_of(options.get("seed_everything", 0))


def seed_of(seed_everything: bool | int) -> int:
    """Return the seed of sample order and augmentation; raise a `UserError` for a random or negative seed."""
    if seed_everything is True or seed_everything < 0:
        raise UserError(f"seed_everything must be an integer >= 0, got {seed_everything}: it determines the order.")
    return int(seed_everything)


def check_launch(options: Mapping[str, Any], *, is_fit: bool) -> None:
    """Raise a UserError for processes that their launcher could not restart."""
    if is_fit and options.get("detach") and launch_id() is not None:
        raise UserError("--detach cannot be used with torchrun, whose processes end with it: use nohup torchrun ...")
    if is_fit and launch_id() == NO_LAUNCH_ID and may_restart():
        raise UserError("torchrun --max-restarts needs --rdzv-id, a new name for each run, to resume the run, got none")
    if uses_agent_store() and (may_restart() or (machines_of_launch() or 1) > 1):
        raise UserError(
            "torchrun's own store does not separate restarted processes from ended ones: "
            "start torchrun with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 and --rdzv-backend c10d, or --standalone"
        )


def check_files(spec: RunSpec) -> None:
    """Raise a UserError for a device or a file that the command cannot use, or annotations that do not suit it.

    Training processes of a supervisor or a launcher wait for what is missing for a while; they are not checked.
    """
    if is_supervised() or launch_id() is not None:
        return
    options = spec.given
    groups = _groups_of(spec)
    if spec.name in SUBCOMMANDS:
        check_processors(options)
    if spec.name == PICTURES:
        _check_pictures(spec.arguments, options)
    if spec.name in OUTPUTS:
        from yolo_lightning.commands.console import check_writable

        check_writable(options.get("output"), OUTPUTS[spec.name])
    checkpoint = None
    if spec.name in SUBCOMMANDS:
        checkpoint = _checked_checkpoint(spec.name, options)
    if not spec.reads_data:
        return
    from yolo_lightning.data.index.splits import SPLITS_OF_STAGE

    splits = (SPLITS_OF_STAGE | SPLITS_OF_TOOLS)[spec.name]
    dataset = _dataset(options, groups)
    for split in splits:
        dataset.check_files(split)
    if spec.name == "fit":
        _check_model(options)
    if checkpoint is not None and not options.get("model.single_class"):
        _compare_classes(checkpoint, dataset)
    if spec.name in EVALUATED:
        check_data(dataset, splits, options, groups)


def _check_model(options: Mapping[str, Any]) -> None:
    """Raise a UserError for weights or a graph of a new run that do not exist."""
    if resumes(options) or options.get("ckpt_path") is not None:
        return
    weights = options.get("model.weights")
    if weights is None:
        if "model.variant" in options:
            description_of(options["model.variant"])
        return
    _check_weights("model.weights", existing_weights(weights))


def _check_weights(key: str, file: Path) -> None:
    """Raise a UserError for a file that torch.save has not written."""
    try:
        check_archive(file)
    except UserError as error:
        accepted = "a .pt or .ckpt file of weights, which torch.save has written"
        raise UserError(f"{key} must be {accepted}, got {file}: {error}") from error


def check_data(
    dataset: "DatasetFormat", splits: "Sequence[Split]", options: Mapping[str, Any], groups: Mapping[str, Any]
) -> None:
    """Raise a UserError for annotations and frames that fit, validate or test cannot use; the index is stored.

    Args:
        dataset: Dataset of the command.
        splits: Splits that the command reads; only a fit reads the training split.
        options: Options that the user has set, by full name.
        groups: Groups of settings that the user has set, by full name.
    """
    from yolo_lightning.data.formats.frame_checks import refuse_annotations, refuse_frames
    from yolo_lightning.utils.message_filters import hide_harmless_messages

    hide_harmless_messages()
    limits = dataset.settings.limits
    is_fit = "train" in splits
    for split in splits:
        index = dataset.open_index(split)
        left_out = limits.quarantined(index, split)
        # One channel is enough for sizes and depths. The weights of an evaluation may set data.input.pixel_range.
        refuse_frames(index, dataset.open_storage(split, 1), left_out, is_depth_known=is_fit)
        refuse_annotations(index, split, limits, dataset.origin(split))
        if split == "train":
            _check_training(index, dataset.name(split), options, groups)


def _check_training(index: "SplitIndex", name: str, options: Mapping[str, Any], groups: Mapping[str, Any]) -> None:
    """Raise a UserError for options of a fit that the training split `name` does not allow."""
    from yolo_lightning.data.batch_size import USUAL_BATCH, automatic_batch_size
    from yolo_lightning.data.sampling.epoch_order import SampledOrder, Sampling
    from yolo_lightning.data.sampling.global_batches import GlobalBatches, limited
    from yolo_lightning.data.training_limits import check_interval, check_training
    from yolo_lightning.data.transforms.augmentation_settings import Augmentation

    order = SampledOrder(index, groups.get("data.sampling", Sampling()), seed=0)
    processes = _fewest_processes(options)
    batch_size = options.get("data.batch_size", USUAL_BATCH)
    if batch_size == AUTO:
        batch_size = automatic_batch_size(order.length, processes)
    batches = GlobalBatches(batch_size, processes=processes)
    augmentation = groups.get("data.augmentation", Augmentation())
    check_training(index, order, augmentation.paste, batches, name)
    validates = options.get("trainer.check_val_every_n_epoch", 1) and options.get("trainer.limit_val_batches", 1)
    if validates and not options.get("trainer.fast_dev_run"):
        epoch_batches = limited(batches.count(order.length), options.get("trainer.limit_train_batches"))
        check_interval(options.get("trainer.val_check_interval"), epoch_batches)


def _fewest_processes(options: Mapping[str, Any]) -> int:
    """Return the smallest number of processes of a fit: `auto` and -1 are at least one device."""
    devices = options.get("trainer.devices", AUTO)
    nodes = int(options.get("trainer.num_nodes", 1))
    if isinstance(devices, list):
        return len(devices) * nodes
    if str(devices).isdecimal():
        return int(devices) * nodes
    return nodes


def _check_pictures(words: Sequence[str], options: Mapping[str, Any]) -> None:
    """Raise a UserError for pictures or weights that do not exist, and for a single file that cannot be read.

    Of several files, those that can be read are predicted, see `predict`.
    """
    from yolo_lightning.checkpoints.resume import checkpoint_to_evaluate, weights_file
    from yolo_lightning.checkpoints.run_folder import DEFAULT_RUN
    from yolo_lightning.data.input_images import check_readable, files_of

    sources = [*takewhile(lambda word: not word.startswith("--"), words)]
    refuse_runs(sources)
    files = [file for source in sources for file in files_of(source)[0]]
    if len(files) == 1:
        check_readable(files[0])
    if options.get("output") is not None:
        check_output_folder(options["output"])
    weights = options.get("weights")
    if weights is None:
        checkpoint_to_evaluate(user_path(options.get("run", DEFAULT_RUN)))
    else:
        _check_weights("weights", weights_file(weights))


def _checked_checkpoint(command: str, options: Mapping[str, Any]) -> Path | None:
    """Return the checkpoint of a command if it is a given file, or the best one of a run.

    Raises:
        UserError: If the checkpoint does not exist, or an evaluation has no weights.
    """
    from yolo_lightning.checkpoints.remote_folder import is_address
    from yolo_lightning.checkpoints.resume import checked, checkpoint_to_evaluate
    from yolo_lightning.checkpoints.run_folder import configured_folder, folder_to_resume

    base = configured_folder(options.get("trainer.default_root_dir"))
    if command == "fit" and resumes(options) and options.get("mirror") is None:
        folder_to_resume(base)
    name = options.get("ckpt_path")
    if name is None and (command == "fit" or options.get("model.weights") is not None):
        return None
    if name is None:
        return checkpoint_to_evaluate(base)
    if name in ("best", "last") or is_address(name):
        return None
    return checked(name, base)


def _compare_classes(checkpoint: Path, dataset: "DatasetFormat") -> None:
    """Raise a UserError if the classes of the data are not those of a readable checkpoint."""
    from yolo_lightning.checkpoints.torch_archive import outline

    try:
        recorded = outline(checkpoint).get("hyper_parameters")
    except UserError:  # reported with the remedy when the checkpoint is loaded
        return
    if not isinstance(recorded, dict) or recorded.get("single_class"):
        return
    names = recorded.get("class_names")
    if isinstance(names, list) and names != list(dataset.class_names):
        raise UserError(
            f"the classes of the data must be {names}, as in the checkpoint {checkpoint}, got "
            f"{list(dataset.class_names)}: correct their names in the data, or evaluate the data of the run"
        )


def check_output_folder(output: str) -> None:
    """Raise a UserError for an output of `predict PICTURES` that cannot be a folder."""
    folder = user_path(output)
    if folder.is_file() or not folder.name:
        raise UserError(f"output must be a new folder, got {output!r}")


def refuse_runs(sources: Sequence[str]) -> None:
    """Raise a UserError if a source of pictures is a run folder."""
    for source in sources:
        if (user_path(source) / CHECKPOINTS).is_dir():
            raise UserError(f"{source} is a run folder; write predict PICTURES --run {source}")


def _dataset(options: Mapping[str, Any], groups: Mapping[str, Any]) -> "DatasetFormat":
    """Return the dataset of the options; raise a UserError if its folder or description does not exist."""
    from yolo_lightning.data.formats.choose_format import open_format
    from yolo_lightning.data.formats.dataset_format import DatasetSettings
    from yolo_lightning.data.formats.ltdv2 import LTDv2Format
    from yolo_lightning.data.layouts.choose_layout import check_layout

    root = options.get("data.root")
    names = ("files", "split", "storage", "limits", "input")
    settings = DatasetSettings(
        root=user_path(root) if root else None,
        format=options.get("data.format", LTDv2Format.accepted),
        **{name: groups[f"data.{name}"] for name in names if f"data.{name}" in groups},
    )
    check_layout(settings)
    return open_format(settings)
