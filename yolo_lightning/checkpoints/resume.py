"""Checkpoint and run folder of a command, and changes of the configuration since the checkpoint was written."""

import os
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from yolo_lightning.checkpoints import run_folder
from yolo_lightning.checkpoints.checkpoint_file import CONFIGURATION, newest_checkpoint, require_whole
from yolo_lightning.checkpoints.remote_folder import RemoteFolder, fetch_run, is_remote, local_checkpoint, local_path
from yolo_lightning.errors import UserError
from yolo_lightning.utils import run_files
from yolo_lightning.utils.addresses import SECRET, redacted
from yolo_lightning.utils.choices import checked_arguments
from yolo_lightning.utils.nested_keys import flatten
from yolo_lightning.utils.paths import user_path
from yolo_lightning.utils.plain_text import one_line
from yolo_lightning.utils.rank_zero import rank_zero_info, rank_zero_warn
from yolo_lightning.utils.suspect_checkpoints import has_wrong_result, set_aside_suspects

NOT_COMPARED = {
    "ckpt_path",
    "resume",
    "detach",
    "trainer.default_root_dir",
    "config",
    "mirror",
    "supervision.notify.webhook",
    "supervision.notify.ping",
}
"""Options that select the checkpoint or contain secrets."""
FURTHER_CHECKPOINTS = ("*/checkpoints/*.ckpt", "*/*/checkpoints/*.ckpt")
"""Checkpoints of run folders within a folder, and of a `ModelCheckpoint` without `dirpath` (in `lightning_logs`)."""
LONGEST_VALUE = 300  # characters of a saved value in a message


def checkpoint_to_resume(folder: Path) -> Path:
    """Return the checkpoint at which the run in a folder is resumed.

    Checkpoints that a fit without a supervisor has saved before its self-check found a wrong result are set aside. A
    warning names these, and newer checkpoints that cannot be used.

    Raises:
        UserError: If the folder contains no checkpoint, or only damaged ones.
    """
    if has_wrong_result(folder):
        names = ", ".join(set_aside_suspects(folder)) or "none"
        rank_zero_warn(f"{folder}: checkpoints set aside after the last passed self-check: {names}")
    path, damaged = _newest(folder)
    _warn_of(damaged)
    return path


def _newest(folder: Path) -> tuple[Path, dict[Path, str]]:
    """Return the checkpoint of a run folder with the most steps, and the newer ones that cannot be used with reasons.

    A file with weights only is returned if there is no other.
    """
    if not run_files.has_checkpoint(folder):
        raise UserError(run_folder.NOTHING_TO_RESUME.format(base=folder))
    checkpoints = folder / run_files.CHECKPOINTS
    path, damaged = newest_checkpoint(checkpoints, resumable=True)
    if path is None:
        path, damaged = newest_checkpoint(checkpoints)
    if path is None:
        listed = "; ".join(f"{file}: {reason}" for file, reason in damaged.items())
        raise UserError(f"nothing to resume: every checkpoint of {folder} is damaged: {listed}")
    return path, damaged


CHECKPOINT_OPTIONS = (
    "Set the folder of a run (--trainer.default_root_dir, or --run), or a file (--ckpt_path or --model.weights, or "
    "--checkpoint)."
)
"""How a command gets weights."""


def checkpoint_to_evaluate(base: Path, remedy: str = CHECKPOINT_OPTIONS) -> Path:
    """Return the best checkpoint of the newest run; without validation scores the one with the most steps.

    `remedy` is the end of the message if no run has a checkpoint.
    """
    folders = run_folder.runs(base)
    if not folders:
        raise UserError(
            f"there are no weights: no run folder {base} or {base}-<n> contains a checkpoint"
            f"{run_folder.meant_run(base)} {remedy}"
        )
    best = folders[0] / run_files.CHECKPOINTS / run_files.BEST_CHECKPOINT
    if best.is_file():
        return best
    path, _ = _newest(folders[0])
    return path


def chosen_checkpoint(run: str, checkpoint: str | None) -> Path:
    """Return the given checkpoint, a file or an address, or the best one of the newest run, if it is complete."""
    file = local_checkpoint(checkpoint) if checkpoint else checkpoint_to_evaluate(user_path(run))
    require_whole(file)
    return file


def weights_file(weights: str | PathLike[str]) -> Path:
    """Return the file of an address, of a path, or the best checkpoint of a run folder.

    Raises:
        UserError: If there is no such file, it is damaged, or the folder contains no checkpoint.
    """
    value: Any = weights
    if not isinstance(value, str | PathLike) or not str(value):
        got = type(value).__name__ if value != "" else "an empty text"
        raise UserError(f"weights must be a file or a run folder, got {got}; trainer.save_checkpoint writes a file")
    if os.path.isdir(user_path(weights)):
        return checkpoint_to_evaluate(user_path(weights), "weights must be a file or the folder of a run.")
    file = local_checkpoint(str(weights))
    if file.suffix == ".ckpt" or not file.is_file():
        require_whole(file, "weights")
    return file


def check_resumable(content: Mapping[str, Any], path: Path) -> None:
    """Raise a UserError if the content of a checkpoint lacks a part that a fit requires."""
    parts = {
        "optimizer_states": content.get("optimizer_states"),
        "loops": content.get("loops", {}).get("fit_loop"),
        "callbacks": "callbacks" in content,
    }
    lacking = [name for name, part in parts.items() if not part]
    if lacking:
        raise UserError(
            f"checkpoint {path} has no {', '.join(lacking)} and cannot be resumed; start a new run from its weights "
            f"with --model.weights {path}"
        )


@checked_arguments()
def latest_checkpoint(folder: str | Path, mirror: str | None = None) -> Path | None:
    """Return the newest undamaged checkpoint of a run folder, for `Trainer.fit(ckpt_path=...)`; None for a new run.

    Newer checkpoints that are damaged or contain weights only (`save_weights_only`) are skipped with a warning.

    Args:
        folder: `default_root_dir` of the Trainer; its checkpoints are in `checkpoints/`.
        mirror: Address of a `CheckpointMirror`. If the folder contains no undamaged checkpoint, as on a new machine,
            the newest undamaged one of the run is downloaded.

    Raises:
        UserError: If every checkpoint is damaged, the mirror cannot be read, or `folder` is no run folder.
    """
    if is_remote(folder):
        raise UserError(f"folder must be a local run folder, got {redacted(str(folder))}; use mirror for an address")
    base = local_path(folder)
    if not str(folder) or base.is_file() or any(base.glob(run_files.CHECKPOINT_PATTERN)):
        raise UserError(f"folder must be a run folder, which contains {run_files.CHECKPOINTS}/, got {folder!r}")
    if mirror is not None:
        download(base, mirror)
    if not run_files.has_checkpoint(base):
        _warn_of_other_places(base)
        return None
    return checkpoint_to_resume(base)


def _warn_of_other_places(base: Path) -> None:
    """Warn of checkpoints deeper in the folder, where Lightning's `ModelCheckpoint` writes if there is a logger."""
    checkpoint = next((path for pattern in FURTHER_CHECKPOINTS for path in sorted(base.glob(pattern))), None)
    if checkpoint is not None:
        folder = checkpoint.parent.parent
        rank_zero_warn(
            f"{base / run_files.CHECKPOINTS} contains no checkpoint, and a new run begins, but {checkpoint} exists: to "
            f"resume, pass latest_checkpoint({str(folder)!r}). LastCheckpoint, and ModelCheckpoint with dirpath, write "
            "to the run folder"
        )


def _warn_of(damaged: Mapping[Any, str]) -> None:
    for file, reason in damaged.items():
        rank_zero_warn(f"skipped {file}: {reason}")


def download(folder: Path, mirror: str) -> None:
    """Download the newest undamaged checkpoint of a run from a mirror, unless its folder contains one."""
    if run_files.has_checkpoint(folder) and newest_checkpoint(folder / run_files.CHECKPOINTS)[0] is not None:
        return
    name = folder.absolute().name
    try:
        path, damaged = fetch_run(RemoteFolder(mirror).folder(name), folder / run_files.CHECKPOINTS)
    except OSError as error:
        raise UserError(f"mirror {redacted(mirror)} cannot be read: {error}") from error
    _warn_of(damaged)
    if path is not None:
        rank_zero_info(f"downloaded {path} from {redacted(mirror)}")


def checkpoint_to_score(base: Path, ckpt_path: str | None, weights: str | None) -> Path | None:
    """Return the checkpoint to evaluate: the given one, else the best of the newest run; None for `weights` alone."""
    if ckpt_path == "last":
        return checkpoint_to_resume(run_folder.folder_to_resume(base))
    if ckpt_path is None and weights is not None and not run_folder.runs(base):
        return None
    return checked(ckpt_path or "best", base)


def checked(ckpt_path: str, base: Path) -> Path:
    """Return a given checkpoint if it is undamaged; `best` is the best one of the newest run."""
    if ckpt_path.endswith(".pt"):
        raise UserError(f"ckpt_path must be a .ckpt file, got {ckpt_path}. Use --model.weights for a .pt file.")
    path = checkpoint_to_evaluate(base) if ckpt_path == "best" else local_checkpoint(ckpt_path)
    require_whole(path)
    return path


def remembered(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration in a checkpoint, and the hyperparameters of its model, by full names."""
    configured = flatten(content.get(CONFIGURATION, {}))
    return configured | flatten({"model": content.get("hyper_parameters", {})})


def storable(config: Any, prefix: str = "") -> Any:
    """Return a configuration, or the section `prefix` of it, without secrets and options that select a checkpoint."""
    if isinstance(config, list):
        return [storable(value, prefix) for value in config]
    if not isinstance(config, dict):
        return config
    return {
        name: storable(value, f"{prefix}{name}.")
        for name, value in config.items()
        if prefix + name not in NOT_COMPARED and not SECRET.search(name)
    }


def differences(saved: Mapping[str, Any], now: Mapping[str, Any], source: str = "the checkpoint") -> list[str]:
    """Return a line for each option, by full name, whose value differs from the saved one; the new value is used."""
    lines = []
    for name in sorted((saved.keys() & now.keys()) - NOT_COMPARED):
        if saved[name] != now[name]:
            before = one_line(str(saved[name]), LONGEST_VALUE)
            lines.append(f"changed since {source}: {one_line(name)} was {before}, now {now[name]} (used)")
    return lines
