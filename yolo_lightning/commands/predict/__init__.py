"""Detects objects in anybody's pictures and videos: pictures -> detector -> results."""
