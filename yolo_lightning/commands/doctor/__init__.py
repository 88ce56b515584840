"""What this machine is, what is wrong with it, and what to write into the configuration; behind `doctor`.

Loads no torch in the process that asks: whatever may hang or crash is tried in a child. Read in this order::

    machine     what is looked at: plain data         look       fills it in, from /proc, /sys and installed packages
    gpus        the graphics cards on the PCI bus     software   torch and other packages, without importing them
    finding     one line of the report                findings   judges a machine (pure); judge_* hold the rules
    child       a child process with a time limit     probes     what is tried in children, and how it went
    probe_work  what such a child does                __main__   its command line
    advice      what to write where, and why (pure)   report     the table, the lines to paste, JSON
    study       the experiment that tells hangs apart study_arm  one arm of it
    study_table its result (pure)
"""
