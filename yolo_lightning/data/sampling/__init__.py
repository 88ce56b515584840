"""Sampling rules, the resumable sampler and global batches."""
