"""Readers of annotation formats (LTDv2, COCO, YOLO) and their checks."""
