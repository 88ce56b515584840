"""Limits of a bootstrap, for the command line, which checks them without torch."""

MIN_BOOTSTRAP_SAMPLES = 100  # fewer samples do not determine the bounds of an interval
