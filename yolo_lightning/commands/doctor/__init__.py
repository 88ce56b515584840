"""The command `doctor`: inspects this machine, tests what can hang or crash, and recommends settings.

The doctor's own process never imports torch; whatever can hang or crash runs in a child process. In reading order::

    machine     facts about the machine (files, packages)  machine_findings  rules that judge the facts (pure)
    child       a child process with a time limit          probes            tests in child processes, their outcomes
    probe_work  the work of such a child process           advice            recommended settings with reasons (pure)
    command     the command line and the report
"""
