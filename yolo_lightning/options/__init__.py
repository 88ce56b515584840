"""Table of the options of all commands, and checks of values. Neither torch nor jsonargparse is imported."""
