"""Mosaic, affine, photometric and colour augmentation."""
