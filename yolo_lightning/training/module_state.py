"""The part of a checkpoint that `YOLOModule` writes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class ModuleState:
    """Progress of a module. The names of the fields are the keys in a checkpoint, beside those of Lightning."""

    steps: int = 0  # begun since training began
    optimizer: str | None = None  # name of the class; None if unknown
    accumulation: dict[str, Any] = field(default_factory=dict)  # see `Accumulation`
    nonfinite: dict[str, Any] = field(default_factory=dict)  # see `NonFiniteGuard`
    splitting: dict[str, Any] = field(default_factory=dict)  # see `GuardedStep`
    recipe: dict[str, float] = field(default_factory=dict)  # numbers of the recipe's values that can be `auto`
    input: dict[str, Any] = field(default_factory=dict)  # preprocessing of the training images, see `input_record`

    @classmethod
    def of(cls, checkpoint: Mapping[str, Any]) -> Self:
        """Return the state in a checkpoint; missing keys have their defaults."""
        return cls(**{key.name: checkpoint[key.name] for key in fields(cls) if key.name in checkpoint})

    def keys(self) -> dict[str, Any]:
        """Return the keys of a checkpoint with their values."""
        return {key.name: getattr(self, key.name) for key in fields(self)}
