"""Checkpoint files (atomic, with checksums), remote copies, averaging, resume and the run folder."""
