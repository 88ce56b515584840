"""Stage `resume`: a short training that is killed and resumed, compared with an undisturbed one."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from yolo_lightning.checkpoints.checkpoint_file import newest_checkpoint, steps_trained
from yolo_lightning.commands.benchmark.findings import table
from yolo_lightning.commands.benchmark.section import Section
from yolo_lightning.data.synthetic import draw_dataset
from yolo_lightning.supervision.trainer import MARKER_VARIABLE
from yolo_lightning.utils.run_files import CHECKPOINTS

EPOCHS = 2
FULL, QUICK = (160, 320, 8, 2), (16, 64, 4, 0)
"""Frames, image size in pixels, images per step, and loader workers."""
KEPT_LINES = 8
EXPECTED = {"undisturbed": 0, "killed": -signal.SIGKILL, "resumed": 0}
"""Exit code of each fit."""


class KillAtStep(Callback):
    """Kills this process with SIGKILL before a step of the training, counted from 0."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if trainer.current_epoch * int(trainer.num_training_batches) + batch_idx == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def resume(section: Section) -> None:
    """Train once without and once with SIGKILL and `--resume`, and compare the final weights.

    The fits use the algorithms of the table, and deterministic operators of PyTorch.
    """
    frames, pixels, batch_size, workers = QUICK if section.quick else FULL
    section.announce("drawing the dataset")
    root = draw_dataset(
        section.folder / "data", train_frames=frames, valid_frames=8, test_frames=1, width=160, height=120
    )
    steps = EPOCHS * frames // batch_size
    interval = max(steps // EPOCHS // 4, 2)
    kill_at = steps // 2 + interval + interval // 2  # within an epoch, and with steps to repeat
    # One free name per call: an interrupted call leaves run folders behind.
    parent = section.folder / f"fits-{time.time_ns()}"
    parent.mkdir(parents=True)
    runs: dict[str, dict[str, Any]] = {}
    for name in EXPECTED:
        section.announce(f"fit: {name}")
        callbacks: list[Any] = [{"class_path": "LastCheckpoint", "init_args": {"interval_steps": interval}}]
        if name == "killed":
            callbacks.append({"class_path": f"{__name__}.KillAtStep", "init_args": {"step": kill_at}})
        folder = parent / ("undisturbed" if name == "undisturbed" else "killed")
        devices = 1 if section.device.index is None else [section.device.index]
        words = f"""
            --seed_everything=0 --supervision.enabled=false --trainer.accelerator={section.device.type}
            --trainer.enable_progress_bar=false --trainer.max_epochs={EPOCHS} --trainer.deterministic=warn
            --trainer.num_sanity_val_steps=0 --model.convolution.backend=gemm --model.convolution.algorithm=table
            --model.recipe.warmup_epochs=1.0 --data.image_size={pixels} --data.batch_size={batch_size}
            --data.loader.num_workers={workers} {"--resume" if name == "resumed" else ""}
        """.split()
        words += [f"--data.root={root}", f"--trainer.default_root_dir={folder}", f"--trainer.devices={devices}"]
        runs[name] = fit(*words, f"--trainer.callbacks={json.dumps(callbacks)}")
        newest, _ = newest_checkpoint(folder / CHECKPOINTS)
        runs[name]["steps_saved"] = 0 if newest is None else steps_trained(newest)
        section.save(steps=steps, killed_before_step=kill_at, runs=runs)
    difference = largest_difference(parent / "undisturbed", parent / "killed")
    section.save(largest_difference=difference)
    section.findings.fail(problems(runs, steps, difference))
    section.findings.add(
        f"`fit` on {frames} generated frames, {steps} steps of {batch_size} images of {pixels} px, {workers} loader"
        f" workers; SIGKILL before step {kill_at} (from 0), then `--resume`."
    )
    rows = [[name, run["code"], f"{run['seconds']:.1f}", run["steps_saved"]] for name, run in runs.items()]
    section.findings.add(*table(["fit", "exit code", "seconds", "steps in its newest checkpoint"], rows))
    for name in [name for name, run in runs.items() if run["code"] != EXPECTED[name]]:
        section.findings.add(f"Last lines of the {name} fit:", "", "```", *runs[name]["last_lines"], "```")
    equal = f"largest relative difference {difference:.1e}" if difference else "weights equal bit for bit"
    section.findings.answer = f"resumed after SIGKILL; {equal}"


def problems(runs: dict[str, dict[str, Any]], steps: int, difference: float | None) -> list[str]:
    """Return which fits did not end as expected, were not resumed, or have not saved their last step."""
    found = [
        f"the {name} fit ended with exit code {runs[name]['code']}, expected {int(code)}"
        for name, code in EXPECTED.items()
        if runs[name]["code"] != code
    ]
    for name, run in runs.items():
        if not (0 < run["steps_saved"] < steps if name == "killed" else run["steps_saved"] == steps):
            found.append(f"the {name} fit has saved {run['steps_saved']} of {steps} steps")
    return [*found, *(["weights are not finite"] if difference is not None and difference != difference else [])]


def fit(*words: str) -> dict[str, Any]:
    """Run `fit` in a child process; return its exit code, duration and last lines."""
    environment = {key: value for key, value in os.environ.items() if key != MARKER_VARIABLE}
    environment |= {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # deterministic matrix products on NVIDIA GPUs
    command = [sys.executable, "-m", "yolo_lightning", "fit", *words]
    began_s = time.monotonic()
    ended = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment, check=False)
    lines = [line.strip() for line in ended.stderr.splitlines() if line.strip()]
    return {"code": ended.returncode, "seconds": time.monotonic() - began_s, "last_lines": lines[-KEPT_LINES:]}


def largest_difference(one: Path, two: Path) -> float | None:
    """Return the largest relative difference of the newest weights of two runs: 0 if equal, NaN if not finite.

    The result is None if a run has no checkpoint.
    """
    newest = [newest_checkpoint(run / CHECKPOINTS)[0] for run in (one, two)]
    if None in newest:
        return None
    first, second = (torch.load(path, map_location="cpu", weights_only=True)["state_dict"] for path in newest if path)
    pairs = [(first[name].double(), second[name].double()) for name in first]
    return float(torch.stack([(a - b).abs().max() / a.abs().max().clamp(1e-12) for a, b in pairs]).max())
