"""Options of all commands: table, reading, checks, errors and help. Neither torch nor jsonargparse is imported."""
