"""Training scripts of the peers, each as the documentation of its framework recommends."""
