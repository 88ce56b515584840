"""A small look-alike of LTDv2 in its official layout, drawn from a seed, to try everything without a download.

One harbour camera, eight months whose thermal look drifts, clips of consecutive one-second frames, and JSON files with
the ids, names and categories of the real dataset. `python -m yolo_lightning.data.synthetic ROOT` draws one.
"""

from yolo_lightning.data.synthetic.drawn_dataset import SyntheticSummary, draw_dataset

__all__ = ["SyntheticSummary", "draw_dataset"]
