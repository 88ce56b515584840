"""Records of the self-check in a run folder, and checkpoints that may contain wrong weights. Standard library only."""

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from yolo_lightning.utils.distributed import rank_suffix
from yolo_lightning.utils.files import write_json
from yolo_lightning.utils.json_record import read_record
from yolo_lightning.utils.run_files import (
    CHECKPOINT_PATTERN,
    CHECKPOINTS,
    CHECKSUM_SUFFIX,
    SELF_CHECK_FILE,
    steps_in,
)

SUSPECT_SUFFIX = ".suspect"
"""Suffix of a checkpoint that is not resumed: a layer may have computed wrong results before it was saved."""


@dataclass(frozen=True, slots=True)
class SelfCheckRecord:
    """Results of the self-check in one rank."""

    passed: dict[str, int] = field(default_factory=dict)  # step of the newest passed check by layer; 0 without one
    wrong_layer: str = ""  # layer that computes wrong results; empty if there is none

    @property
    def trusted_steps(self) -> int:
        """Largest step after which the weights contain no wrong result.

        Wrong results are assumed to last: a passed check shows that the earlier steps of the layer were correct.
        """
        if self.wrong_layer:
            return self.passed.get(self.wrong_layer, 0)
        return min(self.passed.values(), default=0)

    def up_to(self, steps: int, layers: Iterable[str]) -> "SelfCheckRecord":
        """Return the record of `layers` for a training that is resumed after `steps`."""
        return SelfCheckRecord({layer: min(self.passed.get(layer, 0), steps) for layer in layers})


def record_file(run: Path, rank: int) -> Path:
    """Return the path of the record of a rank. Each rank checks its own device."""
    path = run / SELF_CHECK_FILE
    return path.with_stem(f"{path.stem}{rank_suffix(rank)}")


def read_self_check(path: Path) -> SelfCheckRecord:
    """Return the content of a file; an empty record if the file is missing or damaged."""
    return read_record(path, SelfCheckRecord) or SelfCheckRecord()


def remove_other_ranks(run: Path, ranks: int) -> None:
    """Delete the records of ranks that the training no longer has."""
    for path in set(_record_files(run)) - {record_file(run, rank) for rank in range(ranks)}:
        path.unlink(missing_ok=True)


def trusted_steps(run: Path) -> int | None:
    """Return the step after which every layer of every rank has passed a check; None without a record."""
    return min((read_self_check(path).trusted_steps for path in _record_files(run)), default=None)


def has_wrong_result(run: Path) -> bool:
    """Return whether a self-check has found a wrong result, and the checkpoints are not yet set aside."""
    return any(read_self_check(path).wrong_layer for path in _record_files(run))


def set_aside_suspects(run: Path) -> list[str]:
    """Rename the checkpoints that were saved after the last passed check of the wrong layer; return their names.

    Without a record of a wrong layer, this is the layer whose last passed check is the oldest one. The records of all
    ranks then describe the remaining checkpoints.
    """
    records = {path: read_self_check(path) for path in _record_files(run)}
    with_wrong_layer = [record for record in records.values() if record.wrong_layer]
    trusted = min((record.trusted_steps for record in with_wrong_layer or records.values()), default=0)
    names = []
    for path in sorted((run / CHECKPOINTS).rglob(CHECKPOINT_PATTERN)):
        checksum = path.with_name(path.name + CHECKSUM_SUFFIX)
        steps = steps_in(checksum)
        if steps is not None and steps <= trusted:
            continue
        with suppress(FileNotFoundError):  # another rank renames the same files
            path.rename(path.with_name(path.name + SUSPECT_SUFFIX))
        checksum.unlink(missing_ok=True)
        names.append(path.name)
    for path, record in records.items():
        write_json(path, asdict(record.up_to(trusted, record.passed)), indent=None)
    return names


def _record_files(run: Path) -> list[Path]:
    stem = Path(SELF_CHECK_FILE).stem
    return sorted(path for path in run.glob(f"{stem}*.json") if re.fullmatch(rf"{stem}(-rank\d+)?\.json", path.name))
