"""Compares ways of computing a convolution: layer by layer, in the whole network, in a whole training step."""
