"""`python -m yolo_lightning.supervision RUN_FOLDER JOB`: the supervisor as a small process of its own."""

import sys
from pathlib import Path

from yolo_lightning.supervision.settings import Job
from yolo_lightning.supervision.supervisor import Supervisor


def main() -> int:
    """Supervise what the command line names; `JOB` is `Job.to_json`."""
    run, job = sys.argv[1:]
    return Supervisor(Path(run), Job.from_json(job)).run()


if __name__ == "__main__":
    sys.exit(main())
