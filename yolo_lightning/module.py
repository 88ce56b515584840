"""YOLOModule, the LightningModule: names the steps of training and evaluation; the computations are elsewhere."""

import math
from dataclasses import fields, replace
from functools import partial
from typing import Any, Self

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from yolo_lightning.callbacks.mean_ap import MeanAP
from yolo_lightning.checkpoints.checkpoint_file import INPUT
from yolo_lightning.conv.trial import TrialSettings
from yolo_lightning.data.batch import Batch, Prediction, Target, TrainingFacts, targets
from yolo_lightning.data.formats.ltdv2 import CLASS_NAMES
from yolo_lightning.data.image_size import ImageSize
from yolo_lightning.model import layers
from yolo_lightning.model.graph import (
    INPUT_CHANNELS,
    build_graph,
    check_channels,
    check_one_to_one,
    head_class_width,
    is_same_architecture,
    network_input,
    stored_architecture,
)
from yolo_lightning.model.layers import ConvAlgorithm, Convolution, FoldedGraph, MemoryFormat, graph_stride, of_branch
from yolo_lightning.model.loss import DetectionLoss, class_weights
from yolo_lightning.model.network_settings import input_record
from yolo_lightning.model.postprocess import predictions
from yolo_lightning.model.tta import TTA, check_tta, tta_predictions
from yolo_lightning.training.device_transforms import ONE_CLASS, as_one_class, resized, training_size
from yolo_lightning.training.freezing import Freeze, freeze_parts, keep_norms_frozen
from yolo_lightning.training.guarded_step import Accumulation, GuardedStep, Losses
from yolo_lightning.training.nonfinite import NonFiniteGuard, roll_back
from yolo_lightning.training.optimizers import (
    AUTO_MOMENTUM,
    OptimizerChoice,
    apply_settings,
    automatic,
    check_same_optimizer,
    muon_groups,
    optimizer_maker,
    parameter_groups,
)
from yolo_lightning.training.recipe import (
    OptimizerSettings,
    Recipe,
    scaled_weight_decay,
    settings_at,
)
from yolo_lightning.utils.choices import check_range
from yolo_lightning.utils.host import keep_freed_memory
from yolo_lightning.utils.loop_position import schedule_step, steps_begun
from yolo_lightning.utils.mlflow_files import refuse_file_store

Evaluation = dict[str, list[Prediction] | list[Target]]
"""Output of a validation or test step: `preds` and `targets`, one per frame."""

TRAINING_ARGUMENTS = (
    *("weights", "freeze", "optimizer", "class_weight_power", "multi_scale", "tta"),
    *("max_consecutive_nonfinite", "max_rollbacks", "rollback_lr_factor", "max_oom_splits"),
)
"""Arguments that are not stored in checkpoints, because the network can be rebuilt without them."""

TRIAL_OPTIONS = ("activation_checkpointing", "memory_format", "conv_algorithm", "conv_algorithm_budget_s")
"""Arguments on which the implementation of the layers depends."""


class YOLOModule(LightningModule):
    """A YOLO network with Ultralytics' recipe: warm-up, gradients summed up to the nominal batch, and clipped.

    Optimization is manual: Lightning averages accumulated gradients and forces an update at the end of an epoch, while
    Ultralytics sums them and carries them over. Learning rate, momentum and decay are set before every step from the
    position in training alone, so that a resumed run uses the current options.

    `fit` needs the batch size, and for some options more, from the data module's `training_facts()`. With a plain
    DataLoader over `Batch` the batch size is taken from the loader.

    Args:
        variant: Detection graph of Ultralytics by name, for example yolov8n to yolov8x, yolov8n-p2, yolov9t, yolov10n,
            yolo11n, yolo12n, yolo26n (all: docs/training.md), or the path of a `.yaml` file in Ultralytics' format.
        class_names: Names of the classes, index 0 first. The command line takes them from the data.
        input_channels: Channels of the images: 3 for RGB and gray images, the number of `data.neighbours` if there are
            any. The command line takes it from the data.
        conv_backend: Convolution implementation. `gemm` needs no vendor library; `native` is PyTorch's own. On a CPU,
            `auto` is native in channels_last. On a GPU, `auto` is native if a test in a child process shows that it
            works and is not slower, else gemm.
        probe_timeout_s: Seconds without progress after which the test of `auto` counts as hung, > 0.
        activation_checkpointing: Store fewer activations for the backward pass and recompute the others: less memory,
            more time.
        memory_format: Memory format of weights and activations; `auto` selects the faster one for `conv_backend`.
        conv_algorithm: Algorithm choice of `gemm`. `table` uses a fixed table; `auto` also uses, on a GPU, kernels that
            are compiled and verified at first use; `autotune` measures the candidates of `auto` at first use.
        conv_algorithm_budget_s: Time limit in seconds for the measurements of `autotune`, per process, >= 0.
        weights: Ultralytics `.pt` or own `.ckpt` file with initial weights; null for random weights.
        allow_pickle: Open a `.pt` file of `weights` even if it refers to code of neither PyTorch nor Ultralytics.
        class_width: Channels of the hidden class layers; null for the default for these classes or weights.
        single_class: Train and evaluate all classes as one, `object`.
        freeze: The first n layers, or a list of layer numbers (0 to 22) and names of parts (`22.cv3`), whose weights
            and normalisation statistics are not trained.
        optimizer: SGD (Nesterov), Adam, AdamW, Adamax, NAdam, RAdam, RMSprop or MuSGD, with Ultralytics' arguments; or
            the path of an optimizer class with its arguments. Learning rate, decay and momentum are set by `model.*`.
            `auto` selects as Ultralytics: MuSGD for more than 10,000 updates, else AdamW, and their `lr0`.
        lr0: Learning rate after warm-up, > 0.
        lrf: Final learning rate as a fraction of `lr0`, 0 to 1.
        momentum: Momentum after warm-up, 0 to 1; for Adam's family the first beta, without warm-up.
        weight_decay: L2 decay of convolution weights at the nominal batch, >= 0.
        warmup_epochs: Length of the warm-up, epochs, >= 0.
        warmup_momentum: Momentum at the start of the warm-up, 0 to 1.
        warmup_bias_lr: Learning rate of biases at the start of the warm-up, >= 0.
        cosine: Decay the learning rate along a half cosine instead of a line.
        nominal_batch: Number of images whose gradients are summed into one update, >= 1.
        clip_norm: Largest L2 norm of the summed gradients, >= 0; 0 disables clipping.
        box_gain: Gain of the box loss.
        cls_gain: Gain of the class loss.
        dfl_gain: Gain of the distribution focal loss.
        class_weight_power: Weight the class loss by (1 / boxes of the class)^power, mean 1; 0 to 1, 0 disables it.
        multi_scale: Largest relative difference of the longer side of the input of a step from that of the image size,
            >= 0 and < 1; 0 disables it.
        max_consecutive_nonfinite: Number of consecutive batches with a non-finite loss, or optimizer steps with a
            non-finite gradient, that are skipped before the newest checkpoint with finite weights is restored.
        max_rollbacks: Number of restored checkpoints after which the next rollback ends the training, >= 0.
        rollback_lr_factor: Factor of all learning rates after each rollback, > 0 and <= 1.
        max_oom_splits: Number of times that an out-of-memory error halves the number of images computed at once; the
            gradients of the parts are summed. 0 makes the error fatal. Not supported with several ranks.
        score_threshold: Detections with a score above this are kept, 0 to 1.
        iou_threshold: IoU above which the box of the same class with the lower score is suppressed, 0 to 1.
        max_detections: Detections kept per frame, >= 1.
        class_agnostic: Whether boxes of different classes suppress each other.
        one_to_one: Evaluate the one-to-one branch of the head (yolov10, yolo26), which needs no suppression, instead of
            the one-to-many branch. Training uses both.
        tta: Test-time augmentation in `validate`, `test` and `predict`: six scaled and mirrored copies of each frame
            and one joint suppression, at 4.3 times the cost; with `fusion` weighted boxes fusion of the copies'
            detections. Not used in the validations of a fit.

    Raises:
        ValueError: If a value is out of range or `weights` cannot be used.
    """

    def __init__(
        self,
        variant: str = "yolov8n",
        class_names: tuple[str, ...] = CLASS_NAMES,
        input_channels: int = INPUT_CHANNELS,
        conv_backend: Convolution = "auto",
        probe_timeout_s: float = 60.0,
        activation_checkpointing: bool = False,
        memory_format: MemoryFormat = "auto",
        conv_algorithm: ConvAlgorithm = "auto",
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
        one_to_one: bool = False,
        tta: TTA = False,
    ) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=TRAINING_ARGUMENTS)
        check_range("model.score_threshold", score_threshold, ">= 0", "<= 1")
        check_range("model.iou_threshold", iou_threshold, ">= 0", "<= 1")
        check_range("model.class_weight_power", class_weight_power, ">= 0", "<= 1")
        check_range("model.multi_scale", multi_scale, ">= 0", "< 1")
        check_range("model.max_detections", max_detections, ">= 1")
        check_tta("model.tta", tta)
        check_range("model.probe_timeout_s", probe_timeout_s, "> 0")
        if single_class and class_weight_power:
            raise ValueError(f"model.class_weight_power must be 0 with model.single_class, got {class_weight_power}")
        self.automatic_optimization = False
        self.recipe = Recipe(**{field.name: self.hparams[field.name] for field in fields(Recipe)})
        # The function of a class path must not be an attribute: copies of the module would copy what it refers to.
        self._optimizer_name = optimizer if isinstance(optimizer, str) else None
        self._make_optimizer = None if optimizer == "auto" else optimizer_maker(optimizer, self.recipe)
        self._class_weight_power, self._multi_scale, self._tta = class_weight_power, multi_scale, tta
        self._arrange = partial(
            layers.arrange,
            activation_checkpointing=activation_checkpointing,
            plan=layers.make_plan(conv_algorithm, conv_algorithm_budget_s),
            memory_format=memory_format,
        )
        names = (ONE_CLASS,) if single_class else tuple(class_names)
        self.graph = build_graph(
            variant, names, conv_backend, weights, class_width, allow_pickle, input_channels=input_channels
        )
        self._arrange(self.graph, conv_backend)
        if one_to_one:
            check_one_to_one(self.graph, variant)
        if (architecture := stored_architecture(variant)) is not None:
            self.hparams["architecture"] = architecture
        self.hparams["class_names"] = list(names)
        self.hparams["class_width"] = head_class_width(self.graph)
        self._frozen = freeze_parts(self.graph, freeze)
        keep_norms_frozen(self.graph, self._frozen)
        self.detection_loss = DetectionLoss(self.graph, box_gain, cls_gain, dfl_gain)
        self._accumulation = Accumulation()
        self._guard = NonFiniteGuard(max_consecutive_nonfinite, max_rollbacks, rollback_lr_factor)
        self._guarded_step = GuardedStep(self._compute, self.manual_backward, max_oom_splits)
        self._steps = 0
        self._facts = TrainingFacts(batch_size=1)
        self._folded_graph: FoldedGraph | None = None
        self._saved_optimizer: str | None = None
        self._input_record: dict[str, Any] = {}

    def setup(self, stage: str) -> None:
        """Check the image size, and choose the convolution implementation for `conv_backend` auto.

        Raises:
            ValueError: If the graph does not accept the image size of the training data.
        """
        if stage == "fit" and hasattr(self.trainer.datamodule, "training_facts"):  # type: ignore[attr-defined]
            image_size = TrainingFacts.from_trainer(self.trainer).image_size
            if image_size is not None:
                image_size.check("data.image_size", stride=graph_stride(self.graph))
        strategy = self.trainer.strategy
        if strategy.root_device.type == "cpu":
            keep_freed_memory()
        if self.hparams["conv_backend"] != "auto":
            return
        chosen: tuple[Convolution, MemoryFormat] = "native", self.hparams["memory_format"]
        if self.trainer.is_global_zero:  # one test for all ranks: simultaneous tests would slow each other
            chosen = layers.choose_convolution(
                strategy.root_device,
                self.hparams["probe_timeout_s"],
                self._trial_settings(),
                self.hparams["memory_format"],
            )
        convolution, memory_format = strategy.broadcast(chosen)
        self._arrange(self.graph, convolution, memory_format=memory_format)

    def _trial_settings(self) -> TrialSettings:
        """Return the settings of the test of `conv_backend` auto.

        The test may spend a quarter of its time limit on measurements of `autotune`, which later tests need not repeat.
        """
        options = {name: self.hparams[name] for name in TRIAL_OPTIONS}
        budget_s = min(options["conv_algorithm_budget_s"], self.hparams["probe_timeout_s"] / 4)
        return layers.trial_settings(options | {"conv_algorithm_budget_s": budget_s}, self.trainer.precision)

    def forward(self, images: Tensor) -> Any:
        """Return raw predictions for `(B, 1 or 3, H, W)` uint8 images; gray counts as three equal channels.

        With another `input_channels`, the images have this number of channels.
        """
        return self.graph(self._network_input(images))

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """Add the gradients of one batch, and update the weights when enough gradients are summed."""
        self._steps = steps_begun(self.trainer)
        settings = self._apply_settings(batch_idx)
        assert self.trainer.max_epochs is not None
        self.detection_loss.set_epoch(self.current_epoch, self.trainer.max_epochs)
        size, facts = ImageSize(*batch.images.shape[-2:]), self._facts
        self._input_record = input_record(batch.images.shape[1], size, facts.neighbours, facts.pixel_range)
        if self.hparams["single_class"]:
            batch = as_one_class(batch)
        losses = self._guarded_step.run(batch)
        must_roll_back = self._guard.check_loss(losses.is_finite, batch.image_ids, self._steps, losses.parts)
        if losses.is_finite:
            self._accumulation.steps += 1
            if self._accumulation.steps >= settings.accumulate:
                must_roll_back = self._update()
        if must_roll_back:
            self._roll_back()
        self._log_step(losses, settings, len(batch))

    def validation_step(self, batch: Batch, batch_idx: int) -> Evaluation:
        """Log the loss and return predictions and targets of one batch of letterboxed frames."""
        return self._evaluate(batch, "val")

    def test_step(self, batch: Batch, batch_idx: int) -> Evaluation:
        """Log the loss and return predictions and targets of one batch of letterboxed frames."""
        return self._evaluate(batch, "test")

    def predict_step(self, batch: Batch, batch_idx: int) -> list[Prediction]:
        """Return the predictions of one batch of letterboxed frames."""
        return self._predict(self._infer(batch.images), batch)

    def on_validation_epoch_start(self) -> None:
        """Fold normalisation into convolutions, except within a fit, where the weights still change."""
        within_fit = self.trainer.state.fn == "fit"
        self._folded_graph = None if within_fit else FoldedGraph(self.graph, one_to_one=self.hparams["one_to_one"])

    on_test_epoch_start = on_validation_epoch_start
    on_predict_epoch_start = on_validation_epoch_start

    def on_validation_epoch_end(self) -> None:
        self._folded_graph = None

    on_test_epoch_end = on_validation_epoch_end
    on_predict_epoch_end = on_validation_epoch_end

    def configure_callbacks(self) -> list[Callback]:
        """Return `MeanAP`, without its files, unless the Trainer has a `MeanAP` already.

        Validations and tests of any Trainer therefore log `val/map`, `val/map_50`, `test/map`, ...
        """
        present: list[Callback] = self.trainer.callbacks  # type: ignore[attr-defined]
        return [] if any(isinstance(one, MeanAP) for one in present) else [MeanAP(report=False)]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the chosen optimizer; learning rates and decay are set before every step."""
        if self._optimizer_name == "auto":
            self._choose_optimizer()
        assert self._make_optimizer is not None
        grouped = muon_groups if self._optimizer_name == "MuSGD" else parameter_groups
        groups = grouped(self.graph, self.recipe.weight_decay)
        optimizer = self._make_optimizer(groups, scaled=self._trainer is not None and self.trainer.scaler is not None)
        check_same_optimizer(self._saved_optimizer, optimizer)
        return optimizer

    def _choose_optimizer(self) -> None:
        """Replace `auto` by an optimizer and its learning rate, now that the length of the training is known."""
        trainer = self.trainer
        epochs, _ = trainer.max_epochs or 1, trainer.estimated_stepping_batches  # sets num_training_batches
        batch_size = TrainingFacts.from_trainer(trainer).batch_size * trainer.world_size
        images = trainer.num_training_batches * batch_size
        updates = math.ceil(images / max(batch_size, self.recipe.nominal_batch)) * epochs
        classes = len(self.hparams["class_names"])
        name, self.recipe = automatic(
            self.recipe, classes=classes, updates=updates, epochs=epochs, saved=self._saved_optimizer
        )
        self._optimizer_name = name
        self._make_optimizer = optimizer_maker(name, replace(self.recipe, momentum=AUTO_MOMENTUM))
        rank_zero_info(f"model.optimizer auto: {name}, lr0 {self.recipe.lr0:g}, warmup_bias_lr 0, {updates} updates")

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Clip the summed gradients if a scaler has just unscaled them; otherwise `_update` has clipped them."""
        if self.trainer.scaler is not None and self.recipe.clip_norm:
            clip_grad_norm_(self.graph.parameters(), self.recipe.clip_norm)

    def on_fit_start(self) -> None:
        """Raise a ValueError if an option of the Trainer is not supported."""
        trainer = self.trainer
        refuse_file_store(trainer.loggers)
        if trainer.max_epochs is None or trainer.max_epochs < 1:
            raise ValueError(f"trainer.max_epochs must be >= 1, for the schedules, got {trainer.max_epochs}")
        if trainer.world_size > 1 and not isinstance(trainer.strategy, DDPStrategy):
            raise ValueError(f"trainer.strategy must be ddp with several ranks, got {type(trainer.strategy).__name__}")
        is_synchronised = any(isinstance(layer, nn.SyncBatchNorm) for layer in self.graph.modules())
        if is_synchronised and self.hparams["activation_checkpointing"]:
            # Lightning replaces a layer of normalisation and activation by normalisation alone.
            raise ValueError("trainer.sync_batchnorm must be false if model.activation_checkpointing is true")

    def on_train_start(self) -> None:
        """Restore the summed gradients of a checkpoint between two updates, and get the facts about the data."""
        self._accumulation.restore(self.graph, self.trainer.scaler)
        summed = partial(self.trainer.strategy.reduce, reduce_op="sum")
        self._guarded_step.prepare(self.graph, self.trainer.world_size, summed)
        self._facts = TrainingFacts.from_trainer(self.trainer)
        if self._class_weight_power:
            if self._facts.class_counts is None:
                raise ValueError("model.class_weight_power needs a data module whose training_facts has class_counts")
            self.detection_loss.class_weights = class_weights(self._facts.class_counts, self._class_weight_power)

    def train(self, mode: bool = True) -> Self:
        """Set training or evaluation mode; the normalisation of frozen parts stays in evaluation mode."""
        super().train(mode)
        keep_norms_frozen(self.graph, self._frozen)
        return self

    def on_validation_model_zero_grad(self) -> None:
        """Keep the gradients, which are carried across the end of an epoch; Lightning would set them to None."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["accumulation"] = self._accumulation.state_dict(self.graph, self.trainer.scaler)
        checkpoint["steps"] = self._steps
        checkpoint[INPUT] = self._input_record
        checkpoint["nonfinite"] = self._guard.state_dict()
        checkpoint["halving"] = self._guarded_step.state_dict()
        checkpoint["optimizer"] = type(self.trainer.optimizers[0]).__name__

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Raise a ValueError if another network was saved; keep the summed gradients until training starts."""
        saved = checkpoint.get("hyper_parameters", {})
        same_graph = "architecture" in saved and is_same_architecture(saved["architecture"], self.hparams)
        for name in ("class_names",) if same_graph else ("variant", "class_names"):
            if name in saved and saved[name] != self.hparams[name]:
                raise ValueError(f"model.{name} must be {saved[name]}, as in the checkpoint, got {self.hparams[name]}")
        channels, own = saved.get("input_channels", INPUT_CHANNELS), self.hparams["input_channels"]
        if channels != own:
            recorded = checkpoint.get(INPUT, {}).get("neighbours", [])
            raise ValueError(
                f"data.neighbours must be {recorded}, as in the checkpoint, whose network has {channels} input "
                f"channels, got a network with {own}"
            )
        self._saved_optimizer = checkpoint.get("optimizer")
        self._steps = checkpoint.get("steps", 0)
        self._input_record = checkpoint.get(INPUT, {})
        self._guard.load_state_dict(checkpoint.get("nonfinite", {}))
        self._guarded_step.load_state_dict(checkpoint.get("halving", self._guarded_step.state_dict()))
        self._accumulation.load_state_dict(checkpoint.get("accumulation", {"steps": 0, "gradients": {}}))

    def _apply_settings(self, batch_idx: int) -> OptimizerSettings:
        assert self.trainer.max_epochs is not None
        batch_size = self._facts.batch_size * self.trainer.world_size
        settings = settings_at(
            self.recipe,
            step=schedule_step(self.trainer, batch_idx),
            epoch=self.current_epoch,
            epochs=self.trainer.max_epochs,
            steps_per_epoch=int(self.trainer.num_training_batches),
            batch_size=batch_size,
        ).slowed(self._guard.learning_rate_factor)
        apply_settings(self.trainer.optimizers[0], settings, scaled_weight_decay(self.recipe, batch_size))
        return settings

    def _compute(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        images = self._network_input(batch.images)
        if self._multi_scale:
            longer = max(images.shape[-2:])
            stride = graph_stride(self.graph)
            size = training_size(longer, self._multi_scale, self._facts.seed, self._steps - 1, stride)
            images = resized(images, size, stride)
        raw = self.graph(images)
        total, parts = self.detection_loss(raw, batch)
        if self.trainer.world_size > 1:
            total = self.detection_loss.reaching_all_outputs(total, raw)
        return total, parts, self.detection_loss.target_scores

    def _update(self) -> bool:
        """Clip the summed gradients and update if they are finite; return whether to restore a checkpoint.

        A gradient scaler skips non-finite gradients itself.
        """
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        is_finite = True
        if self.trainer.scaler is None:
            norm = clip_grad_norm_(self.graph.parameters(), self.recipe.clip_norm or float("inf"))
            is_finite = bool(norm.isfinite())
        if is_finite:
            optimizer.step()
        self._accumulation.reset(self.graph)
        return self._guard.check_gradient(is_finite, self._steps)

    def _log_step(self, losses: Losses, settings: OptimizerSettings, images: int) -> None:
        """Log without waiting for the device.

        Lightning would copy a Python number to the device, and read a value with `prog_bar` back, in every step.
        `RunProgressBar` shows `train/loss`.
        """
        values = {"train/loss": losses.total / images}
        values |= {f"train/{name}": part for name, part in losses.parts.items()}
        numbers = {"train/skipped": float(self._guard.tally.skipped)}
        numbers |= {f"lr/{group}": rate for group, rate in settings.learning_rates.items()}
        values |= {name: torch.full((), number, device=self.device) for name, number in numbers.items()}
        self.log_dict(values, batch_size=images)

    def _roll_back(self) -> None:
        self._accumulation.reset(self.graph)
        path = roll_back(self.trainer, self)
        restored = f"restored weights, optimizer and average of {path}" if path else "no checkpoint can be restored"
        rank_zero_warn(f"{restored}; from now on learning rates are multiplied by {self._guard.learning_rate_factor:g}")

    def _network_input(self, images: Tensor) -> Tensor:
        ImageSize(*images.shape[-2:]).check("data.image_size", stride=graph_stride(self.graph))
        check_channels(images.shape[1], self.hparams["input_channels"])
        return network_input(images, next(self.graph.parameters()).dtype)

    def _infer(self, images: Tensor) -> Any:
        input = self._network_input(images)
        if self._folded_graph is not None:
            return self._folded_graph(input)
        return of_branch(self.graph, self.graph(input), one_to_one=self.hparams["one_to_one"])

    def _evaluate(self, batch: Batch, stage: str) -> Evaluation:
        if self.hparams["single_class"]:
            batch = as_one_class(batch)
        raw = self._infer(batch.images)
        _, parts = self.detection_loss(raw, batch)
        self.log_dict({f"{stage}/{name}": part for name, part in parts.items()}, batch_size=len(batch), sync_dist=True)
        return {"preds": self._predict(raw, batch), "targets": targets(batch)}

    def _predict(self, raw: Any, batch: Batch) -> list[Prediction]:
        names = ("score_threshold", "iou_threshold", "max_detections", "class_agnostic", "one_to_one")
        options = {name: self.hparams[name] for name in names}
        network = self._folded_graph
        if network is None or not self._tta:  # a fit never uses it
            return predictions(raw, batch, **options)
        images = self._network_input(batch.images)
        return tta_predictions(network, images, raw[0], batch, self._tta, stride=network.stride, **options)
