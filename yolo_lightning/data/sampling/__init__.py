"""Sampling rules, the resumable loader, global batches, and exact resume for any dataset."""
