"""What a run folder tells about a run; read by `monitor`, which never touches the trainer.

In this order::

    run_state   what is known, as data           folder      reads it from the run folder and the process table
    judgement   how the run stands (pure)        remaining   how long it still takes (pure)
    red_flags   what a person must see (pure)    machine     GPU, memory, disk, read in a thread that may hang
    screen      draws it                         wording     numbers and times as people write them
"""
