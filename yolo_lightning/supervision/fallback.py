"""Fallback levels of the loader, from fast to safe."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from yolo_lightning.supervision.incident import loader_stalls


@dataclass(frozen=True, slots=True)
class FallbackLevel:
    """Loader settings, from fast to safe.

    The threads of the trainer itself are the same at all levels: their number decides the order of sums, and so the
    last bits of every weight.
    """

    name: str
    num_workers: int | None = None  # loader processes; None for the configured number
    settings: dict[str, int | bool] = field(default_factory=dict)  # keys of `data.loader` that are replaced
    words: tuple[str, ...] = ()  # options of another command than `fit`

    @property
    def overrides(self) -> tuple[str, ...]:
        """The settings as command-line options of the trainer."""
        return self.words + tuple(f"--data.loader.{name}={json.dumps(value)}" for name, value in self.settings.items())


FALLBACK_LEVELS = (
    FallbackLevel("as configured"),
    FallbackLevel(
        "2 workers, not persistent",
        2,
        {"num_workers": 2, "persistent_workers": False, "prefetch_factor": 2, "worker_threads": 2},
    ),
    FallbackLevel(
        "no workers", 0, {"num_workers": 0, "persistent_workers": False, "prefetch_factor": 2, "worker_threads": 1}
    ),
)


def levels_below(num_workers: int) -> tuple[FallbackLevel, ...]:
    """Return the configured level and those with fewer than `num_workers` workers."""
    return tuple(one for one in FALLBACK_LEVELS if one.num_workers is None or one.num_workers < num_workers)


def levels_of_words(fallbacks: Sequence[tuple[str, ...]]) -> tuple[FallbackLevel, ...]:
    """Return the levels of a command that gets the words of `fallbacks` in addition, from fast to safe."""
    return FALLBACK_LEVELS[0], *(FallbackLevel(" ".join(words), words=words) for words in fallbacks)


def level_of_launch(run: Path, launch: str, num_workers: int) -> FallbackLevel:
    """Return the fallback level for a torchrun launch. Every loader stall in the same launch lowers it by one.

    No supervisor runs under torchrun: all ranks read the incident reports of their stall monitors. Another `launch`
    starts with the configured level, of `num_workers` loader workers.
    """
    levels = levels_below(num_workers)
    return levels[min(loader_stalls(run, launch), len(levels) - 1)]
