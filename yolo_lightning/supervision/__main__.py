"""`python -m yolo_lightning.supervision RUN_FOLDER`: the supervisor process; `YOLO_LIGHTNING_JOB` contains its job."""

import os
import sys
import time
import traceback
from pathlib import Path

from yolo_lightning.supervision.job import JOB_VARIABLE, Job
from yolo_lightning.supervision.supervisor import supervise

RESTART_S = 60.0

if __name__ == "__main__":
    job = os.environ.pop(JOB_VARIABLE)  # not inherited by the trainer
    try:
        code = supervise(Path(sys.argv[1]), Job.from_json(job))
    except Exception:  # a mistake of the supervisor must not end a run of days
        traceback.print_exc()
        time.sleep(RESTART_S)
        words = [sys.executable, "-m", "yolo_lightning.supervision", *sys.argv[1:]]
        os.execve(sys.executable, words, os.environ | {JOB_VARIABLE: job})
    sys.exit(code)
