"""Profile the training step of `fit` on a CPU: processor time by part of the step, one thread, loader in the process.

    python scripts/profile_step.py --repeats 5
    python scripts/profile_step.py --cases gray-bfloat16 --image_size 256 --batch_size 8 --steps 20 --updates 20
    python scripts/profile_step.py --cases gray-float32 --repeats 1 --operators

A case is the kind of frames (`gray`: 384 x 288, one channel, input 640 x 480; `color`: three channels, input 640 x 640)
and the precision. `--image_size` sets another longer side. The frames are drawn. The cases take turns, each in its own
process; all other options are those of configs/yolo.yaml. A part consists of functions of the step, without the time of
the functions of other parts that they call. Measurements are appended to `profile.jsonl` in the work folder, and the
table shows all measurements there. `--operators` prints the operators of PyTorch's profiler instead, which slows the
step.

The first 63 steps of a run are those of the first round of the self-check, one convolution each. Its row is not part of
the total: later steps are checked in 0.1 % of the time.
"""

import argparse
import functools
import gc
import json
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common import markdown_table, run_logged
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.trainer.connectors.logger_connector.logger_connector import _LoggerConnector
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import dataloader

from yolo_lightning.callbacks.ema import RampedAverage
from yolo_lightning.model.loss import DetectionLoss
from yolo_lightning.module import YOLOModule
from yolo_lightning.supervision.heartbeat import HeartbeatWriter
from yolo_lightning.training.guarded_step import GuardedStep
from yolo_lightning.training.self_check import SelfCheck

CASES = ("gray-float32", "gray-bfloat16", "color-float32", "color-bfloat16")
FRAMES = {"gray": (384, 288), "color": (640, 640)}
IMAGE_SIZES = {"gray": "{0}", "color": "[{0},{0}]"}
CHANNELS = {"gray": 1, "color": 3}
PRECISIONS = {"float32": "32-true", "bfloat16": "bf16-mixed"}
CONFIG = Path(__file__).resolve().parents[1] / "configs" / "yolo.yaml"
WARM_STEPS = 2
RESULTS = "profile.jsonl"

FORWARD = "network, forward"
BACKWARD = "network, backward"
SELF_CHECK = "self-check"
REST = "Lightning and the rest"
OTHER_THREADS = "other threads"
OUTSIDE = "all but the network"
TOTAL = "total without self-check"
LEAST_SHARE = 0.001
"""Least share of a part that has a row."""

PARTS: tuple[tuple[Any, str, str], ...] = (
    (dataloader._BaseDataLoaderIter, "__next__", "loader"),
    (Strategy, "batch_to_device", "transfer"),
    (YOLOModule, "_begin_step", "settings of the step"),
    (YOLOModule, "_training_input", "input as floating point"),
    (YOLOModule, "_training_output", FORWARD),
    (YOLOModule, "_backward_of_part", "loss, backward"),
    (YOLOModule, "_clip_gradients", "gradient clipping"),
    (YOLOModule, "_log_step", "logging"),
    (_LoggerConnector, "update_train_step_metrics", "logging"),
    (_LoggerConnector, "on_batch_end", "logging"),
    (DetectionLoss, "__call__", "loss, forward"),
    (GuardedStep, "sum_gradients", "guard"),
    (GuardedStep, "are_finite", "guard"),
    (SelfCheck, "begin", SELF_CHECK),
    (SelfCheck, "finish", SELF_CHECK),
    (SelfCheck, "_after_forward", SELF_CHECK),
    (RampedAverage, "update_parameters", "EMA"),
    (HeartbeatWriter, "show", "heartbeat"),
    (HeartbeatWriter, "beat", "heartbeat"),
)
"""Class and name of each function, and the part for which its time counts."""


class PartClock:
    """Processor time of the main thread by part of the step, without the time of inner parts."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._names = [REST]
        self._since_s = time.thread_time()

    def count(self) -> None:
        """Add the time since the last call to the current part."""
        now_s = time.thread_time()
        self.seconds[self._names[-1]] += now_s - self._since_s
        self._since_s = now_s

    def rename(self, name: str) -> None:
        """Count the time from now on for another part than the one that was entered last."""
        self.count()
        self._names[-1] = name

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self.count()
        self._names.append(name)
        try:
            yield
        finally:
            self.count()
            self._names.pop()

    def wrap(self, owner: Any, attribute: str, name: str) -> None:
        """Replace a function of a class or an object by one whose time counts for a part."""
        function: Callable[..., Any] = getattr(owner, attribute)

        @functools.wraps(function)
        def timed(*arguments: Any, **options: Any) -> Any:
            with self.part(name):
                return function(*arguments, **options)

        setattr(owner, attribute, timed)


class StepProfile(Callback):
    """Measures some steps after a warm-up, and writes the seconds per step and part to a file.

    Args:
        case: Name of the measurement.
        steps: Number of measured steps.
        file: Results, to which one line of JSON is appended; null prints the operators of PyTorch's profiler instead.
    """

    def __init__(self, case: str, steps: int, file: str | None) -> None:
        self.case = case
        self.steps = steps
        self.file = file
        self.clock = PartClock()
        self._profiler = profile(activities=[ProfilerActivity.CPU])
        self._began_s = (0.0, 0.0)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.file is None:
            return
        for owner, attribute, part in PARTS:
            self.clock.wrap(owner, attribute, part)
        self._mark_backward_of_network()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx + 1 == WARM_STEPS:
            self._begin(trainer, pl_module)
        if batch_idx + 1 == WARM_STEPS + self.steps:
            self._end()

    def _mark_backward_of_network(self) -> None:
        """Count the backward pass for the network as soon as it reaches an output of the network."""
        forward = YOLOModule._training_output

        @functools.wraps(forward)
        def marked(*arguments: Any) -> Any:
            raw: Any = forward(*arguments)
            for name in ("boxes", "scores"):
                raw[name].register_hook(lambda gradient: self.clock.rename(BACKWARD))
            return raw

        YOLOModule._training_output = marked  # type: ignore[assignment,method-assign]

    def _begin(self, trainer: Trainer, module: Any) -> None:
        if self.file is not None:
            self._wrap_objects(trainer, module)
        gc.collect()  # 0.4 s, which a training of a few steps may spend in any part
        self.clock.count()
        self.clock.seconds.clear()
        self._began_s = (time.process_time(), time.thread_time())
        if self.file is None:
            self._profiler.start()

    def _wrap_objects(self, trainer: Trainer, module: Any) -> None:
        for branch in module.detection_loss._branches:
            self.clock.wrap(branch.assigner, "forward", "loss, assigner")
        for optimizer in trainer.optimizers:
            self.clock.wrap(optimizer, "step", "optimizer")
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        for callback in callbacks:
            for hook in ("on_train_batch_start", "on_train_batch_end"):
                if callback is not self:
                    self.clock.wrap(callback, hook, f"callback {type(callback).__name__}")

    def _end(self) -> None:
        if self.file is None:
            self._profiler.stop()
            print(self._profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=40))
            return
        self.clock.count()
        process_began_s, thread_began_s = self._began_s
        thread_s = time.thread_time() - thread_began_s
        self.clock.seconds[OTHER_THREADS] = time.process_time() - process_began_s - thread_s
        parts = {name: seconds / self.steps for name, seconds in self.clock.seconds.items()}
        with Path(self.file).open("a") as file:
            file.write(json.dumps({"case": self.case, "parts": parts}) + "\n")


def main() -> None:
    """Measure the cases in turns, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/profile"), help="work folder")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--image_size", type=int, default=640, help="longer side of the input, pixels")
    parser.add_argument("--steps", type=int, default=3, help="measured steps")
    parser.add_argument("--updates", type=int, default=1, help="optimizer steps among the measured steps")
    parser.add_argument("--operators", action="store_true", help="print the operators of PyTorch's profiler")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    work = arguments.work.resolve()
    for repeat in range(arguments.repeats):
        for case in arguments.cases:
            log = work / f"{case}-{repeat}.log"
            train(work, case, arguments, log)
            if arguments.operators:
                print(log.read_text())
    if not arguments.operators:
        lines = (work / RESULTS).read_text().splitlines()
        print(table(list(map(json.loads, lines))))


def train(work: Path, case: str, arguments: argparse.Namespace, log: Path) -> None:
    """Train in a new process, which appends its measurement to the results or prints the operators to the log."""
    from comparison.dataset import Dataset, convert
    from synthetic import draw_dataset

    steps = arguments.steps
    batch_size = arguments.batch_size
    color, _, dtype = case.partition("-")
    frames = (WARM_STEPS + steps) * batch_size
    width, height = FRAMES[color]
    drawn = work / f"{color}-{frames}"
    draw_dataset(drawn, train_frames=frames, valid_frames=8, test_frames=8, width=width, height=height)
    data = convert(
        Dataset.find(drawn, None).module(batch_size, max(width, height)), drawn.with_name(f"{drawn.name}-yolo")
    )
    profile_arguments = {"case": case, "steps": steps, "file": None if arguments.operators else str(work / RESULTS)}
    settings = {
        "config": CONFIG,
        "data.format": data,
        "data.input.channels": CHANNELS[color],
        "data.image_size": IMAGE_SIZES[color].format(arguments.image_size),
        "data.batch_size": batch_size,
        "data.loader.num_workers": 0,
        "model.recipe.nominal_batch": steps * batch_size // arguments.updates,
        "trainer.precision": PRECISIONS[dtype],
        "trainer.default_root_dir": work / "runs" / case,
        "trainer.accelerator": "cpu",
        "trainer.max_epochs": 1,
        "trainer.limit_val_batches": 0,
        "trainer.callbacks+": json.dumps({"class_path": "profile_step.StepProfile", "init_args": profile_arguments}),
        "supervision.enabled": "false",
    }
    words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    folder = Path(__file__).resolve().parent
    paths = os.pathsep.join(filter(None, (str(folder), str(folder.parent), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "yolo_lightning", "fit", *words]
    run_logged(command, log, {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths})


def table(measurements: Sequence[Mapping[str, Any]]) -> str:
    """Return the median milliseconds per step, with their range, and the share of the total by part and case."""
    cases = list(dict.fromkeys(measurement["case"] for measurement in measurements))
    names = dict.fromkeys(name for measurement in measurements for name in measurement["parts"])
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)  # by case and part
    for measurement in measurements:
        parts = defaultdict(float, measurement["parts"])
        total_s = sum(parts.values()) - parts[SELF_CHECK]
        sums = {TOTAL: total_s, OUTSIDE: total_s - parts[FORWARD] - parts[BACKWARD]}
        for name in names:
            seconds[measurement["case"], name].append(parts[name])
        for name, sum_s in sums.items():
            seconds[measurement["case"], name].append(sum_s)
    shares = {
        (case, name): statistics.median(values) / statistics.median(seconds[case, TOTAL])
        for (case, name), values in seconds.items()
    }
    largest_shares = {name: max(shares[case, name] for case in cases) for name in names}
    shown = [name for name in names if largest_shares[name] >= LEAST_SHARE and name != SELF_CHECK]
    shown.sort(key=largest_shares.__getitem__, reverse=True)
    rows = []
    for name in (*shown, OUTSIDE, TOTAL, SELF_CHECK):
        cells = [f"{_milliseconds(seconds[case, name])}, {shares[case, name]:.1%}" for case in cases]
        rows.append([name, *cells])
    return markdown_table(["ms per step", *cases], rows)


def _milliseconds(seconds: Sequence[float]) -> str:
    milliseconds = [1000 * value for value in seconds]
    if len(milliseconds) == 1:
        return f"{milliseconds[0]:.1f}"
    return f"{statistics.median(milliseconds):.1f} ({min(milliseconds):.1f} to {max(milliseconds):.1f})"


if __name__ == "__main__":
    main()
