"""Files and folders that a command reads or writes, checked without torch before a parser is built.

Imports in functions keep answers about words fast: they take a tenth of a second.
"""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yolo_lightning.commands import PICTURES, SUBCOMMANDS
from yolo_lightning.errors import UserError
from yolo_lightning.model.weights_file import existing_weights
from yolo_lightning.options.option_table import CommandOptions
from yolo_lightning.options.run_spec import separated
from yolo_lightning.utils.nested_keys import flatten
from yolo_lightning.utils.paths import user_path
from yolo_lightning.utils.plain_text import first_look
from yolo_lightning.utils.run_files import CHECKPOINTS, config_name
from yolo_lightning.utils.yaml_file import read_yaml

if TYPE_CHECKING:
    from yolo_lightning.data.formats.dataset_format import DatasetFormat
    from yolo_lightning.data.index.splits import Split

ZIP = b"PK"  # beginning of a file of torch.save

SPLITS_READ: "dict[str, tuple[Split, ...]]" = {
    "fit": ("train", "valid"),
    "validate": ("valid",),
    "test": ("test",),
    "predict": ("predict",),
    "contact_sheet": ("train",),
    "recalibrate": ("train", "valid"),
}
"""Splits whose files must exist before a command starts."""

OUTPUTS = {
    "contact_sheet": {"output": ".png"},
    "recalibrate": {"output": ".ckpt"},
}
"""Suffix of the files that commands write whose parser imports torch, by option."""


def check_required_files(
    command: CommandOptions, words: Sequence[str], options: Mapping[str, Any], groups: Mapping[str, Any]
) -> "DatasetFormat | None":
    """Return the dataset of a command, if any; raise a UserError for a file that the command cannot read or write.

    Args:
        command: Command or section of a command.
        words: Command line after the command.
        options: Options that the user has set, by full name.
        groups: Groups of settings that the user has set, by full name.
    """
    if command.name == PICTURES:
        _check_pictures(words, options)
    for name, suffix in OUTPUTS.get(command.name, {}).items():
        from yolo_lightning.commands.console import check_writable

        check_writable(options.get(name), suffix)
    if command.name in SUBCOMMANDS:
        _check_checkpoint(command.name, options)
    if command.name not in SPLITS_READ:
        return None
    if "checkpoint" in command.options:
        options = _with_options_of_run(words, options)
    return _checked_dataset(SPLITS_READ[command.name], options, groups)


def check_annotations(dataset: "DatasetFormat", command: str) -> None:
    """Raise a UserError for annotations that fit, validate or test cannot use; the index that is built is stored."""
    from yolo_lightning.data.formats.frame_checks import refuse_annotations
    from yolo_lightning.utils.message_filters import hide_harmless_messages

    hide_harmless_messages()
    for split in SPLITS_READ[command]:
        refuse_annotations(dataset.open_index(split), split, dataset.settings.limits, dataset.origin(split))


def _check_pictures(words: Sequence[str], options: Mapping[str, Any]) -> None:
    """Raise a UserError for pictures or weights that do not exist."""
    from yolo_lightning.checkpoints.resume import checkpoint_to_evaluate, weights_file
    from yolo_lightning.checkpoints.run_folder import DEFAULT_RUN
    from yolo_lightning.data.input_images import files_of

    sources = [*takewhile(lambda word: not word.startswith("--"), words)]
    refuse_runs(sources)
    for source in sources:
        files_of(source)
    weights = options.get("weights")
    if weights is None:
        checkpoint_to_evaluate(user_path(options.get("run", DEFAULT_RUN)))
    else:
        weights_file(weights)


def _check_checkpoint(command: str, options: Mapping[str, Any]) -> None:
    """Raise a UserError for a checkpoint that does not exist, or for an evaluation without weights."""
    from yolo_lightning.checkpoints.remote_folder import is_address
    from yolo_lightning.checkpoints.resume import checked, checkpoint_to_evaluate
    from yolo_lightning.checkpoints.run_folder import DEFAULT_RUN

    name = options.get("ckpt_path")
    base = Path(options.get("trainer.default_root_dir", DEFAULT_RUN))
    if name is not None and name not in ("best", "last") and not is_address(name):
        checked(name, base)
    elif command != "fit" and name is None and options.get("model.weights") is None:
        checkpoint_to_evaluate(base)


def check_weights(weights: str) -> None:
    """Raise a UserError if `model.weights` does not exist, or does not begin as a file of torch.save."""
    with existing_weights(weights).open("rb") as file:
        head = file.read(64)
    if not head.startswith(ZIP):
        raise UserError(f"model.weights must be a file of weights, got {weights}, which {first_look(head)}")


def refuse_runs(sources: Sequence[str]) -> None:
    """Raise a UserError if a source of pictures is a run folder."""
    for source in sources:
        if (user_path(source) / CHECKPOINTS).is_dir():
            raise UserError(f"{source} is a run folder; write predict PICTURES --run {source}")


def _with_options_of_run(words: Sequence[str], options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options with those of the run whose checkpoint a command uses; raise a UserError for no checkpoint."""
    from yolo_lightning.checkpoints.resume import chosen_checkpoint
    from yolo_lightning.checkpoints.run_folder import DEFAULT_RUN, run_of

    run = run_of(chosen_checkpoint(options.get("run", DEFAULT_RUN), options.get("checkpoint")))
    files, _ = separated(words)
    if files or run is None or not (run / config_name("fit")).is_file():
        return options
    return {**flatten(read_yaml(run / config_name("fit"))), **options}


def _checked_dataset(
    splits: "Sequence[Split]", options: Mapping[str, Any], groups: Mapping[str, Any]
) -> "DatasetFormat":
    """Return the dataset; raise a UserError if its folder, annotation files or description do not exist."""
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
    dataset = open_format(settings)
    for split in splits:
        dataset.check_files(split)
    return dataset
