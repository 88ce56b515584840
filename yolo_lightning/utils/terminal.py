"""Whether an output can be drawn over, as progress bars and live displays do. Standard library only."""

import curses
import os
from typing import TextIO

WITHOUT_CONTROL = ("", "dumb", "unknown")
"""Values of `TERM` of terminals that print escape sequences as text: editors, logs of services, serial consoles."""


def has_cursor_control(stream: TextIO) -> bool:
    """Return whether a stream is a terminal whose cursor can move up; other outputs get complete lines."""
    if not stream.isatty():
        return False
    name = os.environ.get("TERM", "")
    if name in WITHOUT_CONTROL:
        return False
    try:
        curses.setupterm(name, 1)
    except curses.error:  # the machine has no description of this terminal, as in small containers
        return True
    return curses.tigetstr("cuu1") is not None
