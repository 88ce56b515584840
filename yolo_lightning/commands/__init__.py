"""Commands: one file or folder each, named as the user types it, and the way of a command line to them."""
