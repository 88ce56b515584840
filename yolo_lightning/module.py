"""YOLOModule, the LightningModule: names the steps of training and evaluation; the computations are elsewhere."""

import math
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from inspect import signature
from pathlib import Path
from typing import Any, Self

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import LearningRateFinder
from lightning.pytorch.loggers import MLFlowLogger
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from yolo_lightning.callbacks.finish_by import deadline_schedule
from yolo_lightning.callbacks.mean_ap import MeanAP
from yolo_lightning.checkpoints.checkpoint_file import INPUT, require_whole
from yolo_lightning.checkpoints.remote_folder import local_checkpoint
from yolo_lightning.checkpoints.torch_archive import (
    check_module,
    check_parts,
    check_tensors,
    load_checkpoint,
    reason,
)
from yolo_lightning.data.batch import (
    Batch,
    Prediction,
    Target,
    TrainingFacts,
    check_batch,
    check_is_batch,
    is_scaled,
    targets,
)
from yolo_lightning.data.formats.ltdv2 import CLASS_NAMES
from yolo_lightning.data.image_size import ImageSize
from yolo_lightning.data.sampling.resumable_loader import ResumableLoader
from yolo_lightning.errors import UserError
from yolo_lightning.model import conv_backend, layers, native_failures, native_probe
from yolo_lightning.model.convolution_settings import Convolution, ConvolutionSettings
from yolo_lightning.model.detection_settings import CLASS_WIDTH_LIMITS, DetectionSettings
from yolo_lightning.model.graph import (
    build_graph,
    check_images,
    check_one_to_one,
    head_class_width,
    is_same_architecture,
    network_input,
)
from yolo_lightning.model.layers import INPUT_CHANNELS, FoldedGraph, graph_stride, of_branch
from yolo_lightning.model.loss import DetectionLoss, class_weights
from yolo_lightning.model.loss_settings import LossSettings
from yolo_lightning.model.network_settings import check_same_input, input_record
from yolo_lightning.model.postprocess import predictions
from yolo_lightning.model.tta import tta_predictions
from yolo_lightning.model.variants import description_of, is_file_of_user
from yolo_lightning.training.accumulation import Accumulation
from yolo_lightning.training.cuda_graph import RecordedNetwork
from yolo_lightning.training.device_transforms import ONE_CLASS, as_one_class, resized, training_size
from yolo_lightning.training.freezing import Freeze, freeze_parts, keep_norms_frozen
from yolo_lightning.training.guard_settings import GuardSettings
from yolo_lightning.training.guarded_step import GuardedStep, Losses, PartLoss
from yolo_lightning.training.nonfinite import NonFiniteGuard, Tally, roll_back
from yolo_lightning.training.normalization_statistics import (
    StatisticsError,
    has_single_values,
    recompute_statistics,
    running_statistics,
    share_statistics,
)
from yolo_lightning.training.optimizers import (
    AUTO_MOMENTUM,
    apply_settings,
    automatic,
    check_same_optimizer,
    make_optimizer,
    muon_groups,
    parameter_groups,
)
from yolo_lightning.training.recipe import AUTO_VALUES, Recipe, settled, with_numbers
from yolo_lightning.training.schedule import OptimizerSettings, scaled_weight_decay, settings_at
from yolo_lightning.training.self_check import SelfCheck
from yolo_lightning.utils.activity import Activity, during, enter
from yolo_lightning.utils.choices import AUTO, check_types, checked_arguments
from yolo_lightning.utils.distributed import check_agreement, sum_over_ranks
from yolo_lightning.utils.host import keep_freed_memory
from yolo_lightning.utils.loop_position import (
    begins_anew,
    has_data,
    require_epoch_length,
    schedule_step,
    steps_begun,
)
from yolo_lightning.utils.offline import prefer_fast_find
from yolo_lightning.utils.rank_zero import hide_harmless_lines
from yolo_lightning.utils.trainer_callbacks import callbacks_of

SINGLE_VALUES = (
    "a batch of one image as small as the stride has one value per channel in the deepest layers: it is normalized by "
    "the running statistics (a larger data.image_size avoids this)"
)
SCHEDULES_NEED = "the schedules of model.recipe need"
Evaluation = dict[str, list[Prediction] | list[Target]]
"""Output of a validation or test step: `preds` and `targets`, one per frame."""


class YOLOModule(LightningModule):
    """A YOLO network with Ultralytics' recipe: warm-up, gradients summed up to the nominal batch, and clipped.

    Optimization is manual: Lightning averages accumulated gradients and forces an optimizer step at the end of an
    epoch. Ultralytics sums gradients and carries them over to the next epoch. Learning rate, momentum and decay are
    set before every step from the position in training alone, so that a resumed run uses the current options.

    `fit` needs the batch size, and for some options more, from the data module's `training_facts()`. With a plain
    DataLoader over `Batch` the batch size is taken from the loader.

    Args:
        variant: Detection graph of Ultralytics by name, for example yolov8n to yolov8x, yolov8n-p2, yolov9t, yolov10n,
            yolo11n, yolo12n, yolo26n (all: docs/recipe.md), or the path of a `.yaml` file in Ultralytics' format.
        class_names: Names of the classes, index 0 first. The command line takes them from the data.
        input_channels: Channels of the images: 3 for RGB and gray images, 2 with `data.input.background`. The command
            line takes it from the data.
        weights: Ultralytics `.pt` or own `.ckpt` file with initial weights; null for random weights.
        allow_pickle: Open a `.pt` file of `weights` even if it refers to code of neither PyTorch nor Ultralytics.
        class_width: Channels of the hidden class layers; null for the default for these classes or weights.
        single_class: Train and evaluate all classes as one, `object`.
        freeze: The first n layers, or a list of layer numbers (0 to 22) and names of parts (`22.cv3`), whose weights
            and normalization statistics are not trained.
        recipe: Optimization.
        loss: Weights of the parts of the loss.
        convolution: Implementation of the layers.
        detections: Choice of the boxes.
        guard: Reactions to non-finite values and to a lack of memory.

    Raises:
        UserError: If a value is out of range or `weights` cannot be used.
    """

    lowers_precision = False
    """Whether a supervisor continues in float32 after non-finite values in mixed precision; see `NonFiniteGuard`."""

    saves_gradients = True
    """Checkpoints contain the summed gradients (`Accumulation`): `LastCheckpoint` does not save them again."""

    @checked_arguments("model", unchecked=("class_names",), class_width=CLASS_WIDTH_LIMITS)
    def __init__(
        self,
        variant: str = "yolov8n",
        class_names: tuple[str, ...] = CLASS_NAMES,
        input_channels: int = INPUT_CHANNELS,
        weights: str | None = None,
        allow_pickle: bool = False,
        class_width: int | None = None,
        single_class: bool = False,
        freeze: Freeze = 0,
        recipe: Recipe = Recipe(),  # noqa: B008 - frozen
        loss: LossSettings = LossSettings(),  # noqa: B008 - frozen
        convolution: ConvolutionSettings = ConvolutionSettings(),  # noqa: B008 - frozen
        detections: DetectionSettings = DetectionSettings(),  # noqa: B008 - frozen
        guard: GuardSettings = GuardSettings(),  # noqa: B008 - frozen
    ) -> None:
        super().__init__()
        hide_harmless_lines()
        variant = str(variant)  # a path is stored as a text
        is_list = isinstance(class_names, Sequence) and not isinstance(class_names, str)
        if not is_list or not all(isinstance(name, str) and name.strip() for name in class_names):
            raise UserError(f"model.class_names must be a list of names, as ['person', 'car'], got {class_names!r}")
        self.recipe = recipe
        self._configured_recipe = recipe
        self.loss_settings = loss
        self.convolution = convolution
        self.detections = detections
        if single_class and self.loss_settings.class_weight_power:
            raise UserError(
                "model.loss.class_weight_power must be 0 with model.single_class, got "
                f"{self.loss_settings.class_weight_power}"
            )
        self.automatic_optimization = False
        self._convolution_plan = conv_backend.make_plan(self.convolution)
        names = (ONE_CLASS,) if single_class else tuple(map(str, class_names))
        self.graph = build_graph(variant, names, weights, class_width, allow_pickle, input_channels=input_channels)
        self._arrange(self.convolution)
        if self.detections.one_to_one:
            check_one_to_one(self.graph, variant)
        # The network can be rebuilt from these: plain values without the initial weights and the training's functions.
        hyperparameters = {
            "variant": variant,
            "class_names": list(names),
            "input_channels": input_channels,
            "class_width": head_class_width(self.graph),
            "single_class": single_class,
            "recipe": {name: value for name, value in vars(self.recipe).items() if name != "optimizer"},
            "loss": asdict(self.loss_settings),
            "convolution": asdict(self.convolution),
            "detections": self.detections.recorded(),
        }
        if is_file_of_user(variant):  # the name of another graph is sufficient
            hyperparameters["architecture"] = description_of(variant)
        self.save_hyperparameters(hyperparameters)
        self._frozen = freeze_parts(self.graph, freeze)
        keep_norms_frozen(self.graph, self._frozen)
        self.detection_loss = DetectionLoss(self.graph, self.loss_settings)
        self._accumulation = Accumulation()
        self._guard = NonFiniteGuard(guard)
        self.guarded_step = GuardedStep(guard.max_oom_splits, guard.oom_splits)
        self._self_check = SelfCheck(guard.self_check_share)
        self._steps = 0
        self._newest_images: deque[Tensor] = deque(maxlen=self.recipe.statistics_batches)  # of batches of the epoch
        self._facts = TrainingFacts(batch_size=1)
        self._folded_graph: FoldedGraph | None = None
        self._recorded_graph: RecordedNetwork | None = None
        self._saved_optimizer: str | None = None
        self._saved_recipe: dict[str, float] = {}
        self._input_record: dict[str, Any] = {}

    @classmethod
    def load_from_checkpoint(cls, checkpoint_path: Any, *arguments: Any, **options: Any) -> Self:
        """Return the module of a checkpoint; `options` override its settings."""
        check_types("load_from_checkpoint", {"checkpoint_path": Path}, {"checkpoint_path": checkpoint_path})
        checkpoint_path = local_checkpoint(str(checkpoint_path))
        require_whole(checkpoint_path)
        stored = load_checkpoint(checkpoint_path, "meta").get("hyper_parameters", {})
        of_lightning = signature(LightningModule.load_from_checkpoint).parameters
        signature(cls).bind_partial(**{name: options[name] for name in options.keys() - of_lightning})
        try:
            return super().load_from_checkpoint(checkpoint_path, *arguments, **(stored | options))
        except (UserError, RuntimeError) as error:  # RuntimeError: of load_state_dict, for other tensors
            changed = ""
            if options:
                changed = f" with {options}"
            raise UserError(f"{checkpoint_path} cannot be loaded{changed}: {reason(error)}") from error

    def setup(self, stage: str) -> None:
        """Check classes and image size, and choose the convolution implementation for `backend: auto`.

        Raises:
            UserError: If there are no data, if the graph does not accept the image size of the training data, if model
                and data have different numbers of classes, or for `Tuner.lr_find`.
        """
        if begins_anew(self.trainer, stage):
            self._forget_training()
        if callbacks_of(self.trainer, LearningRateFinder):
            raise UserError(
                "Tuner.lr_find and LearningRateFinder are not supported: model.recipe sets the learning rate of every "
                "step. Compare short runs with different values of model.recipe.lr0 instead."
            )
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        method = TrainerFn(stage).value
        if not has_data(self.trainer, method):
            raise UserError(
                f"trainer.{method} needs data: pass a data module, as trainer.{method}(model, DetectionDataModule(...))"
                ", or a DataLoader that yields yolo_lightning.data.batch.Batch"
            )
        self._check_classes(getattr(data, "class_names", None))
        if not hasattr(data, "training_facts"):
            # Only for a foreign loader: Lightning warns of a module's batch hook in each fit with a data module.
            self.on_before_batch_transfer = self._checked_batch  # type: ignore[method-assign]
        elif stage == "fit":
            image_size = TrainingFacts.from_trainer(self.trainer).image_size
            if image_size is not None:
                image_size.check("data.image_size", stride=self.stride)
        if hasattr(data, "describe_crowded_frames"):
            for line in data.describe_crowded_frames(stage, self.detections.max_detections):
                rank_zero_warn(line)
        strategy = self.trainer.strategy
        if strategy.root_device.type == "cpu":
            keep_freed_memory()
        else:
            prefer_fast_find()
        backend = self._choose_convolution().backend
        self._recorded_graph = None
        if self.convolution.cuda_graph and stage == "fit":
            self._recorded_graph = self._recorder(backend)
        self._guard.computation = (
            f"{backend}, {self.convolution.algorithm}, {self.trainer.precision}, {strategy.root_device.type}"
        )
        self._guard.lowers_precision = self.lowers_precision and str(self.trainer.precision).endswith("mixed")

    def _forget_training(self) -> None:
        """Forget the training of another Trainer, or of a checkpoint that was loaded for its weights alone.

        A fit with `ckpt_path` loads the checkpoint after this.
        """
        self.recipe = self._configured_recipe
        self._accumulation.load_state_dict({})
        self._accumulation.reset([*self.graph.parameters()])
        self._guard.tally = Tally()
        self.guarded_step.load_state_dict({})
        self._steps = 0
        self._newest_images.clear()
        self._saved_optimizer = None
        self._saved_recipe = {}
        self._input_record = {}

    @property
    def stride(self) -> int:
        """Number of pixels of which the sides of the input are multiples."""
        return graph_stride(self.graph)

    def _choose_convolution(self) -> ConvolutionSettings:
        """Return the settings for the device of the training, and arrange the implementation of `backend: auto`."""
        strategy = self.trainer.strategy
        chosen = self.convolution
        if chosen.backend == "auto":
            if self.trainer.is_global_zero:  # one test for all ranks: simultaneous tests would slow each other
                chosen = native_probe.choose_convolution(strategy.root_device, chosen, self.trainer.precision)
            chosen = strategy.broadcast(chosen)
            self._arrange(chosen)
        return chosen

    def _recorder(self, backend: Convolution) -> RecordedNetwork | None:
        """Return the graph with recorded passes, or raise a UserError for options with which they are not possible.

        The result is None for `gemm`, with a warning only: it can be the fallback level of a supervisor.
        """
        key = "model.convolution.cuda_graph"
        device = self.trainer.strategy.root_device
        ranks = self.trainer.world_size
        if device.type != "cuda" or ranks > 1:
            raise UserError(f"{key} needs one NVIDIA or AMD GPU, got {ranks} x {device.type}: set {key} to false")
        if self.recipe.multi_scale:
            raise UserError(f"model.recipe.multi_scale must be 0 with {key}, got {self.recipe.multi_scale}")
        if backend == "gemm":
            rank_zero_warn(f"{key} has no effect: it needs native convolutions")
            return None
        return RecordedNetwork(self.graph)

    def _arrange(self, settings: ConvolutionSettings) -> None:
        layers.arrange(
            self.graph,
            settings.backend,
            settings.activation_checkpointing,
            self._convolution_plan,
            settings.memory_format,
        )

    def _check_classes(self, names: Sequence[str] | None) -> None:
        """Refuse data with another number of classes, and warn of other names; None: the data has no names."""
        class_names = list(self.hparams["class_names"])
        if names is None or self.hparams["single_class"] or class_names == list(names):
            return
        difference = f"model.class_names {class_names} and the classes of the data {list(names)} differ"
        if len(class_names) != len(names):
            raise UserError(f"{difference}: use YOLOModule(class_names=data.class_names)")
        rank_zero_warn(f"{difference}; boxes have the names of the model, in this order")

    def convolution_facts(self) -> dict[str, str]:
        """Return the implementation of the convolutions, and where a failure of native ones is stored.

        `environment.json` contains these entries, which the supervisor reads.
        """
        facts = {"convolutions": str(self.convolution.backend)}
        device = self.trainer.strategy.root_device
        if device.type != "cpu":
            facts["native verdict key"] = native_failures.device_key(device)
            facts["native verdict file"] = str(native_failures.verdicts_file())
        return facts

    def forward(self, images: Tensor) -> Any:
        """Return raw predictions for `(B, 1 or 3, H, W)` uint8 images; gray counts as three equal channels.

        With another `input_channels`, the images have this number of channels.
        """
        is_readable = type(images) is Tensor and images.is_cpu and not torch.compiler.is_compiling()  # else exported
        if is_readable and images.is_floating_point() and is_scaled(images.detach()):
            raise UserError(f"images must be uint8, or float32 from 0 to 255, got values up to {images.max():g}")
        return self.graph(self._network_input(images))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Compute the gradients of one batch, and make an optimizer step when enough gradients are summed.

        Returns:
            Loss per image, 0-d and detached, for callbacks.
        """
        settings = self._begin_step(batch, batch_idx)
        if self.hparams["single_class"]:
            batch = as_one_class(batch)
        self._self_check.begin(self._steps)
        with self._local_gradients():
            losses = self.guarded_step.sum_gradients(batch, self._loss_of_part, self._backward_of_part)
        enter(Activity.DEVICE_WAIT)
        self._self_check.finish()
        must_roll_back = self._guard.check_loss(losses.is_finite, batch.image_ids, self._steps, losses.parts)
        if losses.is_finite:
            self._accumulation.steps += 1
        if losses.is_finite and self._accumulation.steps >= settings.accumulate:
            is_finite = self._clip_gradients()
            optimizer = self.optimizers()
            assert not isinstance(optimizer, list)
            if is_finite:
                # A gradient scaler reads from the device whether a gradient has overflowed.
                enter(Activity.OPTIMIZER if self.trainer.scaler is None else Activity.DEVICE_WAIT)
                optimizer.step()
            self._accumulation.reset(self.guarded_step.parameters)
            must_roll_back = self._guard.check_gradient(is_finite, self._steps)
        enter(Activity.NONE)
        if must_roll_back:
            self._roll_back()
        return self._log_step(losses, settings, len(batch))

    def _loss_of_part(self, part: Batch) -> PartLoss:
        enter(Activity.FORWARD)
        raw = self._training_output(part.images)
        enter(Activity.DEVICE_WAIT)  # the assignment of objects to anchors reads from the device
        totals, named = self.detection_loss(raw, part)
        return PartLoss(totals, named, self.detection_loss.target_scores)

    def _backward_of_part(self, loss: Tensor) -> None:
        enter(Activity.BACKWARD)
        self.manual_backward(loss)

    def on_train_batch_end(self, *_: Any) -> None:
        """Lightning reads the logged values from the device for the loggers after this hook, the last of a step."""
        enter(Activity.DEVICE_WAIT)

    def on_train_epoch_end(self) -> None:
        """Lightning reads the logged values from the device for callbacks and loggers after this hook."""
        enter(Activity.DEVICE_WAIT)

    def validation_step(self, batch: Batch, batch_idx: int) -> Evaluation:
        """Log the loss and return predictions and targets of one batch of letterboxed frames."""
        return self._evaluate(batch, "val")

    def test_step(self, batch: Batch, batch_idx: int) -> Evaluation:
        """Log the loss and return predictions and targets of one batch of letterboxed frames."""
        return self._evaluate(batch, "test")

    def predict_step(self, batch: Batch, batch_idx: int) -> list[Prediction]:
        """Return the predictions of one batch of letterboxed frames."""
        check_is_batch(batch)
        return self._predict(self._infer(batch.images), batch)

    def on_validation_epoch_start(self) -> None:
        """Recompute the statistics of normalization within a fit; else fold normalization into convolutions.

        The callback `EMA` has put the averaged weights into the graph before. The statistics stay with these weights.
        All ranks validate with equal statistics.
        """
        within_fit = self.trainer.state.fn == "fit"
        if within_fit and not self.trainer.sanity_checking and self.recipe.statistics_batches:
            self._recompute_statistics()
        elif within_fit and self.trainer.world_size > 1:
            share_statistics(self.graph)
        self._folded_graph = None
        if not within_fit:
            self._folded_graph = FoldedGraph(self.graph, one_to_one=self.detections.one_to_one)

    on_test_epoch_start = on_validation_epoch_start
    on_predict_epoch_start = on_validation_epoch_start

    def on_validation_epoch_end(self) -> None:
        """Lightning reads the logged values from the device after this hook."""
        self._folded_graph = None
        enter(Activity.DEVICE_WAIT)

    on_test_epoch_end = on_validation_epoch_end
    on_predict_epoch_end = on_validation_epoch_end

    def configure_callbacks(self) -> list[Callback]:
        """Return `MeanAP`, without its files, unless the Trainer has a `MeanAP` already.

        Validations and tests of any Trainer therefore log `val/map`, `val/map_50`, `test/map`, ...
        """
        callbacks: list[Callback] = self.trainer.callbacks  # type: ignore[attr-defined]
        for callback in callbacks:
            if isinstance(callback, type):
                callbacks.clear()  # Lightning calls the hooks of all callbacks after an error
                name = callback.__name__
                raise UserError(f"trainer.callbacks must contain instances, got the class {name}: write {name}()")
        if callbacks_of(self.trainer, MeanAP):
            return []
        return [MeanAP(report=False)]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the chosen optimizer; learning rates and decay are set before every step."""
        if self._trainer is not None:
            self.recipe = self._recipe_with_numbers()
        momentum = self.recipe.momentum
        if self.recipe.optimizer == "auto":
            self.recipe = self._automatic_recipe()
            momentum = AUTO_MOMENTUM
        grouped = muon_groups if self.recipe.optimizer == "MuSGD" else parameter_groups
        groups = grouped(self.graph, self.recipe.weight_decay)
        scaled = self._trainer is not None and self.trainer.scaler is not None
        optimizer = make_optimizer(replace(self.recipe, momentum=momentum), groups, scaled=scaled)
        check_same_optimizer(self._saved_optimizer, optimizer)
        return optimizer

    def _recipe_with_numbers(self) -> Recipe:
        """Return the recipe with numbers instead of `auto`, and log all values that follow the size of the dataset."""
        names = [name for name in AUTO_VALUES if getattr(self.recipe, name) == AUTO]
        facts = self._data_facts()
        has_auto_batch_size = facts is not None and facts.has_auto_batch_size
        if not names and not has_auto_batch_size:
            return self.recipe
        epochs = self.trainer.max_epochs or 1
        batches, batch_size = self._epoch_length()
        recipe = with_numbers(
            self.recipe,
            epoch_images=batches * batch_size,
            epochs=epochs,
            batch_size=batch_size,
            saved=self._saved_recipe,
        )
        values = [f"model.recipe.{name} {getattr(recipe, name):g}" for name in names]
        if has_auto_batch_size:
            values.insert(0, f"data.batch_size {batch_size // self.trainer.world_size}")
        origin = f"for {epochs} x {batches:,} batches"
        if self._saved_recipe:
            origin = "as in the checkpoint"
        rank_zero_info(f"auto, {origin}: {', '.join(values)}")
        return recipe

    def _data_facts(self) -> TrainingFacts | None:
        """Return the facts of the data module; None for a plain loader, which is not loaded yet."""
        if hasattr(self.trainer.datamodule, "training_facts"):  # type: ignore[attr-defined]
            return TrainingFacts.from_trainer(self.trainer)
        return None

    def _epoch_length(self) -> tuple[int, int]:
        """Return the number of batches per epoch and rank, and the number of images per batch over all ranks."""
        trainer = self.trainer
        facts = self._data_facts()
        if facts is None or facts.epoch_batches is None:
            _ = trainer.estimated_stepping_batches  # loads the training data
            batches = require_epoch_length(trainer, SCHEDULES_NEED)
            facts = replace(TrainingFacts.from_trainer(trainer), epoch_batches=batches)
        assert facts.epoch_batches is not None
        return facts.epoch_batches, facts.batch_size * trainer.world_size

    def _automatic_recipe(self) -> Recipe:
        """Return the recipe of `auto`, now that the length of the training is known."""
        epochs = self.trainer.max_epochs or 1
        batches, batch_size = self._epoch_length()
        images_per_step = max(batch_size, settled(self.recipe.nominal_batch))
        steps = math.ceil(batches * batch_size / images_per_step) * epochs
        classes = len(self.hparams["class_names"])
        recipe = automatic(
            self.recipe, classes=classes, optimizer_steps=steps, epochs=epochs, saved=self._saved_optimizer
        )
        text = (
            f"model.recipe.optimizer auto: {recipe.optimizer}, lr0 {recipe.lr0:g}, warmup_bias_lr 0, "
            f"{steps} optimizer steps"
        )
        if self.recipe.lr0 != Recipe.lr0:
            text += f"; model.recipe.lr0 {self.recipe.lr0:g} needs another model.recipe.optimizer, such as AdamW"
        rank_zero_info(text)
        return recipe

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Clip the summed gradients if a scaler has just unscaled them; else `_clip_gradients` has clipped them."""
        if self.trainer.scaler is not None and self.recipe.clip_norm:
            clip_grad_norm_(self.guarded_step.parameters, self.recipe.clip_norm)

    def on_fit_start(self) -> None:
        """Raise a UserError if an option of the Trainer is not supported."""
        trainer = self.trainer
        if not any(parameter.requires_grad for parameter in self.parameters()):
            raise UserError("no parameter of the module requires a gradient: call unfreeze() before fit")
        for logger in trainer.loggers:
            if isinstance(logger, MLFlowLogger) and logger.save_dir:
                raise UserError(
                    f"trainer.logger must not be an MLFlowLogger with local files, got save_dir {logger.save_dir}: "
                    "MLflow cannot store the scores of single classes there; set tracking_uri to a server or a database"
                )
        if trainer.max_epochs is None or trainer.max_epochs < 1:
            raise UserError(f"trainer.max_epochs must be >= 1, for the schedules, got {trainer.max_epochs}")
        if trainer.world_size > 1 and not isinstance(trainer.strategy, DDPStrategy):
            raise UserError(f"trainer.strategy must be ddp with several ranks, got {type(trainer.strategy).__name__}")
        is_synchronised = any(isinstance(layer, nn.SyncBatchNorm) for layer in self.graph.modules())
        if is_synchronised and self.convolution.activation_checkpointing:
            # Lightning replaces a layer of normalization and activation by normalization alone.
            raise UserError(
                "trainer.sync_batchnorm must be false if model.convolution.activation_checkpointing is true"
            )
        if is_synchronised and self.guarded_step.oom_splits:
            raise UserError(
                f"model.guard.oom_splits must be 0 with trainer.sync_batchnorm, got {self.guarded_step.oom_splits}"
            )

    def on_train_start(self) -> None:
        """Restore the summed gradients of a checkpoint inside an accumulation, and get the facts about the data.

        Raises:
            UserError: If the ranks have not restored the same step, or the length of an epoch is unknown.
        """
        require_epoch_length(self.trainer, SCHEDULES_NEED)
        check_agreement({"step": steps_begun(self.trainer)})
        self._accumulation.restore(self.graph, self.trainer.scaler)
        facts = TrainingFacts.from_trainer(self.trainer)
        self._facts = facts
        summed = sum_over_ranks if self.trainer.world_size > 1 else None
        self.guarded_step.prepare(self.graph, facts.batch_size, summed)
        self._self_check.prepare(
            self.graph,
            Path(self.trainer.default_root_dir),
            steps=steps_begun(self.trainer),
            rank=self.trainer.global_rank,
            ranks=self.trainer.world_size,
        )
        if self._input_record and facts.image_size is not None:
            channels = facts.channels or self._input_record["channels"]
            record = input_record(channels, facts.image_size, facts.background, facts.pixel_range)
            check_same_input(self._input_record, record)
        power = self.loss_settings.class_weight_power
        if power:
            if facts.class_counts is None:
                raise UserError(
                    "model.loss.class_weight_power needs a data module whose training_facts has class_counts"
                )
            self.detection_loss.class_weights = class_weights(facts.class_counts, power)

    def on_train_end(self) -> None:
        self._recorded_graph = None
        self._self_check.end()

    def train(self, mode: bool = True) -> Self:
        """Set training or evaluation mode; the normalization of frozen parts stays in evaluation mode."""
        super().train(mode)
        keep_norms_frozen(self.graph, self._frozen)
        return self

    def on_validation_model_zero_grad(self) -> None:
        """Keep the gradients, which are carried across the end of an epoch; Lightning would set them to None."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        optimizers = self.trainer.optimizers
        checkpoint |= {
            "steps": self._steps,
            "optimizer": type(optimizers[0]).__name__ if optimizers else None,
            "accumulation": self._accumulation.state_dict(self.graph, self.trainer.scaler),
            "nonfinite": self._guard.state_dict(),
            "splitting": self.guarded_step.state_dict(),
            "recipe": {name: getattr(self.recipe, name) for name in AUTO_VALUES if getattr(self.recipe, name) != AUTO},
            INPUT: self._input_record,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Raise a UserError if another network was saved; keep the summed gradients until training starts."""
        check_parts(checkpoint, "the checkpoint")
        check_module(checkpoint, "the checkpoint")
        saved = checkpoint.get("hyper_parameters", {})
        compared = ["class_names"]
        if "architecture" not in saved or not is_same_architecture(saved["architecture"], self.hparams):
            compared.insert(0, "variant")
        for name in compared:
            if name in saved and saved[name] != self.hparams[name]:
                raise UserError(f"model.{name} must be {saved[name]}, as in the checkpoint, got {self.hparams[name]}")
        saved_channels = saved.get("input_channels", INPUT_CHANNELS)
        if saved_channels != self.hparams["input_channels"]:
            has_background = str(bool(checkpoint.get(INPUT, {}).get("background"))).lower()
            raise UserError(
                f"data.input.background must be {has_background}, as in the checkpoint, whose network has "
                f"{saved_channels} input channels, got a network with {self.hparams['input_channels']}"
            )
        check_tensors(checkpoint.get("state_dict", self.state_dict()), "the checkpoint", self.state_dict())
        # A checkpoint without a training, such as an average, has none of these.
        self._steps = checkpoint.get("steps", 0)
        self._saved_optimizer = checkpoint.get("optimizer")
        self._saved_recipe = checkpoint.get("recipe", {})
        self._input_record = checkpoint.get(INPUT, {})
        self._accumulation.load_state_dict(checkpoint.get("accumulation", {}))
        self._guard.load_state_dict(checkpoint.get("nonfinite", {}))
        self.guarded_step.load_state_dict(checkpoint.get("splitting", {}))

    def _begin_step(self, batch: Batch, batch_idx: int) -> OptimizerSettings:
        """Set the state that depends on the position in training, and return the settings of the optimizer."""
        self._steps = steps_begun(self.trainer)
        if batch_idx == 0:
            self._newest_images.clear()
        self._newest_images.append(batch.images)
        epochs = self.trainer.max_epochs
        assert epochs is not None
        self.detection_loss.set_epoch(self.current_epoch, epochs)
        facts = self._facts
        self._input_record = input_record(
            batch.images.shape[1],
            ImageSize(*batch.images.shape[-2:]),
            facts.background,
            facts.pixel_range,
            facts.resize,
            facts.category_ids[: len(self.hparams["class_names"])],  # one with `single_class`
        )
        batch_size = facts.batch_size * self.trainer.world_size
        step = schedule_step(self.trainer, batch_idx)
        deadline = deadline_schedule(self.trainer)
        settings = settings_at(
            self.recipe,
            step=step,
            epochs=epochs if deadline is None else deadline.steps / deadline.steps_per_epoch,
            steps_per_epoch=int(self.trainer.num_training_batches),
            batch_size=batch_size,
            progress=self.current_epoch / epochs if deadline is None else deadline.progress(step),
        ).slowed(self._guard.learning_rate_factor)
        apply_settings(self.trainer.optimizers[0], settings, scaled_weight_decay(self.recipe, batch_size))
        return settings

    def _local_gradients(self) -> AbstractContextManager[Any]:
        """Return the context in which backward passes do not sum gradients over the ranks."""
        strategy = self.trainer.strategy
        if isinstance(strategy, DDPStrategy):
            return strategy.block_backward_sync()
        return nullcontext()

    def _training_output(self, images: Tensor) -> Any:
        """Return the output of the network in training for images `(B, C, H, W)`."""
        inputs = self._training_input(images)
        if has_single_values(inputs, self.stride):
            rank_zero_warn(SINGLE_VALUES)
            with running_statistics(self.graph):
                return self.graph(inputs)
        if self._recorded_graph is None or self._self_check.is_checking:
            return self.graph(inputs)
        return self._recorded_graph(inputs)

    def _training_input(self, images: Tensor) -> Tensor:
        images = self._network_input(images)
        if not self.recipe.multi_scale:
            return images
        stride = self.stride
        longer_side = max(images.shape[-2:])
        size = training_size(longer_side, self.recipe.multi_scale, self._facts.seed, self._steps - 1, stride)
        return resized(images, size, stride)

    def _clip_gradients(self) -> bool:
        """Clip the summed gradients; return whether they are finite. A gradient scaler does both at the step."""
        if self.trainer.scaler is not None:
            return True
        enter(Activity.DEVICE_WAIT)
        norm = clip_grad_norm_(self.guarded_step.parameters, self.recipe.clip_norm or math.inf)
        return bool(norm.isfinite())

    def _log_step(self, losses: Losses, settings: OptimizerSettings, images: int) -> Tensor:
        """Log without waiting for the device; return the loss per image.

        Lightning would copy a Python number to the device, and read a value with `prog_bar` back, in every step. A
        tensor on the CPU stays there. `RunProgressBar` shows `train/loss`.
        """
        values = {"train/loss": losses.total / images}
        values |= {f"train/{name}": part for name, part in losses.parts.items()}
        numbers = {"train/skipped": float(self._guard.tally.skipped)}
        numbers |= {f"lr/{group}": rate for group, rate in settings.learning_rates.items()}
        values |= {name: torch.tensor(number) for name, number in numbers.items()}
        self.log_dict(values, batch_size=images)
        return values["train/loss"]

    def _roll_back(self) -> None:
        self._accumulation.reset(self.guarded_step.parameters)
        path = roll_back(self.trainer, self)
        result = "no checkpoint can be restored"
        if path is not None:
            result = f"restored weights, optimizer and average of {path}"
        consequence = f"from now on learning rates are multiplied by {self._guard.learning_rate_factor:g}"
        if self._guard.lowers_precision:
            consequence = "if non-finite values return, the training continues in float32"
        rank_zero_warn(f"{result}; {consequence}")

    def _recompute_statistics(self) -> None:
        """Recompute the running statistics of the weights in the graph from the newest batches of the epoch."""
        loader = self.trainer.train_dataloader
        missing = self.recipe.statistics_batches - len(self._newest_images)
        older: list[Batch] = []
        if missing and isinstance(loader, ResumableLoader):
            older = loader.before_start(missing)
        stride = self.stride
        newest = [*(batch.images.to(self.device) for batch in older), *self._newest_images]
        images = [batch for batch in newest if not has_single_values(batch, stride)]
        try:
            with during(Activity.FORWARD), self.trainer.precision_plugin.val_step_context():
                inputs = map(self._network_input, images)
                recompute_statistics(self.graph, inputs, self._frozen, self.trainer.world_size)
        except StatisticsError as error:
            rank_zero_warn(f"statistics of batch normalization: the averages of the training are kept ({error})")
            if self.trainer.world_size > 1:
                share_statistics(self.graph)

    def _network_input(self, images: Tensor) -> Tensor:
        check_images(images, self.hparams["input_channels"])
        ImageSize(*images.shape[-2:]).check("data.image_size", stride=self.stride)
        return network_input(images, next(self.graph.parameters()).dtype)

    def _infer(self, images: Tensor) -> Any:
        input = self._network_input(images)
        with during(Activity.FORWARD):
            if self._folded_graph is not None:
                return self._folded_graph(input)
            return of_branch(self.graph, self.graph(input), one_to_one=self.detections.one_to_one)

    def _checked_batch(self, batch: Any, dataloader_idx: int) -> Batch:
        is_single = self.hparams["single_class"]  # labels of any classes count as one
        check_batch(batch, None if is_single else len(self.hparams["class_names"]))
        return batch  # type: ignore[no-any-return]

    def _evaluate(self, batch: Batch, stage: str) -> Evaluation:
        check_is_batch(batch)
        if self.hparams["single_class"]:
            batch = as_one_class(batch)
        raw = self._infer(batch.images)
        with during(Activity.DEVICE_WAIT):  # the assignment of objects to anchors reads from the device
            _, parts = self.detection_loss(raw, batch)
        self.log_dict({f"{stage}/{name}": part for name, part in parts.items()}, batch_size=len(batch), sync_dist=True)
        return {"preds": self._predict(raw, batch), "targets": targets(batch)}

    def _predict(self, raw: Any, batch: Batch) -> list[Prediction]:
        network = self._folded_graph
        if network is None or not self.detections.tta:  # a fit never uses it
            return predictions(raw, batch, self.detections)
        images = self._network_input(batch.images)
        return tta_predictions(network, images, raw[0], batch, self.detections, network.stride)
