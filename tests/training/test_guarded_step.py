"""Gradients are added completely or not at all. After an out-of-memory error the batch is computed in parts."""

import gc
from collections.abc import Callable
from typing import Any
from weakref import ReferenceType, ref

import pytest
import torch
from torch import Tensor, nn

from yolo_lightning.data.batch import Batch, in_parts
from yolo_lightning.data.boxes import Letterbox
from yolo_lightning.model.graph import build_graph
from yolo_lightning.model.layers import arrange
from yolo_lightning.model.loss import DetectionLoss
from yolo_lightning.training import guarded_step
from yolo_lightning.training.guarded_step import EXCHANGED, GuardedStep, Losses, PartLoss

SIZE, IMAGES = 64, 6
BOXES = (3, 0, 1, 2, 0, 4)
"""Of each image."""


def make_batch(seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    total = sum(BOXES)
    boxes = torch.cat([torch.rand(total, 2, generator=generator) * 0.4 + 0.3, torch.full((total, 2), 0.3)], 1)
    return Batch(
        images=torch.randint(0, 256, (IMAGES, 1, SIZE, SIZE), dtype=torch.uint8, generator=generator),
        boxes=boxes,
        labels=torch.arange(total) % 4,
        sample_index=torch.arange(IMAGES).repeat_interleave(torch.tensor(BOXES)),
        image_ids=tuple(f"id-{number}" for number in range(IMAGES)),
        frame_shapes=((SIZE, SIZE),) * IMAGES,
        letterboxes=(Letterbox(1.0, 0, 0),) * IMAGES,
        readable=(True,) * IMAGES,
        bad_frames=("one.jpg: torn",),
        months=tuple(range(IMAGES)),
    )


Compute = Callable[[Batch], tuple[Tensor, dict[str, Tensor], Tensor]]


def run(
    step: GuardedStep, batch: Batch, compute: Compute, backward: Callable[[Tensor], None] = Tensor.backward
) -> Losses:
    """Compute the gradients of a batch as `YOLOModule.training_step` does."""
    return step.sum_gradients(batch, lambda part: PartLoss(*compute(part)), backward)


class Rig:
    """A network with its loss, and faults that can be injected into the forward or the backward pass."""

    def __init__(self, max_oom_splits: int = 1, batch_norm: bool = True, variant: str = "yolov8n") -> None:
        torch.manual_seed(0)
        self.graph = arrange(build_graph(variant, ("a", "b", "c", "d")), "native").train()
        if not batch_norm:
            for layer in self.graph.modules():
                if isinstance(layer, nn.BatchNorm2d):
                    layer.eval()
        self.loss = DetectionLoss(self.graph)
        self.step = GuardedStep(max_oom_splits)
        self.step.prepare(self.graph)
        self.seen: list[int] = []
        self.spoil: Callable[[int, Tensor], Tensor] = lambda call, total: total
        self.fails_backward: Callable[[int], bool] = lambda images: False
        self.fails_forward: Callable[[int], bool] = lambda images: False
        self.scaled: Callable[[Tensor], Tensor] = lambda total: total
        self.error: BaseException = torch.OutOfMemoryError("tried to allocate 7 GiB\nand more")

    def compute(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        self.seen.append(len(batch))
        total, parts = self.loss(self.graph(batch.images / 255), batch)
        if self.fails_forward(len(batch)):
            raise self.error
        return self.spoil(len(self.seen), total), parts, self.loss.target_scores

    def run(self, batch: Batch) -> Losses:
        return run(self.step, batch, self.compute, self.backward)

    def backward(self, total: Tensor) -> None:
        self.scaled(total).backward()
        if self.fails_backward(self.seen[-1]):
            raise torch.OutOfMemoryError("tried to allocate 7 GiB\nand more")

    def gradients(self) -> dict[str, Tensor]:
        return {
            name: parameter.grad.clone()
            for name, parameter in self.graph.named_parameters()
            if parameter.grad is not None
        }

    def buffers(self) -> dict[str, Tensor]:
        return {name: buffer.clone() for name, buffer in self.graph.named_buffers()}


def assert_equal(actual: dict[str, Tensor], expected: dict[str, Tensor], **tolerance: Any) -> None:
    torch.testing.assert_close(actual, expected, **({"rtol": 0, "atol": 0} | tolerance))


def test_gradients_are_those_of_torch_bit_for_bit_over_two_batches() -> None:
    rig, plain = Rig(), Rig()
    for seed in range(2):
        losses = rig.run(make_batch(seed))
        total, _, _ = plain.compute(make_batch(seed))
        total.backward()
        assert losses.is_finite
        assert torch.equal(losses.total, total.detach())
    assert_equal(rig.gradients(), plain.gradients())
    assert_equal(rig.buffers(), plain.buffers())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_loss_that_is_not_finite_leaves_no_trace(value: float) -> None:
    rig = Rig()
    rig.run(make_batch(0))
    gradients, buffers = rig.gradients(), rig.buffers()
    rig.spoil = lambda call, total: total * value
    assert not rig.run(make_batch(1)).is_finite
    assert_equal(rig.gradients(), gradients)
    assert_equal(rig.buffers(), buffers)


def test_statistic_that_overflows_counts_though_the_loss_is_finite() -> None:
    rig = Rig()
    with torch.no_grad():
        rig.graph.model[0].conv.weight[0] *= 1e20  # its square is beyond float32; normalized it is finite again
    buffers = rig.buffers()
    losses = rig.run(make_batch())
    assert losses.total.isfinite()
    assert not losses.is_finite
    assert_equal(rig.buffers(), buffers)


def test_all_processes_leave_the_batch_out_where_one_does() -> None:
    rig = Rig()
    # The other rank reports a failure.
    rig.step.prepare(rig.graph, summed=lambda values: values + torch.eye(len(values))[1])
    assert not rig.run(make_batch()).is_finite
    assert rig.gradients() == {}


@pytest.mark.parametrize("where", ["fails_forward", "fails_backward"])
def test_out_of_memory_splits_this_batch_and_all_later_ones(where: str) -> None:
    rig = Rig()
    setattr(rig, where, lambda images: images > 3)
    with pytest.warns(UserWarning, match=r"out of memory with 6 of 6 images.*3 images are computed at once.*7 GiB\)$"):
        rig.run(make_batch(0))
    rig.run(make_batch(1))
    assert rig.seen == [6, 3, 3, 3, 3]
    assert rig.step.state_dict() == {"images_at_once": 3, "splits": 1}


@pytest.mark.filterwarnings("ignore:out of memory")
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_tensors_of_a_failed_pass_are_freed_before_the_cached_memory(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = nn.Linear(1, 1)
    step = GuardedStep()
    step.prepare(layer)
    totals: list[ReferenceType[Tensor]] = []
    alive: list[bool] = []

    def loss_of(part: Batch) -> PartLoss:
        total = layer.weight.sum()
        totals.append(ref(total))
        if where == "forward" and len(part) == IMAGES:
            raise torch.OutOfMemoryError("7 GiB")
        return PartLoss(total, {"part": torch.ones(())}, torch.ones(()))

    def backward(loss: Tensor) -> None:
        if where == "backward" and len(totals) == 1:
            raise torch.OutOfMemoryError("7 GiB")
        loss.backward()

    monkeypatch.setattr(
        guarded_step, "free_cached_memory", lambda device: alive.extend(total() is not None for total in totals)
    )
    gc.disable()  # a tensor in a reference cycle would not be freed
    try:
        step.sum_gradients(make_batch(), loss_of, backward)
    finally:
        gc.enable()
    assert alive == [False]


def test_share_of_a_rank_is_weighted_per_branch() -> None:
    whole, rank = Rig(batch_norm=False, variant="yolo26n"), Rig(batch_norm=False, variant="yolo26n")
    rank.step.prepare(rank.graph, summed=lambda values: values * 2)  # the other rank has the same share
    expected = whole.run(make_batch())
    actual = rank.run(make_batch())
    torch.testing.assert_close(actual.parts, expected.parts, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(actual.total, expected.total, rtol=1e-5, atol=0)
    for name, gradient in whole.gradients().items():  # of two equal shares: that of a batch with twice the images
        torch.testing.assert_close(rank.gradients()[name], 2 * gradient, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.filterwarnings("ignore:out of memory")
@pytest.mark.parametrize("variant", ["yolov8n", "yolo26n"])
@pytest.mark.parametrize(
    "images_at_once", [1, 4, *(pytest.param(other, marks=pytest.mark.whole_run) for other in (2, 3, 5))]
)
def test_parts_give_the_gradients_and_losses_of_the_whole_batch(images_at_once: int, variant: str) -> None:
    """The two branches of the head of yolo26n are weighted by their own scores."""
    split, whole = (Rig(batch_norm=False, variant=variant) for _ in range(2))
    split.step.images_at_once = images_at_once
    for seed in range(2):
        actual = split.run(make_batch(seed))
        expected = whole.run(make_batch(seed))
    torch.testing.assert_close(actual.total, expected.total, rtol=1e-5, atol=0)
    assert_equal(actual.parts, expected.parts, rtol=1e-5, atol=1e-7)
    if variant == "yolo26n":
        one_to_many, one_to_one = whole.loss.target_scores.tolist()
        assert abs(one_to_many - one_to_one) > 0.1 * one_to_many, "the case is too easy"
    for name, gradient in whole.gradients().items():
        error = (split.gradients()[name] - gradient).norm() / gradient.norm().clamp(min=1e-3)
        assert error < 1e-4, name


@pytest.mark.filterwarnings("ignore:out of memory")
def test_split_keeps_the_gradients_of_earlier_batches() -> None:
    rig, expected = Rig(batch_norm=False), Rig(batch_norm=False)
    for each_rig in (rig, expected):
        each_rig.run(make_batch(0))
    rig.fails_backward = lambda images: images > 3  # when it has added its gradients already
    for each_rig in (rig, expected):
        each_rig.run(make_batch(1))
    for name, gradient in expected.gradients().items():
        assert (rig.gradients()[name] - gradient).norm() <= 1e-4 * gradient.norm().clamp(min=1e-3), name


def test_loss_of_a_part_that_is_not_finite_leaves_no_trace() -> None:
    rig = Rig()
    rig.step.images_at_once = 3
    rig.run(make_batch(0))
    gradients, buffers = rig.gradients(), rig.buffers()
    rig.spoil = lambda call, total: total * (float("nan") if call == 4 else 1)
    assert not rig.run(make_batch(1)).is_finite
    assert_equal(rig.gradients(), gradients)
    assert_equal(rig.buffers(), buffers)


@pytest.mark.filterwarnings("ignore:out of memory")
@pytest.mark.parametrize(("max_oom_splits", "passes"), [(0, [6]), (1, [6, 3]), (2, [6, 3, 2]), (9, [6, 3, 2, 1])])
def test_out_of_memory_again_is_an_error(max_oom_splits: int, passes: list[int]) -> None:
    rig = Rig(max_oom_splits)
    rig.fails_forward = lambda images: True
    with pytest.raises(torch.OutOfMemoryError, match="7 GiB"):
        rig.run(make_batch())
    assert rig.seen == passes
    assert rig.gradients() == {}


def counted(failures: int) -> Callable[[Tensor], Tensor]:
    """Sum over two ranks of which the other one has as many images, and `failures` out-of-memory errors."""
    return lambda values: values + torch.eye(len(values))[0] * failures + (torch.eye(len(values))[2:4].T @ values[2:4])


@pytest.mark.parametrize("where", ["fails_forward", "fails_backward", "other rank"])
def test_all_ranks_split_where_one_runs_out_of_memory(where: str) -> None:
    rig = Rig()
    other = [1, 0] if where == "other rank" else [0, 0]
    rig.step.prepare(
        rig.graph, summed=lambda values: counted(other.pop(0))(values) if len(values) == EXCHANGED else values
    )
    if where != "other rank":
        setattr(rig, where, lambda images: images > 3)
    with pytest.warns(UserWarning, match=r"out of memory with 6 of 6 images.*3 images are computed at once"):
        assert rig.run(make_batch()).is_finite
    assert rig.seen == [6, 3, 3]
    assert rig.step.state_dict() == {"images_at_once": 3, "splits": 1}


def test_out_of_memory_in_another_rank_ends_all_ranks_without_a_split_left() -> None:
    rig = Rig(max_oom_splits=0)
    rig.step.prepare(rig.graph, summed=counted(1))
    with pytest.raises(torch.OutOfMemoryError, match="another rank"):
        rig.run(make_batch())
    assert rig.gradients() == {}


def test_out_of_memory_with_synchronized_normalization_is_an_error() -> None:
    """The other ranks wait within their pass, so that this rank must not begin another exchange."""
    rig = Rig()
    rig.graph.add_module("extra", nn.SyncBatchNorm(1))
    rig.fails_forward = lambda images: True
    rig.step.prepare(rig.graph, summed=lambda values: pytest.fail("an exchange"))
    with pytest.raises(torch.OutOfMemoryError):
        rig.run(make_batch())
    assert rig.seen == [6]


@pytest.mark.filterwarnings("ignore:out of memory")
def test_initial_splits_apply_from_the_first_batch_and_are_no_part_of_a_checkpoint() -> None:
    rig = Rig(max_oom_splits=2)
    rig.step.oom_splits = 1
    rig.step.prepare(rig.graph, IMAGES)
    rig.run(make_batch())
    assert rig.seen == [3, 3]
    assert rig.step.state_dict() == {"images_at_once": None, "splits": 0}
    rig.fails_forward = lambda images: images > 2
    rig.run(make_batch())
    assert rig.seen[2:] == [3, 2, 2, 2]
    assert rig.step.state_dict() == {"images_at_once": 2, "splits": 2}
    rig.fails_forward = lambda images: images > 1
    with pytest.raises(torch.OutOfMemoryError):  # the initial split counts
        rig.run(make_batch())


@pytest.mark.filterwarnings("ignore:out of memory")
def test_resumed_step_begins_split_and_has_no_split_left() -> None:
    first, again = Rig(), Rig()
    first.fails_forward = lambda images: images > 3
    first.run(make_batch())
    again.step.load_state_dict(first.step.state_dict())
    again.fails_forward = lambda images: images > 2
    with pytest.raises(torch.OutOfMemoryError):
        again.run(make_batch())
    assert again.seen == [3]


@pytest.mark.parametrize(
    ("images_at_once", "sizes"), [(1, [1] * 6), (4, [3, 3]), (5, [3, 3]), (2, [2, 2, 2]), (6, [6])]
)
def test_parts_hold_all_of_a_batch_once(images_at_once: int, sizes: list[int]) -> None:
    batch = make_batch()
    parts = in_parts(batch, images_at_once)
    assert [len(part) for part in parts] == sizes
    assert torch.equal(torch.cat([part.images for part in parts]), batch.images)
    assert torch.equal(torch.cat([part.boxes for part in parts]), batch.boxes)
    assert torch.equal(torch.cat([part.labels for part in parts]), batch.labels)
    owners = [part.image_ids[index] for part in parts for index in part.sample_index.tolist()]
    assert owners == [batch.image_ids[index] for index in batch.sample_index.tolist()]
    for name in ("image_ids", "frame_shapes", "letterboxes", "readable", "bad_frames", "months"):
        assert sum((getattr(part, name) for part in parts), ()) == getattr(batch, name)


@pytest.mark.filterwarnings("ignore:out of memory")
def test_error_of_a_backend_without_an_own_type_splits_the_batch() -> None:
    rig = Rig()
    rig.error = RuntimeError("MPS backend out of memory (MPS allocated: 8.8 GiB, max allowed: 9.0 GiB)")
    rig.fails_forward = lambda images: images == IMAGES
    assert rig.run(make_batch()).is_finite
    assert rig.seen == [6, 3, 3]


def test_other_errors_are_not_taken_for_a_lack_of_memory() -> None:
    rig = Rig()
    rig.error = RuntimeError("expected scalar type Half but found Float")
    rig.fails_forward = lambda images: True
    with pytest.raises(RuntimeError, match="Half"):
        rig.run(make_batch())
    assert rig.seen == [6]


@pytest.mark.parametrize("error", [RuntimeError("no kernel"), KeyError("name"), KeyboardInterrupt()])
def test_exception_leaves_no_trace(error: BaseException) -> None:
    """A checkpoint that is saved on an exception is resumed with the batch."""
    rig = Rig()
    rig.run(make_batch(0))
    gradients, buffers = rig.gradients(), rig.buffers()
    rig.error = error
    rig.fails_forward = lambda images: True
    with pytest.raises(type(error)):
        rig.run(make_batch(1))
    assert_equal(rig.gradients(), gradients)
    assert_equal(rig.buffers(), buffers)


@pytest.mark.filterwarnings("ignore:out of memory")
@pytest.mark.parametrize("at_once", [None, 3])
def test_gradients_with_a_scaler_are_scaled_and_losses_are_not(at_once: int | None) -> None:
    plain, scaled = Rig(), Rig()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaled.scaled = scaler.scale
    results = []
    for rig in (plain, scaled):
        rig.step.images_at_once = at_once
        results.append([rig.run(make_batch(seed)) for seed in range(2)])  # two steps, summed
    gradients = {name: gradient / 1024 for name, gradient in scaled.gradients().items()}
    assert_equal(gradients, plain.gradients())
    assert [float(result.total) for result in results[0]] == [float(result.total) for result in results[1]]
    assert_equal(scaled.buffers(), plain.buffers())


def test_overflowing_gradient_is_left_to_the_scaler() -> None:
    rig = Rig()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    rig.scaled = scaler.scale
    optimizer = torch.optim.SGD(rig.graph.parameters(), lr=1.0)
    before = {name: parameter.detach().clone() for name, parameter in rig.graph.named_parameters()}
    assert rig.run(make_batch()).is_finite
    assert not all(gradient.isfinite().all() for gradient in rig.gradients().values())
    scaler.step(optimizer)
    scaler.update()
    assert_equal({name: parameter.detach() for name, parameter in rig.graph.named_parameters()}, before)
    assert scaler.get_scale() == 2.0**126
