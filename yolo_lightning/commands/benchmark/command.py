"""`python -m yolo_lightning benchmark`: speed and memory of the convolutions, compared with baselines."""

from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from yolo_lightning.commands.benchmark.baselines import DESCRIPTIONS, Implementation, variants
from yolo_lightning.commands.benchmark.run import (
    BenchmarkReport,
    BenchmarkSettings,
    ConvAlgorithm,
    Precision,
    Section,
    new_report,
    run,
)
from yolo_lightning.commands.benchmark.tables import show
from yolo_lightning.commands.command_line import wide_console
from yolo_lightning.utils.choices import chosen_device


def benchmark(
    *,
    device: str = "auto",
    threads: int | None = None,
    sections: Section | tuple[Section, ...] = ("layers", "graph", "step", "stability"),
    skip: Implementation | tuple[Implementation, ...] = (),
    batch_size: int = 4,
    image_size: int | Sequence[int] = 640,
    repeats: int = 7,
    precision: Precision = "32-true",
    vendor_search: bool = False,
    conv_algorithm: ConvAlgorithm = "auto",
    conv_algorithm_budget_s: float = 60.0,
    stability_steps: int = 100,
    frames: int = 329_299,
    epochs: int = 15,
    profile: bool = True,
    json: Path | None = None,
) -> None:
    """Compare the convolutions of yolo_lightning.conv (gemm) with native PyTorch convolutions and two more baselines.

    Runs YOLOv8n on random images, forward and backward: six layers, the whole network and a whole training step.
    All variants run in one process and take turns. The stability section then trains twice from one seed: the losses
    must be finite and equal bit for bit, and the memory use must not grow. Otherwise the exit code is 1.

    A variant that raises an error is listed with the error. If a variant hangs, `json` contains all earlier sections.

    Args:
        device: auto, cpu, cuda, cuda:1, ...; auto selects the accelerator if there is one.
        threads: Number of PyTorch's CPU threads; null keeps PyTorch's default.
        sections: One section, or several as [layers,graph,step,stability].
        skip: Implementations to skip, one, or several as [native,slow]. A vendor kernel that hangs cannot be
            interrupted; skip native in this case.
        batch_size: Images per step.
        image_size: Size of the input in pixels, multiples of 32: the side of a square, or `[height, width]`.
        repeats: Number of rounds. Every round measures each variant once; the order rotates and the median is reported.
        precision: 32-true, or bf16-mixed for bfloat16 under autocast.
        vendor_search: Let cuDNN or MIOpen search for the fastest kernel first, which can take very long with MIOpen.
        conv_algorithm: Algorithm choice of gemm. table uses a table; auto also uses compiled kernels on a GPU; autotune
            measures the candidates of auto during the warm-up.
        conv_algorithm_budget_s: Time limit in seconds for the measurements of conv_algorithm autotune.
        stability_steps: Steps of each of the two trainings, >= 10; on a CPU, their images have at most 160 px.
        frames: Frames per epoch for the estimate of the training time; the default is the size of LTDv2.
        epochs: Number of epochs for the estimate of the training time.
        profile: Run torch.profiler, which counts launches.
        json: Output file for all results; rewritten after every section.

    Raises:
        ValueError: If a value is not allowed.
        SystemExit: With code 1 if the stability section failed.
    """
    options = dict(locals()) | {
        "device": chosen_device(device),
        "sections": (sections,) if isinstance(sections, str) else tuple(sections),
        "skip": (skip,) if isinstance(skip, str) else tuple(skip),
    }
    report = new_report(BenchmarkSettings(**options))
    threads_before = torch.get_num_threads()
    torch.set_num_threads(threads or threads_before)
    try:
        console = wide_console()
        _show_settings(report, console)
        run(report)
        show(report, console)
    finally:
        torch.set_num_threads(threads_before)
    if report.stability is not None and not report.stability.passed:
        raise SystemExit(1)


def _show_settings(report: BenchmarkReport, console: Console) -> None:
    settings, environment = report.settings, report.environment
    console.print(f"{environment['device']} ({settings.device}), driver {environment['driver']}")
    console.print(f"torch {environment['torch']}, {torch.get_num_threads()} threads; {environment['date']}")
    console.print(f"YOLOv8n, batch {settings.batch_size}, {settings.image_size} px, {settings.precision}")
    console.print(f"{settings.repeats} rounds: {', '.join(settings.sections)}")
    shown = variants(settings.skip)
    for variant in filter(shown.__contains__, DESCRIPTIONS):
        console.print(f"  {variant.value:<16}{DESCRIPTIONS[variant]}")
    if any(variant.value.endswith("nhwc") for variant in shown):
        console.print("  ...-nhwc        the same implementation in channels_last layout")
