"""Damage in the compressed data of JPEG files, which OpenCV and Pillow decode without an error."""

import av

START = b"\xff\xd8\xff"


def has_damaged_data(content: bytes) -> bool:
    """Return whether a JPEG file can be read, but has damaged compressed data: areas of its image are gray or shifted.

    libjpeg only prints a line without the name of the file. FFmpeg's decoder refuses such data if it is told to.
    """
    if not content.startswith(START):
        return False
    decoder = av.CodecContext.create("mjpeg", "r")
    decoder.options = {"err_detect": "explode"}
    decoder.thread_count = 1
    try:
        decoder.decode(av.Packet(content))
        decoder.decode(None)
    except av.error.InvalidDataError:
        return True
    except av.error.FFmpegError:  # a variant of JPEG that FFmpeg does not support
        return False
    return False
