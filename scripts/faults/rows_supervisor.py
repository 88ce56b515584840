"""Rows 23h, 23s, 24, 25, 29, 31 to 33 and 39: the supervisor itself, its disk, and what is beyond its power."""

import signal
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

from faults.case import AT_ONCE_S, Case, Check, Report
from faults.disks import (
    cannot_mount,
    fill_disk,
    free_disk,
    freeze_disk,
    needs_apprise,
    own_disk,
    remove_disk,
    told_in_time,
    told_once,
)
from faults.outside import (
    after,
    at_step,
    start_second,
    to_all,
    to_supervisor,
    to_trainer,
    trainer,
    when_fired,
    when_said,
    write_number,
)
from faults.rows_trainer import STEP, one_trainer
from faults.run import Run
from faults.workshop import put
from yolo_lightning.supervision.classify import StallClass

UNKNOWN = StallClass.UNKNOWN
HOUR_S = 3600.0


def second_was_refused(run: Run) -> list[str]:
    """What the second supervisor said."""
    code, output = run.notes["second"]
    if code == 78 and f"process {run.supervisor.pid} on" in output:
        return []
    return [f"the second supervisor ended with {code}: {output.splitlines()[-1:]}"]


def all_of(*checks: Check) -> Check:
    """Several checks."""
    return lambda run: [wrong for check in checks for wrong in check(run)]


def notify_deaf_and_failing(run: Run) -> None:
    """A webhook that takes the connection and never answers, and a ping that answers with code 500."""
    deaf = run.notes["deaf"] = socket.create_server(("127.0.0.1", 0))
    failing = run.notes["failing"] = HTTPServer(("127.0.0.1", 0), Failing)
    threading.Thread(target=failing.serve_forever, daemon=True).start()
    put(run.configuration, "supervision.notify.webhook", f"http://127.0.0.1:{deaf.getsockname()[1]}/")
    put(run.configuration, "supervision.notify.ping", f"http://127.0.0.1:{failing.server_port}/")


class Failing(BaseHTTPRequestHandler):
    """Answers every request with an error."""

    def do_GET(self) -> None:
        """One request."""
        self.send_error(500)

    def log_message(self, *arguments: object) -> None:
        """Nothing."""


def close_endpoints(run: Run) -> list[str]:
    """Nobody needs them any more."""
    run.notes["failing"].shutdown()
    run.notes["failing"].server_close()
    run.notes["deaf"].close()
    return []


CASES = (
    Case(
        "23h",
        "disk of the run folder hangs for 20 s (fsfreeze)",
        outside=(at_step(8, freeze_disk(20.0)),),
        reports=(Report(StallClass.STORAGE, ("the disk of the run folder has not responded",)),),
        short_s={"fetch_s": 3.0, "step_s": 3.0, "save_s": 3.0, "epoch_end_s": 3.0},
        supervision={"part_timeout_s": 2.0, "kill_wait_s": 1.0},
        log=("SIGKILL takes effect when the disk responds", "the killed processes ended"),
        prepare=own_disk,
        check=told_in_time("stalled", "waits for storage"),
        clean_up=remove_disk,
        unavailable=cannot_mount,
    ),
    Case(
        "23s",
        "disk of the run folder full: the trainer dies for want of a file; there is space ten seconds later",
        ("needs_space @ step 8",),
        outside=(at_step(6, fill_disk), when_said("for space on the disk"), after(10.0, free_disk)),
        reports=(Report(StallClass.DISK_FULL, ("is full: 0.0 MB free",), within_s=20.0),),
        log=("restart in 0 s: there is space again",),
        prepare=own_disk,
        check=told_once("disk full"),
        clean_up=remove_disk,
        unavailable=cannot_mount,
    ),
    Case(
        "24",
        "trainer outlives SIGKILL (a fake: os.kill of the supervisor does nothing to it)",
        ("lock @ step 8",),
        outside=(at_step(3, write_number("unkillable", trainer)),),
        reports=(Report(UNKNOWN, ("lock (",), "step"),),
        codes=(77,),
        short_s=STEP,
        supervision={"kill_wait_s": 1.0},
        exact=False,
        log=("needs reboot: SIGKILL did not end process",),
        environment={"FAULTS_UNKILLABLE": "{folder}/unkillable"},
        check=one_trainer,
    ),
    Case(
        "25",
        "GPU does not answer after a stall (a fake smoke test that hangs)",
        ("synchronize @ step 8",),
        reports=(Report(StallClass.GPU_STALL, ("synchronize (",), "step"),),
        codes=(77,),
        short_s=STEP,
        supervision={"smoke_test_s": 1.0},
        exact=False,
        log=("needs reboot: the GPU has not responded for 1 s",),
        smoke_test=(sys.executable, "-c", "import time; time.sleep(1000)"),
        check=one_trainer,
    ),
    Case(
        "29a",
        "all processes suspended for longer than any allowance",
        outside=(at_step(8, to_all(signal.SIGSTOP)), after(7.0, to_all(signal.SIGCONT))),
        short_s=STEP | {"fetch_s": 3.0, "save_s": 3.0},
        workers=2,
        log=("the supervisor itself was away for",),
        check=one_trainer,
    ),
    Case(
        "29b",
        "wall clock steps an hour forth, then two back (a fake clock)",
        outside=(
            at_step(5, write_number("clock", lambda run: HOUR_S)),
            at_step(20, write_number("clock", lambda run: -HOUR_S)),
        ),
        short_s=STEP | {"fetch_s": 3.0},
        environment={"FAULTS_CLOCK": "{folder}/clock"},
        check=one_trainer,
    ),
    Case(
        "31",
        "supervisor: SIGKILL; then fit --resume",
        outside=(at_step(8, to_supervisor(signal.SIGKILL)),),
        codes=(-signal.SIGKILL, 0),
        workers=2,
    ),
    Case(
        "32",
        "a second supervisor on the same run folder",
        ("slow @ step 8", "slow @ step 9", "slow @ step 10"),
        outside=(at_step(7, start_second),),
        check=all_of(one_trainer, second_was_refused),
    ),
    Case(
        "33a",
        "supervisor: SIGTERM while all is well; then fit --resume",
        outside=(at_step(8, to_supervisor(signal.SIGTERM)),),
        codes=(128 + signal.SIGTERM, 0),
        lost_steps=0,
        workers=2,
    ),
    Case(
        "33b",
        "supervisor: Ctrl-C while all is well; then fit --resume",
        outside=(at_step(8, to_supervisor(signal.SIGINT)),),
        codes=(128 + signal.SIGINT, 0),
        lost_steps=0,
    ),
    Case(
        "33c",
        "supervisor: SIGTERM while the trainer hangs; then fit --resume",
        ("c_call @ step 8",),
        outside=(when_fired(to_supervisor(signal.SIGTERM)),),
        codes=(128 + signal.SIGTERM, 0),
        supervision={"grace_s": 2.0},
    ),
    Case(
        "39a",
        "notifications: a webhook that never answers, a ping that answers 500; the trainer is killed",
        outside=(at_step(8, to_trainer(signal.SIGKILL)),),
        reports=(Report(UNKNOWN, ("SIGKILL",), within_s=AT_ONCE_S),),
        prepare=notify_deaf_and_failing,
        log=("webhook", "ping"),
        check=close_endpoints,
        unavailable=needs_apprise,
    ),
    Case(
        "39b",
        "notifications: a name that no server knows; the trainer is killed",
        outside=(at_step(8, to_trainer(signal.SIGKILL)),),
        reports=(Report(UNKNOWN, ("SIGKILL",), within_s=AT_ONCE_S),),
        options={"supervision.notify.webhook": "http://notify.invalid/hook"},
        log=("webhook",),
        unavailable=needs_apprise,
    ),
)
