"""LTDv2 challenge submissions: write, read, check, repair and score."""
