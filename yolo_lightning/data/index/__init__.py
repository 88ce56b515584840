"""Memory-mapped annotation index, splits and subsets."""
