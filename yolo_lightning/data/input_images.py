"""Input images of `Detector` and `predict`: arrays, files, folders, glob patterns and videos."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path

import numpy as np

from yolo_lightning.data.array_types import AnyArray, Float32Array, UInt8Array
from yolo_lightning.data.left_out_files import counted, files_left_out, suffix
from yolo_lightning.data.storage.frames import IMAGE_SUFFIXES, BitDepthError, FrameError, decode_frame, reason_of
from yolo_lightning.data.storage.image_header import FrameLimits, unread_parts
from yolo_lightning.data.transforms.augmentation_settings import Image
from yolo_lightning.data.transforms.pixel_range import PixelRange
from yolo_lightning.errors import UserError
from yolo_lightning.utils.paths import plain_path, user_path
from yolo_lightning.utils.rank_zero import rank_zero_warn
from yolo_lightning.utils.regular_files import RECURSIVE, FolderContent, list_folder, matching_paths, read_regular
from yolo_lightning.utils.suggestions import missing

MPEG_SUFFIXES = frozenset({".m2ts", ".m4v", ".mov", ".mp4", ".mpeg", ".mpg", ".mts", ".ts"})
VIDEO_SUFFIXES = MPEG_SUFFIXES | frozenset({".3gp", ".avi", ".flv", ".mkv", ".webm", ".wmv"})
SUFFIXES = IMAGE_SUFFIXES | VIDEO_SUFFIXES
READ = ", ".join(sorted(SUFFIXES))


@dataclass(frozen=True, slots=True)
class InputImage:
    """One image, or one frame of a video."""

    source: Path | None  # Image or video file; None for an array
    frame: int | None  # Frame number in the video, from 0; None for an image
    pixels: UInt8Array  # `(H, W, 3)` uint8, RGB
    full: Float32Array | None = None  # `(H, W)` gray from 0 to 255 with the depth of a 16-bit image
    background: Image | None = None  # `(H, W)` gray, of the clip; None if unknown
    unread: str = ""  # Bands and pages of an image file that are not read, see `unread_parts`
    time_s: float | None = None  # Seconds after the beginning of the video; None for an image

    def is_gray(self) -> bool:
        red = self.pixels[..., 0]  # a comparison of planes: broadcasting over 3 values takes 3 to 6 times as long
        return bool((red == self.pixels[..., 1]).all() and (red == self.pixels[..., 2]).all())


def from_array(pixels: AnyArray, ranges: PixelRange | None = None, *, has_background: bool = False) -> InputImage:
    """Return the image of an array: `(H, W)` uint8, gray, or `(H, W, 3)` uint8, RGB (OpenCV reads BGR).

    With `has_background` (`data.input.background`), three dimensions are `(H, W, 2)`: a gray frame and its background.
    With `ranges`, gray frames may be uint16 and are mapped, each by its own values.

    Raises:
        UserError: If shape or dtype differ.
    """
    channels = 2 if has_background else 3
    is_gray = pixels.ndim == 2
    is_raw = pixels.dtype == np.uint16 and (is_gray or has_background)
    is_usable = pixels.size > 0 and (is_gray or (pixels.ndim == 3 and pixels.shape[2] == channels))
    if not is_usable or not (is_raw or pixels.dtype == np.uint8):
        content = "frame and background" if has_background else "RGB"
        raise UserError(
            f"an image must be a (H, W) gray or (H, W, {channels}) {content} array of uint8, got {pixels.shape} of "
            f"{pixels.dtype}."
        )
    if not is_gray and not has_background:
        return InputImage(None, None, pixels)
    planes = list(np.atleast_3d(pixels).transpose(2, 0, 1))
    if is_raw:
        if ranges is None or ranges.mode is None:
            raise UserError(
                "pixel_range must be set for arrays of uint16, because the weights do not record a range, got None."
            )
        planes = [ranges.image(plane) for plane in planes]
    background = None if is_gray else planes[1]
    return InputImage(None, None, *_shown(planes[0]), background)


def is_video(path: Path) -> bool:
    return path.suffix.lower() in VIDEO_SUFFIXES


def find_files(sources: Sequence[str]) -> list[Path]:
    """Return the image and video files of `sources` without duplicates, in the given order.

    Sources are files, glob patterns such as `frames/**/*.jpg`, or folders, which are searched recursively. The files of
    a folder or pattern are sorted by name. A warning per source counts the files that are left out.
    """
    files: dict[str, Path] = {}
    for source in sources:
        selected, left_out = files_of(source)
        if left_out:
            rank_zero_warn(f"{source}: left out {'; '.join(left_out)}. Read are {READ}")
        for file in selected:
            files.setdefault(plain_path(file), file)
    return list(files.values())


def files_of(source: str) -> tuple[list[Path], list[str]]:
    """Return the images and videos of a source of `find_files`, at least one, and the lines about all other files."""
    path = user_path(source)
    left_out: list[str] = []
    if os.path.isdir(path) and source:
        selected, left_out = _selected(list_folder(path))
    elif os.path.isfile(path):
        if suffix(source) not in SUFFIXES:
            raise UserError(f"{source} must end in one of {READ}.")
        selected = [path]
    elif has_magic(source):
        selected, left_out = _of_pattern(path)
    elif "://" in source or source.isdecimal():
        raise UserError(
            f"{source} does not exist: images and videos must be local files; addresses and cameras are not read"
        )
    else:
        raise UserError(f"{source or repr(source)} {missing(path)}")
    if not selected:
        reason = f" It contains {'; '.join(left_out)}" if left_out else ""
        raise UserError(f"{source} contains no file that ends in {READ}.{reason}")
    return selected, left_out


def _selected(content: FolderContent) -> tuple[list[Path], list[str]]:
    """Return the images and videos of a folder, sorted by name, and the lines about all other files."""
    selected = sorted(Path(file) for file in content.files() if suffix(file) in SUFFIXES)
    return selected, files_left_out([content], SUFFIXES)


def _of_pattern(pattern: Path) -> tuple[list[Path], list[str]]:
    """Return the images and videos that match a glob pattern, sorted by name, and the lines about all other matches."""
    content = FolderContent()
    folders = []
    for path in matching_paths(pattern, content):
        if os.path.isdir(path):
            folders.append(path)
        elif os.path.exists(path) and not os.path.isfile(path):
            content.special.append(path)
        else:
            folder, name = os.path.split(path)
            content.names.setdefault(folder, []).append(name)
    selected, left_out = _selected(content)
    if folders and RECURSIVE not in pattern.parts:
        left_out.append(counted(len(folders), "folders (name the folder itself to read its files)", folders[0]))
    return selected, left_out


def absolute(path: Path) -> Path:
    """Return the absolute path without `..`; links are not followed."""
    return Path(os.path.abspath(path))


def read_pictures(path: Path, ranges: PixelRange | None = None) -> Iterator[InputImage]:
    """Yield the image of an image file, or the frames of a video.

    With `ranges`, gray images with 16 bits are mapped.
    """
    if not is_video(path):
        content = read_regular(path, FrameLimits().max_bytes)
        yield InputImage(path, None, *_decode_picture(content, path, ranges), unread=unread_parts(content))
        return
    from yolo_lightning.data.input_videos import read_frames  # PyAV is needed for videos only

    for number, (pixels, time_s) in enumerate(read_frames(path)):
        yield InputImage(path, number, pixels, time_s=time_s)


def check_readable(path: Path) -> None:
    """Raise a UserError if an image, or the first frame of a video, cannot be read.

    Images with 16 bits are accepted, because weights can record the range of their pixel values.
    """
    images = read_pictures(path)
    try:
        with suppress(BitDepthError):
            next(images)
    except (FrameError, OSError, ValueError) as error:
        raise UserError(f"no file can be read: {path} ({reason_of(error, str(path))})") from error


def _decode_picture(content: bytes, path: Path, ranges: PixelRange | None) -> tuple[UInt8Array, Float32Array | None]:
    """Return `pixels` and `full` of an image; a gray image with 16 bits is mapped by `ranges` if they have a mode."""
    if ranges is not None and ranges.mode is not None:
        with suppress(BitDepthError):  # an image with 8 bits needs no mapping
            frame = decode_frame(content, str(path), limits=FrameLimits(bits=16))
            return _shown(ranges.image(np.asarray(frame, dtype=np.uint16)))
    return np.asarray(decode_frame(content, str(path), channels=3), dtype=np.uint8), None


def _shown(image: Image) -> tuple[UInt8Array, Float32Array | None]:
    """Return a gray image `(H, W)` as RGB with 256 levels, and the image itself if it is float32."""
    levels = image.clip(0, 255).round().astype(np.uint8)
    full = np.asarray(image, np.float32) if image.dtype == np.float32 else None
    return np.repeat(levels[..., None], 3, axis=2), full


def image_count(path: Path) -> int:
    """Return 1 for an image, and the number of frames that a video file states, at least 1, for a video."""
    if not is_video(path):
        return 1
    from yolo_lightning.data.input_videos import video_timing

    try:
        return video_timing(path).frames
    except (UserError, OSError):  # reported when the file is read
        return 1
