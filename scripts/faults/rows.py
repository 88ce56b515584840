"""The fault matrix: all cases in the order of their rows."""

import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from faults import actions as do
from faults.actions import at_step, halve, in_phase, send, when
from faults.random_kills import RANDOM_CASES
from faults.run import Case, Report, Run, put
from yolo_lightning.supervision.classify import StallClass
from yolo_lightning.supervision.fallback_levels import AS_CONFIGURED
from yolo_lightning.supervision.heartbeat import Phase
from yolo_lightning.supervision.job import SuperviseSettings
from yolo_lightning.supervision.phase_timeouts import PhaseTimeouts
from yolo_lightning.utils.run_files import FINISHED_FILE, TRAINED_FILE

UNKNOWN, GPU, COMPUTATION = StallClass.UNKNOWN, StallClass.GPU_STALL, StallClass.COMPUTATION
CRASH, DEVICE_ERROR, NOT_FINITE = StallClass.CRASH, StallClass.DEVICE_ERROR, StallClass.NOT_FINITE
WRONG_RESULT = StallClass.WRONG_RESULT
LOADER_STALL, LOADER_CRASH = StallClass.LOADER_STALL, StallClass.LOADER_CRASH
SIGINT, SIGKILL, SIGSTOP, SIGTERM = signal.SIGINT, signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM
GROUP, TRAINER_GROUP = "process group", "process group of the trainer"
KILL = send(SIGKILL, "trainer")
AT_ONCE_S, LOADER_DEATH_S = 1.0, 5.0
AT_FRAME = "@ frame 24"  # the second or third batch of a worker, in the first epoch
FETCH, STEP = {"fetch_s": 3.0}, {"step_s": 2.0}
LARGEST_S = 25.0
HOUR_S, DAY_S = 3600.0, 86_400.0
DEFAULTS = SuperviseSettings()
INTERVALS = {name: getattr(DEFAULTS, name) for name in ("poll_s", "kill_after_s", "pause_s")}

KILLED = (Report(StallClass.KILLED, ("SIGKILL",), within_s=AT_ONCE_S),)
REFUSED = (Report(StallClass.ENVIRONMENT, ("exit code 2",)),)
WORKER_KILLED = (Report(LOADER_CRASH, within_s=LOADER_DEATH_S),)
STUCK_WORKER: dict[str, Any] = {"timeouts_s": FETCH, "workers": 1, "fallback_level": 1}
SHORT_PATIENCE = {"patience_h": 0.005}
NO_PATIENCE = {"patience_h": 1e-4}
UNSUPERVISED: dict[str, Any] = {"config": {"supervision.enabled": False}, "workers": 2}


def stuck(*words: str) -> tuple[Report, ...]:
    """Return the report of a worker that hangs while it reads a frame."""
    return (Report(LOADER_STALL, ("worker process", *words), "fetch"),)


def hang(*words: str, phase: str = "step", kind: StallClass = COMPUTATION) -> tuple[Report, ...]:
    """Return the report of a trainer that hangs."""
    return (Report(kind, words, phase),)


def _levels_taken(run: Run) -> list[str]:
    """Check the fallback levels of row 26."""
    names = [line.text.split(", ")[1] for line in run.lines if line.text.startswith("train loader:")]
    taken = list(dict.fromkeys(names))
    expected = ["4 spawn workers", "2 spawn workers", "no workers"]
    return [] if taken == expected else [f"the fallback levels were {taken} instead of {expected}"]


def _load_plug_in(run: Run) -> None:
    """Add a callback whose import hangs."""
    run.configuration["trainer"]["callbacks"].append({"class_path": "faults.plug_in.PlugIn"})


def _recovers_in_time(run: Run) -> list[str]:
    """Check the time from the stall to the next step: phase timeout, wait before the kill, at most 20 s of restart."""
    (fired_s,) = run.fired_s()
    first = run.beats[0].process
    took_s = next(beat.at_s for beat in run.beats if beat.process != first and beat.step > 8) - fired_s
    limit_s = run.case.timeouts_s["step_s"] + DEFAULTS.kill_after_s + 20.0 * run.busyness
    return [] if took_s <= limit_s else [f"the next step came {took_s:.1f} s after the stall, limit {limit_s:g} s"]


def _one_trainer(run: Run) -> list[str]:
    """Check that nothing was restarted."""
    count = len({beat.process for beat in run.beats})
    return [] if count == 1 else [f"{count} trainers instead of one"]


def _one_trainer_and_second_refused(run: Run) -> list[str]:
    """Check that a second supervisor on the same run folder was refused."""
    code, output = run.notes["second"]
    refused = code == 78 and f"process {run.process.pid} on" in output
    return _one_trainer(run) + ([] if refused else [f"the second supervisor ended with {code}: {output[-200:]}"])


def _checkpoints_untouched(run: Run) -> list[str]:
    return [] if do.checkpoints(run) == run.notes["damaged"] else ["damaged checkpoints were changed"]


def _trained_three_epochs(run: Run) -> list[str]:
    last = run.beats[-1].step
    return [] if last == 48 else [f"{last} steps trained instead of 48"]


def _writes_last_files(run: Run) -> bool:
    return run.fresh is not None and (run.run_folder / TRAINED_FILE).exists()


def _finished_entirely(run: Run) -> list[str]:
    """Check that the work after the last step was done again."""
    return [] if (run.run_folder / FINISHED_FILE).exists() else [f"{FINISHED_FILE} is missing"]


def _waits_for_success(run: Run) -> bool:
    return run.record is not None and "waits for a successful attempt" in run.output()


def _link_to_zero(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _date_checkpoints_ahead(run: Run) -> None:
    """Set the times of all checkpoints a day ahead, as if the clock had been set back after they were written."""
    future_s = time.time() + DAY_S
    for path in (run.run_folder / "checkpoints").iterdir():
        os.utime(path, (future_s, future_s))


def _own_disk_and_webhook(run: Run) -> None:
    """Give the run folder its own file system, and record the messages of the supervisor."""
    run.run_folder.mkdir()
    if error := do.mount(run.folder / "disk.img", run.run_folder, do.DISK_BYTES):
        raise OSError(error)
    put(run.configuration, "supervision.notify.webhook", do.serve(run, 200))


def _deaf_webhook_and_failing_ping(run: Run) -> None:
    """Notify a webhook that accepts connections and never answers, and a ping that answers 500."""
    deaf = run.notes["deaf"] = socket.create_server(("127.0.0.1", 0))
    put(run.configuration, "supervision.notify.webhook", f"http://127.0.0.1:{deaf.getsockname()[1]}/")
    put(run.configuration, "supervision.notify.ping", do.serve(run, 500))


def _redirecting_webhook_and_dripping_ping(run: Run) -> None:
    """Notify a webhook that answers with a redirect, and a ping that sends one byte of its answer per second."""
    drip = run.notes["deaf"] = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        with suppress(OSError):
            while True:
                connection, _ = drip.accept()
                threading.Thread(target=_send_slowly, args=(connection,), daemon=True).start()

    threading.Thread(target=answer, daemon=True).start()
    put(run.configuration, "supervision.notify.webhook", do.serve(run, 302))
    put(run.configuration, "supervision.notify.ping", f"http://127.0.0.1:{drip.getsockname()[1]}/")


def _send_slowly(connection: socket.socket) -> None:
    with suppress(OSError), connection:
        for byte in b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 600:
            connection.sendall(bytes([byte]))
            time.sleep(1.0)


def clean_up(run: Run) -> None:
    """Unmount the disk of a case and close its server."""
    if run.run_folder.is_mount():
        do.unmount(run.run_folder)
    do.stop_serving(run)


def _notified_before_thaw(run: Run) -> list[str]:
    """Check that the stall was notified while the disk was frozen."""
    early = [text for at_s, text in run.notes["messages"] if at_s < run.notes["thawed_s"]]
    words = ("stalled",)
    return [
        f"no notification of {word!r} before the thaw"
        for word in words
        if not any(word in message for message in early)
    ]


def _notified_once_of_full_disk(run: Run) -> list[str]:
    count = sum('waiting"' in text for _, text in run.notes["messages"])
    return [] if count == 1 else [f"{count} notifications of the full disk instead of one"]


def _no_checkpoint_called_damaged(run: Run) -> list[str]:
    return ["a checkpoint was called damaged"] if "damaged" in run.output() else []


def _kept_float32(run: Run) -> list[str]:
    """Check that the rest of the run was in float32, with the learning rates of the schedule."""
    wrong = ["the learning rates were lowered"] if "learning rates are multiplied" in run.output() else []
    content = torch.load(run.run_folder / "checkpoints" / "last.ckpt", map_location="cpu", weights_only=True)
    precision = content["config"]["trainer"]["precision"]
    return wrong if precision == "32-true" else [*wrong, f"the last checkpoint was trained in {precision}"]


OWN_DISK: dict[str, Any] = {
    **{"prepare": _own_disk_and_webhook, "clean_up": clean_up},
    "unavailable": do.cannot_mount,
}


def damaged(damage: do.Damage, newest: int | None = 1) -> tuple[Any, ...]:
    """Return the action that damages checkpoints, then kills the trainer."""
    return (at_step(12, do.pause_trainer, do.damage_checkpoints(damage, newest), KILL),)


def disk_full(begin: int, end: int, size_bytes: int = 1, *, of_supervisor: bool = False) -> tuple[Any, ...]:
    """Return actions that stop the files of a process from growing beyond `size_bytes` for some steps."""
    limits = (do.limit_files(size, of_supervisor=of_supervisor) for size in (size_bytes, None))
    return tuple(at_step(step, limit) for step, limit in zip((begin, end), limits, strict=True))


CONVOLUTION: dict[str, Any] = {"name": "convolution", "step": 6}  # after the first checkpoint
PRODUCT: dict[str, Any] = {"name": "mm", "step": 6}
GEMM: dict[str, Any] = {
    # A CPU has no GPU kernels: `gemm` and its level without kernels compute the same.
    "config": {"model.convolution.backend": "gemm"},
    "computation": "gemm without GPU kernels",
}
LOWERED: dict[str, Any] = {"exact": False, "lost_steps": None}
DEVICE_FAILED = (Report(DEVICE_ERROR, ("HIP error",), within_s=LOADER_DEATH_S),)
BROKEN_NUMBERS = (Report(NOT_FINITE, ("consecutive non-finite",), within_s=60.0),)


def operators(computation: str = "gemm", **arguments: Any) -> dict[str, Any]:
    """Return the settings of a case with a faulty operator, after which the computation has a lower level."""
    return {"prepare": do.operator_fault(**arguments), "computation": computation} | LOWERED


# fmt: off
CASES: tuple[Case, ...] = (
    # Loader workers.
    Case("1", "worker: endless sleep", (f"sleep {AT_FRAME}",),
         reports=stuck("sleep (", "state S", "id="), **STUCK_WORKER),
    Case("2", "worker: busy loop", (f"compute {AT_FRAME}",),
         reports=stuck("compute (", "state R", "id="), **STUCK_WORKER),
    Case("3", "worker: C call that holds the interpreter lock", (f"c_call_with_lock {AT_FRAME}",),
         reports=stuck("c_call_with_lock (", "state S"), **STUCK_WORKER),
    Case("4", "worker: SIGSTOP", (), (at_step(6, send(SIGSTOP, "worker")),),
         stuck("stopped (T)"), timeouts_s=FETCH, workers=2, fallback_level=1),
    Case("5", "worker: state D", (f"d_state {AT_FRAME}",),
         reports=stuck("d_state (", "state D", "in the kernel in "), **STUCK_WORKER),
    # torch reports "killed by signal" or "exited unexpectedly", or a broken socket, whichever is first.
    Case("6a", "worker: SIGKILL, as if memory ran out", (), (at_step(6, send(SIGKILL, "worker")),),
         WORKER_KILLED, workers=2),
    # A checkpoint between two failures of the loader: the first failure does not count.
    Case("6b", "worker: SIGKILL twice, with a checkpoint between", (),
         (at_step(6, send(SIGKILL, "worker")), at_step(12, send(SIGKILL, "worker"))),
         WORKER_KILLED * 2, workers=1),
    Case("7a", "worker: segmentation fault", (f"segfault {AT_FRAME}",), workers=1,
         reports=(Report(LOADER_CRASH, ("is killed by signal: Segmentation fault",), within_s=LOADER_DEATH_S),)),
    Case("7b", "worker: _exit(3)", (f"exit_3 {AT_FRAME}",), workers=1,
         reports=(Report(LOADER_CRASH, ("exited unexpectedly",), within_s=LOADER_DEATH_S),)),
    Case("8a", "worker: a frame that is not an image",
         config={"data.root": "{root}/damaged-data"}, workers=1, exact=False, log=("frames/",)),
    Case("8b", "worker: an error at the same sample in every attempt", ("error @ frame number 40 always",),
         reports=(Report(None, ("RuntimeError",), within_s=LOADER_DEATH_S),) * 2,
         workers=1, exact=False, lost_steps=None, log=("leaving out",)),
    Case("9", "all training workers stopped while they are idle during a validation", (),
         (at_step(4, do.remember_workers), in_phase(Phase.VALIDATE, do.stop_remembered_workers)),
         (Report(LOADER_STALL, ("stopped (T)",), within_s=20.0),),  # detected after the validation
         timeouts_s=FETCH | {"epoch_end_s": 3.0}, workers=2, fallback_level=1),
    Case("10a", "worker: hangs before the first batch", ("sleep @ worker start",),
         reports=hang("sleep (", phase="first batch", kind=LOADER_STALL),
         timeouts_s={"first_batch_s": 20.0}, workers=2),
    Case("10b", "worker: hangs before the first batch in every attempt", ("sleep @ worker start always",),
         reports=hang("sleep (", phase="first batch", kind=LOADER_STALL) * 2,
         timeouts_s={"first_batch_s": 20.0}, workers=1, fallback_level=1),
    Case("11", "validation worker: endless sleep", ("sleep @ validation frame 2",),
         reports=hang("sleep (", "id=", phase="validate", kind=LOADER_STALL),
         timeouts_s={"validate_s": 8.0}, workers=1, fallback_level=1),
    # The training process.
    Case("12a", "trainer: C call that releases the interpreter lock", ("c_call @ step 8",),
         reports=hang("c_call (", "state S"), timeouts_s=STEP),
    Case("12b", "trainer: the operator that reads a number from the device hangs",
         reports=hang("waits for the GPU", kind=GPU), timeouts_s=STEP,
         **operators(effect="hang", name="_local_scalar_dense", step=8)),
    Case("12c", "trainer: C call, with the default intervals of the supervisor", ("c_call @ step 8",),
         reports=hang("c_call ("), timeouts_s={"step_s": 30.0}, supervision=INTERVALS, check=_recovers_in_time),
    Case("13", "trainer: C call that holds the interpreter lock", ("c_call_with_lock @ step 8",),
         reports=hang("c_call_with_lock (", "state S"), timeouts_s=STEP),
    Case("14a", "trainer: state D", ("d_state @ step 8",), reports=hang("d_state (", "state D"), timeouts_s=STEP),
    Case("14b", "trainer: state D, holding the interpreter lock", ("d_state_with_lock @ step 8",),
         reports=hang("d_state_with_lock (", "state D"), timeouts_s=STEP),
    Case("15", "trainer: SIGSTOP", (), (at_step(8, send(SIGSTOP, "trainer")),),
         hang("stopped (T)", phase="", kind=StallClass.UNKNOWN), timeouts_s=STEP | {"fetch_s": 2.0, "save_s": 2.0}),
    Case("16a", "trainer: busy loop", ("compute @ step 8",), reports=hang("compute ("), timeouts_s=STEP),
    Case("16b", "trainer: lock that is never released", ("lock @ step 8",), reports=hang("lock ("), timeouts_s=STEP),
    Case("16c", "trainer: endless regular expression", ("backtrack @ step 8",),
         reports=hang("match (re/"), timeouts_s=STEP),
    Case("17a", "trainer: SIGKILL", (), (at_step(13, KILL),), KILLED),
    Case("17b", "trainer: segmentation fault", ("segfault @ step 8",),
         reports=(Report(CRASH, ("SIGSEGV",), "step", AT_ONCE_S),)),
    Case("17c", "trainer: abort", ("abort @ step 19",), reports=(Report(CRASH, ("SIGABRT",), "step", AT_ONCE_S),)),
    Case("18a", "trainer: SIGKILL at the begin of a save", (), (at_step(6), do.while_saving(1, KILL)), KILLED),
    Case("18b", "trainer: SIGKILL during a save, TMPDIR on another file system", (),
         (at_step(17), do.while_saving(20_000_000, KILL)), KILLED, environment={"TMPDIR": "/dev/shm/{name}"}),
    Case("19a", "trainer: SIGKILL during a validation", ("kill @ validation 0",), reports=KILLED),
    Case("19b", "trainer: SIGKILL on the last batch of an epoch", ("kill @ last batch 0",), reports=KILLED),
    Case("19c", "trainer: SIGKILL at the end of an epoch", ("kill @ epoch end 0",), reports=KILLED),
    Case("19d", "trainer: SIGKILL before the first batch of an epoch", ("kill @ epoch start 1",), reports=KILLED),
    Case("19e", "trainer: SIGKILL while best.pt and the report are written, after the last step", (),
         (when(_writes_last_files, KILL),), KILLED, lost_steps=0, check=_finished_entirely),
    Case("20", "trainer: SIGKILL twice in the second epoch", ("kill @ step 23", "kill @ step 29"), reports=KILLED * 2),
    # Checkpoints and disks.
    Case("21a", "newest checkpoint cut in half", (), damaged(halve), KILLED,
         lost_steps=10, log=("skipped", "bytes instead of")),
    Case("21b", "newest checkpoint empty", (), damaged(do.empty), KILLED,
         lost_steps=10, log=("skipped", "bytes instead of")),
    Case("21c", "newest checkpoint with one wrong bit", (), damaged(do.flip_bit), KILLED,
         lost_steps=10, log=("skipped", "checksum")),
    Case("21d", "newest checkpoint replaced by a text file", (),
         damaged(lambda path: path.write_text("not a checkpoint")), KILLED, lost_steps=10, log=("skipped",)),
    Case("21e", "clock set back by a day, then four kills: all older checkpoints have later dates", (),
         (at_step(17, do.pause_trainer, _date_checkpoints_ahead, KILL),
          *(at_step(step, KILL) for step in (22, 27, 29))),
         KILLED * 4),
    Case("22", "all checkpoints damaged", (), damaged(halve, None), KILLED + REFUSED,
         codes=(76,), log=("nothing to resume: every checkpoint of", "gave up: no new checkpoint"),
         supervision=NO_PATIENCE,
         exact=False, lost_steps=None, check=_checkpoints_untouched),
    Case("23a", "disk full for some saves", (), disk_full(17, 27, 1 << 20),
         possible_report="could not save", log=("could not save", "training continues")),
    Case("23b", "disk full at the save of the best checkpoint", (), disk_full(13, 20, 1 << 20),
         possible_report="could not save", log=("best.ckpt",)),
    Case("23c", "disk full for the log of the supervisor", (), disk_full(5, 25, of_supervisor=True)),
    Case("23d", "disk full for all files", (), disk_full(7, 12), log=("training continues",)),
    Case("23h", "disk of the run folder hangs for 20 s (fsfreeze)", (), (at_step(8, do.freeze_disk(20.0)),),
         (Report(StallClass.STORAGE, ("the disk of the run folder has not responded",)),),
         timeouts_s={"fetch_s": 3.0, "step_s": 3.0, "save_s": 3.0, "epoch_end_s": 3.0},
         supervision={"part_timeout_s": 2.0, "kill_wait_s": 1.0},
         log=("SIGKILL takes effect when the kernel permits it: process ",),
         check=_notified_before_thaw, **OWN_DISK),
    Case("23s", "disk of the run folder full: the trainer ends because it cannot write; space is freed after 10 s",
         ("needs_space @ step 8",),
         (at_step(6, do.fill_disk), do.when_printed("for space on the disk"), do.after(10.0, do.free_disk)),
         (Report(StallClass.DISK_FULL, ("No space left on device",), within_s=20.0),),
         check=_notified_once_of_full_disk, **OWN_DISK),
    # The supervisor, and what it cannot repair.
    Case("24", "trainer survives SIGKILL (simulated: os.kill of the supervisor does nothing)", ("lock @ step 8",),
         (at_step(3, do.write_number("unkillable", lambda run: run.trainer)),), hang("lock ("),
         codes=(77,), timeouts_s=STEP, supervision={"kill_wait_s": 1.0} | SHORT_PATIENCE, exact=False,
         log=("needs reboot: SIGKILL did not end process",),
         environment={"FAULTS_UNKILLABLE": "{folder}/unkillable"}, check=_one_trainer),
    Case("25", "GPU does not answer after a stall (simulated by a smoke test that hangs)",
         reports=hang("waits for the GPU", kind=GPU), codes=(77,), timeouts_s=STEP,
         supervision={"smoke_test_s": 1.0} | SHORT_PATIENCE, log=("needs reboot: the device does not respond",),
         smoke_test=(sys.executable, "-c", "import time; time.sleep(1000)"), check=_one_trainer,
         **operators(AS_CONFIGURED, effect="hang", name="_local_scalar_dense", step=8)),
    Case("26", "worker, then trainer without workers: endless sleep at the same frame at every fallback level",
         ("sleep @ frame number 55 always",),  # a frame of batch 7
         reports=hang("sleep (", phase="fetch", kind=LOADER_STALL) * 4, timeouts_s={"fetch_s": 6.0},
         workers=4, fallback_level=2, exact=False, lost_steps=None, log=("leaving out id=",),
         prepare=do.save_every(100), check=_levels_taken),
    # Lower levels after the reports 2, 4 and 6, samples left out after the report 10; nothing of this helps.
    Case("27", "trainer: hangs at the same step in every attempt; SIGTERM when nothing is left to try",
         ("lock @ step 2 always",), (when(_waits_for_success, send(SIGTERM, "supervisor")),),
         hang("lock (") * 11, codes=(128 + SIGTERM,), timeouts_s=STEP, exact=False, lost_steps=None,
         log=("leaving out id=",), computation="half the images at once"),
    Case("28", "slow but alive: first batch, a step of ten times the usual duration, validation, save",
         ("slow @ step 0", "half_a_second @ step 9", "slow @ validation 0", "slow @ save 2"),
         timeouts_s=STEP | {"fetch_s": 2.0}, check=_one_trainer),
    Case("29a", "all processes suspended for longer than any phase timeout", (),
         (at_step(8, do.to_all(SIGSTOP)), do.after(7.0, do.to_all(signal.SIGCONT))),
         timeouts_s=STEP | {"fetch_s": 3.0, "save_s": 3.0}, workers=2,
         log=("the watching process was suspended for",), check=_one_trainer),
    Case("29b", "wall clock jumps one hour forward, then two hours back (simulated clock)", (),
         (at_step(5, do.write_number("clock", lambda run: HOUR_S)),
          at_step(20, do.write_number("clock", lambda run: -HOUR_S))),
         timeouts_s=STEP | {"fetch_s": 3.0}, environment={"FAULTS_CLOCK": "{folder}/clock"}, check=_one_trainer),
    Case("30a", "heartbeat file deleted", (), (at_step(8, do.damage_heartbeat(Path.unlink)),),
         log=("no heartbeat: the heartbeat file does not exist",)),
    Case("30b", "heartbeat file unreadable", (), (at_step(8, do.damage_heartbeat(do.replace_by(Path.mkdir))),),
         log=("no heartbeat: the heartbeat file cannot be read",)),
    Case("30c", "heartbeat file truncated while the trainer writes it", (),
         (at_step(8, do.damage_heartbeat(do.empty)),), (Report(CRASH, ("SIGBUS",), within_s=AT_ONCE_S),)),
    Case("30d", "heartbeat file replaced by a copy that is never updated", (),
         (at_step(8, do.damage_heartbeat(do.replace_by_copy)),), (Report(None),),
         timeouts_s={"fetch_s": 2.0, "step_s": 2.0, "save_s": 2.0}, lost_steps=None),
    Case("30e", "heartbeat file deleted, then the trainer hangs: detected after the largest phase timeout",
         ("lock @ step 12",), (at_step(8, do.damage_heartbeat(Path.unlink)),),
         (Report(UNKNOWN, ("lock (",), within_s=LARGEST_S + 10.0),),
         timeouts_s={field.name: LARGEST_S for field in fields(PhaseTimeouts)}, supervision={"factor": 1.0}),
    *(Case(name, f"heartbeat file replaced by a {kind}", (), (at_step(8, do.damage_heartbeat(do.replace_by(make))),),
           log=("no heartbeat: the heartbeat file cannot be read",))
      for name, kind, make in (("30f", "FIFO", os.mkfifo), ("30g", "link to /dev/zero", _link_to_zero))),
    Case("31", "supervisor: SIGKILL; then fit --resume", (), (at_step(8, send(SIGKILL, "supervisor")),),
         codes=(-SIGKILL, 0), workers=2),
    Case("32", "a second supervisor on the same run folder", ("slow @ step 8", "slow @ step 9", "slow @ step 10"),
         (at_step(7, do.start_second),), check=_one_trainer_and_second_refused),
    Case("33a", "supervisor: SIGTERM during normal training; then fit --resume", (),
         (at_step(8, send(SIGTERM, "supervisor")),), codes=(128 + SIGTERM, 0), lost_steps=0, workers=2),
    Case("33b", "supervisor: Ctrl-C during normal training; then fit --resume", (),
         (at_step(8, send(SIGINT, "supervisor")),), codes=(128 + SIGINT, 0), lost_steps=0),
    Case("33c", "supervisor: SIGTERM while the trainer hangs; then fit --resume", ("c_call @ step 8",),
         (do.when_fired(send(SIGTERM, "supervisor")),), codes=(128 + SIGTERM, 0), supervision={"grace_s": 2.0}),
    Case("34", "trainer: SIGTERM from outside", (), (at_step(9, send(SIGTERM, "trainer")),),
         (Report(StallClass.KILLED, ("stopped by SIGTERM (exit code 143)",), within_s=5.0),), lost_steps=0),
    Case("35a", "trainer: hangs when the interpreter ends", ("sleep_at_exit @ fit end",),
         reports=hang("sleep (", phase="exit"), timeouts_s={"exit_s": 3.0}, check=_one_trainer),
    Case("35b", "trainer: waits for a child in state D when the interpreter ends", ("stuck_child_at_exit @ fit end",),
         reports=(Report(COMPUTATION, (), "exit", within_s=12.0),), timeouts_s={"exit_s": 3.0}, check=_one_trainer),
    Case("36a", "trainer: hangs in the import of a plug-in",
         reports=hang("sleep (", phase="import", kind=UNKNOWN) * 2, codes=(76,), timeouts_s={"import_s": 15.0},
         exact=False, prepare=_load_plug_in),
    Case("36b", "trainer: hangs during set-up", ("sleep @ setup always",),
         reports=hang("sleep (", phase="setup", kind=UNKNOWN) * 2, codes=(76,), timeouts_s={"setup_s": 6.0},
         exact=False),
    Case("37", "trainer: the loss is not finite", exact=False, log=("not finite",),
         prepare=do.operator_fault(effect="NaN", name="convolution", step=20)),
    # Memory, notifications, groups of processes, changed settings, random faults.
    Case("38a", "worker: memory leak up to a limit", (f"memory {AT_FRAME}",), workers=1, fallback_level=1,
         reports=(Report(LOADER_CRASH, ("MemoryError",), within_s=LOADER_DEATH_S),)),
    Case("38b", "/dev/shm full", (), (at_step(6, do.fill_shared_memory),),
         (Report(LOADER_STALL, ("workers are idle", "unable to allocate shared memory"), "fetch", 30.0),),
         timeouts_s=FETCH, workers=2, fallback_level=1, small_shared_memory=True, unavailable=do.cannot_unshare),
    Case("39a", "notifications: a webhook that never answers, a ping that answers 500; the trainer is killed", (),
         (at_step(8, KILL),), KILLED, prepare=_deaf_webhook_and_failing_ping, log=("webhook", "ping"),
         clean_up=clean_up),
    Case("39b", "notifications: a host name that does not exist; the trainer is killed", (),
         (at_step(8, KILL),), KILLED, log=("webhook",),
         config={"supervision.notify.webhook": "http://notify.invalid/hook"}),
    Case("39c", "notifications: a webhook that redirects, a ping that sends one byte per second; the trainer is killed",
         (), (at_step(8, KILL),), KILLED, prepare=_redirecting_webhook_and_dripping_ping,
         log=("HTTP status 302, a redirect, which is not followed", "ping not sent"),
         clean_up=clean_up),
    Case("40a", "trainer: SIGKILL to its process group, with workers and resource tracker", (),
         (at_step(8, send(SIGKILL, TRAINER_GROUP)),), KILLED, workers=2),
    Case("40b", "SIGKILL to supervisor, trainer, workers and resource tracker at once; then fit --resume", (),
         (at_step(8, send(SIGKILL, "supervisor", TRAINER_GROUP)),), codes=(-SIGKILL, 0), workers=2),
    Case("40c", "without a supervisor: SIGKILL to the process group; then fit --resume", (),
         (at_step(8, send(SIGKILL, TRAINER_GROUP)),), codes=(-SIGKILL, 0), **UNSUPERVISED),
    Case("40d", "without a supervisor: SIGKILL to the main process while its workers start; then the same command", (),
         (in_phase(Phase.FIRST_BATCH, KILL),), codes=(-SIGKILL, 2), exact=False, lost_steps=None,
         log=("nothing to resume",), **UNSUPERVISED),
    Case("41a", "learning rate and number of epochs changed between attempts", (),
         (at_step(8, do.edit(model__recipe__lr0=0.02, trainer__max_epochs=3), KILL),), KILLED, exact=False,
         log=("changed since the checkpoint: model.recipe.lr0 was 0.01, now 0.02 (used)",
              "changed since the checkpoint: trainer.max_epochs was 2, now 3 (used)"), check=_trained_three_epochs),
    Case("41b", "number of workers changed between attempts", (),
         (at_step(8, do.edit(data__loader__num_workers=2), KILL),), KILLED,
         log=("changed since the checkpoint: data.loader.num_workers was 0, now 2 (used)",)),
    Case("41c", "other training data between attempts", (),
         (at_step(8, do.edit(data__root="{root}/other-data"), KILL),), KILLED + REFUSED, codes=(76,), exact=False,
         supervision=NO_PATIENCE,
         log=("the checkpoint was made on other training data",)),
    Case("41d", "batch size changed within an epoch: the rest of the epoch has batches of the new size", (),
         (at_step(8, do.edit(data__batch_size=8), KILL),), KILLED, exact=False,
         log=("changed since the checkpoint: data.batch_size was 4, now 8 (used)",)),
    *RANDOM_CASES,
    *(Case(name, f"without a supervisor: {fault}; then fit --resume", (), (action,), codes=(128 + number, 0),
           lost_steps=0, log=(f"stopped by {number.name} after step", "resume with: "), **UNSUPERVISED)
      for name, fault, number, action in (
          ("43a", "Ctrl-C to the process group", SIGINT, at_step(8, send(SIGINT, GROUP))),
          ("43b", "SIGTERM to the process group", SIGTERM, at_step(8, send(SIGTERM, GROUP))),
          ("43c", "SIGTERM to the main process", SIGTERM, at_step(8, send(SIGTERM, "trainer"))),
          ("43d", "Ctrl-C to the process group in a validation", SIGINT,
           in_phase(Phase.VALIDATE, send(SIGINT, GROUP))))),
    Case("43e", "without a supervisor: SIGTERM to the process group before the first step", (),
         (in_phase(Phase.FIRST_BATCH, send(SIGTERM, GROUP)),), codes=(128 + SIGTERM,), exact=False,
         log=("stopped by SIGTERM before a step was trained: nothing to save",), **UNSUPERVISED),
    Case("44a", "convolution: hangs in every attempt", reports=hang("state S") * 2, timeouts_s=STEP,
         **operators(effect="hang", attempts=do.ALWAYS, **CONVOLUTION)),
    Case("44b", "convolution: raises a device error in every attempt", reports=DEVICE_FAILED,
         **operators(effect="device error", attempts=do.ALWAYS, **CONVOLUTION)),
    Case("44c", "convolution: returns NaN in every attempt", reports=BROKEN_NUMBERS,
         config={"model.guard.max_rollbacks": 1}, **operators(effect="NaN", attempts=do.ALWAYS, **CONVOLUTION)),
    Case("44d", "convolution: returns wrong values in every attempt", log=("set aside after the last passed",),
         reports=(Report(WRONG_RESULT, ("exceeds the limit",), within_s=LOADER_DEATH_S),),
         config={"model.guard.self_check_share": 1.0},
         **operators(effect="wrong", attempts=do.ALWAYS, **CONVOLUTION)),
    Case("44e", "convolution in bfloat16: returns NaN in every attempt; SIGTERM to the supervisor in float32, then "
         "fit --resume",
         outside=(do.when_printed("fallback level 'float32'"), do.at_step(24, send(SIGTERM, "supervisor"))),
         reports=BROKEN_NUMBERS, codes=(128 + SIGTERM, 0), config={"trainer.precision": "bf16-mixed"},
         precision="float32", check=_kept_float32,
         **operators(AS_CONFIGURED, effect="NaN", dtype="bfloat16", attempts=do.ALWAYS, **CONVOLUTION)),
    Case("45a", "matrix product of the gemm backend: hangs in two attempts (stand-in for a GPU kernel)",
         reports=hang("state S") * 2, timeouts_s=STEP, **operators(effect="hang", attempts=2, **PRODUCT) | GEMM),
    Case("45b", "matrix product of the gemm backend: raises a device error (stand-in for a GPU kernel)",
         reports=DEVICE_FAILED, **operators(effect="device error", **PRODUCT) | GEMM),
    Case("45c", "matrix product of the gemm backend: returns NaN in one attempt (stand-in for a GPU kernel)",
         reports=BROKEN_NUMBERS,
         **operators(effect="NaN", attempts=1, **PRODUCT) | GEMM
         | {"config": GEMM["config"] | {"model.guard.max_rollbacks": 1}}),
    Case("46", "convolution: a device error; the level of the computation is taken back after a time without incidents",
         reports=DEVICE_FAILED, supervision={"climb_after_h": 0.001},
         log=("fallback level 'gemm'", "fallback level: as configured"),
         **operators(AS_CONFIGURED, effect="device error", **CONVOLUTION)),
    # The world outside of a run.
    Case("47a", "disk of the run folder read-only, the trainer is killed; writable again after the notification",
         (), (at_step(8, do.make_read_only), do.when_notified("checkpoint not saved", KILL),
              do.when_notified('waiting"'), do.after(2.0, do.make_writable)),
         (Report(StallClass.ENVIRONMENT, ("Read-only file system",)),),  # the other reports cannot be written
         **OWN_DISK),
    Case("47b", "device missing at a restart: the configuration requires a GPU, which this machine has not", (),
         (at_step(8, do.edit(trainer__accelerator="gpu"), KILL),
          do.when_printed("waits for", do.edit(trainer__accelerator="cpu"))),
         (*KILLED, Report(StallClass.ENVIRONMENT, ("gpu",)))),
    Case("47c", "a misspelled name in `load_state_dict` of a callback, at one restart", ("typo @ resume",),
         (at_step(8, KILL),), (*KILLED, Report(StallClass.ERROR, ("AttributeError", "'sate'"))),
         log=("Traceback (most recent call last)",), check=_no_checkpoint_called_damaged),
)

QUICK = Case("quick", "rows 4, 17 and 12 in one run: worker stopped, trainer killed, trainer in a C call",
             ("c_call @ step 19",), (at_step(3, send(SIGSTOP, "worker")), at_step(12, KILL)),
             hang("worker process", "stopped (T)", phase="", kind=LOADER_STALL) + KILLED + hang("c_call (", "state S"),
             timeouts_s={"fetch_s": 3.0, "step_s": 2.0, "save_s": 3.0}, workers=1, fallback_level=1, typed=True)
"""Detects, names and survives a stall and a crash in one run; runs only if chosen by name."""
# fmt: on


def chosen(names: str) -> tuple[Case, ...]:
    """Return the cases whose row or name is in a list such as `1,2,7b`, all cases for an empty list."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if wanted == [QUICK.name]:
        return (QUICK,)
    unknown = set(wanted) - {case.name for case in CASES} - {str(case.row) for case in CASES}
    if unknown:
        accepted = ", ".join(case.name for case in (*CASES, QUICK))
        raise ValueError(f"--rows must be names of {accepted}, got {', '.join(sorted(unknown))}")
    return tuple(case for case in CASES if not wanted or case.name in wanted or str(case.row) in wanted)
