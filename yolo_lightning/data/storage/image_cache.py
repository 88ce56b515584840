"""Decoded frames that a process keeps in memory."""

from yolo_lightning.data.storage.frames import Frame


class ImageCache:
    """The last decoded frames of one process by their index in the split; a pickled copy is empty.

    Args:
        max_frames: Maximum number of frames.
        keep_partners: Whether `LabelledFrames.read` caches all frames, or the own frames of samples only. If the limit
            is smaller than the split, partners must not replace frames that are needed again.
    """

    def __init__(self, max_frames: int, keep_partners: bool) -> None:
        self.max_frames = max_frames
        self.keep_partners = keep_partners
        self._images: dict[int, Frame] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._images)

    def __reduce__(self) -> tuple[type["ImageCache"], tuple[int, bool]]:
        return ImageCache, (self.max_frames, self.keep_partners)

    def get(self, index: int) -> Frame | None:
        """Return a frame, read-only, or None if it is not in the cache."""
        return self._images.get(index)

    def add(self, index: int, image: Frame) -> None:
        """Make `image` read-only and the newest frame of the cache, and drop the oldest frame beyond the limit."""
        if not self.max_frames:
            return
        self._images.pop(index, None)
        image.flags.writeable = False  # shared by all samples that contain the frame
        self._images[index] = image
        if len(self._images) > self.max_frames:
            del self._images[next(iter(self._images))]
