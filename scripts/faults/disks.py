"""A file system of its own for the run folder of a case, which can be frozen and filled."""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

from faults.case import Check
from faults.outside import Deed
from faults.run import Run
from faults.workshop import put

TOOLS = ("mkfs.ext4", "mount", "umount", "fsfreeze", "fallocate")
IMAGE_BYTES = 1 << 30
"""Size of the sparse file behind the file system; several checkpoints fit."""


def needs_apprise() -> str:
    """Return why notifications cannot be sent; an empty string if they can."""
    return "" if find_spec("apprise") else "needs the package apprise"


def cannot_mount() -> str:
    """Return why no file system can be frozen here, or no notification sent; an empty string if both can."""
    if reason := needs_apprise():
        return reason
    missing = [name for name in TOOLS if shutil.which(name) is None]
    if os.getuid() != 0 or missing:
        return f"needs root and {', '.join(missing or TOOLS)}"
    with tempfile.TemporaryDirectory() as folder:
        mounted = Path(folder) / "mounted"
        mounted.mkdir()
        if (error := mount(Path(folder) / "image", mounted, 16 << 20)) != "":
            return f"needs loop devices: {error}"
        frozen = subprocess.run(["fsfreeze", "-f", mounted], capture_output=True, text=True, check=False)
        subprocess.run(["fsfreeze", "-u", mounted], capture_output=True, check=False)
        subprocess.run(["umount", mounted], check=True)
        return frozen.stderr.strip()


def mount(image: Path, folder: Path, size_bytes: int) -> str:
    """Make an ext4 file system in a sparse file and mount it; return what went wrong."""
    with image.open("wb") as file:
        file.truncate(size_bytes)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
    done = subprocess.run(["mount", "-o", "loop", image, folder], capture_output=True, text=True, check=False)
    return done.stderr.strip()


def own_disk(run: Run) -> None:
    """Give the run folder a file system of its own, and note what the supervisor notifies, and when."""
    run.run_folder.mkdir()
    if error := mount(run.folder / "disk.img", run.run_folder, IMAGE_BYTES):
        raise OSError(error)
    told: list[tuple[float, bytes]] = []

    class Listener(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            """One notification."""
            told.append((time.monotonic(), self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            """Nothing."""

    run.notes["told"] = told
    run.notes["endpoint"] = HTTPServer(("127.0.0.1", 0), Listener)
    Thread(target=run.notes["endpoint"].serve_forever, daemon=True).start()
    put(run.configuration, "supervision.notify.webhook", f"http://127.0.0.1:{run.notes['endpoint'].server_port}/")


def remove_disk(run: Run) -> None:
    """Thaw and unmount the file system of a case, however the case ended."""
    subprocess.run(["fsfreeze", "-u", run.run_folder], capture_output=True, check=False)
    subprocess.run(["umount", "--lazy", run.run_folder], capture_output=True, check=False)
    if "endpoint" in run.notes:
        run.notes["endpoint"].shutdown()
        run.notes["endpoint"].server_close()


def freeze_disk(seconds: float) -> Deed:
    """Freeze the disk; a process of its own, which the run does not know, thaws it even if this one is killed."""

    def deed(run: Run) -> None:
        run.note("disk frozen")
        run.hit.add(run.record.process if run.record else 0)
        thaw = f"sleep {seconds}; fsfreeze -u '{run.run_folder}'"
        subprocess.Popen(["sh", "-c", thaw], stderr=subprocess.DEVNULL, start_new_session=True)
        subprocess.run(["fsfreeze", "-f", run.run_folder], check=True)
        run.notes["thawed_s"] = time.monotonic() + seconds

    return deed


def fill_disk(run: Run) -> None:
    """Leave no byte free."""
    free_bytes = shutil.disk_usage(run.run_folder).free
    subprocess.run(["fallocate", "-l", str(free_bytes * 9 // 10), run.run_folder / "filler"], check=True)
    with (run.run_folder / "rest").open("wb", buffering=0) as file:
        for block_bytes in (1 << 20, 1 << 12):
            with contextlib.suppress(OSError):
                while file.write(bytes(block_bytes)):
                    pass


def free_disk(run: Run) -> None:
    """Delete what `fill_disk` has written."""
    for name in ("filler", "rest"):
        (run.run_folder / name).unlink(missing_ok=True)


def told_in_time(*words: str) -> Check:
    """A check that notifications with these words came before the disk was thawed."""

    def check(run: Run) -> list[str]:
        early = [text.decode() for at_s, text in run.notes["told"] if at_s < run.notes["thawed_s"]]
        return [
            f"no notification of {word!r} before the thaw" for word in words if not any(word in one for one in early)
        ]

    return check


def told_once(word: str) -> Check:
    """A check that exactly one notification is about `word`."""

    def check(run: Run) -> list[str]:
        count = sum(f': {word}"' in text.decode() for _, text in run.notes["told"])
        return [] if count == 1 else [f"{count} notifications of {word!r} instead of one"]

    return check
