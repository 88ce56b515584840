"""The command `export`: Ultralytics and ONNX files."""
