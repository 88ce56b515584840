"""The LightningModule: names the steps and holds no maths."""

from dataclasses import fields
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from yolo_lightning.backend import (
    Activations,
    Convolution,
    FoldedGraph,
    MemoryFormat,
    PlanKind,
    arrange,
    choose_convolution,
    make_plan,
)
from yolo_lightning.batch import Batch, Prediction, Target, targets
from yolo_lightning.data.ltdv2 import CLASS_NAMES
from yolo_lightning.graph import Variant, build_graph, head_class_width, set_loss_gains
from yolo_lightning.loss import DetectionLoss
from yolo_lightning.optim import Recipe, Settings, parameter_groups, scaled_weight_decay, settings_at
from yolo_lightning.postprocess import predictions

Evaluation = dict[str, list[Prediction] | list[Target]]
"""Output of a validation or test step: `preds` and `targets`, frame by frame."""


class YOLOModule(LightningModule):
    """YOLOv8 with its own recipe: SGD with warm-up, gradients summed to the nominal batch, clipped.

    Optimisation is manual, because Lightning averages accumulated gradients and forces an update at an epoch's end,
    where YOLOv8 sums them and carries them over. Learning rate, momentum and decay are set anew in every step from the
    position alone, so a resumed run follows the values of today's command line.

    Args:
        variant: Size of the network.
        class_names: Names of the classes, index 0 first. The command line takes them from the data.
        conv: `gemm` computes convolutions and batch normalisation without a vendor library; `native` is PyTorch's;
            `auto` takes native where a trial in a child process shows that it works on the device, and is not slower.
        probe_timeout_s: Seconds after which the trial of `auto` counts as hung, above 0. What it found is remembered.
        activations: `keep` or `recompute`: keep fewer maps for the backward pass and compute them again, for memory.
        memory_format: `contiguous` or `channels_last` weights and maps; `auto` takes what suits the convolution.
        conv_plan: How `gemm` chooses algorithms: `fixed` by a table, `timed` by measuring at first use, `fused` by the
            table too, with a kernel of our own, compiled at first use, where a GPU can run it.
        conv_plan_budget_s: Seconds that a process may spend on timing, 0 or more.
        weights: Ultralytics `.pt` or own `.ckpt` file to start from; null starts from random weights.
        class_width: Channels of the hidden class layers; null takes what the classes or the weights imply.
        lr0: Learning rate after warm-up.
        lrf: Share of `lr0` left at the end, 0 to 1.
        momentum: SGD momentum after warm-up.
        weight_decay: L2 decay of convolution weights at the nominal batch.
        warmup_epochs: Length of the warm-up, epochs.
        warmup_momentum: Momentum at the start of the warm-up.
        warmup_bias_lr: Learning rate of biases at the start of the warm-up.
        cosine: Decay the learning rate along a half cosine instead of a line.
        nominal_batch: Frames whose gradients make one update.
        clip_norm: Gradients are scaled down to this L2 norm; 0 switches it off.
        box_gain: Weight of the box loss.
        cls_gain: Weight of the class loss.
        dfl_gain: Weight of the distribution focal loss.
        confidence: Detections must score more than this, 0 to 1.
        overlap: Intersection over union above which the weaker of two boxes of a class goes, 0 to 1.
        max_detections: Detections kept per frame.

    Raises:
        ValueError: If a value is out of range or `weights` cannot be used.
    """

    def __init__(
        self,
        variant: Variant = "yolov8n",
        class_names: tuple[str, ...] = CLASS_NAMES,
        conv: Convolution = "auto",
        probe_timeout_s: float = 60.0,
        activations: Activations = "keep",
        memory_format: MemoryFormat = "auto",
        conv_plan: PlanKind = "fixed",
        conv_plan_budget_s: float = 60.0,
        weights: str | None = None,
        class_width: int | None = None,
        lr0: float = 0.01,
        lrf: float = 0.01,
        momentum: float = 0.937,
        weight_decay: float = 5e-4,
        warmup_epochs: float = 3.0,
        warmup_momentum: float = 0.8,
        warmup_bias_lr: float = 0.1,
        cosine: bool = False,
        nominal_batch: int = 64,
        clip_norm: float = 10.0,
        box_gain: float = 7.5,
        cls_gain: float = 0.5,
        dfl_gain: float = 1.5,
        confidence: float = 0.001,
        overlap: float = 0.7,
        max_detections: int = 300,
    ) -> None:
        super().__init__()
        for name, value in (("confidence", confidence), ("overlap", overlap)):
            if not 0 <= value <= 1:
                raise ValueError(f"model.{name} is {value}, allowed are 0 to 1")
        if max_detections < 1:
            raise ValueError(f"model.max_detections is {max_detections}, allowed are 1 and more")
        if not probe_timeout_s > 0:
            raise ValueError(f"model.probe_timeout_s is {probe_timeout_s}, allowed are values above 0")
        self.save_hyperparameters(ignore="weights")
        self.automatic_optimization = False
        self.recipe = Recipe(**{field.name: self.hparams[field.name] for field in fields(Recipe)})
        self._plan = make_plan(conv_plan, conv_plan_budget_s)
        self.graph = build_graph(
            variant, tuple(class_names), conv, weights, class_width, activations, self._plan, memory_format
        )
        self._folded_graph: FoldedGraph | None = None
        self.hparams["class_names"] = list(class_names)
        self.hparams["class_width"] = head_class_width(self.graph)
        set_loss_gains(self.graph, box=box_gain, cls=cls_gain, dfl=dfl_gain)
        self.detection_loss = DetectionLoss(self.graph)
        self._steps = 0
        self._pending_steps = 0
        self._pending_gradients: dict[str, Tensor] = {}

    def setup(self, stage: str) -> None:
        """Choose the convolution, where the user has not: the device is known from here on."""
        if self.hparams["conv"] != "auto":
            return
        strategy = self.trainer.strategy
        chosen: Convolution = "native"
        if self.trainer.is_global_zero:  # one trial decides for all processes; several would slow each other
            chosen = choose_convolution(strategy.root_device, self.hparams["probe_timeout_s"])
        chosen = strategy.broadcast(chosen)
        arrange(self.graph, chosen, self.hparams["activations"], self._plan, self.hparams["memory_format"])

    def forward(self, images: Tensor) -> Any:
        """Raw predictions for `(B, 1 or 3, H, W)` uint8 images; gray counts as three equal channels."""
        return self.graph(self._as_input(images))

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """One step; the optimizer updates when enough gradients are summed."""
        settings = self._apply_settings(batch_idx)
        total, parts = self.detection_loss(self(batch.images), batch)
        self.manual_backward(total)
        self._pending_steps += 1
        if self._pending_steps >= settings.accumulate:
            optimizer = self.optimizers()
            assert not isinstance(optimizer, list)
            optimizer.step()
            optimizer.zero_grad()
            self._pending_steps = 0
        self.log("train/loss", total.detach() / len(batch), prog_bar=True, batch_size=len(batch))
        self.log_dict({f"train/{name}": part for name, part in parts.items()}, batch_size=len(batch))
        self.log_dict({f"lr/{group}": rate for group, rate in settings.learning_rates.items()}, batch_size=len(batch))

    def validation_step(self, batch: Batch, batch_idx: int) -> Evaluation:
        """Loss and predictions of one batch of letterboxed frames."""
        return self._evaluate(batch, "val")

    def test_step(self, batch: Batch, batch_idx: int) -> Evaluation:
        """As `validation_step`, on the test split."""
        return self._evaluate(batch, "test")

    def predict_step(self, batch: Batch, batch_idx: int) -> list[Prediction]:
        """Predictions of one batch of letterboxed frames."""
        return self._predict(self._infer(batch.images), batch)

    def on_validation_epoch_start(self) -> None:
        """Fold normalisation into convolutions, except within a fit: the weights have their final values by now."""
        self._folded_graph = None if self.trainer.state.fn == "fit" else FoldedGraph(self.graph)

    on_test_epoch_start = on_validation_epoch_start
    on_predict_epoch_start = on_validation_epoch_start

    def on_validation_epoch_end(self) -> None:
        """Drop the folded copy."""
        self._folded_graph = None

    on_test_epoch_end = on_validation_epoch_end
    on_predict_epoch_end = on_validation_epoch_end

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD with Nesterov momentum; rates and decay are set before every step."""
        return torch.optim.SGD(
            parameter_groups(self.graph, self.recipe.weight_decay),
            lr=self.recipe.lr0,
            momentum=self.recipe.momentum,
            nesterov=True,
        )

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Clip the summed gradients; under mixed precision they are unscaled by now."""
        if self.recipe.clip_norm:
            clip_grad_norm_(self.graph.parameters(), self.recipe.clip_norm)

    def on_fit_start(self) -> None:
        """Refuse a training whose length, and so whose schedule, is unknown, and a network that lost its activations.

        Raises:
            ValueError: If `trainer.max_epochs` or `trainer.sync_batchnorm` is not allowed.
        """
        if self.trainer.max_epochs is None or self.trainer.max_epochs < 1:
            raise ValueError(f"trainer.max_epochs is {self.trainer.max_epochs}, the schedule needs 1 or more")
        # Lightning's conversion replaces a layer that joins normalisation and activation by normalisation alone.
        is_synchronised = any(isinstance(layer, nn.SyncBatchNorm) for layer in self.graph.modules())
        if is_synchronised and self.hparams["activations"] == "recompute":
            raise ValueError("trainer.sync_batchnorm is true, with model.activations recompute allowed is false")

    def on_train_start(self) -> None:
        """Put back the gradients that a checkpoint between two updates held."""
        for name, parameter in self.graph.named_parameters():
            if name in self._pending_gradients:
                parameter.grad = self._pending_gradients[name].to(parameter)
        self._pending_gradients = {}

    def on_validation_model_zero_grad(self) -> None:
        """Keep the gradients: they are carried across an epoch's end, while Lightning would drop them here."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the gradients summed since the last update: a resumed run continues between two updates too."""
        gradients = {name: parameter.grad for name, parameter in self.graph.named_parameters()}
        checkpoint["accumulation"] = {
            "steps": self._pending_steps,
            "gradients": {name: gradient for name, gradient in gradients.items() if gradient is not None},
        }
        checkpoint["steps"] = self._steps

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check that the checkpoint is of this network, and keep its summed gradients until training starts.

        Raises:
            ValueError: If variant or classes differ.
        """
        saved = checkpoint.get("hyper_parameters", {})
        for name in ("variant", "class_names"):
            if name in saved and saved[name] != self.hparams[name]:
                raise ValueError(f"the checkpoint has model.{name} {saved[name]}, this model has {self.hparams[name]}")
        accumulation = checkpoint.get("accumulation", {"steps": 0, "gradients": {}})
        self._steps = checkpoint.get("steps", 0)
        self._pending_steps = accumulation["steps"]
        self._pending_gradients = accumulation["gradients"]

    def _apply_settings(self, batch_idx: int) -> Settings:
        assert self.trainer.max_epochs is not None
        batch_size = self.trainer.datamodule.batch_size * self.trainer.world_size  # type: ignore[attr-defined]
        steps_per_epoch = int(self.trainer.num_training_batches)
        step = self.current_epoch * steps_per_epoch + batch_idx
        self._steps = step + 1
        settings = settings_at(
            self.recipe,
            step=step,
            epoch=self.current_epoch,
            epochs=self.trainer.max_epochs,
            steps_per_epoch=steps_per_epoch,
            batch_size=batch_size,
        )
        weight_decay = scaled_weight_decay(self.recipe, batch_size)
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] = settings.learning_rates[group["name"]]
            group["momentum"] = settings.momentum
            group["weight_decay"] = weight_decay if group["name"] == "weight" else 0.0
        return settings

    def _as_input(self, images: Tensor) -> Tensor:
        return images.to(next(self.graph.parameters()).dtype) / 255

    def _infer(self, images: Tensor) -> Any:
        network = self._folded_graph or self.graph
        return network(self._as_input(images))

    def _evaluate(self, batch: Batch, stage: str) -> Evaluation:
        raw = self._infer(batch.images)
        _, parts = self.detection_loss(raw, batch)
        self.log_dict({f"{stage}/{name}": part for name, part in parts.items()}, batch_size=len(batch), sync_dist=True)
        return {"preds": self._predict(raw, batch), "targets": targets(batch)}

    def _predict(self, raw: Any, batch: Batch) -> list[Prediction]:
        return predictions(
            raw,
            batch,
            confidence=self.hparams["confidence"],
            overlap=self.hparams["overlap"],
            max_detections=self.hparams["max_detections"],
        )
