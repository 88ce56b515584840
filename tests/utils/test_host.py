"""Reuse of freed memory by the allocator between steps."""

import platform
import subprocess
import sys

import pytest

from yolo_lightning.utils.host import USERS_SWITCHES

BLOCKS = """
import ctypes, resource, sys
from yolo_lightning.utils.host import keep_freed_memory
kept = keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
size = 64 * 2**20
for turn in range(5):
    if turn == 1:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = libc.malloc(size)
    ctypes.memset(block, 1, size)
    libc.free(block)
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGES = 64 * 2**20 // 4096


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
@pytest.mark.parametrize("set_up_by_user", [False, True])
def test_freed_blocks_come_back_without_page_faults(monkeypatch: pytest.MonkeyPatch, set_up_by_user: bool) -> None:
    for name in USERS_SWITCHES:
        monkeypatch.delenv(name, raising=False)
    if set_up_by_user:
        monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    kept, faults = subprocess.run(
        [sys.executable, "-c", BLOCKS], check=True, capture_output=True, text=True
    ).stdout.split()
    if set_up_by_user:
        assert kept == "False"
        assert int(faults) > 2 * PAGES
    else:
        assert kept == "True"
        assert int(faults) < PAGES // 10
