"""`benchmark_gpu`: everything to measure in the first hour with a GPU, in child processes, as one page."""
