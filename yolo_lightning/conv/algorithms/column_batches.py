"""Convolution of channels_last tensors as one batched matrix product, with one batch entry per output column.

Cho, Brand: MEC, Memory-efficient Convolution for Deep Neural Network (ICML 2017, arXiv 1706.06873), for NHWC tensors.
Only vertical taps are copied: the lowered image of a sample is `(output rows, columns, vertical taps, C)`. The window
of an output pixel is one contiguous run of this image, so the windows of one output column are a strided matrix
`(samples * output rows, horizontal taps * vertical taps * C)`. Windows of adjacent columns overlap in memory and are
not copied. The output column is strided, too, and is written in place. A convolution with a 3x3 kernel needs one
lowering, one product and a workspace of 3 times the input (im2col: 9 times). Every result is rounded once, which suits
half types: a matrix product accumulates in float32.

The weight gradient has one partial sum per output column, which occupies an accelerator where a single product would
have a small result and a long inner dimension. Stride `s` divides the input into `s * s` images, one per remainder
of row and column modulo `s`. Each of these images is read by some of the taps only, and its gradient is a product on
the lowered output gradient, without a scatter operation.

The algorithm suits accelerators, where launches limit the speed; `im2col` is faster on a CPU, because its
tiles stay in the cache.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from yolo_lightning.conv.algorithms import shared
from yolo_lightning.conv.algorithms.algorithm import Algorithm, Operation
from yolo_lightning.conv.algorithms.problem import Problem
from yolo_lightning.conv.algorithms.shared import channels_last_strides, overlap

PARTIAL_ELEMENTS = 1 << 23
"""Limit for the partial sums of a weight gradient, in elements (32 MiB in float32), unless one alone is larger."""


@dataclass(frozen=True)
class _Tap:
    """A kernel tap along one axis: its index, and the offset of its pixels from those of the result."""

    index: int
    shift: int


@dataclass(frozen=True)
class _Remainder:
    """Input positions with one remainder modulo the stride, along one axis."""

    taps: tuple[_Tap, ...]  # taps that read these positions: position `q`, counted in strides, for output `q - shift`
    first: int  # first position inside the input, counted in strides
    pixels: slice  # the positions as input pixels
    count: int  # number of positions


def forward(input: Tensor, weight: Tensor, problem: Problem) -> Tensor:
    _, outputs, _, width = problem.output_size
    matrices = weight.permute(3, 2, 1, 0).reshape(-1, outputs).expand(width, -1, -1)
    output = _empty(input, problem.output_size)
    for windows, target in _input_windows(input, output, problem):
        shared.multiply(windows, matrices, out=_by_column(target))
    return output


def weight_gradient(input: Tensor, grad_output: Tensor, problem: Problem) -> Tensor:
    """Return the weight gradient in the memory format of the problem."""
    total = _ColumnSums(input, (*problem.kernel[::-1], problem.input_size[1], problem.weight_size[0]), (3, 2, 1, 0))
    for windows, grads in _input_windows(input, grad_output, problem):
        total.add(windows, grads)
    return total.result(problem)


def input_gradient(grad_output: Tensor, weight: Tensor, problem: Problem) -> Tensor:
    return _gradients(None, grad_output, weight, problem)[0]


def gradients(input: Tensor, grad_output: Tensor, weight: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
    """Return the input gradient and the weight gradient, which share the lowered output gradient for stride 1."""
    if problem.stride == (1, 1):
        return _gradients(input, grad_output, weight, problem)
    return input_gradient(grad_output, weight, problem), weight_gradient(input, grad_output, problem)


def _input_windows(input: Tensor, outputs: Tensor, problem: Problem) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the windows of a run of samples, `(output width, samples * output height, K)`, and the run of `outputs`."""
    lowering = _lowered_input(problem)
    step = _samples_per_tile(lowering, problem)
    buffer = input.new_empty(lowering.elements(step))
    for images, run in _runs(step, input, outputs):
        lowered = lowering.lower(images, buffer)
        yield lowered.windows(problem.output_size[3], problem.stride[1], -problem.padding[2], problem.kernel[1]), run


def _runs(step: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield runs of `step` entries along the first dimension of all tensors."""
    samples = tensors[0].size(0)
    if step >= samples:
        yield tensors
        return
    for start in range(0, samples, step):
        yield tuple(tensor[start : start + step] for tensor in tensors)


def _empty(like: Tensor, size: tuple[int, int, int, int]) -> Tensor:
    return like.new_empty_strided(size, channels_last_strides(size))


def _by_column(images: Tensor) -> Tensor:
    """Return `(N, C, H, W)` as `(W, N * H, C)`: a view if the rows of all samples are evenly spaced, else a copy."""
    samples, channels, height, width = images.shape
    by_sample, by_channel, by_row, by_column = images.stride()
    if not ((by_channel == 1 or channels == 1) and (by_sample == height * by_row or samples == 1)):
        images = images.contiguous(memory_format=torch.channels_last)
        _, _, by_row, by_column = channels_last_strides(images.shape)
    return images.as_strided((width, samples * height, channels), (by_column, by_row, 1))


def _gradients(input: Tensor | None, grad_output: Tensor, weight: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
    """Return the input gradient and, for stride 1, the weight gradient; the latter is empty if `input` is None."""
    # A window contains its taps from left to right and from top to bottom, i.e. in descending order of their index.
    mirrored = weight.flip(2, 3)
    grad_input = _empty(grad_output, problem.input_size)
    total = None
    if input is not None:
        total = _ColumnSums(input, (*problem.kernel[::-1], *problem.weight_size[:2]), (2, 3, 1, 0))
    buffer = grad_output.new_empty(_grads_buffer(problem))
    all_columns = _remainders_of(1, problem)
    for rows in _remainders_of(0, problem):
        read_columns = [columns for columns in all_columns if columns.taps and rows.taps]
        if len(read_columns) < len(all_columns):
            grad_input[:, :, rows.pixels].zero_()
        if not read_columns:
            continue
        matrices = [_mirrored_matrix(mirrored, rows, columns, problem) for columns in read_columns]
        lowering = _lowered_grads(rows, problem)
        step = _samples_per_tile(lowering, problem)
        for grads, target, values in _runs(step, grad_output, grad_input, grad_input if input is None else input):
            lowered = lowering.lower(grads, buffer)
            for columns, matrix in zip(read_columns, matrices, strict=True):
                windows = lowered.windows(columns.count, 1, columns.first - columns.taps[-1].shift, len(columns.taps))
                _write_product(windows, matrix, _positions(target, rows, columns, problem))
                if total is not None:
                    total.add(windows, values)
    if total is None:
        return grad_input, mirrored[:0]
    return grad_input, total.result(problem).flip(2, 3)


def _positions(images: Tensor, rows: _Remainder, columns: _Remainder, problem: Problem) -> Tensor:
    if problem.stride == (1, 1):
        return images
    return images[:, :, rows.pixels, columns.pixels]


def _mirrored_matrix(mirrored: Tensor, rows: _Remainder, columns: _Remainder, problem: Problem) -> Tensor:
    """Return the taps of the remainders from the rotated weight, `(taps * O, C)`."""
    for axis, taps in enumerate((rows.taps, columns.taps)):
        size = problem.kernel[axis]
        if len(taps) < size:
            step = 1
            if len(taps) > 1:
                step = taps[1].index - taps[0].index
            chosen = slice(size - 1 - taps[-1].index, size - taps[0].index, step)
            mirrored = mirrored[:, :, chosen] if axis == 0 else mirrored[:, :, :, chosen]
    return mirrored.permute(3, 2, 0, 1).reshape(-1, mirrored.size(1))


def _write_product(windows: Tensor, matrix: Tensor, target: Tensor) -> None:
    """Write `windows (columns, samples * rows, K) @ matrix (K, C)` to `target (samples, C, rows, columns)`."""
    samples, channels, rows, columns = target.shape
    by_sample, _, by_row, _ = target.stride()
    matrices = matrix.expand(columns, -1, -1)
    if samples == 1 or by_sample == rows * by_row:
        shared.multiply(windows, matrices, out=_by_column(target))
        return
    product = shared.multiply(windows, matrices)
    target.copy_(product.view(columns, samples, rows, channels).permute(1, 3, 2, 0))


class _ColumnSums:
    """Weight gradient as a sum of products over the output columns; partial sums are added in float32 or float64.

    `shape` are the kernel columns, the kernel rows and the two channel counts of a product; `order` permutes this shape
    to that of the weight.
    """

    def __init__(self, like: Tensor, shape: tuple[int, int, int, int], order: tuple[int, int, int, int]) -> None:
        self._like = like
        self._shape = shape
        self._order = order
        self._columns = max(1, PARTIAL_ELEMENTS // max(1, prod(shape)))
        self._sum: Tensor | None = None
        self._parts: Tensor | None = None

    def add(self, windows: Tensor, images: Tensor) -> None:
        """Add the products of `windows (columns, pixels, K)` and `images (samples, channels, rows, columns)`."""
        for columns, values in _runs(self._columns, windows.transpose(1, 2), _by_column(images)):
            self._add_parts()
            self._parts = shared.multiply(columns, values)

    def result(self, problem: Problem) -> Tensor:
        """Return the weight gradient in the memory format of the problem."""
        size = problem.weight_size
        result = _empty(self._like, size) if problem.channels_last else self._like.new_empty(size)
        into = result.permute([self._order.index(axis) for axis in range(4)])
        if self._sum is None and self._parts is not None:
            torch.sum(self._parts.view(-1, *self._shape), 0, out=into)
            return result
        self._add_parts()
        assert self._sum is not None
        into.copy_(self._sum.view(self._shape))
        return result

    def _add_parts(self) -> None:
        if self._parts is not None:
            part = self._parts.sum(0, dtype=shared.accumulation_dtype(self._parts.dtype))
            self._sum = part if self._sum is None else self._sum.add_(part)
            self._parts = None


@dataclass(frozen=True)
class _Lowering:
    """Copies vertical taps: lowered row `y` has the image rows `y * step + first + tap * spacing`, zero outside.

    The buffer contains `gap` zero columns before, between and after the rows; the right border of one row is also the
    left border of the next row.
    """

    height: int  # rows of the image
    width: int  # columns of the image
    channels: int
    rows: int  # lowered rows
    taps: int
    step: int
    first: int
    spacing: int
    gap: int

    @property
    def depth(self) -> int:
        """Elements of a lowered column."""
        return self.taps * self.channels

    @property
    def pitch(self) -> int:
        """Elements from one lowered row to the next."""
        return (self.width + self.gap) * self.depth

    @property
    def at_once(self) -> bool:
        """Whether the rows of all samples are evenly spaced in the image and in the buffer.

        Each image row is then copied to all taps that read it. A tap that is outside the sample receives a row of the
        adjacent sample, or is in a spare row before or after the buffer, and is zeroed.
        """
        return self.height == self.rows * self.step

    def shift(self, tap: int) -> int:
        """Return the difference between the number of an image row, in steps, and that of its lowered row."""
        return (self.first + tap * self.spacing) // self.step

    @property
    def spare(self) -> tuple[int, int]:
        """Rows before and after those of the samples that `at_once` writes."""
        if not self.at_once:
            return 0, 0
        return max(0, self.shift(self.taps - 1)), max(0, -self.shift(0))

    def elements(self, samples: int) -> int:
        """Return the size of the buffer."""
        return (samples * self.rows + sum(self.spare)) * self.pitch + self.gap * self.depth

    def lower(self, images: Tensor, buffer: Tensor) -> "_Lowered":
        """Lower `(samples, channels, height, width)` into a buffer of at least `elements(samples)`."""
        samples = images.size(0)
        start = self.spare[0] * self.pitch
        if self.gap:
            between = samples * self.rows + 1, self.gap * self.depth
            buffer.as_strided(between, (self.pitch, 1), start).zero_()
        lowered = _Lowered(self, buffer, samples, start + self.gap * self.depth)
        if self.at_once:
            self._copy_at_once(images, lowered)
        else:
            self._copy_by_tap(images, lowered)
        self._clear(lowered)
        return lowered

    def _copy_at_once(self, images: Tensor, lowered: "_Lowered") -> None:
        """Copy the image rows of each remainder modulo the step to all taps that read them."""
        by_remainder: dict[int, list[int]] = {}
        for tap in range(self.taps):
            by_remainder.setdefault((self.first + tap * self.spacing) % self.step, []).append(tap)
        for remainder, taps in by_remainder.items():
            # In ascending order of memory: the last tap reads an image row for the first of the lowered rows.
            spacing = 0
            if len(taps) > 1:
                spacing = taps[1] - taps[0]
            by_tap = spacing * self.spacing // self.step * self.pitch - spacing * self.channels
            target = lowered.buffer.as_strided(
                (lowered.samples, self.rows, len(taps), self.width, self.channels),
                (self.rows * self.pitch, self.pitch, by_tap, self.depth, 1),
                lowered.start - self.shift(taps[-1]) * self.pitch + taps[-1] * self.channels,
            )
            rows = images
            if self.step > 1:
                rows = images[:, :, remainder :: self.step]
            target.copy_(rows.permute(0, 2, 3, 1).unsqueeze(2))

    def _copy_by_tap(self, images: Tensor, lowered: "_Lowered") -> None:
        by_row = lowered.by_row()
        for tap in range(self.taps):
            inside, rows = self._inside(tap)
            by_row[:, inside, :, tap].copy_(images[:, :, rows].permute(0, 2, 3, 1))

    def _inside(self, tap: int) -> tuple[slice, slice]:
        return overlap(self.first + tap * self.spacing, self.step, self.rows, self.height)

    def _clear(self, lowered: "_Lowered") -> None:
        """Zero the taps outside the image."""
        outside = []
        for tap in range(self.taps):
            inside, _ = self._inside(tap)
            for start, stop in ((0, inside.start), (inside.stop, self.rows)):
                if start < stop:
                    outside.append((start * self.pitch + tap * self.channels, stop - start))
        if len(outside) == 2 and outside[0][1] == outside[1][1]:
            # The usual case, the first tap above and the last tap below the image, in one launch.
            (first, rows), (second, _) = sorted(outside)
            lowered.buffer.as_strided(
                (lowered.samples, 2, rows, self.width, self.channels),
                (self.rows * self.pitch, second - first, self.pitch, self.depth, 1),
                lowered.start + first,
            ).zero_()
            return
        for offset, rows in outside:
            lowered.buffer.as_strided(
                (lowered.samples, rows, self.width, self.channels),
                (self.rows * self.pitch, self.pitch, self.depth, 1),
                lowered.start + offset,
            ).zero_()


@dataclass(frozen=True)
class _Lowered:
    """Lowered samples in a buffer; `start` is the position of the first column of the first row."""

    lowering: _Lowering
    buffer: Tensor
    samples: int
    start: int

    def by_row(self) -> Tensor:
        """Return the lowered rows `(samples, rows, columns, taps, channels)`."""
        lowering = self.lowering
        return self.buffer.as_strided(
            (self.samples, lowering.rows, lowering.width, lowering.taps, lowering.channels),
            (lowering.rows * lowering.pitch, lowering.pitch, lowering.depth, lowering.channels, 1),
            self.start,
        )

    def windows(self, count: int, step: int, first: int, columns: int) -> Tensor:
        """Return `count` windows of `columns` image columns, every `step`-th from column `first` on.

        The shape is `(count, samples * rows, columns * depth)`; windows overlap in memory.
        """
        lowering = self.lowering
        return self.buffer.as_strided(
            (count, self.samples * lowering.rows, columns * lowering.depth),
            (step * lowering.depth, lowering.pitch, 1),
            self.start + first * lowering.depth,
        )


def _lowered_input(problem: Problem) -> _Lowering:
    _, channels, height, width = problem.input_size
    before = problem.padding[2]
    last = (problem.output_size[3] - 1) * problem.stride[1] + problem.kernel[1] - 1 - before
    return _Lowering(
        height,
        width,
        channels,
        rows=problem.output_size[2],
        taps=problem.kernel[0],
        step=problem.stride[0],
        first=-problem.padding[0],
        spacing=problem.dilation[0],
        gap=max(0, before, last + 1 - width),
    )


def _lowered_grads(rows: _Remainder, problem: Problem) -> _Lowering:
    """Return the lowering of the output gradient for the input rows of a remainder, which must have taps."""
    _, outputs, height, width = problem.output_size
    gap = 0
    for columns in _remainders_of(1, problem):
        if columns.taps:
            first = columns.first - columns.taps[-1].shift
            last = columns.first + columns.count - 1 - columns.taps[0].shift
            gap = max(gap, -first, last + 1 - width)
    spacing = 1
    if len(rows.taps) > 1:
        spacing = rows.taps[1].shift - rows.taps[0].shift
    return _Lowering(
        height,
        width,
        outputs,
        rows=rows.count,
        taps=len(rows.taps),
        step=1,
        first=rows.first - rows.taps[-1].shift,
        spacing=spacing,
        gap=gap,
    )


def _grads_buffer(problem: Problem) -> int:
    """Return the elements of the lowered output gradient; the input rows of all remainders share one buffer."""
    lowerings = [_lowered_grads(rows, problem) for rows in _remainders_of(0, problem) if rows.taps]
    return max((lowering.elements(_samples_per_tile(lowering, problem)) for lowering in lowerings), default=0)


def _samples_per_tile(lowering: _Lowering, problem: Problem) -> int:
    fitting = shared.ACCELERATOR_TILE_ELEMENTS // max(1, lowering.rows * lowering.pitch)
    return max(1, min(problem.input_size[0], fitting))


def _remainders_of(axis: int, problem: Problem) -> list[_Remainder]:
    """Return the remainders that occur inside the input along an axis."""
    stride = problem.stride[axis]
    before = problem.padding[2 * axis]
    size = problem.input_size[2 + axis]
    remainders = []
    for remainder in range(stride):
        start = (remainder - before) % stride
        reached = [(index, index * problem.dilation[axis] - remainder) for index in range(problem.kernel[axis])]
        taps = tuple(_Tap(index, reach // stride) for index, reach in reached if reach % stride == 0)
        count = len(range(start, size, stride))
        if count:
            first = (start + before - remainder) // stride
            remainders.append(_Remainder(taps, first, slice(start, None, stride), count))
    return remainders


def _serves(problem: Problem, dtype: torch.dtype, device_type: str) -> bool:
    """Return whether horizontal taps are adjacent and there is one group."""
    has_adjacent_taps = problem.dilation[1] == 1 or problem.kernel[1] == 1
    return problem.channels_last and problem.groups == 1 and not problem.is_pointwise and has_adjacent_taps


ALGORITHM = Algorithm(
    "column_batches",
    {
        Operation.FORWARD: forward,
        Operation.INPUT_GRADIENT: input_gradient,
        Operation.WEIGHT_GRADIENT: weight_gradient,
        Operation.GRADIENTS: gradients,
    },
    _serves,
)
