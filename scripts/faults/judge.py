"""Verdict on a finished run: its reports, restarts, leftovers, and its final state compared bit for bit."""

import csv
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from faults import traces
from faults.run import MARK_VARIABLE, Beat, Case, OutputLine, Report, Run
from yolo_lightning.supervision.classify import StallClass
from yolo_lightning.supervision.fallback_levels import FallbackState, levels_below
from yolo_lightning.supervision.heartbeat import Phase
from yolo_lightning.supervision.phase_timeouts import AdaptiveTimeouts
from yolo_lightning.utils.json_record import read_record
from yolo_lightning.utils.run_files import PHASE_TIMEOUTS_FILE, STATE_FILE

REPORTED = re.compile(rf"^supervisor: \S+(?: \S+)? (?:stalled: )?((?:{'|'.join(StallClass)}): .*)$")
RESTARTED = re.compile(r"^supervisor: \S+(?: \S+)? restart in ")
SLACK_S = 5.0
RECOVERY_LIMIT_S = 20.0  # from the restart to the next step, on an idle machine
BEFORE_TRAINING = frozenset({Phase.IMPORT, Phase.SETUP, Phase.INDEX, Phase.FIRST_BATCH})
STATES = ("state_dict", "current_model_state", "optimizer_states", "accumulation")
"""Compared parts of `last.ckpt`: averaged weights, weights, optimizer, accumulated gradients."""
SHOWN = 3


@dataclass(frozen=True)
class FinalState:
    """Compared part of a run folder."""

    tensors: dict[str, Tensor]  # of the last and the best checkpoint
    rows: list[dict[str, str]]  # of metrics.csv, without their times
    steps: int

    @classmethod
    def read(cls, run_folder: Path) -> "FinalState":
        """Read the final state of a run; raise OSError if a file is missing."""
        last = torch.load(run_folder / "checkpoints" / "last.ckpt", weights_only=True)
        compared = dict(tensors({name: last[name] for name in STATES}, "last"))
        checkpoint = torch.load(run_folder / "checkpoints" / "best.ckpt", weights_only=True)
        compared |= dict(tensors(checkpoint["state_dict"], "best"))
        with (run_folder / "metrics.csv").open(newline="") as file:
            rows = [{key: value for key, value in row.items() if key != "time_s"} for row in csv.DictReader(file)]
        return cls(compared, rows, int(last["steps"]))


def tensors(tree: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """Yield all tensors of nested dictionaries and lists with their names."""
    if isinstance(tree, Tensor):
        yield name, tree
    elif isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from tensors(value, f"{name}.{key}")


def differences(actual: FinalState, expected: FinalState) -> list[str]:
    """Return what differs. NaN is always a difference, because two broken runs could agree in it."""
    wrong = []
    if actual.steps != expected.steps:
        wrong.append(f"{actual.steps} steps trained instead of {expected.steps}")
    if actual.tensors.keys() != expected.tensors.keys():
        wrong.append(f"other tensors: {sorted(actual.tensors.keys() ^ expected.tensors.keys())[:SHOWN]}")
    broken = [name for name, tensor in actual.tensors.items() if not tensor.isfinite().all()]
    if broken:
        wrong.append(f"{len(broken)} tensors are not finite, among them {broken[0]}")
    both = actual.tensors.keys() & expected.tensors.keys()
    other = sorted(name for name in both if not torch.equal(actual.tensors[name], expected.tensors[name]))
    if other:
        wrong.append(f"{len(other)} of {len(both)} tensors differ, among them {', '.join(other[:SHOWN])}")
    steps, expected_steps = ([(row["epoch"], row["step"]) for row in state.rows] for state in (actual, expected))
    if steps != expected_steps:
        doubled = sorted(Counter(steps) - Counter(expected_steps))
        missing = sorted(set(expected_steps) - set(steps))
        wrong.append(f"metrics.csv: doubled rows {doubled[:SHOWN]}, missing rows {missing[:SHOWN]} (epoch, step)")
    elif actual.rows != expected.rows:
        changed = [
            row["step"] for row, expected_row in zip(actual.rows, expected.rows, strict=True) if row != expected_row
        ]
        wrong.append(f"metrics.csv: other values at the steps {changed[:SHOWN]}")
    return wrong


@dataclass(frozen=True)
class Verdict:
    """One row of the result table."""

    name: str
    fault: str
    noticed_s: float | None = None  # longest time from a fault to its report; None without a report
    reported: str = ""  # class and sentence of the last report
    lost_steps: int | None = None  # largest number of steps that a restart repeated; None without a restart
    recovered_s: float | None = None  # longest time from the decision to restart to the next step
    leftovers: tuple[str, ...] = ()  # processes, shared memory and temporary files that remained
    codes: tuple[int, ...] = ()  # exit codes
    wrong: tuple[str, ...] = ()  # what failed; empty for a pass
    skipped: str = ""  # why the case was not run; empty if it was
    took_s: float = 0.0
    lost_each: tuple[int, ...] = ()  # repeated steps of each restart


def judge(run: Run, expected: FinalState | None) -> Verdict:
    """Return the verdict on a finished run, and delete what the run has left behind."""
    case = run.case
    incidents = run.incidents()
    remains = leftovers(run)
    noticed = noticed_s(run)
    wrong = [f"did not end within {case.limit_s:g} s"] if run.hung else []
    if tuple(run.codes) != case.codes:
        wrong.append(f"exit codes {run.codes} instead of {list(case.codes)}")
    wrong += _wrong_reports(case, incidents, noticed, run)
    if remains:
        wrong.append(f"left behind: {', '.join(remains)}")
    output = run.output() + run.log_file()
    wrong += [f"the output does not contain {text!r}" for text in case.log if text not in output]
    state = FallbackState.read(run.run_folder / STATE_FILE)
    levels = state.loader.name, state.computation.name, state.precision.name
    expected_levels = levels_below(case.workers)[case.fallback_level].name, case.computation, case.precision
    if levels != expected_levels:
        wrong.append(f"fallback levels {levels} instead of {expected_levels}")
    lost, recovered = restarts(run.beats, run.lines)
    if lost and case.lost_steps is not None and max(lost) > case.lost_steps:
        wrong.append(f"{max(lost)} steps lost, limit {case.lost_steps}")
    limit_s = RECOVERY_LIMIT_S * run.busyness
    if len(case.codes) > 1:
        limit_s *= 2  # `fit --resume` of a user starts a command line and a supervisor before the trainer
    if recovered and max(recovered) > limit_s:
        wrong.append(f"{max(recovered):.1f} s from the restart to the next step, limit {limit_s:.1f} s")
    wrong += case.check(run)
    if case.exact and expected is not None:
        try:
            actual = FinalState.read(run.run_folder)
        except OSError as error:
            wrong.append(f"no final state: {error}")
        else:
            wrong += differences(actual, expected)
    return Verdict(
        case.name,
        case.fault,
        noticed_s=max(noticed, default=None),
        reported=incidents[-1]["sentence"].replace(f"{run.folder}/", "") if incidents else "",
        lost_steps=max(lost, default=None),
        recovered_s=max(recovered, default=None),
        leftovers=tuple(remains),
        codes=tuple(run.codes),
        wrong=tuple(wrong),
        lost_each=tuple(lost),
    )


def leftovers(run: Run) -> list[str]:
    """Return what the run has left behind, and end its processes."""
    remains = [f"process {pid}" for pid in traces.marked(MARK_VARIABLE, run.mark)]
    traces.end_marked(MARK_VARIABLE, run.mark)
    remains += traces.temporary_files(run.run_folder, run.temporary)
    shutil.rmtree(run.temporary, ignore_errors=True)  # may be in /dev/shm
    return remains + [f"/dev/shm/{name}" for name in traces.orphaned_shared_memory(run.shared_memory_before)]


def _wrong_reports(case: Case, incidents: list[dict[str, Any]], noticed: list[float], run: Run) -> list[str]:
    """Compare the incident reports with the expected ones."""
    if case.possible_report:
        incidents = [incident for incident in incidents if case.possible_report not in incident["sentence"]]
    if len(incidents) != len(case.reports):
        sentences = "; ".join(incident["sentence"] for incident in incidents)
        return [f"{len(incidents)} reports instead of {len(case.reports)}: {sentences}"]
    wrong = []
    for report, incident in zip(case.reports, incidents, strict=True):
        for name, expected in (("class", report.kind), ("phase", report.phase)):
            if expected and incident[name] != expected:
                wrong.append(f"{name} {incident[name]!r} instead of '{expected}'")
        sentence = incident["sentence"]
        wrong += [f"{text!r} is not in {sentence!r}" for text in report.words if text not in sentence]
    for report, incident, seconds in zip(case.reports, incidents, noticed, strict=False):
        limit_s = _report_limit_s(report, incident, run)
        if seconds > limit_s:
            wrong.append(f"reported after {seconds:.1f} s, limit {limit_s:.1f} s")
    return wrong


def _report_limit_s(report: Report, incident: dict[str, Any], run: Run) -> float:
    """Return the seconds within which a fault must be reported."""
    if report.within_s is not None:
        return report.within_s * run.busyness
    learned = read_record(run.run_folder / PHASE_TIMEOUTS_FILE, AdaptiveTimeouts)
    phase = Phase[incident["phase"].replace(" ", "_").upper()]
    return SLACK_S * run.busyness + (learned.seconds(phase) if learned else 0.0)


def noticed_s(run: Run) -> list[float]:
    """Return the seconds from each fault to the first report after it."""
    reported_s = [line.at_s for line in run.lines if REPORTED.match(line.text)]
    firsts = ((fired_s, next((at_s for at_s in reported_s if at_s >= fired_s), None)) for fired_s in run.fired_s())
    return [at_s - fired_s for fired_s, at_s in firsts if at_s is not None]


def restarts(beats: list[Beat], lines: list[OutputLine]) -> tuple[list[int], list[float]]:
    """Return the repeated steps of each restart, and the seconds from each restart to the next completed step."""
    lost, recovered = [], []
    starts = [line for line in lines if line.resumed_step is not None or line.text.startswith("run folder:")]
    attempts = [list(group) for _, group in groupby(beats, key=lambda beat: beat.process)]
    for earlier, later in pairwise(attempts):
        begun = [line for line in starts if earlier[-1].at_s < line.at_s <= later[-1].at_s]
        if begun:
            lost.append(max(0, max(beat.step for beat in earlier) - (begun[-1].resumed_step or 0)))
        decided = [line.at_s for line in lines if RESTARTED.match(line.text) and line.at_s <= later[0].at_s]
        trained = [beat.at_s for beat in later if beat.phase not in BEFORE_TRAINING]
        if decided and trained:
            recovered.append(trained[0] - decided[-1])
    return lost, recovered
