"""Judgement of a change by the scores on both halves of the validation clips, as a table."""

from dataclasses import dataclass

from yolo_lightning.commands.command_line import wide_console
from yolo_lightning.commands.sweep.sweep_scores import SettingScores
from yolo_lightning.evaluation.score_table import number_table, score_text

PARTS = ("all", "half 1", "half 2")
COLUMNS = ("map_50", "cov", "balanced")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Scores without a change (`before`) and with it (`after`): of all frames, then of the halves."""

    before: list[SettingScores]
    after: list[SettingScores]

    @property
    def is_better(self) -> bool:
        """Whether the balanced score is higher on each half; on all frames if the split cannot be halved."""
        pairs = zip(self.after[1:] or self.after, self.before[1:] or self.before, strict=True)
        return all(one.rank() > other.rank() for one, other in pairs)

    @property
    def where(self) -> str:
        return "both halves" if len(self.before) > 1 else "all frames, because no month has two clips"

    def show(self, change: str) -> None:
        """Print a table; `change` is the heading of the rows with the change."""
        table = number_table("frames", COLUMNS)
        for name, own in {"before": self.before, change: self.after}.items():
            for part, one in zip(PARTS, own, strict=False):
                table.add_row(f"{part}, {name}", *map(score_text, one.named().values()))
        wide_console().print(table)
