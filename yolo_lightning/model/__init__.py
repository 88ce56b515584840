"""The Ultralytics graph, its loss and post-processing, layer implementations and test-time augmentation."""
