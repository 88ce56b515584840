"""Lightning callback with the hook of the race; our configuration and the Lightning peer use it."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from race.hook import Hook


class RaceHook(Callback):
    """Record every step and the final weights of `pl_module.graph`, and inject NaN into its input."""

    def __init__(self) -> None:
        self.hook = Hook()
        self.step = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        graph: Any = pl_module.graph

        def spoil(graph: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            return (self.hook.images(inputs[0], self.step), *inputs[1:]) if graph.training else inputs

        graph.register_forward_pre_hook(spoil)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.step = trainer.current_epoch * int(trainer.num_training_batches) + batch_idx + 1

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.hook.step(self.step, trainer.callback_metrics["train/loss"])

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        graph: Any = pl_module.graph
        self.hook.finish(graph.state_dict())
