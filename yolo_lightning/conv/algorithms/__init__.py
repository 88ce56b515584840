"""One file per convolution algorithm, and the table of candidates."""
