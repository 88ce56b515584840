"""Inject every fault of the fault matrix into a real training run, and judge the outcome.

    python scripts/inject_faults.py                      all rows
    python scripts/inject_faults.py --list               names and descriptions of the rows
    python scripts/inject_faults.py --rows 1,2,7b        some rows
    python scripts/inject_faults.py --kills 20           one run that is killed 20 times
    python scripts/inject_faults.py --random 300         random faults of system calls, signals and operators
    python scripts/inject_faults.py --minutes 30 --faults 10    random faults in one run, its notifications and screen
    python scripts/inject_faults.py --write docs/faults.md

Exit code 1 if a row failed. All files are in a new folder below `--work`, which is deleted at the end.
"""

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

AT_A_TIME = 3
"""One more than the cores of a small machine, because a case waits for timeouts half of the time."""


def main() -> int:
    """Parse the command line and run. Imports late, so that --help does not import torch."""
    options = parse()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background; the runs would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    from faults import matrix
    from faults.judge import judge
    from faults.random_faults import judge_long, judge_random, long_case, random_cases
    from faults.random_kills import KILLED_EPOCHS, random_kills
    from faults.rows import CASES, chosen
    from faults.run import EPOCHS

    if options.list:
        print("\n".join(f"{case.name:>4}  {case.fault}" for case in CASES))
        return 0
    begin_s = time.monotonic()
    judge_case: matrix.Judge = judge
    if options.random:
        cases = random_cases(options.random, options.seed, options.first)
        judge_case = judge_random
    elif options.minutes:
        cases = (long_case(options.minutes, options.faults, options.seed),)
        judge_case = judge_long
    elif options.kills:
        cases = (random_kills(options.kills, options.seed),)
    else:
        cases = chosen(options.rows)
    epochs = KILLED_EPOCHS if options.kills else EPOCHS
    root = Path(tempfile.mkdtemp(prefix="faults-", dir=options.work))
    try:
        verdicts = matrix.run_cases(
            cases, root, at_a_time=options.at_a_time, keep=options.keep, epochs=epochs, judge_case=judge_case
        )
    finally:
        if not options.keep:
            shutil.rmtree(root, ignore_errors=True)
    if options.json:
        print(json.dumps([asdict(verdict) for verdict in verdicts], indent=2))
    else:
        print(matrix.table(verdicts))
    if options.write:
        matrix.write_page(options.write, verdicts, time.monotonic() - begin_s)
    return int(any(verdict.wrong for verdict in verdicts))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="", help="rows and cases, such as 1,2,7b (default: all)")
    parser.add_argument("--list", action="store_true", help="print the names and descriptions of all cases and exit")
    parser.add_argument(
        "--kills", type=int, default=0, metavar="NUMBER", help="kill one run this often, instead of rows"
    )
    parser.add_argument(
        "--random", type=int, default=0, metavar="NUMBER", help="this many random cases, instead of rows"
    )
    parser.add_argument(
        "--minutes", type=float, default=0.0, help="length of one run with random faults, instead of rows"
    )
    parser.add_argument("--faults", type=int, default=10, help="number of faults of this run (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="number of the first random case (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of kills and random cases (default: %(default)s)")
    parser.add_argument("--at-a-time", type=int, default=AT_A_TIME, help="cases that run side by side")
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON instead of a table")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write a page with the table")
    parser.add_argument("--work", type=Path, help="parent of the folder of all runs (default: the system's)")
    parser.add_argument("--keep", action="store_true", help="keep that folder with all files of failed cases")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
