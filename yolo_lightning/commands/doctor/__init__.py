"""The command `doctor`: inspects this machine and tests what can hang or crash.

The doctor's own process never imports torch; whatever can hang or crash runs in a child process. In reading order::

    machine     facts about the machine (files, packages)  machine_findings  rules that judge the facts (pure)
    probes      tests in child processes, their outcomes   probe_work        the work of such a child process
    command     the command line and the table
"""
