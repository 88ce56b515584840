"""The command `predict PICTURES`: input images -> detector -> results."""
