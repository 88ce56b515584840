"""`benchmark_loader`: samples per second from each storage, worker start-up time and memory."""
