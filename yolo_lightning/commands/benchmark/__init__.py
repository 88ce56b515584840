"""`benchmark`: convolutions, training step, loader, and everything to measure on a first GPU.

Reading order: `command` (the words after `benchmark`) -> `section` (settings and findings of one measurement)
-> `speed`, `correctness`, `training`, `kill_and_resume`, `machine_facts`, `loader_speed`
(what is measured). `stages` runs the sections of `benchmark gpu` in child processes, `gpu_page` joins their findings.
"""
