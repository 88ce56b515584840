"""One file per convolution algorithm, and the table that selects among them."""
