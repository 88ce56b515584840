"""Train the same small network under the same faults with several training systems, and compare what the faults cost.

    python scripts/fault_race.py                              all systems: undisturbed, with the faults, undisturbed
    python scripts/fault_race.py --systems ours lightning     some of them
    python scripts/fault_race.py --seeds 0 1 2                three schedules of faults
    python scripts/fault_race.py --write docs/faults.md       also write table and chart into a page

The faults: SIGKILL to the training process, a loader worker that stops (SIGSTOP), SIGKILL while a checkpoint is
written, a full disk for a while (needs root), and NaN images in one step. A seed sets their order and steps. If a
system makes no optimizer step with a finite loss for a while (`--reaction`), a person restarts the system and deletes
checkpoints that are damaged or contain NaN; this is a manual intervention.

Finished runs are kept in the work folder and are not repeated. nvidia-resiliency-ext takes part where it is installed;
PYTHONPATH may name another environment that contains the package.
"""

import argparse
import json
import shutil
import signal
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
HEADING = "## The race"
QUICK: dict[str, Any] = {"steps": 30, "image_size": 32, "reaction": 40.0}
DEFAULTS: dict[str, Any] = {"steps": 240, "image_size": 160, "reaction": 60.0}


def main() -> None:
    """Run what is missing in the work folder, and print the table. Imports late, so that --help needs no torch."""
    from faults.actions import cannot_mount
    from race import chart
    from race.chart import Result
    from race.contest import Rules
    from race.schedule import draw_schedule
    from race.systems import SYSTEMS, Training

    options = parse()
    for number in (signal.SIGINT, signal.SIGTERM):  # also in the background: a run must kill its processes and unmount
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    work: Path = options.work.resolve()
    kinds = tuple(options.faults)
    if "disk" in kinds and (reason := cannot_mount()):
        print(f"without the full disk: {reason}", flush=True)
        kinds = tuple(kind for kind in kinds if kind != "disk")
    missing = {name: reason for name in options.systems if (reason := SYSTEMS[name].missing())}
    rules = Rules(reaction_s=options.reaction, limit_s=options.limit * 60)
    results: dict[str, list[Result]] = {}
    for seed in options.seeds:
        folder = work / str(seed)
        try:
            faults = draw_schedule(kinds, options.steps, seed)
            settings = {name: getattr(options, name) for name in ("steps", "image_size", "reaction")} | {"seed": seed}
            results_file = prepare(folder, settings | {"faults": [[fault.kind, fault.step] for fault in faults]})
        except ValueError as error:
            sys.exit(f"{Path(__file__).name}: {error}")
        training = Training("", str(folder / "data"), "", options.steps, seed, options.image_size)
        training = replace(training, yolo_data=str(draw(folder, training)))
        for name in options.systems:
            if name not in missing:
                _run_missing(name, training, folder, faults, rules, results_file)
        for name, result in finished(results_file).items():
            results.setdefault(name, []).append(result)
    text = chart.table(results, missing)
    print(text)
    (work / "table.md").write_text(text + "\n")
    chart.draw({name: of_seeds[0] for name, of_seeds in results.items()}, work / "race.png")
    if options.write:
        write_page(options.write, text, work / "race.png")


def parse() -> argparse.Namespace:
    from race.schedule import KINDS
    from race.systems import SYSTEMS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--faults", nargs="+", choices=KINDS, default=list(KINDS), help="kinds of faults")
    parser.add_argument("--steps", type=int, help="optimizer steps, a multiple of 10 (default: 240)")
    parser.add_argument("--image_size", type=int, help="pixels, a multiple of 32 (default: 160)")
    parser.add_argument("--reaction", type=float, help="seconds until a person intervenes (default: 60)")
    parser.add_argument("--limit", type=float, default=15.0, help="minutes after which a run ends as not finished")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of the faults and of the training")
    parser.add_argument("--quick", action="store_true", help="30 steps of 32 pixels, reaction after 40 s: a rehearsal")
    parser.add_argument("--work", type=Path, default=Path("runs/race"), help="work folder")
    parser.add_argument("--write", type=Path, metavar="FILE", help="page whose section on the race is replaced")
    options = parser.parse_args()
    for name, value in (QUICK if options.quick else DEFAULTS).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.steps % 10:
        parser.error(f"--steps must be a multiple of 10, got {options.steps}")
    return options


def prepare(work: Path, settings: dict[str, Any]) -> Path:
    """Return the results file of a work folder; raise ValueError if its results have other settings."""
    work.mkdir(parents=True, exist_ok=True)
    path = work / "results.json"
    if not path.is_file():
        path.write_text(json.dumps({"settings": settings}, indent=1) + "\n")
    stored = json.loads(path.read_text())["settings"]
    if stored != settings:
        raise ValueError(f"the results in {path} have the settings {stored}, not {settings}; choose another --work")
    return path


def draw(work: Path, training: Any) -> Path:
    """Draw the dataset, convert it for Ultralytics, and return the `data.yaml` of the conversion."""
    import matplotlib
    from comparison.dataset import convert
    from race.systems import STEPS_PER_EPOCH
    from synthetic import draw_dataset

    from yolo_lightning.data.datamodule import DetectionDataModule
    from yolo_lightning.data.loader_settings import LoaderSettings
    from yolo_lightning.data.storage.storage_settings import StorageSettings

    frames = STEPS_PER_EPOCH * training.batch
    draw_dataset(training.data, width=192, height=160, train_frames=frames, valid_frames=8, test_frames=4)
    settings = work / "ultralytics-settings"
    settings.mkdir(exist_ok=True)
    # Without this font, the dataset check of Ultralytics downloads it.
    shutil.copyfile(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", settings / "Arial.ttf")
    module = DetectionDataModule(
        root=training.data,
        storage=StorageSettings(index_root=training.data + "-index"),
        loader=LoaderSettings(num_workers=0),
    )
    return convert(module, work / "yolo-format")


def _run_missing(name: str, training: Any, work: Path, faults: Any, rules: Any, results_file: Path) -> None:
    """Carry out the runs of a system that the results do not contain; store each when it ends."""
    from race.contest import Contest
    from race.systems import SYSTEMS

    for kind, schedule in (("undisturbed", []), ("raced", faults), ("repeated", [])):
        stored = json.loads(results_file.read_text())
        if kind in stored.get(name, {}):
            continue
        folder = work / name / kind
        run_training = replace(training, run_folder=str(folder / "run"))
        outcome = Contest(SYSTEMS[name], run_training, folder, schedule, rules).run()
        stored.setdefault(name, {})[kind] = asdict(outcome)
        temporary = results_file.with_suffix(".part")
        temporary.write_text(json.dumps(stored) + "\n")
        temporary.replace(results_file)
        ended = "did not finish" if outcome.finished_s is None else f"finished after {outcome.finished_s:.0f} s"
        print(f"{name}, {kind}: {ended}, {len(outcome.interventions)} interventions", flush=True)


def finished(results_file: Path) -> dict[str, Any]:
    """Return the results of the systems that have been run with the faults."""
    from race.account import Outcome
    from race.chart import Result
    from race.systems import SYSTEMS

    stored = json.loads(results_file.read_text())
    return {
        name: Result(**{kind: Outcome.from_json(values) for kind, values in stored[name].items()})
        for name in SYSTEMS
        if "raced" in stored.get(name, {})
    }


def write_page(page: Path, table: str, picture: Path) -> None:
    """Replace the table of the race in a page, and copy the chart beside the page."""
    head, heading, section = page.read_text().partition(HEADING)
    if not heading:
        raise SystemExit(f"{page} must contain the heading {HEADING!r}")
    before, _, rest = section.partition("| system |")
    lines = rest.splitlines(keepends=True)
    after = next((number for number, text in enumerate(lines) if number and not text.startswith("|")), len(lines))
    page.write_text(f"{head}{heading}{before}{table}\n{''.join(lines[after:])}")
    shutil.copyfile(picture, page.with_name("fault_race.png"))


if __name__ == "__main__":
    main()
