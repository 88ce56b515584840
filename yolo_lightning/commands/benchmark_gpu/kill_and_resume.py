"""Stage `resume`: a short training that is killed and resumed, compared with an undisturbed one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import yaml
from lightning.pytorch import Callback, LightningModule, Trainer

from yolo_lightning.checkpoints.checkpoint_file import newest_checkpoint, steps_trained
from yolo_lightning.commands.benchmark_gpu.stage_process import StageContext
from yolo_lightning.data.synthetic import draw_dataset
from yolo_lightning.supervision.trainer import MARKER_VARIABLE
from yolo_lightning.utils.run_files import CHECKPOINTS

EPOCHS = 2
FULL = {"frames": 160, "image_size": 320, "batch_size": 8, "workers": 2}
QUICK = {"frames": 16, "image_size": 64, "batch_size": 4, "workers": 0}
KEPT_LINES = 8


class KillAtStep(Callback):
    """Kills this process with SIGKILL before a step of the training, counted from 0."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if trainer.current_epoch * int(trainer.num_training_batches) + batch_idx == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def measure(context: StageContext) -> dict[str, Any]:
    """Train once without and once with SIGKILL and `--resume`, and compare the final weights."""
    sizes = QUICK if context.quick else FULL
    folder = context.out / "work"
    context.announce("drawing the dataset")
    data = draw_dataset(
        folder / "data", train_frames=sizes["frames"], valid_frames=8, test_frames=1, width=160, height=120
    )
    steps = EPOCHS * sizes["frames"] // sizes["batch_size"]
    interval = max(steps // EPOCHS // 4, 2)
    kill_at = steps // 2 + interval + interval // 2  # within an epoch, and with steps to repeat
    settings = configuration(data, sizes, context.device, interval)
    result: dict[str, Any] = {**sizes, "steps": steps, "killed_before_step": kill_at, "runs": {}}
    # One free name per call: an interrupted call leaves run folders behind.
    parent = folder / f"fits-{time.time_ns()}"
    parent.mkdir(parents=True)
    killer = {"class_path": f"{__name__}.KillAtStep", "init_args": {"step": kill_at}}
    plans: tuple[tuple[str, str, list[Any], list[str]], ...] = (
        ("undisturbed", "undisturbed", [], []),
        ("killed", "killed", [killer], []),
        ("resumed", "killed", [], ["--resume"]),
    )
    for name, run, callbacks, words in plans:
        context.announce(f"fit: {name}")
        result["runs"][name] = fit(parent, name, run, settings, callbacks, words)
        result["runs"][name]["steps_saved"] = steps_saved(parent / run)
        context.save(result)
    result |= compare_weights(parent / "undisturbed", parent / "killed")
    return result | judged(result)


def judged(result: dict[str, Any]) -> dict[str, Any]:
    """Return whether all fits ended as expected, the killed one has resumed, and its last steps are saved."""
    runs, reasons = result["runs"], []
    expected = {"undisturbed": 0, "killed": -signal.SIGKILL, "resumed": 0}
    for name, code in expected.items():
        if runs[name]["code"] != code:
            reasons.append(f"the {name} fit ended with exit code {runs[name]['code']}, expected {int(code)}")
    if not 0 < runs["killed"]["steps_saved"] < result["steps"]:
        reasons.append(f"the killed fit had saved {runs['killed']['steps_saved']} of {result['steps']} steps")
    for name in ("undisturbed", "resumed"):
        if runs[name]["steps_saved"] != result["steps"]:
            reasons.append(f"the {name} fit has saved {runs[name]['steps_saved']} of {result['steps']} steps")
    if result["finite"] is False:
        reasons.append("weights are not finite")
    return {"passed": not reasons, "reason": "; ".join(reasons)}


def configuration(data: Path, sizes: dict[str, int], device: str, interval_steps: int) -> dict[str, Any]:
    """Return the configuration of the fits: the algorithms of the table, and deterministic operators of PyTorch.

    The device is not opened here: a process with a GPU context must not start others by fork.
    """
    accelerator, _, index = device.partition(":")
    return {
        "seed_everything": 0,
        "supervision": {"enabled": False},
        "trainer": {
            "accelerator": accelerator,
            "devices": [int(index)] if index else 1,
            "max_epochs": EPOCHS,
            "deterministic": "warn",
            "num_sanity_val_steps": 0,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "callbacks": [{"class_path": "LastCheckpoint", "init_args": {"interval_steps": interval_steps}}],
        },
        "model": {"convolution": {"backend": "gemm", "algorithm": "table"}, "recipe": {"warmup_epochs": 1.0}},
        "data": {
            "root": str(data),
            "image_size": sizes["image_size"],
            "batch_size": sizes["batch_size"],
            "loader": {"num_workers": sizes["workers"]},
        },
    }


def fit(
    parent: Path, name: str, run: str, settings: dict[str, Any], callbacks: list[Any], words: list[str]
) -> dict[str, Any]:
    """Run `fit` in a child process and return its exit code, duration and last lines."""
    trainer = {**settings["trainer"], "default_root_dir": str(parent / run)}
    trainer["callbacks"] = [*trainer["callbacks"], *callbacks]
    file = parent / f"{name}.yaml"
    file.write_text(yaml.safe_dump({**settings, "trainer": trainer}), encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if key != MARKER_VARIABLE}
    environment |= {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # deterministic matrix products on NVIDIA GPUs
    began_s = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-m", "yolo_lightning", "fit", "--config", str(file), *words],
        capture_output=True,
        text=True,
        errors="replace",
        env=environment,
        check=False,
    )
    lines = [line.strip() for line in ended.stderr.splitlines() if line.strip()]
    expected = -signal.SIGKILL if callbacks else 0
    found: dict[str, Any] = {"code": ended.returncode, "seconds": time.monotonic() - began_s}
    return found | ({} if ended.returncode == expected else {"last_lines": lines[-KEPT_LINES:]})


def steps_saved(run: Path) -> int:
    """Return the number of steps that the newest checkpoint of a run was trained on."""
    newest, _ = newest_checkpoint(run / CHECKPOINTS)
    return 0 if newest is None else steps_trained(newest)


def compare_weights(one: Path, two: Path) -> dict[str, Any]:
    """Return whether the newest weights of two runs are finite and equal, and their largest relative difference."""
    newest = [newest_checkpoint(run / CHECKPOINTS)[0] for run in (one, two)]
    if None in newest:
        return {"finite": None, "equal": None, "largest_difference": None}
    first, second = (
        torch.load(path, map_location="cpu", weights_only=True)["state_dict"] for path in newest if path is not None
    )
    differences = [
        float(
            (first[name].double() - second[name].double()).abs().max() / first[name].double().abs().max().clamp(1e-12)
        )
        for name in first
    ]
    finite = all(bool(tensor.isfinite().all()) for state in (first, second) for tensor in state.values())
    equal = all(torch.equal(first[name], second[name]) for name in first)
    return {"finite": finite, "equal": equal, "largest_difference": max(differences) if finite else None}
