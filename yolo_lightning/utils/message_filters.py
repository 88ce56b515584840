"""Filters of log lines and warnings, for the commands."""

import logging
import sys
import warnings

from yolo_lightning.utils.addresses import redacted
from yolo_lightning.utils.plain_text import printable
from yolo_lightning.utils.rank_zero import USELESS_LINES, hide_harmless_lines

HARMLESS_LOG_LINES = (
    *USELESS_LINES,
    "Seed set to",  # in config.yaml
    "PU available:",  # of GPU, TPU and HPU; the line `device:` contains the device in use
    "`Trainer.fit` stopped: `max_epochs=",  # the closing block contains the number of epochs
)
PILLOW_WARNING = ".*could be decompression bomb DOS attack"
"""Beginning of a warning of Pillow; `data.limits.max_image_pixels` leaves out such images, with their names."""


class CurrentStderr(logging.Handler):
    """Handler that prints to the current `sys.stderr`, which a running progress bar replaces.

    A `StreamHandler` keeps the stream of its creation and prints its lines into the bar.
    """

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


def is_printed(record: logging.LogRecord) -> bool:
    """Return whether a log message is worth a line, without control characters and credentials from names in files."""
    record.msg = redacted(printable(record.getMessage()))
    record.args = ()
    return not any(part in record.msg for part in HARMLESS_LOG_LINES)


def hide_harmless_messages() -> None:
    """Filter the log lines and the warnings above; let log lines appear above a progress bar.

    The function replaces the handlers of Lightning if Lightning has been imported.
    """
    without_lightning = logging.getLogger("lightning_utilities.core.rank_zero")
    if not without_lightning.handlers:
        without_lightning.setLevel(logging.INFO)
        without_lightning.addHandler(CurrentStderr())
        without_lightning.addFilter(is_printed)
        without_lightning.propagate = False
    for name in ("pytorch.utilities.rank_zero", "fabric.utilities.rank_zero", "fabric.utilities.seed"):
        logging.getLogger(f"lightning.{name}").addFilter(is_printed)
    for name in ("lightning.pytorch", "lightning.fabric"):
        logger = logging.getLogger(name)
        for handler in list(logger.handlers):
            if type(handler) is logging.StreamHandler:
                logger.removeHandler(handler)
                logger.addHandler(CurrentStderr())
    hide_harmless_lines()
    if not sys.warnoptions:  # a user cannot act on these warnings; a developer sets -W
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", message=PILLOW_WARNING)
    warnings.formatwarning = _warning_line


def _warning_line(message: Warning | str, category: type, filename: str, lineno: int, line: str | None = None) -> str:
    """Return a warning without the path and the line of source code, which mean nothing to a user of the commands."""
    return f"warning: {redacted(printable(str(message)))}\n"
