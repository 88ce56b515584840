"""What to do about losses and gradients that are not finite: counts, and a decision that depends on them alone."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from lightning.pytorch.utilities import rank_zero_warn

NAMED_IMAGES = 64
"""Images named in one message: a nominal batch."""


class Source(StrEnum):
    """What was not finite."""

    LOSS = "loss"
    GRADIENT = "gradient"


class NonFiniteAction(StrEnum):
    """What follows. What was not finite is left out in any case."""

    GO_ON = "go on"
    GO_BACK = "go back to the last good checkpoint"
    GIVE_UP = "give up"


@dataclass(frozen=True, slots=True)
class Patience:
    """How much is borne.

    Attributes:
        in_a_row: So many batches in a row without a finite loss, or updates without a finite gradient, are too many.
        rollbacks: How often training goes back to a checkpoint then; once more ends it.
        factor: What the learning rate is multiplied by each time, above 0 and at most 1.

    Raises:
        ValueError: If a value is out of range.
    """

    in_a_row: int = 5
    rollbacks: int = 3
    factor: float = 0.5

    def __post_init__(self) -> None:
        if self.in_a_row < 1:
            raise ValueError(f"model.max_consecutive_nonfinite is {self.in_a_row}, allowed are 1 and more")
        if self.rollbacks < 0:
            raise ValueError(f"model.max_rollbacks is {self.rollbacks}, allowed are 0 and more")
        if not 0 < self.factor <= 1:
            raise ValueError(f"model.rollback_lr_factor is {self.factor}, allowed are values above 0 up to 1")


@dataclass(frozen=True, slots=True)
class Tally:
    """What has happened since training began; part of a checkpoint.

    Attributes:
        skipped: Batches left out, and updates dropped.
        losses_in_a_row: Batches without a finite loss, up to now without one that has it.
        gradients_in_a_row: The same of updates.
        rollbacks: How often training went back.
    """

    skipped: int = 0
    losses_in_a_row: int = 0
    gradients_in_a_row: int = 0
    rollbacks: int = 0

    @property
    def is_sound(self) -> bool:
        """Whether the last batch and the last update were finite."""
        return self.losses_in_a_row == self.gradients_in_a_row == 0


def judge(tally: Tally, source: Source, is_finite: bool, patience: Patience) -> tuple[Tally, NonFiniteAction]:
    """Count one batch (its loss) or one update (its gradient), and decide.

    Args:
        tally: Before.
        source: What was looked at.
        is_finite: Whether it was finite.
        patience: The limits.
    """
    field = "losses_in_a_row" if source is Source.LOSS else "gradients_in_a_row"
    if is_finite:
        return replace(tally, **{field: 0}), NonFiniteAction.GO_ON
    in_a_row = getattr(tally, field) + 1
    after = replace(tally, skipped=tally.skipped + 1, **{field: in_a_row})
    if in_a_row < patience.in_a_row:
        return after, NonFiniteAction.GO_ON
    if tally.rollbacks >= patience.rollbacks:
        return after, NonFiniteAction.GIVE_UP
    fresh = replace(after, losses_in_a_row=0, gradients_in_a_row=0, rollbacks=tally.rollbacks + 1)
    return fresh, NonFiniteAction.GO_BACK


class NonFiniteGuard:
    """Keeps the tally, names the images in the log, and ends a training that does not recover.

    Args:
        patience: The limits.
    """

    def __init__(self, patience: Patience) -> None:
        self.patience = patience
        self.tally = Tally()
        self._images: list[str] = []

    @property
    def learning_rate_factor(self) -> float:
        """What the learning rate is multiplied by."""
        return self.patience.factor**self.tally.rollbacks

    def state(self) -> dict[str, int]:
        """The tally, as a checkpoint holds it."""
        return asdict(self.tally)

    def load(self, state: dict[str, int]) -> None:
        """Go on from what `state` returned."""
        self.tally = Tally(**state)

    def see_loss(
        self, is_finite: bool, image_ids: Sequence[str], step: int, parts: Mapping[str, Any]
    ) -> NonFiniteAction:
        """Look at the loss of one batch.

        Args:
            is_finite: What was found.
            image_ids: Of the batch.
            step: Batches begun since training began.
            parts: The loss by name, for the log.

        Raises:
            ValueError: If training does not recover.
        """
        if is_finite:
            self._images += image_ids
            return self._judge(Source.LOSS, True, "")
        values = ", ".join(f"{name} {float(value):.3g}" for name, value in parts.items())
        return self._judge(
            Source.LOSS, False, f"step {step}: the loss is not finite ({values}); images {named(image_ids)}"
        )

    def see_gradient(self, is_finite: bool, step: int) -> NonFiniteAction:
        """Look at the gradient of one update, the sum over the batches since the one before; as `see_loss`."""
        images, self._images = self._images, []
        return self._judge(
            Source.GRADIENT, is_finite, f"step {step}: the summed gradient is not finite; images {named(images)}"
        )

    def _judge(self, source: Source, is_finite: bool, what: str) -> NonFiniteAction:
        self.tally, verdict = judge(self.tally, source, is_finite, self.patience)
        if verdict is NonFiniteAction.GIVE_UP:
            raise ValueError(
                f"{what}: that is {self.patience.in_a_row} in a row, after going back to a checkpoint "
                f"{self.tally.rollbacks} times (model.max_rollbacks): lower model.lr0, or look at these images"
            )
        if not is_finite:
            rank_zero_warn(f"{what}: left out, the {self.tally.skipped}. since training began")
        return verdict


def named(image_ids: Sequence[str]) -> str:
    """Ids for a message, the first few of many."""
    more = len(image_ids) - NAMED_IMAGES
    return ", ".join(image_ids[:NAMED_IMAGES]) + (f" and {more} more" if more > 0 else "")
