"""The processor and the memory that this process computes with."""

import ctypes
import os
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's `mallopt`, by their numbers in `malloc.h`."""

LARGEST_BYTES = 2**31 - 1
"""What an `int`, the type of a value of `mallopt`, can say."""

USERS_SWITCHES = ("GLIBC_TUNABLES", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")


def keep_freed_memory() -> bool:
    """Let the allocator of this process keep blocks of up to 2 GiB when they are freed.

    glibc gives blocks of 32 MiB and more back to the system at once, and gets them again, page by page and zeroed, a
    moment later: 20,000 page faults in each training step at 320 px, batch 16. The process keeps its largest size then.

    Returns:
        Whether it does; not with another C library, nor where the user's environment sets up the allocator.
    """
    if not sys.platform.startswith("linux") or any(name in os.environ for name in USERS_SWITCHES):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(kind, LARGEST_BYTES) for kind in (MMAP_THRESHOLD, TRIM_THRESHOLD))


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
