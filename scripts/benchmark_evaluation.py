"""Measure the evaluation at the size of LTDv2's validation split, on detections that are drawn as it goes.

`python scripts/benchmark_evaluation.py` matches and scores 43,850 frames with 100 detections each, in batches of 8;
with `--reference true` torchmetrics scores the same frames, which takes about 7 GB, and the scores are compared.
"""

import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from jsonargparse import auto_cli
from torch import Tensor
from torchmetrics.detection import MeanAveragePrecision

from yolo_lightning.data.batch import Prediction, Target
from yolo_lightning.evaluation.drift import CHALLENGE_MONTHS, drift_scores, named_scores
from yolo_lightning.evaluation.matching import Matches, match

CLASS_NAMES = ("person", "bicycle", "motorcycle", "vehicle")
CLASS_SHARES = torch.tensor([0.850, 0.043, 0.005, 0.102])
"""Of LTDv2's 6,868,067 boxes."""
FRAME = torch.tensor([384.0, 288.0])
BATCH = 8
COMPARED = ("map", "map_50", "map_75", "mar_1", "mar_10", "mar_100")

Frame = tuple[Prediction, Target]


@dataclass
class Stopwatch:
    """Processor and wall time of the blocks that it is entered for, in seconds."""

    processor_s: float = 0.0
    wall_s: float = 0.0
    _started: tuple[float, float] = field(default=(0.0, 0.0))

    def __enter__(self) -> None:
        self._started = time.process_time(), time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.processor_s += time.process_time() - self._started[0]
        self.wall_s += time.perf_counter() - self._started[1]

    def __str__(self) -> str:
        return f"{self.processor_s:.1f} s of processor time, {self.wall_s:.1f} s by the clock"


def benchmark_evaluation(
    frames: int = 43_850, detections: int = 100, objects: float = 8.9, reference: bool = False, seed: int = 0
) -> None:
    """Match and score drawn frames; print time and memory.

    Args:
        frames: How many frames.
        detections: Per frame.
        objects: Annotated objects per frame, on average.
        reference: Also let torchmetrics score all frames, and compare.
        seed: Of everything that is left to chance.
    """
    generator = torch.Generator().manual_seed(seed)
    matching, scoring = Stopwatch(), Stopwatch()
    matches: list[Matches] = []
    others = MeanAveragePrecision(backend="faster_coco_eval")
    others.warn_on_many_detections = False
    before_mb = peak_mb()
    for batch in drawn_batches(frames, detections, objects, generator):
        found, truth = [one for one, _ in batch], [one for _, one in batch]
        with matching:
            matches.append(match(found, truth, len(CLASS_NAMES)))
        if reference:
            others.update(
                [{"boxes": one.boxes, "scores": one.scores, "labels": one.labels} for one in found],
                [{"boxes": one.boxes, "labels": one.labels} for one in truth],
            )
    with scoring:
        scores = drift_scores(Matches.join(matches))
        values = named_scores(scores, CLASS_NAMES)
    annotated = int(scores.overall.annotated.sum())
    print(f"{frames:,} frames, {frames * detections:,} detections, {annotated:,} objects, {len(scores.monthly)} months")
    print(f"matching: {matching}\nscoring: {scoring}")
    print(f"memory: {peak_mb():,.0f} MB at most, {before_mb:,.0f} MB before")
    if reference:
        with (watch := Stopwatch()):
            result = others.compute()
        print(f"torchmetrics, all frames once: {watch}, {peak_mb():,.0f} MB at most")
        print(f"largest difference: {max(abs(values[name] - float(result[name])) for name in COMPARED):.1e}")


def drawn_batches(frames: int, detections: int, objects: float, generator: torch.Generator) -> Iterator[list[Frame]]:
    """Batches of drawn frames, the months one after the other."""
    months = list(CHALLENGE_MONTHS.values())
    for start in range(0, frames, BATCH):
        numbers = range(start, min(start + BATCH, frames))
        yield [drawn_frame(n, detections, objects, months[n * len(months) // frames], generator) for n in numbers]


def drawn_frame(number: int, detections: int, objects: float, month: int, generator: torch.Generator) -> Frame:
    """A frame with a few detections near each object, the others anywhere, with lower scores."""
    count = int(torch.poisson(torch.tensor(objects), generator=generator))
    boxes, labels = drawn_boxes(count, generator), drawn_labels(count, generator)
    near = torch.arange(count).repeat(4)[:detections]
    elsewhere = detections - len(near)
    shifted = boxes[near] + 2 * torch.randn(len(near), 2, generator=generator).repeat(1, 2)
    found = torch.cat((shifted, drawn_boxes(elsewhere, generator)))
    guesses = torch.cat((labels[near], drawn_labels(elsewhere, generator)))
    scores = torch.rand(detections, generator=generator)
    scores[len(near) :] *= 0.3
    order = scores.argsort(descending=True)
    found_in_frame = Prediction(str(number), found[order], scores[order], guesses[order])
    return found_in_frame, Target(str(number), boxes, labels, month)


def drawn_boxes(count: int, generator: torch.Generator) -> Tensor:
    """`(count, 4)` xyxy, pixels; most are smaller than 32 pixels, as in LTDv2."""
    sides = 5 + 60 * torch.rand(count, 2, generator=generator) ** 3
    corner = torch.rand(count, 2, generator=generator) * (FRAME - sides)
    return torch.cat((corner, corner + sides), dim=1)


def drawn_labels(count: int, generator: torch.Generator) -> Tensor:
    """`(count,)` int64, with the shares of LTDv2."""
    limits = CLASS_SHARES.cumsum(0)[:-1]
    return torch.bucketize(torch.rand(count, generator=generator), limits)


def peak_mb() -> float:
    """Largest resident memory of this process so far, MB of 10^6 bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


if __name__ == "__main__":
    auto_cli(benchmark_evaluation, as_positional=False)
