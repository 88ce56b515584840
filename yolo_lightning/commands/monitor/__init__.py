"""The command `monitor`: shows the state of a run without touching the training.

Files in reading order::

run_state   everything that is known (data)       read_run         reads it from run folder and process table
judgement   state of the run (pure)               time_left        estimated time of arrival (pure)
red_flags   warnings (pure)                       machine_sensors  GPU, memory and disk, read in a thread
screen      terminal output                       wording          units of times, sizes and rates
command     the command line
"""
