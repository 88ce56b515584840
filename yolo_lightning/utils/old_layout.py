"""Keys of settings under which earlier versions stored and accepted them, and their names of today.

A key of the old layout on the command line, in a configuration file or in an environment variable is an error that
names the new key. Checkpoints and run folders of the old layout are converted when they are read, until version 0.3.
"""

from collections.abc import Mapping
from typing import Any

RECIPE = ("optimizer", "lr0", "lrf", "momentum", "weight_decay", "warmup_epochs", "warmup_momentum", "warmup_bias_lr")
MODEL_GROUPS: dict[str, tuple[str, ...]] = {
    "recipe": (*RECIPE, "cosine", "nominal_batch", "clip_norm", "multi_scale"),
    "loss": ("box_gain", "cls_gain", "dfl_gain", "class_weight_power"),
    "convolution": ("memory_format", "activation_checkpointing", "probe_timeout_s"),
    "detections": ("score_threshold", "iou_threshold", "max_detections", "class_agnostic", "one_to_one", "tta"),
    "guard": ("max_consecutive_nonfinite", "max_rollbacks", "rollback_lr_factor", "max_oom_splits"),
}
"""Groups of `model`, and the keys that moved into them without another name."""

DATA_GROUPS: dict[str, tuple[str, ...]] = {
    "files": ("image_folders",),
    "split": ("train_fraction", "valid_fraction", "valid_share"),
    "storage": ("store", "index_root", "image_cache_mib"),
    "limits": ("max_bad_frames", "max_image_pixels", "allow_outside_root", "allow_unlabelled", "quarantine"),
    "input": ("channels", "pixel_range"),
}
"""Groups of `data`, and the keys that moved into them without another name."""

RENAMED_KEYS: dict[str, str] = {
    **{f"model.{name}": f"model.{group}.{name}" for group, names in MODEL_GROUPS.items() for name in names},
    "model.conv_backend": "model.convolution.backend",
    "model.conv_algorithm": "model.convolution.algorithm",
    "model.conv_algorithm_budget_s": "model.convolution.autotune_budget_s",
    "model.activations": "model.convolution.activation_checkpointing",
    "model.augment": "model.detections.tta",
    "model.confidence": "model.detections.score_threshold",
    "model.conv": "model.convolution.backend",
    "model.conv_plan": "model.convolution.algorithm",
    "model.conv_plan_budget_s": "model.convolution.autotune_budget_s",
    "model.max_halvings": "model.guard.max_oom_splits",
    "model.nonfinite_in_a_row": "model.guard.max_consecutive_nonfinite",
    "model.overlap": "model.detections.iou_threshold",
    **{f"data.{name}": f"data.{group}.{name}" for group, names in DATA_GROUPS.items() for name in names},
    "data.train_file": "data.files.train",
    "data.valid_file": "data.files.valid",
    "data.test_file": "data.files.test",
    "data.predict_file": "data.files.predict",
    "data.storage": "data.storage.kind",
    "data.frames": "data.storage.kind",
    "data.keep_decoded_mib": "data.storage.image_cache_mib",
    "data.loader.start_method": "data.loader.multiprocessing_context",
    "data.loader.workers": "data.loader.num_workers",
    "data.source": "data.format",
    "data.train_subset": "data.split.train_fraction",
    "data.valid_subset": "data.split.valid_fraction",
    "supervise": "supervision.enabled",
    "supervision.floors": "supervision.phase_timeouts",
}
"""New name of every renamed key. An old key can be a group, whose keys keep their last part."""


def new_key(key: str) -> str | None:
    """Return the new name of a key of the old layout; None for every other key.

    A key that is a group today, such as `data.storage`, is an old key only if it has a value of its own: its parts are
    keys of today.
    """
    for old, new in RENAMED_KEYS.items():
        if key == old or (key.startswith(f"{old}.") and not new.startswith(f"{old}.")):
            return new + key.removeprefix(old)
    return None


def renamed_message(key: str, source: str = "") -> str:
    """Return the error for a key of the old layout, found in `source`; an empty string for every other key."""
    renamed = new_key(key)
    if renamed is None:
        return ""
    return f"{key}{source} is now {renamed}"


def current_layout(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return options by full name with the names of today; other keys are kept."""
    return {new_key(name) or name: value for name, value in flat.items()}


REMOVED_CALLBACKS = ("ResultsFile",)
"""Default callbacks of earlier versions; their states in checkpoints are ignored."""


def current_checkpoint(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a checkpoint, possibly of an earlier version, in the layout of today."""
    current = dict(content)
    hyperparameters = current.get("hyper_parameters")
    if isinstance(hyperparameters, Mapping):
        current["hyper_parameters"] = current_hyperparameters(hyperparameters)
    states = current.get("callbacks")
    if isinstance(states, Mapping):
        current["callbacks"] = {name: state for name, state in states.items() if name not in REMOVED_CALLBACKS}
    halving = current.pop("halving", None)
    if isinstance(halving, Mapping):
        current["splitting"] = {"images_at_once": halving.get("images_at_once"), "splits": halving.get("halvings", 0)}
    return current


def current_hyperparameters(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters in a checkpoint, or the settings in an exported file, in the nested layout of today.

    In the old layout all hyperparameters were on one level.
    """
    kept: dict[str, Any] = {}
    moved: dict[str, dict[str, Any]] = {}
    for name, value in stored.items():
        if name == "_instantiator":  # LightningCLI's function, which accepts the arguments of that version only
            continue
        group, _, last = (new_key(f"model.{name}") or f"model.{name}").removeprefix("model.").partition(".")
        if last:
            moved.setdefault(group, {})[last] = value
        else:
            kept[name] = value
    return kept | moved
