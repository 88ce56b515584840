"""Atomic writing of the cache files of `conv`, which does not import `utils.files`."""

import os
from contextlib import suppress
from pathlib import Path
from uuid import uuid4


def replace_file(file: Path, content: bytes) -> None:
    """Write a file atomically; its folder must exist.

    The file is not flushed to the disk: a reader must detect and replace a file that a power failure has truncated.

    Raises:
        OSError: If the file cannot be written.
    """
    # A random name: processes of two containers that share the folder can have the same process id.
    temporary = file.with_name(f".writing-{uuid4().hex}-{file.name}.part")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, file)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
