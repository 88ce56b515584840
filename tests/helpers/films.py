"""Videos of numbered frames, written by PyAV with given times."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt

SIDE = 64
BITS = 4


def numbered_frame(number: int) -> npt.NDArray[np.uint8]:
    """Return `(SIDE, SIDE, 3)` uint8 RGB whose columns contain the bits of a number below 16."""
    bits = [number >> bit & 1 for bit in range(BITS)]
    row = np.repeat(np.where(bits, 230, 30).astype(np.uint8), SIDE // BITS)
    return np.repeat(np.tile(row, (SIDE, 1))[..., None], 3, axis=2)


def number_of(frame: npt.NDArray[np.uint8]) -> int:
    """Return the number in a frame, which may be compressed and have boxes in its outer quarters."""
    inner = frame[SIDE // 4 : -SIDE // 4, :, 1]
    columns = inner.reshape(len(inner), BITS, -1).mean(axis=(0, 2))
    return sum(1 << bit for bit in range(BITS) if columns[bit] > 128)


def write_film(
    path: Path,
    times: Sequence[Fraction],
    codec: str = "libx264",
    *,
    rate: Fraction | int = 25,
    time_base: Fraction = Fraction(1, 1000),
    **options: str,
) -> None:
    """Write numbered frames at the times in seconds; `rate` is the frame rate that the file states."""
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.width, stream.height, stream.pix_fmt = SIDE, SIDE, "yuv420p"
        stream.time_base = stream.codec_context.time_base = time_base
        for number, time in enumerate(times):
            frame = av.VideoFrame.from_ndarray(numbered_frame(number), format="rgb24")
            frame.pts, frame.time_base = round(time / time_base), time_base
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
