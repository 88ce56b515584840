"""`benchmark`: `gpu` measures a device in stages, `loader` measures a dataset.

Reading order: `command` (options) -> `stages` (child processes) -> `section` (settings and record of one stage)
-> `machine_facts`, `correctness`, `layer_speed`, `training_step` (what is measured). `gpu_page` joins the
findings of all stages.
"""
