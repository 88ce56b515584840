"""`python -m yolo_lightning.supervision RUN_FOLDER JOB`: the supervisor process; `JOB` is `Job.to_json`."""

import sys
from pathlib import Path

from yolo_lightning.supervision.settings import Job
from yolo_lightning.supervision.supervisor import Supervisor

if __name__ == "__main__":
    sys.exit(Supervisor(Path(sys.argv[1]), Job.from_json(sys.argv[2])).run())
