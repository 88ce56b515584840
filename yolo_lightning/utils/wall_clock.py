"""Wall clock that a deadline can follow: a jump of the system's clock counts only after it has lasted."""

import logging
import time
from collections.abc import Callable
from typing import Any

from yolo_lightning.utils.process_identity import boot_id, since_boot_s

logger = logging.getLogger(__name__)

LARGEST_STEP_S = 60.0
"""Change of the wall clock against the clock since boot that is followed at once, as of a time server."""

CONFIRMED_AFTER_S = 600.0
"""Time for which a larger change must last before it is followed."""


class WallClock:
    """Wall clock, in seconds since 1970, that ignores a jump until the jump has lasted for `CONFIRMED_AFTER_S`.

    Args:
        wall_s: Clock of the system, in seconds since 1970.
        boot_s: Clock that no one sets, in seconds.
    """

    def __init__(self, wall_s: Callable[[], float] = time.time, boot_s: Callable[[], float] = since_boot_s) -> None:
        self._wall_s = wall_s
        self._boot_s = boot_s
        self._offset_s = wall_s() - boot_s()
        self._jump_offset_s: float | None = None
        self._jump_began_s = 0.0

    def now_s(self) -> float:
        """Return the time; log the beginning and the end of a jump."""
        boot_s = self._boot_s()
        offset_s = self._wall_s() - boot_s
        if abs(offset_s - self._offset_s) <= LARGEST_STEP_S:
            if self._jump_offset_s is not None:
                logger.warning("the wall clock is right again")
            self._offset_s = offset_s
            self._jump_offset_s = None
        elif self._jump_offset_s is None or abs(offset_s - self._jump_offset_s) > LARGEST_STEP_S:
            logger.warning(
                "the wall clock has jumped by %+.0f s; a deadline follows it if this lasts for %.0f min",
                offset_s - self._offset_s,
                CONFIRMED_AFTER_S / 60,
            )
            self._jump_offset_s = offset_s
            self._jump_began_s = boot_s
        elif boot_s - self._jump_began_s >= CONFIRMED_AFTER_S:
            logger.warning("the jump of the wall clock by %+.0f s is confirmed", offset_s - self._offset_s)
            self._offset_s = offset_s
            self._jump_offset_s = None
        return boot_s + self._offset_s

    def state_dict(self) -> dict[str, Any]:
        return {"boot": boot_id(), "offset_s": self._offset_s}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the clock of an earlier process of the same boot, so that a jump between them is noticed."""
        if state["boot"] and state["boot"] == boot_id():
            self._offset_s = state["offset_s"]
