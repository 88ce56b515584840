"""Put every fault of the matrix into a real training run, and say what came of it.

    python scripts/inject_faults.py                      all rows
    python scripts/inject_faults.py --rows 1,2,7b        some
    python scripts/inject_faults.py --soak 20            one run that is killed 20 times
    python scripts/inject_faults.py --overhead           what watching costs
    python scripts/inject_faults.py --write docs/faults.md

Exit code 1 if any row failed. Everything happens below `--work`, which is made and deleted.
"""

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

AT_A_TIME = 3
"""One more than cores on a small machine: a case waits for phase timeouts half of the time."""


def main() -> int:
    """Parse the command line and run. Imports late: --help needs no torch."""
    options = parse()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in `inject_faults.py &`; the runs would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if options.overhead:
        return report_overhead()
    from faults import report, soak
    from faults.matrix import run_cases
    from faults.rows import chosen
    from faults.workshop import EPOCHS, STEPS, Workshop

    begin_s = time.monotonic()
    root = Path(tempfile.mkdtemp(prefix="faults-", dir=options.work))
    cases = (soak.soak(options.soak, options.seed),) if options.soak else chosen(options.rows)
    try:
        workshop = Workshop(root)
        workshop.prepare()
        verdicts = run_cases(
            cases,
            workshop,
            at_a_time=options.at_a_time,
            keep=options.keep,
            done=lambda verdict: print(report.line(verdict), file=sys.stderr, flush=True),
            epochs=soak.EPOCHS if options.soak else EPOCHS,
        )
    finally:
        if not options.keep:
            shutil.rmtree(root, ignore_errors=True)
    if options.json:
        print(json.dumps([verdict.as_json() for verdict in verdicts], indent=2))
    else:
        for verdict in verdicts:
            if verdict.kills:
                print(report.kills_table(verdict))
        print(report.markdown(report.cells(verdict) for verdict in verdicts))
        print(report.summary(verdicts))
    if options.write:
        report.write_page(options.write, verdicts, STEPS, time.monotonic() - begin_s)
    return int(any(verdict.wrong for verdict in verdicts))


def report_overhead() -> int:
    """Say what watching costs; 1 if it is too much."""
    from faults import overhead

    costs = overhead.measure()
    print("\n".join(overhead.lines(costs)))
    return int(not overhead.is_cheap(costs))


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="", help="rows and cases, such as 1,2,7b; all by default")
    parser.add_argument(
        "--soak", type=int, default=0, metavar="KILLS", help="one run, killed so often, instead of rows"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the soak")
    parser.add_argument("--overhead", action="store_true", help="measure what watching costs instead")
    parser.add_argument("--at-a-time", type=int, default=AT_A_TIME, help="cases side by side")
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON instead of a table")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write a page with the table")
    parser.add_argument("--work", type=Path, help="where to make the folder of all runs; the system's by default")
    parser.add_argument("--keep", action="store_true", help="keep that folder, with all files of what failed")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
