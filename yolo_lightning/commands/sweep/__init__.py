"""The command `sweep`: score and IoU thresholds with the best scores, from one forward pass per frame."""
