"""The commands, named as the user types them."""

PROGRAM = "python -m yolo_lightning"

SUBCOMMANDS = {
    "fit": "Train a network",
    "validate": "Score the validation split",
    "test": "Score the test split",
    "predict": "Detect objects in the split for predictions, or in PICTURES",
}
"""Purpose of the subcommands of LightningCLI by name."""

TOOLS = {
    "average": "average the last checkpoints of a run, or interpolate between checkpoints",
    "benchmark": "measure convolutions and training steps of a GPU or another device",
    "bootstrap": "intervals of the scores of a validation or test",
    "contact_sheet": "draw the input of the network with its boxes",
    "doctor": "inspect this machine and test what can hang or crash",
    "export": "write the trained network for Ultralytics or ONNX Runtime",
    "monitor": "show the state of a run, live or afterwards, or list the runs",
    "prepare": "pack frames into a store, or check a dataset",
    "recalibrate": "compute the statistics of batch normalization anew, and compare the scores",
    "report": "write a run as one HTML file, or compare several runs",
    "service": "resume a run after a reboot with systemd: install, remove",
    "stop": "stop a run and wait for its checkpoint",
    "submission": "check, score, fuse or rescore submission files of the LTDv2 challenge",
    "supervise": "restart any training command after hangs and crashes",
}
"""Purpose of all other commands by name."""

COMMANDS = (*SUBCOMMANDS, *TOOLS)

PICTURES = "predict PICTURES"
"""The command for images and videos, whose options differ from those of `predict` for a dataset."""

WITH_RUN = ("validate", "test", "predict", "export", "monitor", "recalibrate")
"""Commands that take RUN, the folder of a run, as the first word or as --run."""

WITHOUT_TORCH = frozenset({"benchmark", "doctor", "monitor", "service", "stop", "supervise"})
"""Commands that do not import torch: they start quickly, and work if torch cannot be imported."""
