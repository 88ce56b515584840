"""The LightningModule: names the steps and holds no maths. A third of its lines are arguments: the command line's."""

from dataclasses import fields
from functools import partial
from typing import Any, Self

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from yolo_lightning.checkpoints.checkpoint_file import INPUT
from yolo_lightning.data.batch import Batch, Prediction, Target, targets
from yolo_lightning.data.formats.ltdv2 import CLASS_NAMES
from yolo_lightning.model.graph import Variant, build_graph, head_class_width, set_loss_gains
from yolo_lightning.model.layers import (
    ConvAlgorithm,
    Convolution,
    FoldedGraph,
    MemoryFormat,
    arrange,
    choose_convolution,
    make_plan,
)
from yolo_lightning.model.loss import DetectionLoss, class_weights
from yolo_lightning.model.network_settings import input_record
from yolo_lightning.model.postprocess import predictions
from yolo_lightning.model.tta import augmented
from yolo_lightning.training import (
    Accumulation,
    Freeze,
    OptimizerChoice,
    OptimizerSettings,
    Recipe,
    apply_settings,
    check_same_optimizer,
    freeze_parts,
    keep_norms_frozen,
    optimizer_maker,
    parameter_groups,
    scaled_weight_decay,
    settings_at,
)
from yolo_lightning.training.device_transforms import ONE_CLASS, as_one_class, resized, training_size
from yolo_lightning.training.guarded_step import GuardedStep, Processes
from yolo_lightning.training.nonfinite import NonFiniteAction, NonFiniteGuard, Patience
from yolo_lightning.training.rollback import go_back
from yolo_lightning.utils.host import keep_freed_memory
from yolo_lightning.utils.loop_position import place_in_schedule, steps_begun

Evaluation = dict[str, list[Prediction] | list[Target]]
"""Output of a validation or test step: `preds` and `targets`, frame by frame."""

OF_TRAINING_ONLY = (
    *("weights", "freeze", "optimizer", "class_weight_power", "multi_scale"),
    *("max_consecutive_nonfinite", "max_rollbacks", "rollback_lr_factor", "max_oom_splits"),
)
"""Arguments that a checkpoint need not remember to rebuild the network."""


class YOLOModule(LightningModule):
    """YOLOv8 with its own recipe: warm-up, gradients summed to the nominal batch, clipped.

    Optimisation is manual, because Lightning averages accumulated gradients and forces an update at an epoch's end,
    where YOLOv8 sums them and carries them over. Learning rate, momentum and decay are set anew in every step from the
    position alone, so a resumed run follows the values of today's command line.

    Args:
        variant: Size of the network.
        class_names: Names of the classes, index 0 first. The command line takes them from the data.
        conv_backend: Convolution implementation. `gemm` needs no vendor library; `native` is PyTorch's own; `auto` uses
            native if a test in a child process shows that it works on the device and is not slower.
        probe_timeout_s: Seconds after which the trial of `auto` counts as hung, above 0. What it found is remembered.
        activation_checkpointing: Store fewer maps for the backward pass and recompute them: less memory, more time.
        memory_format: `contiguous` or `channels_last` weights and maps; `auto` takes what suits the convolution.
        conv_algorithm: Algorithm choice of `gemm`. `table` uses a fixed table; `autotune` measures candidates at first
            use; `compiled` is `table` with kernels that are compiled at first use, if a GPU or C++ compiler is found.
        conv_algorithm_budget_s: Time limit in seconds for the measurements of `autotune`, per process, >= 0.
        weights: Ultralytics `.pt` or own `.ckpt` file to start from; null starts from random weights.
        allow_pickle: Open a `.pt` file of `weights` even if it refers to code of neither PyTorch nor Ultralytics.
        class_width: Channels of the hidden class layers; null takes what the classes or the weights imply.
        single_class: All classes count as one, `object`.
        freeze: The first n layers, or a list of layers by number (0 to 22) and parts by name (`22.cv3`), that keep
            their weights and the statistics of their normalisation.
        optimizer: SGD (Nesterov), Adam, AdamW, Adamax, NAdam, RAdam or RMSprop, with Ultralytics' arguments; or the
            path of an optimizer class with its own. Learning rate, decay and momentum come from the arguments below.
        lr0: Learning rate after warm-up.
        lrf: Share of `lr0` left at the end, 0 to 1.
        momentum: Momentum after warm-up; for Adam's family the first beta, without warm-up.
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
        class_weight_power: Class loss is weighted by (1 / boxes of the class)^power, mean 1; 0 to 1, 0 is off.
        multi_scale: The input of each step is up to this share smaller or larger, 0 up to but not 1; 0 is off.
        max_consecutive_nonfinite: Number of consecutive batches with a non-finite loss, or optimizer steps with a
            non-finite gradient, that are skipped before the newest checkpoint with finite weights is restored.
        max_rollbacks: How often; once more ends the training.
        rollback_lr_factor: What learning rates are multiplied by from each time on, above 0 up to 1.
        max_oom_splits: Number of times that an out-of-memory error halves the number of images computed at once; the
            gradients of the parts are summed. 0 makes the error fatal. Not supported with several ranks.
        score_threshold: Detections must score more than this, 0 to 1.
        iou_threshold: Intersection over union above which the weaker of two boxes of a class goes, 0 to 1.
        max_detections: Detections kept per frame.
        class_agnostic: Whether boxes of different classes suppress each other, too.
        tta: Whether `validate`, `test` and `predict` show each frame six times, mirrored and scaled, and suppress
            what was found in all of them together: 4.3 times the work. Not in the validations of a fit.

    Raises:
        ValueError: If a value is out of range or `weights` cannot be used.
    """

    def __init__(
        self,
        variant: Variant = "yolov8n",
        class_names: tuple[str, ...] = CLASS_NAMES,
        conv_backend: Convolution = "auto",
        probe_timeout_s: float = 60.0,
        activation_checkpointing: bool = False,
        memory_format: MemoryFormat = "auto",
        conv_algorithm: ConvAlgorithm = "table",
        conv_algorithm_budget_s: float = 60.0,
        weights: str | None = None,
        allow_pickle: bool = False,
        class_width: int | None = None,
        single_class: bool = False,
        freeze: Freeze = 0,
        optimizer: OptimizerChoice = "SGD",
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
        class_weight_power: float = 0.0,
        multi_scale: float = 0.0,
        max_consecutive_nonfinite: int = 5,
        max_rollbacks: int = 3,
        rollback_lr_factor: float = 0.5,
        max_oom_splits: int = 1,
        score_threshold: float = 0.001,
        iou_threshold: float = 0.7,
        max_detections: int = 300,
        class_agnostic: bool = False,
        tta: bool = False,
    ) -> None:
        super().__init__()
        shares = {
            "score_threshold": score_threshold,
            "iou_threshold": iou_threshold,
            "class_weight_power": class_weight_power,
        }
        for name, value in shares.items():
            if not 0 <= value <= 1:
                raise ValueError(f"model.{name} is {value}, allowed are 0 to 1")
        if single_class and class_weight_power:
            raise ValueError(
                f"model.class_weight_power is {class_weight_power}, with model.single_class true allowed is 0"
            )
        if not 0 <= multi_scale < 1:
            raise ValueError(f"model.multi_scale is {multi_scale}, allowed are 0 up to but not 1")
        if max_detections < 1:
            raise ValueError(f"model.max_detections is {max_detections}, allowed are 1 and more")
        if not probe_timeout_s > 0:
            raise ValueError(f"model.probe_timeout_s is {probe_timeout_s}, allowed are values above 0")
        self.save_hyperparameters(ignore=(*OF_TRAINING_ONLY, "tta"))
        self._augment = tta
        self.automatic_optimization = False
        self.recipe = Recipe(**{field.name: self.hparams[field.name] for field in fields(Recipe)})
        self._make_optimizer = optimizer_maker(optimizer, self.recipe)
        self._class_weight_power, self._multi_scale = class_weight_power, multi_scale
        self._plan = make_plan(conv_algorithm, conv_algorithm_budget_s)
        names = (ONE_CLASS,) if single_class else tuple(class_names)
        self.graph = build_graph(
            variant,
            names,
            conv_backend,
            weights,
            class_width,
            activation_checkpointing,
            self._plan,
            memory_format,
            allow_pickle,
        )
        self._frozen = freeze_parts(self.graph, freeze)
        keep_norms_frozen(self.graph, self._frozen)
        self._folded_graph: FoldedGraph | None = None
        self.hparams["class_names"] = list(names)
        self.hparams["class_width"] = head_class_width(self.graph)
        set_loss_gains(self.graph, box=box_gain, cls=cls_gain, dfl=dfl_gain)
        self.detection_loss = DetectionLoss(self.graph)
        self._steps = 0
        self._accumulation = Accumulation()
        self._guard = NonFiniteGuard(Patience(max_consecutive_nonfinite, max_rollbacks, rollback_lr_factor))
        self._guarded_step = GuardedStep(self._compute, self.manual_backward, max_oom_splits)
        self._saved_optimizer: str | None = None
        self._input: dict[str, Any] = {}

    def setup(self, stage: str) -> None:
        """Choose the convolution, where the user has not: the device is known from here on."""
        strategy = self.trainer.strategy
        if strategy.root_device.type == "cpu":
            keep_freed_memory()
        if self.hparams["conv_backend"] != "auto":
            return
        chosen: Convolution = "native"
        if self.trainer.is_global_zero:  # one trial decides for all processes; several would slow each other
            chosen = choose_convolution(strategy.root_device, self.hparams["probe_timeout_s"])
        chosen = strategy.broadcast(chosen)
        settings = self.hparams
        arrange(self.graph, chosen, settings["activation_checkpointing"], self._plan, settings["memory_format"])

    def forward(self, images: Tensor) -> Any:
        """Raw predictions for `(B, 1 or 3, H, W)` uint8 images; gray counts as three equal channels."""
        return self.graph(self._as_input(images))

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """One step; the optimizer updates when enough gradients are summed."""
        settings = self._apply_settings(batch_idx)
        self._input = input_record(batch.images.shape[1], max(batch.images.shape[-2:]))
        batch = self._relabelled(batch)
        losses = self._guarded_step.run(batch, self._processes())
        verdict = self._guard.see_loss(losses.is_finite, batch.image_ids, self._steps, losses.parts)
        if losses.is_finite:
            self._accumulation.steps += 1
            if self._accumulation.steps >= settings.accumulate:
                verdict = self._update()
        if verdict is NonFiniteAction.GO_BACK:
            self._go_back()
        self.log("train/loss", losses.total / len(batch), prog_bar=True, batch_size=len(batch))
        self.log_dict({f"train/{name}": part for name, part in losses.parts.items()}, batch_size=len(batch))
        self.log("train/skipped", float(self._guard.tally.skipped), batch_size=len(batch))
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
        """The chosen optimizer; rates and decay are set before every step.

        Raises:
            ValueError: If it is not allowed, or the checkpoint to continue from was trained with another one.
        """
        groups = parameter_groups(self.graph, self.recipe.weight_decay)
        optimizer = self._make_optimizer(groups, scaled=self._trainer is not None and self.trainer.scaler is not None)
        check_same_optimizer(self._saved_optimizer, optimizer)
        return optimizer

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Clip the summed gradients where a scaler has only now unscaled them; else `_update` has done so."""
        if self.trainer.scaler is not None and self.recipe.clip_norm:
            clip_grad_norm_(self.graph.parameters(), self.recipe.clip_norm)

    def on_fit_start(self) -> None:
        """Refuse a training whose length, and so whose schedule, is unknown, and what several processes cannot do.

        Raises:
            ValueError: If `trainer.max_epochs`, `trainer.strategy` or `trainer.sync_batchnorm` is not allowed.
        """
        if self.trainer.max_epochs is None or self.trainer.max_epochs < 1:
            raise ValueError(f"trainer.max_epochs is {self.trainer.max_epochs}, the schedule needs 1 or more")
        if self.trainer.world_size > 1 and not isinstance(self.trainer.strategy, DDPStrategy):
            strategy = type(self.trainer.strategy).__name__
            raise ValueError(f"trainer.strategy is {strategy}, with several processes allowed is ddp")
        # Lightning's conversion replaces a layer that joins normalisation and activation by normalisation alone.
        is_synchronised = any(isinstance(layer, nn.SyncBatchNorm) for layer in self.graph.modules())
        if is_synchronised and self.hparams["activation_checkpointing"]:
            raise ValueError("trainer.sync_batchnorm must be false if model.activation_checkpointing is true")
        if is_synchronised and self.device.type == "cpu":
            raise ValueError("trainer.sync_batchnorm is true, on a CPU, for which PyTorch has none, allowed is false")

    def on_train_start(self) -> None:
        """Put back the gradients that a checkpoint between two updates held; weigh the classes of the data."""
        self._accumulation.restore(self.graph.named_parameters(), self.trainer.scaler)
        self._guarded_step.watch(self.graph)
        if self._class_weight_power:
            labels = self.trainer.datamodule.index("train").all_labels()  # type: ignore[attr-defined]
            classes = len(self.hparams["class_names"])
            self.detection_loss.class_weights = class_weights(labels, classes, self._class_weight_power)

    def train(self, mode: bool = True) -> Self:
        """Training or evaluation mode; the normalisation of frozen parts never leaves evaluation."""
        super().train(mode)
        keep_norms_frozen(self.graph, self._frozen)
        return self

    def on_validation_model_zero_grad(self) -> None:
        """Keep the gradients: they are carried across an epoch's end, while Lightning would drop them here."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the gradients summed since the last update, for a resume between two updates, and the input's form."""
        checkpoint["accumulation"] = self._accumulation.state(self.graph.named_parameters(), self.trainer.scaler)
        checkpoint["steps"] = self._steps
        checkpoint[INPUT] = self._input
        checkpoint["nonfinite"] = self._guard.state()
        checkpoint["halving"] = self._guarded_step.state()
        checkpoint["optimizer"] = type(self.trainer.optimizers[0]).__name__

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check that the checkpoint is of this network, and keep its summed gradients until training starts.

        Raises:
            ValueError: If variant or classes differ.
        """
        saved = checkpoint.get("hyper_parameters", {})
        for name in ("variant", "class_names"):
            if name in saved and saved[name] != self.hparams[name]:
                raise ValueError(f"the checkpoint has model.{name} {saved[name]}, this model has {self.hparams[name]}")
        self._saved_optimizer = checkpoint.get("optimizer")
        self._steps = checkpoint.get("steps", 0)
        self._input = checkpoint.get(INPUT, {})
        self._guard.load(checkpoint.get("nonfinite", {}))
        self._guarded_step.load(checkpoint.get("halving", self._guarded_step.state()))
        self._accumulation.load(checkpoint.get("accumulation", {"steps": 0, "gradients": {}}))

    def _apply_settings(self, batch_idx: int) -> OptimizerSettings:
        assert self.trainer.max_epochs is not None
        batch_size = self.trainer.datamodule.batch_size * self.trainer.world_size  # type: ignore[attr-defined]
        steps_per_epoch = int(self.trainer.num_training_batches)
        self._steps = steps_begun(self.trainer)
        settings = settings_at(
            self.recipe,
            step=place_in_schedule(self.trainer, batch_idx),
            epoch=self.current_epoch,
            epochs=self.trainer.max_epochs,
            steps_per_epoch=steps_per_epoch,
            batch_size=batch_size,
        ).slowed(self._guard.learning_rate_factor)
        apply_settings(self.trainer.optimizers[0], settings, scaled_weight_decay(self.recipe, batch_size))
        return settings

    def _processes(self) -> Processes:
        return Processes(self.trainer.world_size, partial(self.trainer.strategy.reduce, reduce_op="sum"))

    def _compute(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        raw = self.graph(self._training_input(batch.images))
        total, parts = self.detection_loss(raw, batch)
        if self.trainer.world_size > 1:
            total = self.detection_loss.reaching_all_outputs(total, raw)
        return total, parts, self.detection_loss.target_scores

    def _update(self) -> NonFiniteAction:
        """Clip the summed gradients and update, unless they are not finite; a gradient scaler does both itself."""
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        is_finite = True
        if self.trainer.scaler is None:
            norm = clip_grad_norm_(self.graph.parameters(), self.recipe.clip_norm or float("inf"))
            is_finite = bool(norm.isfinite())
        if is_finite:
            optimizer.step()
        self._drop_gradients()
        return self._guard.see_gradient(is_finite, self._steps)

    def _go_back(self) -> None:
        self._drop_gradients()
        path = go_back(self.trainer, self)
        restored = f"weights, optimizer and average are those of {path}" if path else "there is no good checkpoint yet"
        rank_zero_warn(
            f"{restored}; learning rates are multiplied by {self._guard.learning_rate_factor:g} from here on"
        )

    def _drop_gradients(self) -> None:
        for parameter in self.graph.parameters():
            parameter.grad = None
        self._accumulation.steps = 0

    def _relabelled(self, batch: Batch) -> Batch:
        return as_one_class(batch) if self.hparams["single_class"] else batch

    def _training_input(self, images: Tensor) -> Tensor:
        images = self._as_input(images)
        if not self._multi_scale:
            return images
        seed = self.trainer.datamodule.seed  # type: ignore[attr-defined]
        return resized(images, training_size(max(images.shape[-2:]), self._multi_scale, seed, self._steps - 1))

    def _as_input(self, images: Tensor) -> Tensor:
        return images.to(next(self.graph.parameters()).dtype) / 255

    def _infer(self, images: Tensor) -> Any:
        network = self._folded_graph or self.graph
        return network(self._as_input(images))

    def _evaluate(self, batch: Batch, stage: str) -> Evaluation:
        batch = self._relabelled(batch)
        raw = self._infer(batch.images)
        _, parts = self.detection_loss(raw, batch)
        self.log_dict({f"{stage}/{name}": part for name, part in parts.items()}, batch_size=len(batch), sync_dist=True)
        return {"preds": self._predict(raw, batch), "targets": targets(batch)}

    def _predict(self, raw: Any, batch: Batch) -> list[Prediction]:
        if self._augment and self._folded_graph is not None:  # folded outside a fit only
            raw = (augmented(self._folded_graph, self._as_input(batch.images), raw[0]),)
        return predictions(
            raw,
            batch,
            score_threshold=self.hparams["score_threshold"],
            iou_threshold=self.hparams["iou_threshold"],
            max_detections=self.hparams["max_detections"],
            class_agnostic=self.hparams["class_agnostic"],
        )
