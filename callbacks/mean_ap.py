"""Mean average precision and its drift over the months, over the whole split, at every validation and test."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import rich
from lightning.pytorch import Callback, LightningModule, Trainer

from yolo_lightning.evaluation.drift import DriftScores, named_scores, organisers_scores
from yolo_lightning.evaluation.metric import DetectionScores
from yolo_lightning.evaluation.score_table import score_table
from yolo_lightning.files import replacing
from yolo_lightning.ranks import gather
from yolo_lightning.run_folder import CHALLENGE_SCORES, SCORES


class MeanAP(Callback):
    """Logs `val/map`, `val/map_50`, `val/balanced`, ... and, in a test, `test/map`, ...; also per class and month.

    Names and definitions are in docs/scores.md; `BestCheckpoint` can watch any of them. Validation and test steps must
    return `{"preds": list[Prediction], "targets": list[Target]}`. Scores are computed once over all frames: a mean over
    batches is another number. `validate` and `test` print a table; `test` also writes `test_scores.json`, and
    `scores.json` as the challenge's organisers write it. How often there is a validation says Trainer's
    `check_val_every_n_epoch`.
    """

    def __init__(self) -> None:
        self._metric: DetectionScores | None = None

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start an empty collection, on the CPU."""
        self._metric = DetectionScores(len(pl_module.hparams["class_names"]), dist_sync_fn=gather)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Collect."""
        assert self._metric is not None
        self._metric.update(outputs["preds"], outputs["targets"])

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Score and log, except for the sanity check's few frames."""
        if not trainer.sanity_checking:
            self._score(trainer, pl_module, "val")
        self._metric = None

    on_test_epoch_start = on_validation_epoch_start
    on_test_batch_end = on_validation_batch_end

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Score, log, and write the scores into the run folder."""
        scores, logged = self._score(trainer, pl_module, "test")
        self._metric = None
        if trainer.is_global_zero:
            folder = Path(trainer.default_root_dir)
            finite = {name: value if math.isfinite(value) else None for name, value in logged.items()}
            write_json(folder / SCORES, finite)
            write_json(folder / CHALLENGE_SCORES, organisers_scores(scores))

    def _score(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> tuple[DriftScores, dict[str, float]]:
        assert self._metric is not None
        class_names = pl_module.hparams["class_names"]
        scores: DriftScores = self._metric.compute()
        logged = {f"{stage}/{name}": value for name, value in named_scores(scores, class_names).items()}
        shown = f"{stage}/map_50"
        pl_module.log(shown, logged[shown], prog_bar=True)
        pl_module.log_dict({name: value for name, value in logged.items() if name != shown})
        if trainer.state.fn != "fit" and trainer.is_global_zero:
            rich.print(score_table(scores, class_names))
        return scores, logged


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write an object for people and programs, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
