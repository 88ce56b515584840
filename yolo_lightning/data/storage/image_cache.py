"""Decoded frames that a process keeps in memory."""

from yolo_lightning.data.storage.frames import Frame


class ImageCache:
    """Decoded frames of one process by their index in the split; a pickled copy is empty.

    Args:
        max_bytes: Limit of the memory of all frames.
        max_frames: Limit of their number.
        keep_partners: Whether `LabelledFrames.read` caches all frames, or the own frames of samples only. If the limits
            are smaller than the split, partners must not replace frames that are needed again.
    """

    def __init__(self, max_bytes: int, max_frames: int, keep_partners: bool) -> None:
        self.max_bytes, self.max_frames, self.keep_partners = max_bytes, max_frames, keep_partners
        self.bytes = 0
        self._images: dict[int, Frame] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._images)

    def __reduce__(self) -> tuple[type["ImageCache"], tuple[int, int, bool]]:
        return ImageCache, (self.max_bytes, self.max_frames, self.keep_partners)

    def get(self, index: int) -> Frame | None:
        """Return a frame, read-only, or None if it is not in the cache."""
        return self._images.get(index)

    def add(self, index: int, image: Frame) -> None:
        """Make `image` read-only and the newest frame of the cache, and drop the oldest frames beyond the limits."""
        if not self.max_frames or image.nbytes > self.max_bytes:
            return
        self._drop(index)
        image.flags.writeable = False  # shared by all samples that contain the frame
        self._images[index] = image
        self.bytes += image.nbytes
        while self.bytes > self.max_bytes or len(self._images) > self.max_frames:
            self._drop(next(iter(self._images)))

    def _drop(self, index: int) -> None:
        image = self._images.pop(index, None)
        if image is not None:
            self.bytes -= image.nbytes
