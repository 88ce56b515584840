"""Runs cases, some at a time, and judges them."""

import shutil
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace

from faults import outcome, traces
from faults.case import Case
from faults.judge import Verdict, judge
from faults.run import KILLS, WORKSHOP_VARIABLE, Run
from faults.workshop import EPOCHS, Workshop, epochs_option


def reference(workshop: Workshop, epochs: int = EPOCHS) -> outcome.Outcome:
    """The final state of the run that nothing happens to, and that nobody watches.

    Raises:
        RuntimeError: If that run fails; nothing can be judged then.
    """
    case = Case(f"reference{epochs}", "nothing", options={"supervision.enabled": False, **epochs_option(epochs)})
    run = Run(case, workshop)
    run.carry_out()
    verdict = judge(case, run, None, 0.0)
    if verdict.wrong:
        raise RuntimeError(f"the run without a fault failed: {'; '.join(verdict.wrong)}\n{run.log()}")
    return outcome.read(run.run_folder)


def run_case(case: Case, workshop: Workshop, expected: outcome.Outcome, keep: bool) -> Verdict:
    """One case, from its start to its verdict; its files are deleted unless it failed and `keep` is set."""
    reason = case.unavailable()
    if reason:
        return Verdict(case.name, case.fault, skipped=reason)
    begin_s = time.monotonic()
    run = Run(case, workshop, case.outside, case.prepare)
    try:
        run.carry_out()
        verdict = judge(case, run, expected, time.monotonic() - begin_s)
    except Exception as error:  # the injection failed, or the run left what none foresaw; the other cases go on
        run.abandon()
        place = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"could not be judged: {error!r} in {place.name}, line {place.lineno} of {place.filename}"
        verdict = Verdict(case.name, case.fault, wrong=(reason,))
    finally:
        if case.clean_up:
            case.clean_up(run)
    verdict = replace(verdict, kills=tuple(run.notes.get(KILLS, ())))
    if verdict.wrong and keep:
        (run.folder / "output.txt").write_text(run.log())
    else:
        shutil.rmtree(run.folder, ignore_errors=True)
    return verdict


def run_cases(
    cases: Iterable[Case],
    workshop: Workshop,
    *,
    at_a_time: int,
    keep: bool,
    done: Callable[[Verdict], None],
    epochs: int = EPOCHS,
) -> list[Verdict]:
    """All of them, the longest first; `done` is told each verdict as it comes. Ctrl-C ends them all.

    Args:
        cases: In the order of the report.
        workshop: Where.
        at_a_time: How many run side by side.
        keep: Whether the files of failed cases stay.
        done: Called with each verdict.
        epochs: That they train.
    """
    expected = reference(workshop, epochs)
    wanted = list(cases)
    found: dict[str, Verdict] = {}
    with ThreadPoolExecutor(at_a_time) as pool:
        longest_first = sorted(wanted, key=lambda case: -len(case.reports) - len(case.codes))
        waiting = [pool.submit(run_case, case, workshop, expected, keep) for case in longest_first]
        try:
            for future in as_completed(waiting):
                verdict = future.result()
                found[verdict.name] = verdict
                done(verdict)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            while traces.end_marked(WORKSHOP_VARIABLE, str(workshop.root)):
                time.sleep(0.5)  # some were just being started
            raise
    return [found[case.name] for case in wanted]
