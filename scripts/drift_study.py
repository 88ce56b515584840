"""Measure the effect of drift augmentation and of month-balanced sampling on the monthly scores, on drawn frames.

    python scripts/drift_study.py --work runs/drift-study --seeds 0 1

Draws a look-alike of LTDv2. Its training split contains June to August, few clips of May and April, and none of January
to March; its test split contains all eight months equally. Four arms, {drift augmentation off, on} x {frames as they
come, months balanced}, train the same network for the same number of epochs. The last averaged weights are scored; the
test split is not used for any choice. Arms that the work folder contains under the same options are not repeated.
"""

import argparse
import csv
import json
import shutil
import statistics
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from math import ceil, isfinite, nan
from pathlib import Path
from typing import Any

from common import markdown_table, run_logged, spread

from yolo_lightning.data.synthetic import draw_dataset
from yolo_lightning.utils import run_files
from yolo_lightning.utils.files import replacing, write_json

MONTH_SHARES = {202006: 1.0, 202007: 1.0, 202008: 1.0, 202005: 0.25, 202104: 0.1}
"""Share of the drawn clips of a month that is used for training; other months are unseen."""
TRAIN_FILE = "TrainWarm.json"
TEST_FILE = "Valid.json"
OUTCOME = "outcome.json"
DRIFT_OFF = {"photometric": 0.0, "histogram_match": 0.0, "inversion": 0.0}
DRIFT_ON = {"photometric": 0.5, "histogram_match": 0.05, "inversion": 0.02}
"""As in configs/ltdv2.yaml."""
CALLBACKS = [
    {"class_path": "EMA", "init_args": {"tau": 50.0}},  # updates; an arm has only a few hundred
    *({"class_path": name} for name in ("MeanAP", "FinalValidation", "MetricsFile", "LastCheckpoint")),
]
SETTINGS = {
    "trainer.accelerator": "cpu",
    "trainer.num_sanity_val_steps": "0",
    "trainer.log_every_n_steps": "10",
    "default_callbacks": "false",
    "trainer.callbacks": json.dumps(CALLBACKS),
    "model.convolution.backend": "native",
    "model.recipe.warmup_epochs": "1",
    "data.augmentation.mosaic": "0.5",
    "data.augmentation.close_mosaic_epochs": "2",
    "data.files.train": TRAIN_FILE,
    "data.files.valid": TEST_FILE,
    "data.loader.num_workers": "0",
}
SUMMARY = ("map_50", "cov", "balanced", "seen", "unseen")


@dataclass(frozen=True)
class Arm:
    """One training: drift augmentation on or off, months balanced or not, and the seed."""

    drift: bool
    balanced: bool
    seed: int

    @property
    def name(self) -> str:
        """Description without the seed."""
        return f"drift {'on' if self.drift else 'off'}, months {'balanced' if self.balanced else 'as they come'}"

    def folder(self, work: Path) -> Path:
        drift, balance = "on" if self.drift else "off", "month" if self.balanced else "none"
        return work / f"drift-{drift}-balance-{balance}-{self.seed}"


def main() -> None:
    """Draw the dataset, train the missing arms, write and print the tables."""
    options = parse_arguments()
    data = options.work / "data"
    draw(data, options)
    arms = [Arm(drift, months, seed) for seed in options.seeds for drift in (False, True) for months in (False, True)]
    pool = ThreadPoolExecutor(options.jobs)
    try:
        outcomes = list(pool.map(lambda arm: outcome(arm, data, options), arms))
    finally:
        pool.shutdown(cancel_futures=True)
    write_json(options.work / "drift-study.json", {"options": conditions(options), "arms": outcomes})
    text = markdown(outcomes, options)
    with replacing(options.work / "drift-study.md") as temporary:
        temporary.write_text(text)
    print(text)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/drift-study"), help="work folder")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--frames", type=int, default=960, help="training frames drawn, before winter is removed")
    parser.add_argument("--test_frames", type=int, default=256)
    parser.add_argument("--width", type=int, default=192, help="width of a frame, pixels; the height is 3/4 of it")
    parser.add_argument("--image_size", type=int, default=192, help="side of the input, pixels, a multiple of 32")
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=2, help="arms trained at the same time, each on one thread")
    options = parser.parse_args()
    for name in ("epochs", "frames", "test_frames", "batch_size", "jobs"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be >= 1, got {getattr(options, name)}")
    return options


def conditions(options: argparse.Namespace) -> dict[str, Any]:
    """Return everything that determines an outcome besides its arm."""
    shares = {str(month): share for month, share in MONTH_SHARES.items()}
    names = ("epochs", "frames", "test_frames", "width", "image_size", "batch_size")
    return {name: getattr(options, name) for name in names} | {"shares": shares, "on": DRIFT_ON, "off": DRIFT_OFF}


def draw(data: Path, options: argparse.Namespace) -> None:
    """Draw the dataset and write the training file without winter."""
    frames = {"train_frames": options.frames, "valid_frames": options.test_frames, "test_frames": 8}
    draw_dataset(data, **frames, width=options.width, height=options.width * 3 // 4, progress=True)
    content = json.loads((data / "Train.json").read_text())
    content["images"] = _warm_frames(content["images"])
    kept = {image["id"] for image in content["images"]}
    content["annotations"] = [one for one in content["annotations"] if one["image_id"] in kept]
    text = json.dumps(content)
    path = data / TRAIN_FILE
    if not path.is_file() or path.read_text() != text:  # a new modification time would invalidate the index
        with replacing(path) as temporary:
            temporary.write_text(text)


def _warm_frames(images: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the frames of the first clips of each month, as many as `MONTH_SHARES` defines."""
    clips: dict[int, dict[Path, None]] = {}
    for image in images:
        clips.setdefault(month_of(image), {})[Path(image["file_name"]).parent] = None
    chosen = {clip for month, own in clips.items() for clip in [*own][: ceil(MONTH_SHARES.get(month, 0.0) * len(own))]}
    return [image for image in images if Path(image["file_name"]).parent in chosen]


def month_of(image: dict[str, Any]) -> int:
    """Return the month as YYYYMM, the first digits of the id."""
    return int(str(image["id"])[:6])


def outcome(arm: Arm, data: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the scores of an arm; train the arm first unless its scores under the same options are stored."""
    file = arm.folder(options.work) / OUTCOME
    try:
        known: dict[str, Any] = json.loads(file.read_text())
        if known["conditions"] == conditions(options):
            return known
    except (OSError, ValueError, KeyError):
        pass
    train(arm, data, options)
    scores = last_scores(arm.folder(options.work) / run_files.METRICS)
    found = {**asdict(arm), "name": arm.name, "scores": scores, "conditions": conditions(options)}
    write_json(file, found)
    return found


def train(arm: Arm, data: Path, options: argparse.Namespace) -> None:
    """Train an arm in its own process; raise SystemExit if the training fails."""
    folder = arm.folder(options.work)
    shutil.rmtree(folder, ignore_errors=True)
    settings = SETTINGS | {
        "seed_everything": arm.seed,
        "trainer.default_root_dir": folder,
        "trainer.max_epochs": options.epochs,
        "trainer.check_val_every_n_epoch": options.epochs,
        "model.recipe.nominal_batch": options.batch_size,
        "data.root": data,
        "data.storage.index_root": options.work / "index",
        "data.image_size": options.image_size,
        "data.batch_size": options.batch_size,
        "data.sampling.balance": "month" if arm.balanced else "none",
    }
    settings |= {f"data.augmentation.{name}": value for name, value in (DRIFT_ON if arm.drift else DRIFT_OFF).items()}
    words = [f"--{name}={value}" for name, value in settings.items()]
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    run_logged([sys.executable, "-m", "yolo_lightning", "fit", *words], Path(f"{folder}.log"), threads)


def last_scores(path: Path) -> dict[str, float]:
    """Return the finite scores of the last validation without `val/`, and mean `map_50` of seen and unseen months."""
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get("val/map_50")]
    scores = {name.removeprefix("val/"): float(value) for name, value in rows[-1].items() if "val/" in name and value}
    seen = {f"{month // 100}-{month % 100:02d}" for month in MONTH_SHARES}
    monthly = by_month(scores)
    scores["seen"] = mean(value for month, value in monthly.items() if month in seen)
    scores["unseen"] = mean(value for month, value in monthly.items() if month not in seen)
    return {name: value for name, value in scores.items() if isfinite(value)}


def by_month(scores: dict[str, float]) -> dict[str, float]:
    """Return `map_50` by month, in order."""
    parts = ((name.partition("map_50/")[2], value) for name, value in scores.items() if name.startswith("map_50/"))
    return dict(sorted((month, value) for month, value in parts if month[:4].isdecimal()))


def mean(values: Iterable[float]) -> float:
    """Return the mean, NaN without values."""
    return statistics.fmean(listed) if (listed := list(values)) else nan


def markdown(outcomes: Sequence[dict[str, Any]], options: argparse.Namespace) -> str:
    """Return two tables: scores of each arm over the seeds, and its months."""
    by_name: dict[str, list[dict[str, float]]] = {}
    for one in outcomes:
        by_name.setdefault(one["name"], []).append(one["scores"])
    months = list(by_month(outcomes[0]["scores"]))
    rows, monthly = [], []
    for name, scores in by_name.items():
        rows.append([name, *(spread([one.get(key, nan) for one in scores], 3) for key in SUMMARY)])
        monthly.append([name, *(f"{mean(one[f'map_50/{month}'] for one in scores):.2f}" for month in months)])
    seeds = ", ".join(map(str, options.seeds))
    head = f"Seeds {seeds}: mean (lowest to highest). {options.epochs} epochs, {options.image_size} pixels."
    return f"{head}\n\n{markdown_table(['arm', *SUMMARY], rows)}\n\n{markdown_table(['map_50', *months], monthly)}\n"


if __name__ == "__main__":
    main()
