"""The race of `fault_race.py`: one small training and one fault schedule for several training systems.

The package does not import these files. Reading order::

    schedule    the faults and their steps
    systems     command line of each system     ours.yaml  our configuration
    peers/      one training script per peer: plain torch (torchrun, nvidia-resiliency-ext), Lightning, Ultralytics
    hook        the same record of steps, and the same NaN, in every training process
    callback    the hook as a Lightning callback
    contest     starts a system, injects the faults from outside, and acts as the person who looks after it
    unusable    what that person deletes: checkpoints that cannot be loaded or that contain NaN
    account     figures of a finished run       chart      table and chart
"""
