"""Storages of frames (folder, zip archive, packed shards) and the decoded-image cache."""
