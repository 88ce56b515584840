"""Which checkpoint and run folder a command means, and what has changed since the checkpoint was written."""

import re
from pathlib import Path
from typing import Any

import torch
import yaml
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from yolo_lightning.checkpoints import run_folder
from yolo_lightning.checkpoints.averaging import AVERAGED
from yolo_lightning.checkpoints.checkpoint_file import CONFIGURATION, find_damage, require_whole, training_age
from yolo_lightning.checkpoints.remote import RemoteFolder, below, fetch_run, local_checkpoint
from yolo_lightning.utils import run_files
from yolo_lightning.utils.distributed import launch_id, restarts

ADDRESSES = {f"supervision.notify.{name}" for name in ("webhook", "apprise", "ping")}
NOT_COMPARED = {"ckpt_path", "resume", "trainer.default_root_dir", "config", "mirror"} | ADDRESSES
"""What says where to continue, not how; and what holds secrets."""
SECRET = re.compile(r"password|passwd|token|secret|api_?key|credential", re.IGNORECASE)
"""Names of options, such as those of loggers, whose values belong to nobody else."""


def checkpoint_to_fit(base: Path, ckpt_path: str | None, resume: bool, *, exactly: bool = False) -> Path | None:
    """The checkpoint that training continues from, or None for a new run.

    Args:
        base: Configured run folder.
        ckpt_path: What the user names, a file or the address of one.
        resume: Whether to look for it.
        exactly: Whether only `base` itself counts, not `base-2` and so on.

    Raises:
        ValueError: If there is none though one was asked for, or it is damaged or an average.
    """
    if resume and ckpt_path is not None:
        raise ValueError("--resume finds the checkpoint itself; give either --resume or --ckpt_path")
    if not resume and ckpt_path != "last":
        return trainable(checked(ckpt_path, base))
    path, damaged = run_folder.checkpoint_to_resume(base, exactly=exactly)
    for file, reason in damaged.items():
        rank_zero_warn(f"passed over {file}: {reason}")
    return trainable(path)


def fetch_from_mirror(base: Path, mirror: str, *, exactly: bool = False) -> None:
    """Where no run folder holds a checkpoint, as on another machine, fill one from the newest run of the mirror.

    Args:
        base: Configured run folder.
        mirror: Address of the folder that run folders are mirrored to.
        exactly: Whether only `base` itself counts, not `base-2` and so on.

    Raises:
        ValueError: If the mirror cannot be read, or the run folder not be written.
    """
    if run_files.has_checkpoint(base) if exactly else run_folder.runs(base):
        return
    names = [name for name in mirrored_runs(base, mirror) if name == base.absolute().name or not exactly]
    for name in names[:1]:
        try:
            path, damaged = fetch_run(below(mirror, name), base.absolute().with_name(name) / run_files.CHECKPOINTS)
        except OSError as error:
            raise ValueError(f"nothing could be fetched from mirror {mirror}/{name}: {error}") from error
        for file, reason in damaged.items():
            rank_zero_warn(f"passed over {file}: {reason}")
        if path is not None:
            rank_zero_info(f"fetched {path} from {mirror}")


def mirrored_runs(base: Path, mirror: str) -> list[str]:
    """Names of the runs `base`, `base-2`, ... that a mirror holds checkpoints of, the last one first.

    Raises:
        ValueError: If the mirror cannot be read.
    """
    pattern = run_folder.numbered(base)
    try:
        found = {name: match for name in RemoteFolder(mirror).names() if (match := pattern.fullmatch(name)) is not None}
        held = [name for name in found if below(mirror, name).whole()]
    except OSError as error:
        raise ValueError(f"mirror {mirror} cannot be read: {error}") from error
    return sorted(held, key=lambda name: int(found[name][1] or 1), reverse=True)


def trainable(path: Path | None) -> Path | None:
    """A checkpoint to continue from, which an average is not: it has neither optimizer nor place in the training.

    Raises:
        ValueError: If it is one.
    """
    if path is not None and AVERAGED in torch.load(path, map_location="meta", weights_only=True):
        raise ValueError(
            f"checkpoint {path} is an average of several, which training cannot continue from; start a new run from it "
            f"with --model.weights {path}"
        )
    return path


def folder_after_restart(base: Path) -> Path | None:
    """The run folder to continue in where torchrun has restarted all processes after one had ended."""
    launch = launch_id()
    return run_folder.run_of_launch(base, launch) if launch is not None and restarts() else None


def checkpoint_to_score(base: Path, ckpt_path: str | None, weights: str | None) -> Path | None:
    """The checkpoint to evaluate: the given one, else the best of the newest run; None where only weights are there."""
    if ckpt_path == "last":
        return checkpoint_to_fit(base, "last", False)
    if ckpt_path is None and weights is not None and not run_folder.runs(base):
        return None
    return checked(ckpt_path or "best", base)


def checked(ckpt_path: str | None, base: Path) -> Path | None:
    """A given checkpoint, if it is whole; `best` means that of the newest run."""
    if ckpt_path is None:
        return None
    path = run_folder.checkpoint_to_evaluate(base) if ckpt_path == "best" else local_checkpoint(ckpt_path)
    require_whole(path)
    return path


def folder_to_fit(base: Path, checkpoint: Path | None, mirror: str | None = None) -> Path:
    """Continue in the checkpoint's own run folder.

    A new run gets a fresh folder, and so does a checkpoint from elsewhere or one that its run has gone beyond: what
    came after it is kept. A folder is fresh that has no checkpoints here, nor any in the mirror.

    Raises:
        ValueError: If the mirror cannot be read.
    """
    own = run_folder.run_of(checkpoint) if checkpoint is not None else None
    if checkpoint is None or own is None or own.resolve() not in [folder.resolve() for folder in run_folder.runs(base)]:
        return fresh_run(base, mirror)
    steps = training_age(checkpoint)[0]
    further = [path for path in checkpoint.parent.glob("*.ckpt") if training_age(path)[0] > steps]
    return fresh_run(base, mirror) if any(find_damage(path) is None for path in further) else own


def fresh_run(base: Path, mirror: str | None) -> Path:
    """See `folder_to_fit`."""
    return run_folder.fresh_run(base, mirrored_runs(base, mirror) if mirror is not None else ())


def content_of(checkpoint: Path) -> dict[str, Any]:
    """What a checkpoint contains; tensors without their values."""
    content: dict[str, Any] = torch.load(checkpoint, map_location="meta", weights_only=True)
    return content


def epochs_done(content: dict[str, Any]) -> int:
    """Epochs that the training of a checkpoint has completed."""
    progress = content.get("loops", {}).get("fit_loop", {}).get("epoch_progress", {})
    return int(progress.get("current", {}).get("processed", 0))


def remembered(folder: Path, content: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a run by full names: the file in its folder, and the model's arguments in the checkpoint.

    A configuration file that cannot be read is replaced by the configuration in the checkpoint.
    """
    path, configured = folder / run_files.config_name("fit"), content.get(CONFIGURATION, {})
    if path.is_file():
        try:
            configured = read_configuration(path)
        except ValueError as error:
            source = f"the configuration in the checkpoint is compared{' instead' if configured else ': it has none'}"
            rank_zero_warn(f"{error}; {source}")
    return flatten(configured) | flatten({"model": content.get("hyper_parameters", {})})


def read_configuration(path: Path) -> dict[str, Any]:
    """The configuration that a run has written.

    Raises:
        ValueError: If the file is damaged.
    """
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read ({error})") from error
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is damaged ({str(error).splitlines()[0]})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged (it holds no options)")
    return content


def storable(config: Any, prefix: str = "") -> Any:
    """A configuration as checkpoints store it: without secrets, and without what names a place.

    Args:
        config: Plain Python: the options, or a part of them.
        prefix: Full name of the section, with a dot behind.
    """
    if isinstance(config, list):
        return [storable(value, prefix) for value in config]
    if not isinstance(config, dict):
        return config
    return {
        name: storable(value, f"{prefix}{name}.")
        for name, value in config.items()
        if prefix + name not in NOT_COMPARED and not SECRET.search(name)
    }


def report_differences(saved: dict[str, Any], now: dict[str, Any]) -> None:
    """Say which values differ from those that the run was started with; today's are used. Both by full names."""
    for name in sorted((saved.keys() & now.keys()) - NOT_COMPARED):
        if saved[name] != now[name]:
            rank_zero_info(f"changed since the checkpoint: {name} was {saved[name]}, now {now[name]} (used)")


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, keys joined by dots."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat
