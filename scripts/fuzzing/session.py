"""Runs a reader on changed files in a child process, with limits of time and memory."""

import contextlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fuzzing.mutation import mutated
from fuzzing.readers import READERS, Target

INPUT_TIMEOUT_S = 5.0  # processor time; on a busy machine a process waits for much longer
BLOCKED_TIMEOUT_S = 60.0
MEMORY_BYTES = 2 << 30  # in addition to what the reader uses before the first input
START_TIMEOUT_S = 900.0  # until the first input; the libraries are imported
GRACE_S = 120.0  # for an input that does not end
POLL_S = 0.2
PACKAGE = "yolo_lightning"
SCRIPTS = Path(__file__).resolve().parent.parent
MOST_FINDINGS = 20  # per session


class TimeLimitError(BaseException):
    """An input has taken longer than `INPUT_TIMEOUT_S` or `BLOCKED_TIMEOUT_S`."""


@dataclass
class SessionReport:
    """Result of a session."""

    reader: str
    inputs: int = 0
    accepted: int = 0  # inputs that were read without an error
    findings: list[dict[str, str]] = field(default_factory=list)  # `error` and `file`, one per place in the code


def fuzz(reader: str, seconds: float, seed: int, keep: Path) -> SessionReport:
    """Run a session in a child process; inputs with findings are stored in the folder `keep`."""
    keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        answer = Path(folder) / "answer.json"
        words = [sys.executable, "-m", "fuzzing.session", reader, f"{seconds}", f"{seed}"]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(SCRIPTS), str(SCRIPTS.parent)))}
        log = Path(folder) / "stderr.txt"
        with log.open("wb") as file:
            child = subprocess.Popen(
                [*words, folder, str(keep)], stdout=subprocess.DEVNULL, stderr=file, env=environment
            )
        wait_for(child, Path(folder) / "current", seconds)
        try:
            return SessionReport(**json.loads(answer.read_text()))
        except FileNotFoundError:  # the child process has died or was killed
            lines = log.read_text(errors="replace").strip().splitlines()
            ended = f"the process ended with {child.returncode}: {lines[-1] if lines else ''}"
            current = Path(folder) / "current"
            content = current.read_bytes() if current.exists() else b""
            return SessionReport(reader, 0, 0, [finding(keep, reader, ended, content)])


def wait_for(child: subprocess.Popen[bytes], current: Path, seconds: float) -> None:
    """Wait for the end of a child process, and kill it if it takes too long for its start or for an input."""
    end_s, has_begun = time.monotonic() + START_TIMEOUT_S, False
    while child.poll() is None:
        if not has_begun and current.exists():
            end_s, has_begun = time.monotonic() + seconds + GRACE_S, True
        if time.monotonic() > end_s:
            child.kill()
        time.sleep(POLL_S)


def run_session(reader: str, seconds: float, seed: int, folder: Path, keep: Path) -> None:
    """Run a session in this process and write its report."""
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _end_input)
    signal.signal(signal.SIGPROF, _end_input)
    work = folder / "work"
    work.mkdir()
    target = READERS[reader](work)
    chance, report, places = random.Random(f"{reader} {seed}"), SessionReport(reader), set[str]()
    for content in target.contents:  # valid files: here the reader imports what it needs
        target.file.write_bytes(content)
        _read_valid(target)
    limit_memory()
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        content = mutated(chance.choice(list(target.contents)), chance)
        (folder / "current").write_bytes(content)
        target.file.write_bytes(content)
        report.inputs += 1
        failure = outcome(target.read)
        report.accepted += failure is None
        if failure is None or is_allowed(failure):
            continue
        place = where(failure)
        if place not in places and len(places) < MOST_FINDINGS:
            places.add(place)
            shown = " ".join(str(failure)[:5000].split())[:120]
            report.findings.append(finding(keep, reader, f"{place}: {shown!r}", content))
    (folder / "answer.json").write_text(json.dumps(asdict(report)))


def _read_valid(target: Target) -> None:
    """Read a valid file, without the time limits, because the reader imports libraries; a foreign error is raised."""
    try:
        target.read()
    except Exception as error:
        if not is_allowed(error):
            raise


def outcome(read: object) -> BaseException | None:
    assert callable(read)
    signal.setitimer(signal.ITIMER_PROF, INPUT_TIMEOUT_S)
    signal.setitimer(signal.ITIMER_REAL, BLOCKED_TIMEOUT_S)
    try:
        with silent():
            read()
    except (Exception, TimeLimitError) as error:
        return error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    return None


def _end_input(*_: object) -> None:
    raise TimeLimitError


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Discard what libraries print, also from C."""
    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing), contextlib.redirect_stderr(nothing):
        yield


def is_allowed(error: BaseException) -> bool:
    """Return whether an error is a `ValueError` or `FrameError` of the package, in one line of printable text."""
    from yolo_lightning.data.storage.frames import FrameError

    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    module = str(frame.tb_frame.f_globals.get("__name__", "")) if frame is not None else ""
    if not isinstance(error, ValueError | FrameError) or module.split(".")[0] != PACKAGE:
        return False
    text = str(error)
    return "\n" not in text and "\r" not in text and len(text) < 10_000


def where(error: BaseException) -> str:
    """Return type and place of an error, by which findings are counted once."""
    calls = traceback.extract_tb(error.__traceback__)
    frames = [call for call in calls if PACKAGE in call.filename] or calls
    return f"{type(error).__name__} in {Path(frames[-1].filename).name}:{frames[-1].lineno} {frames[-1].name}"


def finding(keep: Path, reader: str, error: str, content: bytes) -> dict[str, str]:
    name = "".join(character if character.isalnum() else "-" for character in reader)
    path = next(path for number in range(10**6) if not (path := keep / f"{name}-{number}").exists())
    path.write_bytes(content)
    path.with_name(f"{path.name}.txt").write_text(error + "\n")
    return {"error": error, "file": str(path)}


def limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    name, seconds, seed, folder, keep = sys.argv[1:]
    run_session(name, float(seconds), int(seed), Path(folder), Path(keep))
