"""TIFF files with any bands, which Pillow and OpenCV do not write."""

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

SHORT, LONG = 3, 4  # Types of the values of a tag
SIZES = {SHORT: 2, LONG: 4}  # Bytes


def tiff_file(pixels: npt.NDArray[np.uint8], photometric: int, extra_samples: Sequence[int] = ()) -> bytes:
    """Return an uncompressed TIFF of `(H, W, bands)` pixels.

    `photometric` is 1 for gray and 2 for RGB; `extra_samples` has the meaning of each further band: 0 for unspecified,
    1 for an opacity by which the colours are multiplied, 2 for another opacity.
    """
    height, width, bands = pixels.shape
    content = bytearray(b"II*\0\0\0\0\0" + pixels.tobytes())
    tags: dict[int, tuple[int, Sequence[int]]] = {
        256: (LONG, [width]),
        257: (LONG, [height]),
        258: (SHORT, [8] * bands),
        259: (SHORT, [1]),
        262: (SHORT, [photometric]),
        273: (LONG, [8]),
        277: (SHORT, [bands]),
        278: (LONG, [height]),
        279: (LONG, [pixels.size]),
    }
    if extra_samples:
        tags[338] = (SHORT, extra_samples)
    entries = b""
    for tag, (value_type, values) in tags.items():
        encoded = b"".join(value.to_bytes(SIZES[value_type], "little") for value in values)
        if len(encoded) > 4:
            content += encoded
            encoded = (len(content) - len(encoded)).to_bytes(4, "little")
        entries += struct.pack("<HHI", tag, value_type, len(values)) + encoded.ljust(4, b"\0")
    content[4:8] = len(content).to_bytes(4, "little")
    return bytes(content + struct.pack("<H", len(tags)) + entries + bytes(4))
