"""Train the base recipe and one change of it at a time, with several seeds, and compare the scores.

    python scripts/accuracy_study.py --work runs/accuracy-study --arms base yolo11n p2 --seeds 0 1 2 3 4
    python scripts/accuracy_study.py --root path/to/LTDv2 --image_size 320 --epochs 12 --arms base mixup
    python scripts/accuracy_study.py --data path/to/data.yaml --image_size 320 --epochs 12 --arms base p2

Without `--root` and `--data` a look-alike of LTDv2 is drawn; `--few_months` trains on its frames of June to August and
few clips of May and April, which the scores by month compare with the other months. An arm is `configs/ltdv2.yaml`
(`configs/yolo.yaml` with `--data`) without box paste and recalibration, and with the options in `ARMS`; every arm and
seed is a training in its own process, whose last averaged weights are scored on the validation split. The arms in
`SCORED` score the finished runs of another arm in another way and train nothing. Finished runs of the work folder under
the same conditions are not repeated, so that a study can be interrupted and extended. The table shows the mean
difference from `base` over the common seeds with its 95 % interval (Student's t, paired by seed), and the processor
time and memory of the training relative to `base`.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from math import ceil, isfinite, nan
from pathlib import Path
from typing import Any

from common import markdown_table, mean_interval, run_logged
from comparison.dataset import Dataset
from lightning.pytorch import Callback, LightningModule, Trainer
from synthetic import draw_dataset
from torch.nn import BatchNorm2d

from yolo_lightning.data.image_size import STRIDE
from yolo_lightning.utils import run_files
from yolo_lightning.utils.files import replacing, write_json

BASE = "base"
ARMS: dict[str, dict[str, Any]] = {
    BASE: {},
    "yolov8s": {"model.variant": "yolov8s"},
    "p2": {"model.variant": "yolov8n-p2"},
    "yolo11n": {"model.variant": "yolo11n"},
    "yolo12n": {"model.variant": "yolo12n"},
    "yolo26n": {"model.variant": "yolo26n"},
    "musgd": {"model.recipe.optimizer": "MuSGD"},
    "auto_optimizer": {"model.recipe.optimizer": "auto"},
    "no_photometric": {"data.augmentation.photometric": 0.0},
    "no_drift": {f"data.augmentation.{name}": 0.0 for name in ("photometric", "histogram_match", "inversion")},
    "no_mosaic": {"data.augmentation.mosaic": 0.0},
    "full_mosaic": {"data.augmentation.mosaic": 1.0},
    "averaged_statistics": {"model.recipe.statistics_batches": 0},
    "bn_momentum": {"trainer.callbacks+": "accuracy_study.BatchNormMomentum"},
    "random_partners": {"trainer.callbacks+": "accuracy_study.RandomPartners"},
    "mixup": {"data.augmentation.mixup": 0.1},
    "paste": {"data.augmentation.paste.probability": 0.5},
    "background": {"data.input.background": True},
    "rectangular": {},  # see `rectangle`
    "class_weights": {"model.loss.class_weight_power": 0.5},
}
"""Options of each trained arm, besides those of `settings`."""


@dataclass(frozen=True)
class Scoring:
    """Another way to score the runs of a trained arm."""

    arm: str = BASE
    options: Mapping[str, Any] = field(default_factory=dict)  # of `test`
    recalibrated: bool = False  # whether `recalibrate` computes the statistics of batch normalization anew


SCORED = {
    "tta": Scoring(options={"model.detections.tta": True}),
    "recalibrate": Scoring(recalibrated=True),
    "recalibrate_bn_momentum": Scoring("bn_momentum", recalibrated=True),
}
SCORES = ("map_50", "map", "balanced", "cov")
FEW_MONTHS, FEW_MONTHS_FILE = {202006: 1.0, 202007: 1.0, 202008: 1.0, 202005: 0.25, 202104: 0.1}, "TrainFewMonths.json"
"""Share of the drawn clips of a month that `--few_months` uses for training; other months are unseen."""
TITLES = {"map_50": "mAP50", "map": "mAP50-95"}
OUTCOME = "outcome.json"


class BatchNormMomentum(Callback):
    """Sets the momentum of batch normalization to PyTorch's 0.1; Ultralytics' is 0.03."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for module in pl_module.modules():
            if isinstance(module, BatchNorm2d):
                module.momentum = 0.1


class RandomPartners(Callback):
    """Draws the partners of a mosaic at random from the whole split, as Ultralytics does; for no loader workers."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loader: Any = trainer.train_dataloader
        dataset = loader.dataset
        tiles = dataset._tiles
        dataset._tiles = lambda epoch, index, _, generator: tiles(epoch, index, None, generator)


def main() -> None:
    """Train and score the missing runs, write and print the table."""
    options = parse_arguments()
    options.work.mkdir(parents=True, exist_ok=True)
    try:
        root = options.root or (None if options.data else draw(options))
        dataset = Dataset.find(root, options.data)
        if options.few_months and root is not None:
            write_few_months(root)
            dataset = replace(dataset, options=dataset.options | {"files.train": FEW_MONTHS_FILE})
    except ValueError as error:
        sys.exit(f"{Path(__file__).name}: {error}")
    runs = [(arm, seed) for arm in ARMS for seed in options.seeds if arm in options.arms]
    with ThreadPoolExecutor(options.jobs) as pool:
        for future in [pool.submit(trained, arm, seed, dataset, options) for arm, seed in runs]:
            future.result()
        for future in [
            pool.submit(scored, arm, seed, dataset, options)
            for arm in SCORED
            if arm in options.arms
            for seed in options.seeds
        ]:
            future.result()
    results = outcomes(options)
    text = f"{_conditions_line(options)}\n\n{table(results)}\n"
    write_json(options.work / "accuracy-study.json", {"conditions": conditions(options), "runs": results})
    with replacing(options.work / "accuracy-study.md") as temporary:
        temporary.write_text(text)
    print(text)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/accuracy-study"), help="work folder")
    parser.add_argument("--root", type=Path, help="dataset folder in LTDv2's layout (default: draw one)")
    parser.add_argument("--data", type=Path, help="data.yaml of a YOLO dataset")
    parser.add_argument("--arms", nargs="+", choices=[*ARMS, *SCORED], default=[BASE])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--frames", type=int, default=480, help="training frames that are drawn")
    parser.add_argument("--few_months", action="store_true", help="train on few months of the drawn frames")
    parser.add_argument("--image_size", type=int, default=192, help="pixels")
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="options of every arm")
    parser.add_argument("--jobs", type=int, choices=(1, 2), default=1, help="processes, one thread each")
    options = parser.parse_args()
    for arm in set(options.arms) & SCORED.keys():
        if SCORED[arm].arm not in options.arms:
            parser.error(f"the arm {arm} scores the runs of {SCORED[arm].arm}, which --arms does not contain")
    if options.few_months and (options.root or options.data):
        parser.error("--few_months needs drawn frames: no --root and no --data")
    if "rectangular" in options.arms and options.data:
        parser.error("the arm rectangular needs frames of one size: --root, not --data")
    for name in ("epochs", "frames", "batch_size"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be >= 1, got {getattr(options, name)}")
    for word in options.set:
        if "=" not in word:
            parser.error(f"--set takes KEY=VALUE, as in data.sampling.frame_interval=6, got {word!r}")
    return options


def draw(options: argparse.Namespace) -> Path:
    """Return the folder of the drawn dataset, whose frames have the width of the input."""
    frames = {"train_frames": options.frames, "valid_frames": options.frames // 2, "test_frames": 8}
    size = {"width": options.image_size, "height": options.image_size * 3 // 4}
    return draw_dataset(options.work / "data", **frames, **size, progress=True)


def write_few_months(root: Path) -> None:
    """Write the training file without most months: the first clips of each month, as many as `FEW_MONTHS` defines."""
    content = json.loads((root / "Train.json").read_text())
    clips: dict[int, dict[Path, None]] = {}  # by month, the first digits of the id
    for image in content["images"]:
        clips.setdefault(int(str(image["id"])[:6]), {})[Path(image["file_name"]).parent] = None
    chosen = {
        clip
        for month, folders in clips.items()
        for clip in [*folders][: ceil(FEW_MONTHS.get(month, 0.0) * len(folders))]
    }
    content["images"] = [image for image in content["images"] if Path(image["file_name"]).parent in chosen]
    kept = {image["id"] for image in content["images"]}
    content["annotations"] = [box for box in content["annotations"] if box["image_id"] in kept]
    write_json(root / FEW_MONTHS_FILE, content)


def conditions(options: argparse.Namespace) -> dict[str, Any]:
    """Return everything that determines an outcome besides arm and seed."""
    chosen = options.root or options.data
    names = ("epochs", "image_size", "batch_size", *(() if chosen else ("frames", "few_months")))
    set_here = dict(word.split("=", 1) for word in options.set)
    return {name: getattr(options, name) for name in names} | set_here | {"root": str(chosen or "drawn")}


def settings(dataset: Dataset, options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of all runs."""
    average = {"class_path": "EMA", "init_args": {"tau": 50.0}}  # updates; a run has only some hundreds
    return {
        "config": dataset.config,
        "supervision.enabled": False,
        "trainer.accelerator": "cpu",
        "trainer.precision": "32-true",  # scores do not depend on the processor
        "trainer.num_sanity_val_steps": 0,
        "trainer.callbacks": json.dumps([average, {"class_path": "LastCheckpoint", "init_args": {"keep": 1}}]),
        "model.convolution.backend": "native",
        "model.recipe.nominal_batch": options.batch_size,
        "model.recipe.warmup_epochs": 1,
        **{f"data.{name}": value for name, value in dataset.options.items()},
        "data.storage.index_root": options.work / "index",
        "data.image_size": [options.image_size] * 2,
        "data.batch_size": options.batch_size,
        "data.loader.num_workers": 0,
        "data.augmentation.mosaic": 0.5,
        "data.augmentation.paste.probability": 0.0,  # an arm of its own
        "data.augmentation.close_mosaic_epochs": max(1, options.epochs // 4),
        **dict(word.split("=", 1) for word in options.set),
    }


def trained(arm: str, seed: int, dataset: Dataset, options: argparse.Namespace) -> None:
    """Train and score an arm, unless its scores under the same conditions are stored."""
    folder = options.work / f"{arm}-{seed}"
    if known(folder, options) is not None:
        return
    shutil.rmtree(folder, ignore_errors=True)
    changes = settings(dataset, options) | ARMS[arm]
    if arm == "rectangular":
        changes["data.image_size"] = rectangle(Path(dataset.options["root"]), options.image_size)
    fit = {
        **changes,
        "seed_everything": seed,
        "best_pt": False,
        "trainer.default_root_dir": folder,
        "trainer.max_epochs": options.epochs,
        # The validation of the last epoch recomputes the statistics of batch normalization; its scores are not used.
        "trainer.limit_val_batches": 1,
        "trainer.check_val_every_n_epoch": options.epochs,
    }
    used = run("fit", fit, Path(f"{folder}.log"))
    scores = tested(folder, folder / "checkpoints" / run_files.LAST_CHECKPOINT, changes)
    store(folder, arm, seed, scores, used, options)


def rectangle(root: Path, width: int) -> list[int]:
    """Return height and width of the smallest input that shows the frames in the scale of a square of this width."""
    first = json.loads((root / "Train.json").read_text())["images"][0]
    return [-(-width * first["height"] // first["width"] // STRIDE) * STRIDE, width]


def scored(arm: str, seed: int, dataset: Dataset, options: argparse.Namespace) -> None:
    """Score a trained run in another way, unless its scores under the same conditions are stored."""
    scoring = SCORED[arm]
    folder = options.work / f"{arm}-{seed}"
    if known(folder, options) is not None:
        return
    folder.mkdir(exist_ok=True)
    changes = settings(dataset, options)
    checkpoint = options.work / f"{scoring.arm}-{seed}" / "checkpoints" / run_files.LAST_CHECKPOINT
    used = {"seconds": 0.0, "memory_mib": 0.0}
    if scoring.recalibrated:
        target = folder / run_files.RECALIBRATED_CHECKPOINT
        data = {name: value for name, value in changes.items() if name.startswith(("config", "data."))}
        data.pop("data.augmentation.close_mosaic_epochs")
        recalibration = {"checkpoint": checkpoint, "images": options.frames}
        recalibration |= {"device": "cpu", "output": target}
        used = run("recalibrate", data | recalibration, Path(f"{folder}.log"))
        checkpoint = target
    store(folder, arm, seed, tested(folder, checkpoint, {**changes, **scoring.options}), used, options)


def tested(folder: Path, checkpoint: Path, changes: Mapping[str, Any]) -> dict[str, float]:
    """Return the scores of a checkpoint on the validation split; `folder` is that of the outcome."""
    evaluated = {**changes, "ckpt_path": checkpoint, "trainer.default_root_dir": folder}
    run("test", evaluated, folder.with_name(f"{folder.name}.test.log"))
    written = max((path / run_files.SCORES for path in (checkpoint.parents[1], folder)), key=modified)
    scores = json.loads(written.read_text())
    return {name.removeprefix("test/"): value for name, value in scores.items() if value is not None}


def run(command: str, options: Mapping[str, Any], log: Path) -> dict[str, float]:
    """Run a command of the package on one thread; return its processor time and its peak memory."""
    paths = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
    environment = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": paths}
    return run_logged([sys.executable, "-m", "yolo_lightning", command, *words(options)], log, environment)


def modified(path: Path) -> float:
    return path.stat().st_mtime if path.is_file() else 0.0


def words(options: Mapping[str, Any]) -> list[str]:
    """Return options as words of the command line."""
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    return [f"--{name}={text}" for name, text in texts.items()]


def store(
    folder: Path, arm: str, seed: int, scores: dict[str, float], used: dict[str, float], options: argparse.Namespace
) -> None:
    content = {"arm": arm, "seed": seed, "scores": scores, **used, "conditions": conditions(options)}
    write_json(folder / OUTCOME, content)


def known(folder: Path, options: argparse.Namespace) -> dict[str, Any] | None:
    """Return the stored outcome of a run folder if it belongs to the same conditions."""
    try:
        content: dict[str, Any] = json.loads((folder / OUTCOME).read_text())
    except (OSError, ValueError):
        return None
    return content if content.get("conditions") == conditions(options) else None


def outcomes(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the stored outcomes of all arms and seeds."""
    stored = [known(path.parent, options) for path in sorted(options.work.glob(f"*/{OUTCOME}"))]
    return [outcome for outcome in stored if outcome is not None]


def table(results: Sequence[dict[str, Any]]) -> str:
    """Return the Markdown table: scores, differences from the base recipe, relative time and memory."""
    arms: dict[str, dict[int, dict[str, Any]]] = {result["arm"]: {} for result in results}
    for result in results:
        arms[result["arm"]][result["seed"]] = result
    classes = sorted({name for result in results for name in result["scores"] if _is_class(name)})
    names = [name for name in SCORES if any(name in result["scores"] for result in results)]
    compared = [*(name for name in names if name != "map"), *classes]
    rows = []
    for arm in sorted(arms, key=[*ARMS, *SCORED].index):
        runs, base = arms[arm], arms.get(BASE, {})
        common = sorted(runs.keys() & base.keys())
        cells = [f"{mean([result['scores'].get(name, nan) for result in runs.values()]):.3f}" for name in names]
        for name in compared:
            cells.append("" if arm == BASE else interval([difference(runs[s], base[s], name) for s in common]))
        for name in ("seconds", "memory_mib"):
            ratios = [runs[seed][name] / base[seed][name] for seed in common]
            cells.append("" if arm in SCORED or not ratios else f"{statistics.median(ratios):.2f}")
        rows.append([arm, str(len(runs)), *cells])
    columns = ["arm", "seeds", *map(title, names), *(f"{title(name)} - base" for name in compared)]
    return markdown_table([*columns, "x processor time", "x memory"], rows)


def _is_class(name: str) -> bool:
    """Return whether a score is the mAP50 of a class."""
    return name.startswith("map_50/") and not title(name)[:1].isdecimal()


def title(name: str) -> str:
    return TITLES.get(name, name.removeprefix("map_50/"))


def difference(result: dict[str, Any], base_result: dict[str, Any], name: str) -> float:
    return float(result["scores"].get(name, nan)) - float(base_result["scores"].get(name, nan))


def mean(values: Sequence[float]) -> float:
    """Return the mean of the finite values, NaN without any."""
    finite = [value for value in values if isfinite(value)]
    return statistics.fmean(finite) if finite else nan


def interval(differences: Sequence[float]) -> str:
    """Return mean and 95 % confidence interval of paired differences, in bold if the interval excludes 0."""
    finite = [value for value in differences if isfinite(value)]
    if len(finite) < 2:
        return f"{finite[0]:+.3f}" if finite else ""
    middle, half = mean_interval(finite)
    text = f"{middle:+.3f} ({middle - half:+.3f} to {middle + half:+.3f})"
    return f"**{text}**" if abs(middle) > half else text


def _conditions_line(options: argparse.Namespace) -> str:
    parts = [f"{name} {value}" for name, value in conditions(options).items() if name != "root"]
    chosen = options.root or (options.data and options.data.parent)
    return f"{chosen.resolve().name if chosen else 'drawn frames'}: {', '.join(parts)}; YOLOv8n, random weights"


if __name__ == "__main__":
    main()
