"""Environment switches that keep other libraries from the network, from installing packages and from long searches."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from yolo_lightning.utils.files import cache_folder

ENVIRONMENT_SWITCHES = {
    "YOLO_OFFLINE": "1",  # ultralytics: no DNS probe at import, no update check, no analytics
    "YOLO_AUTOINSTALL": "0",  # ultralytics: never run pip
    "YOLO_VERBOSE": "0",  # ultralytics: errors only
    "NO_ALBUMENTATIONS_UPDATE": "1",  # albumentations: no version request per process, loader workers included
    "MLFLOW_DISABLE_TELEMETRY": "true",  # mlflow, if it is the logger: no request when it is imported
    "OPENCV_FFMPEG_LOGLEVEL": "-8",  # opencv: unreadable videos are reported once, by this package
    "MIOPEN_FIND_MODE": "FAST",  # MIOpen: a convolution without a measurement in its database is not measured
}
SETTINGS_FOLDER = "YOLO_CONFIG_DIR"
"""Variable of the folder of Ultralytics' settings, whose import fails for a user without a home folder."""
CONSTANTS = {"YOLO_OFFLINE": "ONLINE", "YOLO_AUTOINSTALL": "AUTOINSTALL", "YOLO_VERBOSE": "VERBOSE"}
"""Constants to which Ultralytics converts its variables at import; its other modules copy them."""
ULTRALYTICS = "ultralytics.utils"


class _Unprobed:
    """`ONLINE` of an Ultralytics that was imported offline: the first use by other code tests the network."""

    def __bool__(self) -> bool:
        return bool(sys.modules[ULTRALYTICS].is_online())


def set_switches() -> None:
    """Set the switches that the user has not set, for the rest of this process and for its child processes."""
    for name, value in ENVIRONMENT_SWITCHES.items():
        os.environ.setdefault(name, value)


def prefer_fast_find() -> None:
    """Set MIOpen's find mode for the convolutions of a training, unless the user has set it."""
    os.environ.setdefault("MIOPEN_FIND_MODE", ENVIRONMENT_SWITCHES["MIOPEN_FIND_MODE"])


@contextmanager
def offline() -> Iterator[None]:
    """Set the switches around an import or a call of another library, whether it was imported before or not."""
    added = ENVIRONMENT_SWITCHES.keys() - os.environ.keys()
    if SETTINGS_FOLDER not in os.environ and os.path.expanduser("~") == "~":
        os.environ[SETTINGS_FOLDER] = str(cache_folder())
        added.add(SETTINGS_FOLDER)
    constants = [name for switch, name in CONSTANTS.items() if switch in added]
    imported = sys.modules.get(ULTRALYTICS)
    after: dict[str, Any] = {"ONLINE": _Unprobed(), "AUTOINSTALL": True, "VERBOSE": True}
    if imported is not None:
        after = {name: getattr(imported, name) for name in constants}
    logger = logging.getLogger("ultralytics")
    level = logger.level
    set_switches()
    _set_constants(dict.fromkeys(constants, False))
    if imported is not None and "VERBOSE" in constants:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]
        _set_constants({name: after[name] for name in constants})
        if imported is not None:
            logger.setLevel(level)
        elif ULTRALYTICS in sys.modules and "VERBOSE" in constants:
            sys.modules[ULTRALYTICS].set_logging(logger.name, verbose=True)


def _set_constants(values: dict[str, Any]) -> None:
    modules = [vars(module) for name, module in sys.modules.items() if name.startswith("ultralytics.")]
    for module in modules:
        module.update({name: value for name, value in values.items() if name in module})
