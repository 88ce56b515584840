"""`python -m yolo_lightning service`: a systemd user unit that resumes a run after a reboot until it is finished."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn
from zlib import crc32

from yolo_lightning.checkpoints import run_folder
from yolo_lightning.commands.doctor.inspect_machine import ENVIRONMENT
from yolo_lightning.commands.fit_start import ChosenRun, choose_run, supervise_fit
from yolo_lightning.commands.unattended import unattended
from yolo_lightning.errors import UserError
from yolo_lightning.options.command_names import PROGRAM
from yolo_lightning.options.run_spec import PREFIX, read_spec
from yolo_lightning.supervision.job import JOB_VARIABLE, SuperviseSettings, supervise_settings
from yolo_lightning.supervision.next_action import LONGEST_PAUSE_S
from yolo_lightning.supervision.run_lock import current_holder
from yolo_lightning.supervision.trainer import MARKER_VARIABLE
from yolo_lightning.utils.addresses import REFERENCE
from yolo_lightning.utils.exit_codes import ExitCode
from yolo_lightning.utils.files import replacing
from yolo_lightning.utils.plain_text import UNSAFE
from yolo_lightning.utils.run_files import FINISHED_FILE, config_name, has_checkpoint, is_finished

RECORDED = re.compile(
    rf"{ENVIRONMENT.pattern}|PATH|LD_LIBRARY_PATH|PYTHON\w+|VIRTUAL_ENV|XDG_\w+_HOME|TMPDIR|TZ|LANG|LC_\w+|{PREFIX}_\w+"
)
NO_RESTART = (
    *(ExitCode.FAILED, ExitCode.USAGE),  # before the first step; `run` itself waits for missing disks
    *(ExitCode.GAVE_UP, ExitCode.NEEDS_REBOOT, ExitCode.RUN_IN_USE),
)
ASK_S = 30.0
PATIENCE_S = SuperviseSettings().patience_h * 3600
"""For this time, `service run` waits for the run folder and for what the start of a run with a checkpoint needs."""

UNIT = """\
[Unit]
Description=yolo_lightning fit in {run}
ConditionPathExists=!{finished}
StartLimitIntervalSec=0

[Service]
Type=exec
WorkingDirectory={folder}
{environment}
ExecStart={command}
Restart=on-failure
RestartSec=60
RestartPreventExitStatus={no_restart}
SuccessExitStatus=130 143
KillMode=mixed
TimeoutStopSec={stop_s:.0f}
OOMPolicy=continue

[Install]
WantedBy=default.target
"""
"""`OOMPolicy`: systemd would stop the unit if the kernel ended a loader worker, which the supervisor handles."""


def install(target: Path, *, command: list[str] = [], show: bool = False) -> None:  # noqa: B006
    """Write a systemd user unit that resumes a run at each boot until it is finished, and start the unit.

    The unit records this folder as the working directory, and the variables of the environment that matter: paths,
    settings of Python, GPUs and their libraries, YOLO_LIGHTNING_*, and those that options name as $NAME.

    Args:
        target: Run folder, whose config.yaml the unit uses, or configuration file of a new run.
        command: Further options of `fit`, written after all others: `service install CONFIG -- --data.root PATH`.
        show: Print the unit and change nothing.
    """
    configuration = str(_configuration(target).absolute())
    words = ["fit", "--config", configuration, *command]
    spec = read_spec(words, os.environ)
    sections = {section for setting in spec.settings if setting.source == configuration for section in setting.value}
    if not {"data", "model", "trainer"} & sections:
        raise UserError(f"{target} must be the configuration of a fit, with keys of data, model or trainer")
    options = spec.given
    folder = target
    if not target.is_dir():
        folder = choose_run(options).folder
    run = folder.absolute()
    if is_finished(run):
        raise UserError(f"{run} is finished: there is nothing to resume. A longer fit starts with --resume.")
    settings = supervise_settings(options)
    unit = unit_text(run, words, settings, _recorded(options), Path.cwd())
    file = unit_file(run)
    if show:
        print(f"# {file}\n{unit}", end="")
        return
    run_folder.prepare(run)
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as temporary:
        temporary.touch(0o600)  # the environment can contain addresses for notifications
        temporary.write_text(unit)
    is_busy = current_holder(run) is not None
    enable = ["enable", file.name]
    if not is_busy:
        enable.insert(1, "--now")
    try:
        _systemctl("daemon-reload")
        _systemctl(*enable)
    except ValueError:
        file.unlink()
        raise
    print(f"{file}\n  systemctl --user status {file.name}\n  {PROGRAM} service remove {run}\n  {PROGRAM} monitor {run}")
    print(f"  journalctl --user -u {file.name}")
    if is_busy:
        print(f"A process trains in {run} already: the service starts at the next boot.")
    print("\n".join(unattended(run, settings, has_service=True)))


def remove(run: Path) -> None:
    """Delete the unit of a run. A training in progress continues; `stop` ends it."""
    file = unit_file(run)
    if not file.is_file():
        raise UserError(f"there is no service for {run}: {file} does not exist")
    _systemctl("disable", file.name)
    file.unlink()
    _systemctl("daemon-reload")
    print(f"removed {file}")


def run(run: Path, *, command: list[str]) -> NoReturn:
    """Start or resume the fit of exactly one run folder under a supervisor; the unit runs this command.

    The folder must exist: a run must not begin anew because the disk with its folder is missing after a boot. The
    command waits up to 24 h for the folder and, in a run with a checkpoint, for everything else that is missing.

    Args:
        run: Run folder.
        command: Command line of the fit, written after all options: `service run RUN -- fit --config CONFIG`.
    """
    if command[:1] != ["fit"]:
        raise UserError("service run needs a fit after --, for example: service run runs/a -- fit --config CONFIG")
    pause_s = 1.0
    end_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            if not run.is_dir():
                raise UserError(
                    f"the run folder {run} does not exist: mount its disk, or create the folder for a new run"
                )
            supervise_fit(read_spec(command, os.environ), ChosenRun(run, resumes=True), is_service=True)
        except (UserError, OSError) as error:
            if run.is_dir() and not has_checkpoint(run):  # a mistake, before the first checkpoint
                raise
            if time.monotonic() >= end_s:
                print(f"error: gave up: {error}", file=sys.stderr)
                raise SystemExit(ExitCode.GAVE_UP) from None
            print(f"waits {pause_s:g} s: {error}", file=sys.stderr, flush=True)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


service = {"install": install, "remove": remove, "run": run}


def unit_text(
    run: Path, words: Sequence[str], settings: SuperviseSettings, environment: Mapping[str, str], folder: Path
) -> str:
    """Return the systemd unit of the fit with the command line `words` in a run folder, started in `folder`."""
    for place in (run, folder):
        if str(place).endswith("\\") or UNSAFE.search(str(place)):
            raise UserError(
                "a systemd unit cannot name a folder with control characters or a backslash at its end, "
                f"got {str(place)!r}"
            )
    command = [sys.executable, "-m", "yolo_lightning", "service", "run", str(run), "--", *words]
    return UNIT.format(
        run=_plain(str(run)),
        finished=_plain(str(run / FINISHED_FILE)),
        folder=_plain(str(folder)),
        environment="\n".join(f"Environment={_quoted(f'{name}={text}')}" for name, text in environment.items()),
        command=" ".join(_quoted(word).replace("$", "$$") for word in command),
        no_restart=" ".join(str(int(code)) for code in NO_RESTART),
        stop_s=settings.grace_s + settings.kill_wait_s + ASK_S,
    )


def unit_file(run: Path) -> Path:
    """Return the path of the unit of a run, which need not exist."""
    place = run.absolute()
    name = re.sub(r"[^\w.-]", "_", place.name, flags=re.ASCII)
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd/user"
    return folder / f"yolo-lightning-{name}-{crc32(os.fsencode(place)):08x}.service"


def _configuration(target: Path) -> Path:
    """Return the configuration file of a run folder, or the given file."""
    path = target
    if target.is_dir():
        path = target / config_name("fit")
    if not path.is_file():
        raise UserError(f"{path} does not exist: pass a run folder with a configuration, or a configuration file")
    return path


def _recorded(options: Mapping[str, Any]) -> dict[str, str]:
    named = {name for value in options.values() if isinstance(value, str) for name in REFERENCE.findall(value)}
    return {
        name: text
        for name, text in sorted(os.environ.items())
        if (name in named or RECORDED.fullmatch(name)) and name not in (JOB_VARIABLE, MARKER_VARIABLE)
    }


def _plain(text: str) -> str:
    return text.replace("%", "%%")


def _quoted(text: str) -> str:
    return json.dumps(_plain(text), ensure_ascii=False)  # systemd reads the escapes of C


def _systemctl(*words: str) -> None:
    """Run systemctl for the services of this user; raise a ValueError with its first line if it fails."""
    try:
        done = subprocess.run(
            ["systemctl", "--user", *words], capture_output=True, text=True, timeout=ASK_S, check=False
        )
        failure = ""
        if done.returncode:
            failure = done.stderr.strip() or "no message"
    except (OSError, subprocess.TimeoutExpired) as error:
        failure = str(error)
    if failure:
        reason = failure.splitlines()[0]
        raise UserError(f"systemctl --user {' '.join(words)} failed: {reason}. docs/walk_away.md has other ways.")
