"""The commands beside training: one file each, with one public function of the file's name."""

TOOLS = {
    "benchmark": "how fast and how frugal the convolutions are, against their rivals",
    "benchmark_loader": "how many samples the loader prepares, from which store",
    "contact_sheet": "a picture of what the network sees, with boxes",
    "export": "the trained network as a file for Ultralytics, ONNX Runtime or TorchScript",
    "prepare": "pack the frames into a store, check one, or count what is in a dataset",
}
"""Name and purpose."""
