"""`benchmark`: speed and memory of convolution implementations, for layers, the network and a training step."""
