"""Draw a look-alike of LTDv2, train YOLOv8n, test, predict; print scores, files, next commands and a picture's path."""

import argparse
import json
import re
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.panel import Panel

if TYPE_CHECKING:
    from yolo_lightning.commands.benchmark.comparison import Timer
    from yolo_lightning.commands.benchmark.conv_variants import Variant
    from yolo_lightning.detector import Detector

DATA = Path("runs/demo-data")
RUN = Path("runs/demo")
CONFIG = str(Path(__file__).resolve().parent.parent / "configs" / "demo.yaml")
PICTURE = "detections.jpg"  # in the run folder
COLUMNS = 4  # frames in a row of the picture
BATCH_ROUNDS = 3
EXTREMES = {"best": max, "worst": min}
LABEL_WIDTH = 25


def main() -> None:
    """Run the demo in the current folder. Imports late, because a spawned loader worker imports this file again."""
    argparse.ArgumentParser(
        description=f"{__doc__} Writes into {DATA} and {RUN} of the current folder; minutes on two CPU cores."
    ).parse_args()
    from synthetic import draw_dataset

    from yolo_lightning.checkpoints import run_folder
    from yolo_lightning.cli import main as command_line
    from yolo_lightning.detector import Detector
    from yolo_lightning.utils import run_files
    from yolo_lightning.utils.stop_signals import request

    request.install()  # Ctrl-C saves a checkpoint, as in the command `fit`
    console = Console()
    started_s = time.monotonic()
    draw_dataset(DATA, progress=True)
    common = ["--config", CONFIG, "--data.root", str(DATA), "--trainer.default_root_dir", str(RUN)]
    for command in ("fit", "test", "predict"):
        words = common
        if command != "fit":
            run = run_folder.runs(RUN)[0]
            best = run / run_files.CHECKPOINTS / run_files.BEST_CHECKPOINT
            words = [*common, "--ckpt_path", str(best)]
        console.rule(command)
        sys.argv[1:] = [command, *words]  # the log contains the command line
        command_line(sys.argv[1:])
    console.rule("detections")
    detector = Detector(run, device="cpu")
    batch = batch_line(run, detector)
    picture = draw_detections(run, detector)
    minutes = (time.monotonic() - started_s) / 60
    console.print(Panel(closing_block(run, best, batch), title=f"demo finished in {minutes:.1f} minutes"))
    print(picture)


def batch_line(run: Path, detector: "Detector") -> str:
    """Return the times of one batch, forward and backward pass, with the convolutions of the demo and with `gemm`.

    The variants are measured in turns, on random images, in the precision of the run.
    """
    import torch
    import yaml

    from yolo_lightning.commands.benchmark.comparison import compare, time_calls
    from yolo_lightning.commands.benchmark.conv_variants import Variant, convert
    from yolo_lightning.commands.benchmark.section import Section
    from yolo_lightning.commands.benchmark.training_step import make_module, random_batch
    from yolo_lightning.utils import run_files

    configuration = yaml.safe_load(Path(CONFIG).read_text())
    precision = json.loads((run / run_files.ENVIRONMENT).read_text())["precision"]
    image_size = detector.settings.image_size
    assert image_size is not None, "checkpoints of this project contain the size"
    section = Section(
        device=detector.device,
        batch_size=configuration["data"]["batch_size"],
        image_size=image_size,
        rounds=BATCH_ROUNDS,
        folder=run,
    )
    batch = random_batch(section.batch_size, image_size, seed=0)

    def prepare(variant: "Variant") -> "Timer":
        module = make_module()
        convert(module.graph, variant)

        def pass_batch() -> None:
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed"):
                raw = module(batch.images)
            total, _ = module.detection_loss(raw, batch)
            torch.autograd.backward(total.sum())

        return partial(time_calls, section.device, pass_batch)

    variants = (Variant.NATIVE_NHWC, Variant.GEMM)
    native, gemm = compare(section, {variant: partial(prepare, variant) for variant in variants}, calls=1)
    return f"{native.median_s:.2f} s ({section.batch_size} images), with gemm {gemm.median_s:.2f} s"


def draw_detections(run: Path, detector: "Detector") -> Path:
    """Draw the detections in one frame of each month and return the file.

    The frames are those of the test split, which neither training nor validation reads.
    """
    import cv2
    import numpy as np
    from synthetic.drawn_dataset import SPLIT_FILES

    from yolo_lightning.evaluation.drawing import FONT, GAP, GRAY, encode
    from yolo_lightning.utils.files import replacing

    first_frames: dict[str, Path] = {}
    for image in json.loads((DATA / SPLIT_FILES["test"]).read_text())["images"]:
        first_frames.setdefault(image["date_captured"][: len("2020-05")], DATA / image["file_name"])
    cells = []
    for month in sorted(first_frames):
        frame = detector(first_frames[month]).plot()[..., ::-1].copy()  # OpenCV uses BGR
        for colour, width in (((0, 0, 0), 4), ((255, 255, 255), 1)):
            cv2.putText(frame, month, (4, len(frame) - 6), FONT, 0.5, colour, width, cv2.LINE_AA)
        cells.append(cv2.copyMakeBorder(frame, 0, GAP, 0, GAP, cv2.BORDER_CONSTANT, value=(GRAY, GRAY, GRAY)))
    rows = [np.concatenate(cells[start : start + COLUMNS], axis=1) for start in range(0, len(cells), COLUMNS)]
    path = run / PICTURE
    with replacing(path) as temporary:
        temporary.write_bytes(encode(np.asarray(np.concatenate(rows), np.uint8)))
    return path


def closing_block(run: Path, best: Path, batch: str) -> str:
    """Return lines of scores, the time of a batch, files and next commands."""
    from yolo_lightning.evaluation.score_table import score_text
    from yolo_lightning.utils import run_files

    scores = json.loads((run / run_files.SCORES).read_text())
    of_months = {name for name in scores if re.fullmatch(r"test/map_50/\d{4}-\d\d", name)}
    months = {name: scores[name] for name in of_months if scores[name] is not None}  # none without an object
    named = {"mAP50-95": "test/map", "mAP50": "test/map_50", "balanced": "test/balanced"}
    named |= {f"mAP50 of the {text} month": choose(months, key=months.__getitem__) for text, choose in EXTREMES.items()}
    rows = {
        label: f"{score_text(scores[name])}  {name.partition('map_50/')[2]}".rstrip() for label, name in named.items()
    }
    rows["one batch"] = batch
    files = {"checkpoint": best, "submission": run / run_files.PREDICTIONS, "report": run / run_files.REPORT}
    rows |= {name: str(path) for name, path in files.items()}
    lines = [f"{name:<{LABEL_WIDTH}}{value}" for name, value in rows.items()]
    program = "python -m yolo_lightning"
    lines += ["next:", f"  {program} report {run}", f"  {program} predict PICTURES --run {run}"]
    lines += [f"  {program} fit --config yolo --data.format path/to/data.yaml"]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
