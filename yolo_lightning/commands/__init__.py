"""The commands beside training: one file each, with one public function of the file's name."""

TOOLS = {
    "average": "one checkpoint from the last few of a run",
    "benchmark": "how fast and how frugal the convolutions are, against their rivals",
    "benchmark_loader": "how many samples the loader prepares, from which store",
    "contact_sheet": "a picture of what the network sees, with boxes",
    "doctor": "what this machine is, what is wrong with it, and which settings suit it",
    "export": "the trained network as a file for Ultralytics, ONNX Runtime or TorchScript",
    "monitor": "how a run stands, live or afterwards",
    "prepare": "pack the frames into a store, check one, or count what is in a dataset",
    "report": "a run as one HTML file: curves, scores, frames, incidents, configuration",
    "submission": "what is wrong with an answer file for the challenge, and what it would score",
    "sweep": "which confidence and overlap score best on the validation split",
}
"""Name and purpose."""

WITHOUT_TORCH = frozenset({"doctor"})
"""Those whose process loads no torch: they start in a third of a second, and work where torch does not."""
