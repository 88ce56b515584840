"""The command `monitor`: shows the state of a run without affecting the training."""
