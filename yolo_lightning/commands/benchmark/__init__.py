"""`benchmark`: convolutions, training step, loader, and everything to measure on a first GPU.

Reading order: `command` (the words after `benchmark`) -> `section` (settings and findings of one measurement)
-> `speed`, `correctness`, `memory`, `training`, `kill_and_resume`, `machine`, `loader` (what is measured). `stages`
runs the sections of `benchmark gpu` in child processes (`stage_process`), and `page` joins their findings.
"""
