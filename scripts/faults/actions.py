"""Faults done to a running fit from outside: signals, limits, full and frozen disks, damaged files, other settings.

An action is a trigger with effects, for example `at_step(8, send(signal.SIGKILL, "trainer"))`.
"""

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

from faults.hangs import record_fired
from faults.run import Action, Run, put
from yolo_lightning.supervision.heartbeat import Heartbeat, Phase, parse
from yolo_lightning.utils.activity import Activity

Effect = Callable[[Run], None]
Damage = Callable[[Path], object]
P = ParamSpec("P")

TRAINING = frozenset({Phase.STEP, Phase.FETCH})
DISK_TOOLS = ("mkfs.ext4", "mount", "umount", "fsfreeze", "fallocate")
DISK_BYTES = 1 << 30
"""Size of the sparse file of a file system; several checkpoints fit."""


def effect(function: Callable[Concatenate[Run, P], None]) -> Callable[P, Effect]:
    """Turn a function of a run and arguments into a function of the arguments that returns an effect."""
    return lambda *arguments, **options: lambda run: function(run, *arguments, **options)


def when(condition: Callable[[Run], bool], *effects: Effect) -> Action:
    """Return an action that has all effects as soon as `condition` holds."""

    def action(run: Run) -> bool:
        holds = condition(run)
        for have in effects if holds else ():
            have(run)
        return holds

    return action


def in_phase(phase: Phase | frozenset[Phase], *effects: Effect, step: int = 0) -> Action:
    """Trigger when a trainer without a fault so far is in a phase, from `step` on."""
    phases = {phase} if isinstance(phase, Phase) else phase
    return when(lambda run: bool(run.fresh and run.fresh.step >= step and run.fresh.phase in phases), *effects)


def at_step(step: int, *effects: Effect) -> Action:
    """Trigger when a trainer without a fault so far has trained `step` steps."""
    return in_phase(TRAINING, *effects, step=step)


def when_printed(text: str, *effects: Effect) -> Action:
    """Trigger when the output contains `text`."""
    return when(lambda run: text in run.output(), *effects)


def when_notified(text: str, *effects: Effect) -> Action:
    """Trigger when a notification contains `text`."""
    return when(lambda run: any(text in message for _, message in run.notes["messages"]), *effects)


def when_fired(*effects: Effect) -> Action:
    """Trigger when a fault inside the trainer or a worker has happened."""
    return when(lambda run: bool(run.fired_s()), *effects)


def after(seconds: float, *effects: Effect) -> Action:
    """Trigger this long after the previous action."""

    def condition(run: Run) -> bool:
        begin_s: float = run.notes.setdefault(f"begin of {seconds} s", time.monotonic())
        return time.monotonic() >= begin_s + seconds

    return when(condition, *effects)


def while_saving(least_bytes: int, *effects: Effect) -> Action:
    """Trigger when the temporary file of a checkpoint has `least_bytes` bytes."""

    def condition(run: Run) -> bool:
        with contextlib.suppress(OSError):
            paths = list((run.run_folder / "checkpoints").glob(".writing-*.ckpt.part"))
            return run.fresh is not None and any(path.stat().st_size >= least_bytes for path in paths)
        return False

    return when(condition, *effects)


# Signals.


def workers(run: Run) -> list[int]:
    """Return the process ids of the loader workers of the trainer, oldest first."""
    pids: list[int] = []
    for children in Path(f"/proc/{run.trainer}/task").glob("*/children"):
        pids += map(int, children.read_text().split())
    return sorted(pid for pid in pids if "multiprocessing.spawn" in Path(f"/proc/{pid}/cmdline").read_text())


TARGETS: dict[str, Callable[[Run, signal.Signals], None]] = {
    "trainer": lambda run, number: os.kill(run.trainer, number),
    "worker": lambda run, number: os.kill(workers(run)[0], number),
    "supervisor": lambda run, number: os.kill(run.process.pid, number),
    # As a terminal or a service manager does.
    "process group": lambda run, number: os.killpg(run.process.pid, number),
    # With its workers and the resource tracker of multiprocessing: no process cleans up.
    "process group of the trainer": lambda run, number: os.killpg(os.getpgid(run.trainer), number),
}


@effect
def send(run: Run, number: signal.Signals, *targets: str) -> None:
    """Send a signal to `TARGETS`, as a fault of the trainer."""
    run.begin_fault(f"{number.name} to {', '.join(targets)}")
    for target in targets:
        TARGETS[target](run, number)


def pause_trainer(run: Run) -> None:
    """Stop the trainer while another effect is prepared; this is no fault."""
    os.kill(run.trainer, signal.SIGSTOP)


def remember_workers(run: Run) -> None:
    """Remember the training workers, before a validation starts other workers."""
    run.notes["workers"] = workers(run)


def stop_remembered_workers(run: Run) -> None:
    run.begin_fault("SIGSTOP to all training workers")
    for pid in run.notes["workers"]:
        os.kill(pid, signal.SIGSTOP)


@effect
def to_all(run: Run, number: signal.Signals) -> None:
    """Send a signal to supervisor, trainer and workers, as if the machine were suspended. This is no fault."""
    for pid in run.notes.setdefault("all", [run.process.pid, run.trainer, *workers(run)]):
        os.kill(pid, number)


# Disks and shared memory.


@effect
def limit_files(run: Run, size_bytes: int | None, *, of_supervisor: bool = False) -> None:
    """Limit the size of the files of one process, which simulates a full disk; None removes the limit."""
    for pid in _supervisor_and_helpers(run) if of_supervisor else [run.trainer]:
        hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard if size_bytes is None else size_bytes, hard))


def _supervisor_and_helpers(run: Run) -> list[int]:
    """Return the process ids of the supervisor and of its children with the same command line, which write files."""
    pid = run.process.pid
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    children = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return [pid, *(child for child in children if Path(f"/proc/{child}/cmdline").read_bytes() == command)]


def fill(path: Path) -> None:
    """Write to a file until its file system is full."""
    with path.open("wb", buffering=0) as file:
        for block_bytes in (1 << 20, 1 << 12):
            with contextlib.suppress(OSError):
                while file.write(bytes(block_bytes)):
                    pass


def fill_shared_memory(run: Run) -> None:
    """Fill the /dev/shm that only this case uses."""
    run.begin_fault("/dev/shm full")
    fill(Path(f"/proc/{run.trainer}/root/dev/shm/filler"))


def cannot_unshare() -> str:
    """Return why a process cannot have its own /dev/shm on this machine."""
    done = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return "" if done.returncode == 0 else "needs root: its own /dev/shm"


def mount(image: Path, folder: Path, size_bytes: int) -> str:
    """Create an ext4 file system in a sparse file and mount it; return the error, or an empty string."""
    with image.open("wb") as file:
        file.truncate(size_bytes)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
    done = subprocess.run(["mount", "-o", "loop", image, folder], capture_output=True, text=True, check=False)
    return done.stderr.strip()


def cannot_mount() -> str:
    """Return why this machine cannot create, mount and freeze a file system."""
    missing = [name for name in DISK_TOOLS if shutil.which(name) is None]
    if os.getuid() != 0 or missing:
        return f"needs root and {', '.join(missing or DISK_TOOLS)}"
    with tempfile.TemporaryDirectory() as folder:
        mounted = Path(folder) / "mounted"
        mounted.mkdir()
        if error := mount(Path(folder) / "image", mounted, 16 << 20):
            return f"needs loop devices: {error}"
        frozen = subprocess.run(["fsfreeze", "-f", mounted], capture_output=True, text=True, check=False)
        unmount(mounted)
        return frozen.stderr.strip()


def unmount(folder: Path) -> None:
    """Thaw and unmount a file system."""
    subprocess.run(["fsfreeze", "-u", folder], capture_output=True, check=False)
    subprocess.run(["umount", "--lazy", folder], capture_output=True, check=False)


@effect
def freeze_disk(run: Run, seconds: float) -> None:
    """Freeze the disk of the run folder. Another process thaws the disk, even if this process is killed."""
    run.begin_fault("disk frozen")
    thaw = f"sleep {seconds}; fsfreeze -u '{run.run_folder}'"
    subprocess.Popen(["sh", "-c", thaw], stderr=subprocess.DEVNULL, start_new_session=True)
    subprocess.run(["fsfreeze", "-f", run.run_folder], check=True)
    run.notes["thawed_s"] = time.monotonic() + seconds


def make_read_only(run: Run) -> None:
    """Make the run folder read-only for all files that are opened from now on."""
    run.begin_fault("run folder read-only")
    subprocess.run(["mount", "-o", "bind,ro", run.run_folder, run.run_folder], check=True)


def make_writable(run: Run) -> None:
    """Undo `make_read_only`."""
    subprocess.run(["umount", run.run_folder], check=True)


def fill_disk(run: Run) -> None:
    """Fill the disk of the run folder, most of it at once."""
    free_bytes = shutil.disk_usage(run.run_folder).free
    subprocess.run(["fallocate", "-l", str(free_bytes * 9 // 10), run.run_folder / "filler"], check=True)
    fill(run.run_folder / "rest")


def free_disk(run: Run) -> None:
    """Delete the files of `fill_disk`."""
    for name in ("filler", "rest"):
        (run.run_folder / name).unlink(missing_ok=True)


# Operators of torch.

ALWAYS = 1_000
"""More attempts than any case has."""


@effect
def operator_fault(run: Run, /, **arguments: Any) -> None:
    """Add the callback `OperatorFault` with these arguments."""
    settings = {"class_path": "faults.operators.OperatorFault", "init_args": arguments | {"folder": str(run.folder)}}
    run.configuration["trainer"]["callbacks"].append(settings)


# Notifications.


def serve(run: Run, code: int) -> str:
    """Start an HTTP server that answers with `code` and records the requests with their times; return its URL."""
    messages: list[tuple[float, str]] = run.notes.setdefault("messages", [])

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            messages.append((time.monotonic(), content.decode()))
            self.send_response(code)
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *arguments: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    run.notes["server"] = server
    return f"http://127.0.0.1:{server.server_port}/"


def stop_serving(run: Run) -> None:
    """Stop the server of `serve`, if the case has one."""
    if "server" in run.notes:
        run.notes["server"].shutdown()
        run.notes["server"].server_close()


# Files and settings.


@effect
def damage_checkpoints(run: Run, damage: Damage, newest: int | None = 1) -> None:
    """Damage the newest checkpoints, or all including the best. `last.ckpt` is another name of the newest."""
    folder = run.run_folder / "checkpoints"
    paths = sorted(folder.glob("step-*.ckpt"))
    for path in paths[-newest:] if newest else [*paths, *folder.glob("best.ckpt")]:
        damage(path)
    run.notes["damaged"] = checkpoints(run)


def checkpoints(run: Run) -> dict[str, bytes]:
    """Return the first bytes of every checkpoint by file name."""
    return {path.name: path.read_bytes()[:64] for path in (run.run_folder / "checkpoints").glob("*.ckpt")}


def empty(path: Path) -> None:
    os.truncate(path, 0)


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip_bit(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 4]))


@effect
def damage_heartbeat(run: Run, damage: Damage) -> None:
    """Damage the heartbeat file."""
    run.begin_fault("heartbeat file damaged")
    damage(run.heartbeat_file())


def replace_by(make: Damage) -> Damage:
    """Return the damage that deletes a file and calls `make` with its path."""

    def damage(path: Path) -> None:
        path.unlink()
        make(path)

    return damage


def replace_by_copy(path: Path) -> None:
    """Replace the heartbeat file by a copy to which the trainer does not write, while it gets a batch.

    In another activity, the copy would be that of a trainer whose device hangs.
    """
    state = None
    while state not in {(Phase.FETCH, Activity.NONE), (Phase.FETCH, Activity.LOAD)}:
        content = path.read_bytes()
        heartbeat = parse(content)
        if isinstance(heartbeat, Heartbeat):
            state = (heartbeat.phase, heartbeat.activity)
    path.unlink()
    path.write_bytes(content)


@effect
def edit(run: Run, /, **values: Any) -> None:
    """Change the configuration file; double underscores in the names are dots of the keys."""
    for name, value in values.items():
        text = value.format(root=run.root) if isinstance(value, str) else value
        put(run.configuration, name.replace("__", "."), text)
    run.write_configuration()


@effect
def save_every(run: Run, steps: int) -> None:
    """Set the interval of checkpoints; an epoch has 16 steps."""
    callbacks = run.configuration["trainer"]["callbacks"]
    (last,) = (callback for callback in callbacks if callback["class_path"] == "LastCheckpoint")
    last["init_args"]["interval_steps"] = steps


@effect
def write_number(run: Run, name: str, number: Callable[[Run], float]) -> None:
    """Write a number into a file that `fakes/sitecustomize.py` reads."""
    (run.folder / name).write_text(str(number(run)))


def start_second(run: Run) -> None:
    """Run the same command again in the same run folder."""
    record_fired(run.folder, "second supervisor")
    process = run.start(run.command(typed=True, resume=True))
    output, _ = process.communicate()
    run.notes["second"] = (process.returncode, output.decode())
