"""Stage `resume`: a short training that is killed and resumed, compared with an undisturbed one."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from yolo_lightning.checkpoints.checkpoint_file import newest_checkpoint, steps_trained
from yolo_lightning.commands.benchmark.findings import table
from yolo_lightning.commands.benchmark.section import Section
from yolo_lightning.supervision.trainer import MARKER_VARIABLE
from yolo_lightning.utils.run_files import CHECKPOINTS

EPOCHS = 2
BATCH = 8
STEPS = 40
QUICK_STEPS = 8
PIXELS = 320
QUICK_PIXELS = 64
WORKERS = 2
VALIDATION_FRAMES = 8
KEPT_LINES = 8
EXPECTED = {"undisturbed": 0, "killed": -signal.SIGKILL, "resumed": 0}
"""Exit code of each fit."""


@dataclass
class Fit:
    """End of one fit."""

    code: int  # exit code, negative for a signal
    seconds: float
    last_lines: list[str]  # of stderr
    steps_saved: int  # in the newest checkpoint


class KillAtStep(Callback):
    """Kills this process with SIGKILL before a step of the training, counted from 0."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if trainer.current_epoch * int(trainer.num_training_batches) + batch_idx == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def resume(section: Section) -> None:
    """Train once without and once with SIGKILL and `--resume`, and compare the final weights.

    The fits use `gemm`, with the kernels of a GPU, and deterministic operators of PyTorch. Weights that are equal bit
    for bit also show that a training is repeatable.
    """
    steps = STEPS
    pixels = PIXELS
    workers = WORKERS
    if section.quick:
        steps = QUICK_STEPS
        pixels = QUICK_PIXELS
        workers = 0
    frames = steps * BATCH // EPOCHS
    section.announce("writing the dataset")
    dataset = write_dataset(section.folder / "data", frames)
    save_interval = max(steps // EPOCHS // 4, 2)
    kill_at = steps // 2 + save_interval + save_interval // 2  # within an epoch, and with steps to repeat
    devices = 1 if section.device.index is None else [section.device.index]
    words = f"""
        --seed_everything=0 --supervision.enabled=false --trainer.accelerator={section.device.type}
        --trainer.enable_progress_bar=false --trainer.max_epochs={EPOCHS} --trainer.deterministic=warn
        --trainer.num_sanity_val_steps=0 --model.convolution.backend=gemm --model.recipe.warmup_epochs=1.0
        --data.image_size={pixels} --data.batch_size={BATCH} --data.loader.num_workers={workers}
    """.split()
    words += [f"--data.format={dataset}", f"--trainer.devices={devices}"]
    save = {"class_path": "LastCheckpoint", "init_args": {"interval_steps": save_interval}}
    kill = {"class_path": f"{__name__}.KillAtStep", "init_args": {"step": kill_at}}
    with_kill = [*words, f"--trainer.callbacks={json.dumps([save, kill])}"]
    words.append(f"--trainer.callbacks={json.dumps([save])}")
    # One free name per call: an interrupted call leaves run folders behind.
    parent = section.folder / f"fits-{time.time_ns()}"
    undisturbed = parent / "undisturbed"
    killed = parent / "killed"
    commands = {
        "undisturbed": (undisturbed, words),
        "killed": (killed, with_kill),
        "resumed": (killed, [*words, "--resume"]),
    }
    fits: dict[str, Fit] = {}
    for name, (folder, options) in commands.items():
        section.announce(f"fit: {name}")
        fits[name] = fit(folder, options)
        measured = {fit_name: asdict(ended) for fit_name, ended in fits.items()}
        section.save(steps=steps, killed_before_step=kill_at, runs=measured)
    difference = largest_difference(undisturbed, killed)
    section.save(largest_difference=difference)
    section.findings.fail(problems(fits, steps, difference))
    section.findings.add(
        f"`fit` on {frames} frames of noise, {steps} steps of {BATCH} images of {pixels} px, {workers} loader workers;"
        f" SIGKILL before step {kill_at} (from 0), then `--resume`."
    )
    rows = [[name, ended.code, f"{ended.seconds:.1f}", ended.steps_saved] for name, ended in fits.items()]
    section.findings.add(*table(["fit", "exit code", "seconds", "steps in its newest checkpoint"], rows))
    for name, ended in fits.items():
        if ended.code != EXPECTED[name]:
            section.findings.add(f"Last lines of the {name} fit:", "", "```", *ended.last_lines, "```")
    equality = f"largest relative difference {difference:.1e}" if difference else "weights equal bit for bit"
    section.findings.answer = f"resumed after SIGKILL; {equality}"


def write_dataset(root: Path, frames: int) -> Path:
    """Write frames of noise with one box each in Ultralytics' layout, and return the `data.yaml`."""
    generator = np.random.default_rng(0)
    for split, count in {"train": frames, "val": VALIDATION_FRAMES}.items():
        for folder in ("images", "labels"):
            (root / folder / split).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            pixels = generator.integers(0, 256, (120, 160), dtype=np.uint8)
            cv2.imwrite(str(root / "images" / split / f"{number}.png"), pixels)
            (root / "labels" / split / f"{number}.txt").write_text("0 0.5 0.5 0.4 0.4\n")
    file = root / "data.yaml"
    file.write_text("train: images/train\nval: images/val\nnames: [object]\n")
    return file


def problems(fits: Mapping[str, Fit], steps: int, difference: float | None) -> list[str]:
    """Return which fits did not end as expected, were not resumed, or have not saved their last step."""
    reasons = []
    for name, ended in fits.items():
        if ended.code != EXPECTED[name]:
            reasons.append(f"the {name} fit ended with exit code {ended.code}, expected {int(EXPECTED[name])}")
    for name, ended in fits.items():
        is_whole = ended.steps_saved == steps
        is_part = 0 < ended.steps_saved < steps
        if (name == "killed" and not is_part) or (name != "killed" and not is_whole):
            reasons.append(f"the {name} fit has saved {ended.steps_saved} of {steps} steps")
    if difference is not None and difference != difference:
        reasons.append("weights are not finite")
    return reasons


def fit(folder: Path, options: list[str]) -> Fit:
    """Run `fit` in a child process with its run in `folder`."""
    environment = {key: value for key, value in os.environ.items() if key != MARKER_VARIABLE}
    environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # deterministic matrix products on NVIDIA GPUs
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "yolo_lightning", "fit", *options, f"--trainer.default_root_dir={folder}"]
    began_s = time.monotonic()
    ended = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment, check=False)
    seconds = time.monotonic() - began_s
    lines = [line.strip() for line in ended.stderr.splitlines() if line.strip()]
    newest, _ = newest_checkpoint(folder / CHECKPOINTS)
    steps_saved = 0 if newest is None else steps_trained(newest)
    return Fit(ended.returncode, seconds, lines[-KEPT_LINES:], steps_saved)


def largest_difference(run: Path, resumed: Path) -> float | None:
    """Return the largest relative difference of the newest weights of two runs: 0 if equal, NaN if not finite.

    The result is None if a run has no checkpoint.
    """
    newest, _ = newest_checkpoint(run / CHECKPOINTS)
    newest_resumed, _ = newest_checkpoint(resumed / CHECKPOINTS)
    if newest is None or newest_resumed is None:
        return None
    expected = torch.load(newest, map_location="cpu", weights_only=True)["state_dict"]
    weights = torch.load(newest_resumed, map_location="cpu", weights_only=True)["state_dict"]
    differences = []
    for name, tensor in expected.items():
        scale = tensor.double().abs().max().clamp(1e-12)
        differences.append((tensor.double() - weights[name].double()).abs().max() / scale)
    return float(torch.stack(differences).max())
