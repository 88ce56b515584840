"""`python -m yolo_lightning.supervision RUN_FOLDER`: the supervisor process; `YOLO_LIGHTNING_JOB` contains its job."""

import os
import sys
from pathlib import Path

from yolo_lightning.supervision.job import JOB_VARIABLE, Job
from yolo_lightning.supervision.supervisor import Supervisor

if __name__ == "__main__":
    job = Job.from_json(os.environ.pop(JOB_VARIABLE))  # not inherited by the trainer
    sys.exit(Supervisor(Path(sys.argv[1]), job).run())
