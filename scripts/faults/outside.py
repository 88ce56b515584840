"""What can be done to a running fit from outside: signals, limits, damaged files, another configuration."""

import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults.run import Act, Run
from faults.workshop import put
from yolo_lightning.supervision.heartbeat import Phase
from yolo_lightning.utils.run_files import FINISHED_FILE

Deed = Callable[[Run], None]
TRAINS = frozenset({Phase.STEP, Phase.FETCH})


def at_step(step: int, *deeds: Deed) -> Act:
    """While a trainer that nothing was done to yet has trained `step` steps."""

    def act(run: Run) -> bool:
        record = run.fresh
        if record is None or record.step < step or record.phase not in TRAINS:
            return False
        return do(run, deeds)

    return act


def in_phase(phase: Phase, *deeds: Deed, step: int = 0) -> Act:
    """While it is in a phase, from a step on."""

    def act(run: Run) -> bool:
        record = run.fresh
        if record is None or record.phase is not phase or record.step < step:
            return False
        return do(run, deeds)

    return act


def when_said(words: str, *deeds: Deed) -> Act:
    """As soon as the output holds `words`."""
    return lambda run: words in run.log() and do(run, deeds)


def when_fired(*deeds: Deed) -> Act:
    """As soon as a fault inside has happened."""
    return lambda run: bool(run.fired_s()) and do(run, deeds)


def when_finished(*deeds: Deed) -> Act:
    """As soon as the trainer says that it has finished."""
    return lambda run: (run.run_folder / FINISHED_FILE).is_file() and do(run, deeds)


def after(seconds: float, *deeds: Deed) -> Act:
    """So long after the deed before."""

    def act(run: Run) -> bool:
        begin_s = run.notes.setdefault(f"after {id(act)}", time.monotonic())
        return time.monotonic() >= begin_s + seconds and do(run, deeds)

    return act


def while_saving(least_bytes: int, deed: Deed) -> Act:
    """While the temporary file of a checkpoint has so many bytes."""

    def act(run: Run) -> bool:
        if run.fresh is None:
            return False
        try:
            sizes = [path.stat().st_size for path in (run.run_folder / "checkpoints").glob(".writing-*.ckpt.part")]
        except OSError:
            return False
        return any(size >= least_bytes for size in sizes) and do(run, (deed,))

    return act


def do(run: Run, deeds: tuple[Deed, ...]) -> bool:
    """Do them all."""
    for deed in deeds:
        deed(run)
    return True


def trainer(run: Run) -> int:
    """Its process id."""
    assert run.record is not None
    return run.record.process


def workers(run: Run) -> list[int]:
    """Process ids of the trainer's loader workers, oldest first."""
    found: list[int] = []
    for children in Path(f"/proc/{trainer(run)}/task").glob("*/children"):
        found += map(int, children.read_text().split())
    return sorted(pid for pid in found if "multiprocessing.spawn" in Path(f"/proc/{pid}/cmdline").read_text())


def to_trainer(number: signal.Signals, *, is_fault: bool = True) -> Deed:
    """A signal to the trainer alone."""

    def deed(run: Run) -> None:
        if is_fault:
            run.note(f"{number.name} to the trainer")
            run.hit.add(trainer(run))
        os.kill(trainer(run), number)

    return deed


def to_worker(number: signal.Signals) -> Deed:
    """A signal to one loader worker."""

    def deed(run: Run) -> None:
        run.note(f"{number.name} to a worker")
        run.hit.add(trainer(run))
        os.kill(workers(run)[0], number)

    return deed


def to_supervisor(number: signal.Signals, *, again: bool = False) -> Deed:
    """A signal to the supervisor alone."""

    def deed(run: Run) -> None:
        run.note(f"{number.name} to the supervisor")
        if not again:
            run.hit.add(trainer(run))
        os.kill(run.supervisor.pid, number)

    return deed


def to_group(number: signal.Signals) -> Deed:
    """A signal to the process group of the command, as a terminal and a service manager send it."""

    def deed(run: Run) -> None:
        run.note(f"{number.name} to the group")
        run.hit.add(trainer(run))
        os.killpg(run.supervisor.pid, number)

    return deed


def remember_workers(run: Run) -> None:
    """Those of training, before a validation starts its own."""
    run.notes["workers"] = workers(run)


def stop_remembered_workers(run: Run) -> None:
    """SIGSTOP to all of them."""
    run.note("SIGSTOP to all training workers")
    run.hit.add(trainer(run))
    for pid in run.notes["workers"]:
        os.kill(pid, signal.SIGSTOP)


def to_all(number: signal.Signals) -> Deed:
    """A signal to supervisor, trainer and workers, as a suspend of the machine."""

    def deed(run: Run) -> None:
        remembered = run.notes.setdefault("all", [run.supervisor.pid, trainer(run), *workers(run)])
        for pid in remembered:
            os.kill(pid, number)

    return deed


def kill_group_of_trainer(*, and_supervisor: bool = False) -> Deed:
    """SIGKILL to the trainer, its workers and multiprocessing's resource tracker at once, so that nobody clears up."""

    def deed(run: Run) -> None:
        run.note("SIGKILL to the process group of the trainer")
        run.hit.add(trainer(run))
        group = os.getpgid(trainer(run))
        if and_supervisor:
            os.kill(run.supervisor.pid, signal.SIGKILL)
        os.killpg(group, signal.SIGKILL)

    return deed


def supervisor_and_helpers(run: Run) -> list[int]:
    """Process ids of the supervisor and of the children that write its files, which have its command line."""
    pid = run.supervisor.pid
    words = Path(f"/proc/{pid}/cmdline").read_bytes()
    children = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return [pid, *(child for child in children if Path(f"/proc/{child}/cmdline").read_bytes() == words)]


def limit_files(size_bytes: int | None, *, of_supervisor: bool = False) -> Deed:
    """A full disk, to one process: no file may grow beyond `size_bytes`; None lifts the limit."""

    def deed(run: Run) -> None:
        for pid in supervisor_and_helpers(run) if of_supervisor else [trainer(run)]:
            hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard if size_bytes is None else size_bytes, hard))

    return deed


def fill_shared_memory(run: Run) -> None:
    """Fill the /dev/shm that this case has for its own."""
    run.note("/dev/shm full")
    path = Path(f"/proc/{trainer(run)}/root/dev/shm/filler")
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return


def damage_checkpoints(newest: int | None, damage: Callable[[Path], None]) -> Deed:
    """Damage the newest few checkpoints, or all; `last.ckpt` is another name of the newest."""

    def deed(run: Run) -> None:
        folder = run.run_folder / "checkpoints"
        paths = sorted(folder.glob("step-*.ckpt"))[-newest if newest else 0 :] + (
            [] if newest else [folder / "best.ckpt"]
        )
        for path in paths:
            if path.is_file():
                damage(path)
        run.notes["damaged"] = {path.name: path.read_bytes()[:64] for path in folder.glob("*.ckpt")}

    return deed


def truncate(path: Path) -> None:
    """Half of it."""
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    """Nothing of it."""
    os.truncate(path, 0)


def flip(path: Path) -> None:
    """One bit in the middle."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 4]))


def replace_by_text(path: Path) -> None:
    """Another type of file."""
    path.write_bytes(b"this is no checkpoint\n")


def edit(**values: Any) -> Deed:
    """Change the configuration file; double underscores stand for dots."""

    def deed(run: Run) -> None:
        for name, value in values.items():
            text = value.format(root=run.workshop.root) if isinstance(value, str) else value
            put(run.configuration, name.replace("__", "."), text)
        run.write_configuration()

    return deed


def start_second(run: Run) -> None:
    """The same command once more, in the same run folder."""
    run.note("second supervisor")
    process = run.start(run.words(typed=True, resume=True))
    output, _ = process.communicate()
    run.notes["second"] = (process.returncode, output.decode())


def lose_record(how: Callable[[Path], None]) -> Deed:
    """Something happens to the heartbeat."""

    def deed(run: Run) -> None:
        run.note("heartbeat lost")
        run.hit.add(trainer(run))
        how(run.live_record())

    return deed


def replace_by_folder(path: Path) -> None:
    """What cannot be read as a file, by root neither."""
    path.unlink()
    path.mkdir()


def freeze(path: Path) -> None:
    """A copy that nobody writes to any more."""
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)


def write_number(name: str, number: Callable[[Run], float]) -> Deed:
    """Into a file that a fake reads."""

    def deed(run: Run) -> None:
        (run.folder / name).write_text(str(number(run)))

    return deed


def cannot_unshare() -> str:
    """Why a process cannot have a /dev/shm of its own here."""
    done = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return "" if done.returncode == 0 else "needs root: a /dev/shm of its own"
