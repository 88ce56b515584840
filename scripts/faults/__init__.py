"""Fault injection: real faults in real training runs, and a verdict on each run.

The package does not import these files. Reading order::

    run            a case, and one supervised fit that is observed from outside    config.yaml  its configuration
    rows           the table of all cases                       random_kills  one run with many kills, row 42
    random_faults  random cases, and a long run with several    system_calls.c  faulty system calls
    hangs          faults inside the trainer or a worker        hang.c  two of them
    injector       the callback that calls them                 plug_in  a callback whose import hangs
    operators      the callback that spoils operators of torch
    actions        signals, disks, damaged files                fakes  simulated: unkillable process, clock that jumps
    judge          the verdict                                  traces  what a run has left behind
    matrix         runs all cases, prints tables and the page
"""
