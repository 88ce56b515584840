"""Train the same network on the same images with the trainer of Ultralytics and with this project, and compare.

    python scripts/compare_ultralytics.py --root path/to/LTDv2 --epochs 15 --image_size 416
    python scripts/compare_ultralytics.py --data path/to/data.yaml --arms ultralytics auto --epochs 0 --turns 5
    python scripts/compare_ultralytics.py --root path/to/LTDv2 --arms best --best_options "--model.variant yolov8n"
    python scripts/compare_ultralytics.py --data path/to/coco --train_file annotations/a.json --valid_file b.json

Arms: `ultralytics_default` and `default` (each trainer with its defaults, this project with `--config`); `ultralytics`
(with `--ultralytics_options`, such as `optimizer=MuSGD`); `ultralytics_amp` (with its mixed precision, on a GPU only);
`auto`, `native` and `gemm` (this project with that `model.convolution.backend`); `bf16` (`auto` with
`trainer.precision: bf16-mixed`); `cuda_graph` (`bf16` with `model.convolution.cuda_graph`, on a GPU only); and `best`
(this project with `--best_config` and `--best_options`, which may set anything, such as other epochs). Every arm and
seed is its own process in the work folder. Runs that are finished there are not repeated and appear in the table, so
arms and seeds may run separately, also at the same time: `--arms native --seeds 1` in one terminal and
`--arms ultralytics --seeds 1` in another. `curves.csv` contains the scores of each epoch (scripts/draw_curves.py).

`--epochs 0` trains nothing. `--processor_min` replaces `--epochs`: each arm trains as many epochs as take this
processor time from start to end, computed from a training of two epochs.

Arms other than the defaults have equal settings, SGD, float32 and random weights; this project takes all others from
configs/yolo.yaml, or from configs/ltdv2.yaml for LTDv2. One evaluator scores all final averaged weights (COCO mean AP
of validation images, letterboxed to the input of the training). `--turns` measures images per second by short
trainings that alternate, without `best`. `--options` sets options of this project in all arms but `best`, such as
those of the default input, which has the shape of the frames: `--options "--data.image_size 640"`.
"""

import argparse
import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path

from comparison.curves import write_curves
from comparison.dataset import Dataset, convert, short_list
from comparison.results import Result, finished, measure, show, speed
from comparison.training import (
    ARMS,
    BEST,
    DEFAULT,
    OF_ULTRALYTICS,
    ULTRALYTICS_DEFAULT,
    Training,
    epochs_in_time,
    train,
)

from yolo_lightning.data.datamodule import DetectionDataModule

BEST_CONFIG = Path(__file__).parents[1] / "configs" / "ltdv2_best.yaml"
DEFAULT_ARMS = [ULTRALYTICS_DEFAULT, DEFAULT]
TURN_EPOCHS = 3  # the first allocates and compiles and is not counted


def main() -> None:
    """Train and score the missing runs, and print the table."""
    arguments = parse_arguments()
    try:
        dataset = Dataset.find(arguments.root, arguments.data, arguments.train_file, arguments.valid_file)
        remember_settings(arguments)
        module = dataset.module(arguments.batch_size, arguments.image_size)
        converted = convert(module, arguments.work / "yolo-format")
    except ValueError as error:
        sys.exit(f"{Path(__file__).name}: {error}")
    config = arguments.config or dataset.config
    words = {arm: ["--config", str(arguments.best_config if arm == BEST else config), *dataset.words()] for arm in ARMS}
    done = {(result["arm"], result["seed"]) for result in finished(arguments.work)}
    is_training = bool(arguments.epochs or arguments.processor_min)
    for seed in arguments.seeds if is_training else ():
        for arm in arguments.arms:
            if (arm, seed) not in done:
                run = make_run(arguments, arm, seed, arguments.work / f"{arm}-{seed}", converted, words[arm])
                if arguments.processor_min:
                    run = replace(run, epochs=epochs_in_time(run, arguments.processor_min))
                train(run)
                measure(run, dataset)
    turns = _take_turns(arguments, module, converted, str(config))
    if results := finished(arguments.work):
        (arguments.work / "results.json").write_text(json.dumps(results, indent=2) + "\n")
        write_curves(arguments.work, results)
    show(results, turns)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="dataset folder in LTDv2's layout")
    parser.add_argument("--data", type=Path, help="data.yaml of a YOLO dataset, or folder of a COCO dataset")
    parser.add_argument("--train_file", default="annotations/instances_train2017.json", help="of a COCO dataset")
    parser.add_argument("--valid_file", default="annotations/instances_val2017.json", help="of a COCO dataset")
    parser.add_argument("--config", type=Path, help="configuration of this project (default: by the kind of data)")
    parser.add_argument("--work", type=Path, default=Path("runs/compare"), help="work folder")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--processor_min", type=float, default=0.0, help="of each training, instead of --epochs")
    parser.add_argument("--image_size", type=int, default=416, help="pixels")
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--nominal_batch", type=int, default=64, help="images per update")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=DEFAULT_ARMS)
    parser.add_argument("--best_config", type=Path, default=BEST_CONFIG, help="configuration of the arm `best`")
    parser.add_argument("--best_options", default="", help="options of `fit` for the arm `best`, in one word")
    parser.add_argument("--ultralytics_options", default="", help="NAME=VALUE ... of the arm `ultralytics`")
    parser.add_argument(
        "--options", default="", help="options of `fit` for the other arms of this project, in one word"
    )
    parser.add_argument("--turns", type=int, default=0, help="alternating short trainings of each arm, for images/s")
    parser.add_argument(
        "--turn_images",
        type=int,
        default=64,
        help="training images per epoch of a turn; with 64 batches or more, the first self-check is not counted",
    )
    parser.add_argument("--workers", type=int, default=0, help="loader processes")
    parser.add_argument("--threads", type=int, default=1, help="threads of one process")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    return parser.parse_args()


def remember_settings(arguments: argparse.Namespace) -> None:
    """Store the settings that all runs of a work folder share; raise ValueError if earlier runs had others."""
    shared = ["root", "data", "config", "epochs", "image_size", "batch_size", "nominal_batch", "device", "options"]
    shared += ["processor_min", "ultralytics_options"]
    shared += ["best_config", "best_options"] if BEST in arguments.arms else []
    settings = {name: str(getattr(arguments, name)) for name in shared if name != "epochs" or arguments.epochs}
    path: Path = arguments.work / "settings.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = json.loads(path.read_text()) if path.is_file() else {}
    for name, value in settings.items():
        if stored.get(name, value) != value:
            raise ValueError(
                f"--{name} must be {stored[name]} like in the runs in {arguments.work}, got {value}; "
                "choose another --work for other settings"
            )
    path.write_text(json.dumps(stored | settings, indent=2) + "\n")


def make_run(
    arguments: argparse.Namespace, arm: str, seed: int, folder: Path, data: Path, words: list[str], epochs: int = 0
) -> Training:
    """Return a training with the settings of the command line; 0 epochs mean those of the command line."""
    names = ("image_size", "batch_size", "nominal_batch", "workers", "threads", "device")
    settings = {name: getattr(arguments, name) for name in names}
    options = arguments.options
    if arm == BEST:
        options = arguments.best_options
    elif arm in OF_ULTRALYTICS:
        options = arguments.ultralytics_options
    settings["options"] = shlex.split(options)
    return Training(arm, seed, str(folder), str(data), words, epochs=epochs or arguments.epochs, **settings)  # type: ignore[arg-type]


def _take_turns(
    arguments: argparse.Namespace, module: DetectionDataModule, converted: Path, config: str
) -> dict[str, list[Result]]:
    """Return the speeds of each arm in alternating short trainings, including those of earlier calls."""
    path: Path = arguments.work / "turns.json"
    turns: dict[str, list[Result]] = json.loads(path.read_text()) if path.is_file() else {}
    if arguments.turns:
        data = short_list(converted, module.class_names, arguments.turn_images)
        words = ["--config", config, "--data.format", str(data), "--data.root", str(data.parent.resolve())]
    arms = [arm for arm in arguments.arms if arm != BEST]
    for turn in range(arguments.turns):
        for arm in arms if turn % 2 == 0 else arms[::-1]:
            folder = arguments.work / "turns" / arm
            train(make_run(arguments, arm, turn, folder, data, words, TURN_EPOCHS))
            turns.setdefault(arm, []).append(speed(folder))
            path.write_text(json.dumps(turns, indent=2) + "\n")
    return turns


if __name__ == "__main__":
    main()
