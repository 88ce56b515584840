"""The fault matrix: real faults, put into real training runs from outside, and what came of them.

Nothing in the product knows of it. Read in this order::

    case        what a fault is and what must come of it
    rows        the table of all cases                    rows_* hold it in four parts
    hangs       ways to hang and to die                   hang.c   two of them
    injector    a callback that calls them inside         outside  signals, full disks, damaged files
    fakes       what cannot be had for real: a process that outlives SIGKILL, a clock that jumps
    workshop    dataset, configuration, reference run     run      one supervised fit, and all that was seen of it
    traces      what it left behind                       outcome  its final state, compared bit for bit
    judge       the verdict                               report   lines, table, page
    soak        one run, many kills                       overhead what all the watching costs
"""
