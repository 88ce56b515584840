"""The command `export`: Ultralytics, ONNX and TorchScript files."""
