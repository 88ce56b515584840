"""Training of Ultralytics' `YOLO` without a vendor library. This file does not import ultralytics."""

from typing import Any

from torch import nn

from yolo_lightning.conv.plan import DEFAULT_PLAN, Plan
from yolo_lightning.conv.swap import ULTRALYTICS_EVENT, swap_convs
from yolo_lightning.errors import UserError


def swap_ultralytics_trainer(trainer: Any, *, plan: Plan = DEFAULT_PLAN) -> None:
    """Convert the network that Ultralytics' trainer has built, and its moving average, as `swap_convs` does.

    `YOLO.train` builds a new network from the description of `YOLO.model`, so that layers that were swapped before are
    not used. Register this function as a callback instead::

        yolo = YOLO("yolov8n.yaml")
        yolo.add_callback("on_pretrain_routine_end", swap_ultralytics_trainer)

    Args:
        trainer: The trainer, which Ultralytics passes to its callbacks.
        plan: Selects the algorithms of all convolutions.

    Raises:
        UserError: If the trainer has no network yet, because the function was registered for an earlier event.
    """
    network = getattr(trainer, "model", None)
    average = getattr(getattr(trainer, "ema", None), "ema", None)
    if not isinstance(network, nn.Module) or not isinstance(average, nn.Module):
        raise UserError(
            f"swap_ultralytics_trainer must be registered for the event {ULTRALYTICS_EVENT!r}, at which the trainer "
            "has a network and its moving average"
        )
    for module in (network, average):
        swap_convs(module, plan=plan)
