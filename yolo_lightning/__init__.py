"""YOLOv8 training with PyTorch Lightning on GPUs without a working vendor convolution library.

Importing the package sets the environment switches below, unless the user has set them: nothing here may use the
network, install packages, or send telemetry. This is the only place that changes the process environment.
"""

import os

ENVIRONMENT_SWITCHES = {
    "YOLO_OFFLINE": "1",  # ultralytics: no DNS probe at import, no update check, no analytics
    "YOLO_AUTOINSTALL": "0",  # ultralytics: never run pip by itself
    "YOLO_VERBOSE": "0",  # ultralytics: errors only
    "NO_ALBUMENTATIONS_UPDATE": "1",  # albumentations: no version request per process, also in loader workers
}

for _name, _value in ENVIRONMENT_SWITCHES.items():
    os.environ.setdefault(_name, _value)

__version__ = "0.1.0"
