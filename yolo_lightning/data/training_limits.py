"""Limits of options that the frames of the training split set. Without torch: the command line checks them first."""

from yolo_lightning.data.index.split_index import SplitIndex
from yolo_lightning.data.sampling.epoch_order import SampledOrder
from yolo_lightning.data.sampling.global_batches import GlobalBatches
from yolo_lightning.data.transforms.augmentation_settings import BoxPaste
from yolo_lightning.data.transforms.box_paste import PasteCandidates
from yolo_lightning.errors import UserError


def check_training(index: SplitIndex, order: SampledOrder, paste: BoxPaste, batches: GlobalBatches, name: str) -> None:
    """Raise a UserError for classes of box paste, or a batch size, that the training split `name` does not allow."""
    if paste.probability:
        PasteCandidates(index, paste.classes)
    if batches.size <= order.length:
        return
    times = ""
    largest = order.length // batches.processes
    if batches.processes > 1:
        times = f" x {batches.processes} processes"
    remedy = f"set data.batch_size to auto or at most {largest}"
    if not largest:
        remedy = f"set trainer.devices to at most {order.length}"
    raise UserError(
        f"data.batch_size must be at most the {order.length} frames of an epoch of {name}, got "
        f"{batches.batch_size}{times}: {remedy}"
    )


def check_interval(interval: object, epoch_batches: int) -> None:
    """Raise a UserError for a `trainer.val_check_interval` in batches that is longer than an epoch."""
    if isinstance(interval, int) and interval > epoch_batches:
        raise UserError(f"trainer.val_check_interval must be <= {epoch_batches}, the batches per epoch, got {interval}")
