"""The trainer of Ultralytics, resumed with `resume=True` if its `last.pt` exists.

https://docs.ultralytics.com/modes/train/#resuming-interrupted-trainings
"""

import os
from pathlib import Path
from typing import Any

from ultralytics import YOLO
from ultralytics.models.yolo.detect import DetectionTrainer

from race.hook import Hook
from race.systems import Training


class RaceTrainer(DetectionTrainer):  # type: ignore[misc]
    """The trainer, with the hook of the race."""

    hook: Hook
    training: Training
    race_step: int

    def get_dataloader(self, *arguments: Any, **options: Any) -> Any:
        self.args.workers = self.training.workers  # Ultralytics sets 0 on a CPU; the other systems have a worker
        return super().get_dataloader(*arguments, **options)

    def preprocess_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        batch = super().preprocess_batch(batch)
        batch["img"] = self.hook.images(batch["img"], self.race_step + 1)
        return batch


def _epoch_starts(trainer: RaceTrainer) -> None:
    trainer.race_step = trainer.epoch * len(trainer.train_loader)


def _batch_ends(trainer: RaceTrainer) -> None:
    trainer.race_step += 1
    trainer.hook.step(trainer.race_step, trainer.loss)


def _training_ends(trainer: RaceTrainer) -> None:
    trainer.hook.finish(trainer.model.state_dict())


def main() -> None:
    """Train, or resume."""
    training = Training.read()
    RaceTrainer.hook, RaceTrainer.training = Hook(), training
    last = Path(training.run_folder) / "train" / "weights" / "last.pt"
    model = YOLO(last if os.path.exists(last) else "yolov8n.yaml")
    model.add_callback("on_train_epoch_start", _epoch_starts)
    model.add_callback("on_train_batch_end", _batch_ends)
    model.add_callback("on_train_end", _training_ends)
    if os.path.exists(last):
        model.train(trainer=RaceTrainer, resume=True)
        return
    model.train(
        trainer=RaceTrainer,
        data=training.yolo_data,
        epochs=training.epochs,
        imgsz=training.image_size,
        batch=training.batch,
        nbs=training.batch,  # every batch is an optimizer step
        workers=training.workers,
        seed=training.seed,
        optimizer="SGD",
        pretrained=False,
        amp=False,
        val=False,
        plots=False,
        device="cpu",
        project=training.run_folder,
        name="train",
        exist_ok=True,
    )


if __name__ == "__main__":
    main()
