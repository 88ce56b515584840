"""Writes a trained network into files for others: Ultralytics' own, ONNX, TorchScript."""
