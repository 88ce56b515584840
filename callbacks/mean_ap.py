"""Mean average precision over the whole split at every validation and test."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torchmetrics.detection import MeanAveragePrecision

from yolo_lightning.evaluation.mean_average_precision import new_metric, scores, update
from yolo_lightning.run_folder import SCORES


class MeanAP(Callback):
    """Logs `val/map`, `val/map_50`, ... and, in a test, `test/map`, ...; also per class, as `val/map_50/person`.

    Validation and test steps must return `{"preds": list[Prediction], "targets": list[Target]}`. Scores are computed
    once over all frames: a mean over batches is another number. A test also writes `test_scores.json`. How often there
    is a validation says Trainer's `check_val_every_n_epoch`.
    """

    def __init__(self) -> None:
        self._metric: MeanAveragePrecision | None = None

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start an empty collection, on the CPU."""
        self._metric = new_metric()

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
        update(self._metric, outputs["preds"], outputs["targets"])

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Score and log, except for the sanity check's few frames."""
        if not trainer.sanity_checking:
            self._log(pl_module, "val")
        self._metric = None

    on_test_epoch_start = on_validation_epoch_start
    on_test_batch_end = on_validation_batch_end

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Score, log, and write the scores into the run folder."""
        values = self._log(pl_module, "test")
        if trainer.is_global_zero:
            path = Path(trainer.default_root_dir) / SCORES
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(values, indent=2) + "\n")
        self._metric = None

    def _log(self, pl_module: LightningModule, stage: str) -> dict[str, float]:
        assert self._metric is not None
        class_names: Sequence[str] = pl_module.hparams["class_names"]
        values = {f"{stage}/{name}": value for name, value in scores(self._metric, class_names).items()}
        shown = f"{stage}/map_50"
        pl_module.log(shown, values[shown], prog_bar=True)
        pl_module.log_dict({name: value for name, value in values.items() if name != shown})
        return values
