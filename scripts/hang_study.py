"""Find out what stops the GPU queues of an AMD card: six trainings ("arms") that differ in start method and copy mode.

    python scripts/hang_study.py                     one hour per arm, on the GPU
    python scripts/hang_study.py --hours_per_arm 4
    python scripts/hang_study.py --device cpu --hours_per_arm 0.01    rehearsal without a GPU

Runs unattended. The same command resumes an interrupted study. docs/doctor.md explains the arms and the results.
Exit code 0 if every arm has a result, 1 if not, 2 for an invalid option.
"""

import argparse
import sys
from pathlib import Path

from hang_experiment.study import Study, run_study

from yolo_lightning.commands.doctor.command import check_device


def main() -> int:
    """Parse the command line and run the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", help="auto (the GPU that torch finds), cuda, cuda:1 or cpu")
    parser.add_argument("--hours_per_arm", type=float, default=1.0, help="duration of each arm (default: %(default)s)")
    parser.add_argument(
        "--study_folder", type=Path, default=Path("hang-study"), help="folder of the results (default: %(default)s)"
    )
    options = parser.parse_args()
    try:
        check_device(options.device)
        study = Study(options.study_folder.expanduser(), options.device, seconds=3600 * options.hours_per_arm)
        return run_study(study, lambda text: print(text, flush=True))
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
