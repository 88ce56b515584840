"""The verdict on a run that has ended: what was seen, measured, and what is wrong."""

import re
import shutil
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from faults import outcome, traces
from faults.case import Case, Report
from faults.run import MARK_VARIABLE, Beat, Run
from yolo_lightning.supervision.fallback import LadderState
from yolo_lightning.supervision.heartbeat import Phase
from yolo_lightning.supervision.phase_timeouts import AdaptiveTimeouts
from yolo_lightning.utils.run_files import PHASE_TIMEOUTS_FILE, STATE_FILE

REPORTED = re.compile(
    r"^supervisor: \S+ \S+ (?:stalled: )?((?:loader|GPU|storage|livelock|disk full|unknown)[^:]*: .*)$"
)
RESTARTED = re.compile(r"^supervisor: \S+ \S+ restart in ")
SLACK_S = 5.0
RECOVERY_LIMIT_S = 20.0
"""From the restart to the next step, on a machine that has nothing else to do."""

BEFORE_TRAINING = frozenset({Phase.IMPORT, Phase.SETUP, Phase.INDEX, Phase.SANITY, Phase.FIRST_BATCH})


@dataclass(frozen=True)
class Verdict:
    """One line of the report.

    Attributes:
        name: Of the case.
        fault: For a person.
        noticed_s: Seconds from the fault to the report; of several the longest; None where nothing was to be noticed.
        reported: Class and sentence of the last report.
        lost_steps: Steps trained twice, of all restarts the most; None without a restart.
        recovered_s: Seconds from the decision to restart to the next step, the longest; None without one.
        leftovers: Processes, shared memory, files.
        codes: Exit codes.
        wrong: What failed; empty for a pass.
        skipped: Why it was not tried; empty if it was.
        took_s: Seconds.
        kills: Of a soak: moment, phase, epoch and step of each.
        lost_each: Steps trained twice, of each restart.
        recovered_each_s: Seconds to the next step, of each restart.
    """

    name: str
    fault: str
    noticed_s: float | None = None
    reported: str = ""
    lost_steps: int | None = None
    recovered_s: float | None = None
    leftovers: tuple[str, ...] = ()
    codes: tuple[int, ...] = ()
    wrong: tuple[str, ...] = ()
    skipped: str = ""
    took_s: float = 0.0
    kills: tuple[tuple[str, str, int, int], ...] = ()
    lost_each: tuple[int, ...] = ()
    recovered_each_s: tuple[float, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """For a program."""
        return asdict(self) | {"passed": not self.wrong and not self.skipped}


def judge(case: Case, run: Run, expected: outcome.Outcome | None, took_s: float) -> Verdict:
    """Look at all that a run has left, and clear it away."""
    incidents = run.incidents()
    left = leftovers(run)
    noticed = noticed_s(run)
    wrong = [f"did not end within {case.limit_s:g} s"] if run.hung else []
    if tuple(run.codes) != case.codes:
        wrong.append(f"exit codes {run.codes} instead of {list(case.codes)}")
    wrong += wrong_reports(case, incidents, noticed, run)
    wrong += [f"left behind: {', '.join(left)}"] * bool(left)
    said = run.log() + run.log_file()
    wrong += [f"the log does not say {words!r}" for words in case.log if words not in said]
    rung = LadderState.read(run.run_folder / STATE_FILE).rung
    wrong += [f"rung {rung} instead of {case.rung}"] * (rung != case.rung)
    lost, recovered = restarts(run)
    if lost and case.lost_steps is not None and max(lost) > case.lost_steps:
        wrong.append(f"{max(lost)} steps lost, allowed are {case.lost_steps}")
    allowed_s = RECOVERY_LIMIT_S * run.busyness
    if recovered and max(recovered) > allowed_s:
        wrong.append(f"{max(recovered):.1f} s from the restart to the next step, allowed are {allowed_s:.1f}")
    wrong += case.check(run) if case.check else []
    if case.exact and expected is not None:
        wrong += compared(run, expected, exact_best=case.exact_best)
    return Verdict(
        case.name,
        case.fault,
        max(noticed, default=None),
        incidents[-1]["sentence"].replace(f"{run.folder}/", "") if incidents else "",  # no path of this machine
        max(lost, default=None),
        max(recovered, default=None),
        tuple(left),
        tuple(run.codes),
        tuple(wrong),
        took_s=took_s,
        lost_each=tuple(lost),
        recovered_each_s=tuple(recovered),
    )


def compared(run: Run, expected: outcome.Outcome, *, exact_best: bool) -> list[str]:
    """Differences of the final state."""
    try:
        found = outcome.read(run.run_folder)
    except OSError as error:
        return [f"no final state: {error}"]
    if not exact_best:
        found, expected = outcome.without_best(found), outcome.without_best(expected)
    return outcome.differences(found, expected)


def leftovers(run: Run) -> list[str]:
    """What the run has left behind; its processes are ended."""
    found = [f"process {pid}" for pid in traces.marked(MARK_VARIABLE, run.mark)]
    traces.end_marked(MARK_VARIABLE, run.mark)
    found += traces.temporary_files(run.run_folder, run.temporary)
    shutil.rmtree(run.temporary, ignore_errors=True)  # it may lie in /dev/shm itself
    return found + [f"/dev/shm/{name}" for name in traces.orphaned_shared_memory(run.shared_memory_before)]


def wrong_reports(case: Case, incidents: list[dict[str, Any]], noticed: list[float], run: Run) -> list[str]:
    """Incidents against what must be reported."""
    if len(incidents) != len(case.reports):
        said = "; ".join(incident["sentence"] for incident in incidents)
        return [f"{len(incidents)} reports instead of {len(case.reports)}" + (f": {said}" if said else "")]
    wrong = []
    for report, incident in zip(case.reports, incidents, strict=True):
        if report.kind not in (None, incident["class"]):
            wrong.append(f"class '{incident['class']}' instead of '{report.kind}'")
        if report.phase not in ("", incident["phase"]):
            wrong.append(f"phase '{incident['phase']}' instead of '{report.phase}'")
        wrong += [
            f"{words!r} is not in '{incident['sentence']}'"
            for words in report.words
            if words not in incident["sentence"]
        ]
    for report, incident, seconds in zip(case.reports, incidents, noticed, strict=False):
        allowed = limit_s(report, incident, run)
        if seconds > allowed:
            wrong.append(f"noticed after {seconds:.1f} s, allowed are {allowed:.1f}")
    return wrong


def limit_s(report: Report, incident: dict[str, Any], run: Run) -> float:
    """Seconds within which it must be noticed."""
    if report.within_s is not None:
        return report.within_s * run.busyness
    learned = AdaptiveTimeouts.read(run.run_folder / PHASE_TIMEOUTS_FILE)
    phase = Phase[incident["phase"].replace(" ", "_").upper()]
    return SLACK_S * run.busyness + (learned.seconds(phase) if learned else 0.0)


def noticed_s(run: Run) -> list[float]:
    """Seconds from each fault to the first report after it."""
    said = [line.at_s for line in run.lines if REPORTED.match(line.text)]
    found = []
    for fired_s in run.fired_s():
        later = [at_s for at_s in said if at_s >= fired_s]
        if later:
            found.append(later[0] - fired_s)
    return found


def restarts(run: Run) -> tuple[list[int], list[float]]:
    """Of each restart: steps that are trained again, and seconds to the next completed step."""
    lost, recovered = [], []
    starts = [line for line in run.lines if line.resumed_step is not None or line.text.startswith("run folder:")]
    groups = by_process(run.beats)
    for (_, earlier), (_, later) in pairwise(groups):
        begun = [line for line in starts if earlier[-1].at_s < line.at_s <= later[-1].at_s]
        if begun:
            lost.append(max(0, max(beat.step for beat in earlier) - (begun[-1].resumed_step or 0)))
        decided = [line.at_s for line in run.lines if RESTARTED.match(line.text) and line.at_s <= later[0].at_s]
        trained = [beat.at_s for beat in later if beat.phase not in BEFORE_TRAINING]
        if decided and trained:
            recovered.append(trained[0] - decided[-1])
    return lost, recovered


def by_process(beats: list[Beat]) -> list[tuple[int, list[Beat]]]:
    """The beats of each trainer, in order."""
    groups: list[tuple[int, list[Beat]]] = []
    for beat in beats:
        if not groups or groups[-1][0] != beat.process:
            groups.append((beat.process, []))
        groups[-1][1].append(beat)
    return groups
