"""Sources of pixels: packed shards, folder, zip archive."""
