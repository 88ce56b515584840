"""Callbacks of a Trainer by class."""

from typing import TypeVar

from lightning.pytorch import Callback, Trainer

from yolo_lightning.errors import UserError

C = TypeVar("C", bound=Callback)


def callbacks_of(trainer: Trainer, *classes: type[C]) -> list[C]:
    """Return the callbacks of a Trainer that are instances of one of the classes, in their order."""
    return [callback for callback in trainer.callbacks if isinstance(callback, classes)]  # type: ignore[attr-defined]


def callback_before(trainer: Trainer, user: Callback, needed: type[C]) -> C:
    """Return the first callback of the class `needed`; raise a UserError unless it is in front of `user`."""
    callbacks = callbacks_of(trainer, Callback)
    for callback in callbacks[: callbacks.index(user)]:
        if isinstance(callback, needed):
            return callback
    name = type(user).__name__
    raise UserError(f"{name} needs the callback {needed.__name__} before it in trainer.callbacks")
