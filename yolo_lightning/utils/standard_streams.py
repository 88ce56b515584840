"""Standard streams that the caller has closed, as `2>&-` in a shell and some daemons do. Standard library only."""

import os
import sys


def open_closed_streams() -> None:
    """Open the null device for each standard stream that is closed, before this process opens another file.

    Python sets a closed stream to None, which libraries call as a stream. The next file that a process opens would get
    the number of the stream, and the messages of C libraries would be written into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)  # the lowest free one: that of the stream
            os.set_inheritable(number, True)  # a helper process whose sockets have such a number does not end
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", errors="backslashreplace"))
