"""Sources of pixels: folder, zip archive, packed shards, litdata."""
