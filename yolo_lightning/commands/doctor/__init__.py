"""The command `doctor`: inspects this machine, tests what can hang or crash, and recommends settings.

The doctor's own process never imports torch; whatever can hang or crash runs in a child process. In reading order::

    machine     facts about the machine (files, packages)  machine_findings  rules that judge the facts (pure)
    probes      tests in child processes, their outcomes   probe_work        the work of such a child process
    command     the command line, recommended settings and the report
"""
