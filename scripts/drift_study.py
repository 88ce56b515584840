"""Does drift augmentation or month-balanced sampling even out the months? A study on drawn frames, minutes on a CPU.

    python scripts/drift_study.py --work runs/drift-study --seeds 0 1

Draws a look-alike whose training split holds June to August, a little of May and April and none of January to March,
and whose test split holds all eight months alike. Four arms, {drift augmentation off, on} x {frames as they come,
months balanced}, train the same network as often and from the same seeds. The test split chooses nothing: the last
averaged weights are scored. An arm that has finished in the work folder under the same options is not trained again.
"""

import argparse
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from math import ceil, isfinite, nan
from pathlib import Path
from typing import Any

from yolo_lightning.data.synthetic import draw_dataset
from yolo_lightning.utils import run_files
from yolo_lightning.utils.files import replacing, write_json

MONTH_SHARES = {202006: 1.0, 202007: 1.0, 202008: 1.0, 202005: 0.25, 202104: 0.1}
"""Share of the clips drawn for a month that is trained on; months that are not named are unseen."""
TRAIN_FILE = "TrainWarm.json"
TEST_FILE = "Valid.json"
OUTCOME = "outcome.json"
DRIFT_OFF = {"photometric": 0.0, "histogram_match": 0.0, "inversion": 0.0}
DRIFT_ON = {"photometric": 0.5, "histogram_match": 0.05, "inversion": 0.02}
"""As in configs/ltdv2.yaml."""
EMA_TAU = 50.0
"""Updates; the average must follow within the few hundred of an arm."""
SUMMARY = ("map_50", "cov", "balanced", "seen", "unseen")


@dataclass(frozen=True)
class Arm:
    """One training.

    Attributes:
        drift: Whether the frames drift in augmentation.
        balanced: Whether each month has the same share of an epoch.
        seed: Seed of the run.
    """

    drift: bool
    balanced: bool
    seed: int

    @property
    def name(self) -> str:
        """In words, without the seed."""
        return f"drift {'on' if self.drift else 'off'}, months {'balanced' if self.balanced else 'as they come'}"

    def folder(self, work: Path) -> Path:
        """Where it is trained."""
        return (
            work / f"drift-{'on' if self.drift else 'off'}-balance-{'month' if self.balanced else 'none'}-{self.seed}"
        )


def main() -> None:
    """Draw, train what is missing, write and print the table."""
    options = parse_arguments()
    data = options.work / "data"
    draw(data, options)
    arms = [
        Arm(drift, balanced, seed) for seed in options.seeds for drift in (False, True) for balanced in (False, True)
    ]
    pool = ThreadPoolExecutor(options.jobs)
    try:
        outcomes = list(pool.map(lambda arm: outcome(arm, data, options), arms))
    finally:
        pool.shutdown(cancel_futures=True)  # where one fails, those that have not begun need not begin
    content = {"options": conditions(options), "arms": outcomes}
    write_json(options.work / "drift-study.json", content)
    text = markdown(outcomes, options)
    with replacing(options.work / "drift-study.md") as temporary:
        temporary.write_text(text)
    print(text)


def parse_arguments() -> argparse.Namespace:
    """The command line.

    Raises:
        SystemExit: If an option is not allowed.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/drift-study"), help="where everything is written")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--frames", type=int, default=960, help="drawn for training, before winter is left out")
    parser.add_argument("--test_frames", type=int, default=256)
    parser.add_argument("--width", type=int, default=192, help="of a frame, pixels; the height is 3/4 of it")
    parser.add_argument("--image_size", type=int, default=192, help="side of the input, pixels, a multiple of 32")
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=2, help="arms trained at once, each on one thread")
    options = parser.parse_args()
    for name in ("epochs", "frames", "test_frames", "batch_size", "jobs"):
        if getattr(options, name) < 1:
            parser.error(f"{name} is {getattr(options, name)}, allowed are 1 and more")
    return options


def conditions(options: argparse.Namespace) -> dict[str, Any]:
    """What an outcome depends on besides its arm."""
    names = ("epochs", "frames", "test_frames", "width", "image_size", "batch_size")
    shares = {str(month): share for month, share in MONTH_SHARES.items()}
    return {name: getattr(options, name) for name in names} | {"shares": shares, "on": DRIFT_ON, "off": DRIFT_OFF}


def draw(data: Path, options: argparse.Namespace) -> None:
    """Draw the dataset, and write the training file that has lost its winter."""
    draw_dataset(
        data,
        train_frames=options.frames,
        valid_frames=options.test_frames,
        test_frames=8,
        width=options.width,
        height=options.width * 3 // 4,
        progress=True,
    )
    content = json.loads((data / "Train.json").read_text())
    content["images"] = warm_frames(content["images"])
    kept = {image["id"] for image in content["images"]}
    content["annotations"] = [one for one in content["annotations"] if one["image_id"] in kept]
    text = json.dumps(content)
    path = data / TRAIN_FILE
    if not path.is_file() or path.read_text() != text:  # its time of change says which index is current
        with replacing(path) as temporary:
            temporary.write_text(text)


def warm_frames(images: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The frames of the first clips of each month, as many as `MONTH_SHARES` says."""
    clips: dict[int, list[str]] = {}
    for image in images:
        own = clips.setdefault(month_of(image), [])
        if clip_of(image) not in own:
            own.append(clip_of(image))
    chosen = {clip for month, own in clips.items() for clip in own[: ceil(MONTH_SHARES.get(month, 0.0) * len(own))]}
    return [image for image in images if clip_of(image) in chosen]


def month_of(image: dict[str, Any]) -> int:
    """YYYYMM, with which an id begins."""
    return int(str(image["id"])[:6])


def clip_of(image: dict[str, Any]) -> str:
    """Folder of its file."""
    return str(Path(image["file_name"]).parent)


def outcome(arm: Arm, data: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The scores of an arm, trained first where they are not there under the same options."""
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
    """Train in a process of its own, its output in `<folder>.log`.

    Raises:
        SystemExit: If it fails.
    """
    folder = arm.folder(options.work)
    shutil.rmtree(folder, ignore_errors=True)
    words = [sys.executable, "-m", "yolo_lightning", "fit", "--trainer.accelerator", "cpu"]
    words += ["--seed_everything", str(arm.seed), "--trainer.default_root_dir", str(folder)]
    words += ["--trainer.max_epochs", str(options.epochs), "--trainer.check_val_every_n_epoch", str(options.epochs)]
    words += ["--trainer.num_sanity_val_steps", "0", "--trainer.callbacks", callbacks_of_arm()]
    words += ["--model.conv_backend", "native", "--model.nominal_batch", str(options.batch_size)]
    words += ["--model.warmup_epochs", "1", "--data.augmentation.mosaic", "0.5"]
    words += ["--data.augmentation.close_mosaic_epochs", "2", "--trainer.log_every_n_steps", "10"]
    words += ["--data.root", str(data), "--data.train_file", TRAIN_FILE, "--data.valid_file", TEST_FILE]
    words += ["--data.image_size", str(options.image_size), "--data.batch_size", str(options.batch_size)]
    words += ["--data.loader.num_workers", "0", "--data.index_root", str(options.work / "index")]
    words += ["--data.sampling.balance", "month" if arm.balanced else "none"]
    for name, value in (DRIFT_ON if arm.drift else DRIFT_OFF).items():
        words += [f"--data.augmentation.{name}", str(value)]
    print(f"training {arm.name}, seed {arm.seed}; log in {folder}.log", flush=True)
    threads = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    with Path(f"{folder}.log").open("w") as log:
        ended = subprocess.run(words, env=os.environ | threads, stdout=log, stderr=subprocess.STDOUT)
    if ended.returncode:
        raise SystemExit(f"{arm.name}, seed {arm.seed}, ended with exit code {ended.returncode}; see {folder}.log")


def callbacks_of_arm() -> str:
    """What an arm needs: the average, scores, and where they are written."""
    average = {"class_path": "EMA", "init_args": {"tau": EMA_TAU}}
    others = [{"class_path": name} for name in ("MeanAP", "FinalValidation", "MetricsFile", "LastCheckpoint")]
    return json.dumps([average, *others])


def last_scores(path: Path) -> dict[str, float]:
    """Finite scores of the last validation, by name without `val/`; mean `map_50` of seen and of unseen months."""
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get("val/map_50")]
    scores = {name.removeprefix("val/"): float(value) for name, value in rows[-1].items() if "val/" in name and value}
    names = {f"{month // 100}-{month % 100:02d}" for month in MONTH_SHARES}
    monthly = by_month(scores)
    scores["seen"] = mean(value for month, value in monthly.items() if month in names)
    scores["unseen"] = mean(value for month, value in monthly.items() if month not in names)
    return {name: value for name, value in scores.items() if isfinite(value)}


def by_month(scores: dict[str, float]) -> dict[str, float]:
    """`map_50` by month, in order."""
    pairs = ((name.split("/"), value) for name, value in scores.items())
    return dict(sorted((parts[1], value) for parts, value in pairs if len(parts) == 2 and is_month(*parts)))


def is_month(name: str, part: str) -> bool:
    """Whether a score is `map_50` of a month."""
    return name == "map_50" and part[:4].isdecimal()


def mean(values: Iterable[float]) -> float:
    """NaN of nothing."""
    listed = list(values)
    return statistics.fmean(listed) if listed else nan


def markdown(outcomes: Sequence[dict[str, Any]], options: argparse.Namespace) -> str:
    """Two tables: scores of each arm over the seeds, and its months."""
    names = list(dict.fromkeys(one["name"] for one in outcomes))
    by_name = {name: [one["scores"] for one in outcomes if one["name"] == name] for name in names}
    months = list(by_month(outcomes[0]["scores"]))
    seeds = ", ".join(map(str, options.seeds))
    lines = [f"Seeds {seeds}: mean (lowest to highest). {options.epochs} epochs, {options.image_size} pixels.", ""]
    lines += row(["arm", *SUMMARY]) + row(["---"] * (1 + len(SUMMARY)))
    for name, scores in by_name.items():
        lines += row([name, *(spread([one.get(key, nan) for one in scores]) for key in SUMMARY)])
    lines += ["", *row(["map_50", *months]), *row(["---"] * (1 + len(months)))]
    for name, scores in by_name.items():
        lines += row([name, *(f"{mean(one[f'map_50/{month}'] for one in scores):.2f}" for month in months)])
    return "\n".join(lines) + "\n"


def row(cells: Sequence[str]) -> list[str]:
    """One line of a table."""
    return [f"| {' | '.join(cells)} |"]


def spread(values: Sequence[float]) -> str:
    """Mean and, of several numbers, their range."""
    if len(values) == 1:
        return f"{values[0]:.3f}"
    return f"{statistics.fmean(values):.3f} ({min(values):.3f} to {max(values):.3f})"


if __name__ == "__main__":
    main()
