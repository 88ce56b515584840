"""A small imitation of LTDv2 in its official layout, drawn from a seed, for tests and demos without a download.

One harbour camera, eight months with thermal drift, clips of consecutive one-second frames, and JSON files with the
ids, names and categories of the real dataset.
"""

from synthetic.drawn_dataset import draw_dataset

__all__ = ["draw_dataset"]
