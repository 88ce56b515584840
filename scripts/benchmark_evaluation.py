"""Measure the evaluation of as many frames as LTDv2's validation split has, on random detections.

`python scripts/benchmark_evaluation.py` matches and scores 43,850 frames with 100 detections each, in batches of 8: as
the callbacks do, and with the metric `MeanAveragePrecision`, which also scores object sizes. With `--reference true`,
torchmetrics' `MeanAveragePrecision` scores the same frames, which needs about 7 GB, and the scores are compared.
"""

import resource
import time

import numpy as np
import numpy.typing as npt
import torch
from jsonargparse import auto_cli
from torchmetrics import Metric
from torchmetrics.detection import MeanAveragePrecision as TorchmetricsMeanAveragePrecision

from yolo_lightning.data.batch import Prediction, Target
from yolo_lightning.evaluation.drift import CHALLENGE_MONTHS, drift_scores, named_scores
from yolo_lightning.evaluation.matching import Matches, match
from yolo_lightning.evaluation.mean_average_precision import MeanAveragePrecision

CLASS_NAMES = ("person", "bicycle", "motorcycle", "vehicle")
CLASS_SHARES = torch.tensor([0.850, 0.043, 0.005, 0.102])  # of LTDv2's 6,868,067 boxes
FRAME = torch.tensor([384.0, 288.0])
BATCH = 8
METRIC, REFERENCE = "MeanAveragePrecision", "torchmetrics' MeanAveragePrecision"


def benchmark_evaluation(
    frames: int = 43_850, detections: int = 100, objects: float = 8.9, reference: bool = False, seed: int = 0
) -> None:
    """Match and score random frames; print time and memory.

    Args:
        frames: Number of frames.
        detections: Detections per frame.
        objects: Mean number of annotated objects per frame.
        reference: Also score all frames with torchmetrics' metric, and compare scores and times.
        seed: Seed of the random frames.
    """
    generator = torch.Generator().manual_seed(seed)
    months = list(CHALLENGE_MONTHS.values())
    matches: list[Matches] = []
    metrics: dict[str, Metric] = {METRIC: MeanAveragePrecision()}
    if reference:
        metrics[REFERENCE] = TorchmetricsMeanAveragePrecision(backend="faster_coco_eval")
        metrics[REFERENCE].warn_on_many_detections = False
    spent_s = {name: np.zeros(2) for name in metrics}
    before_mb, matching_s = _peak_mb(), np.zeros(2)
    for start in range(0, frames, BATCH):
        batch = [
            _random_frame(number, detections, objects, months[number * len(months) // frames], generator)
            for number in range(start, min(start + BATCH, frames))
        ]
        found, truth = [one for one, _ in batch], [one for _, one in batch]
        begun_s = now_s()
        matches.append(match(found, truth, len(CLASS_NAMES)))
        matching_s += now_s() - begun_s
        preds = [{"boxes": one.boxes, "scores": one.scores, "labels": one.labels} for one in found]
        targets = [{"boxes": one.boxes, "labels": one.labels} for one in truth]
        for name, metric in metrics.items():
            begun_s = now_s()
            metric.update(preds, targets)
            spent_s[name] += now_s() - begun_s
    begun_s = now_s()
    scores = drift_scores(Matches.join(matches))
    values = named_scores(scores, CLASS_NAMES)
    scoring_s = now_s() - begun_s
    annotated = int(scores.overall.annotated.sum())
    print(f"{frames:,} frames, {frames * detections:,} detections, {annotated:,} objects, {len(scores.monthly)} months")
    for name, (processor_s, wall_s) in (("matching", matching_s), ("scoring with months", scoring_s)):
        print(f"{name}: {processor_s:.1f} s processor time, {wall_s:.1f} s wall time")
    print(f"peak memory: {_peak_mb():,.0f} MB, {before_mb:,.0f} MB before")
    results = {}
    for name, metric in metrics.items():
        begun_s = now_s()
        results[name] = {key: float(value) for key, value in metric.compute().items() if value.numel() == 1}
        spent_s[name] += now_s() - begun_s
        processor_s, wall_s = spent_s[name]
        memory = f"peak memory {_peak_mb():,.0f} MB"
        print(f"{name}: {processor_s:.1f} s processor time, {wall_s:.1f} s wall time, {memory}")
    if reference:
        processor, wall = spent_s[REFERENCE] / spent_s[METRIC]
        expected = results[REFERENCE]
        print(f"{METRIC} is {processor:.1f} times as fast as torchmetrics' in processor time, {wall:.1f} in wall time")
        for name, own in (("callbacks", values), (METRIC, results[METRIC])):
            gaps = [abs(own[key] - value) for key, value in expected.items() if key in own]
            print(f"largest difference of {len(gaps)} scores to torchmetrics, {name}: {max(gaps):.1e}")


def now_s() -> npt.NDArray[np.float64]:
    """Return processor time and wall time in seconds."""
    return np.array([time.process_time(), time.perf_counter()])


def _random_frame(
    number: int, detections: int, objects: float, month: int, generator: torch.Generator
) -> tuple[Prediction, Target]:
    """Return a frame with up to four detections near each object, and others anywhere with lower scores."""
    count = int(torch.poisson(torch.tensor(objects), generator=generator))
    boxes, labels = _random_objects(count, generator)
    near = torch.arange(count).repeat(4)[:detections]
    other_boxes, other_labels = _random_objects(detections - len(near), generator)
    shifted = boxes[near] + 2 * torch.randn(len(near), 2, generator=generator).repeat(1, 2)
    scores = torch.rand(detections, generator=generator)
    scores[len(near) :] *= 0.3
    order = scores.argsort(descending=True)
    found, guesses = torch.cat((shifted, other_boxes)), torch.cat((labels[near], other_labels))
    prediction = Prediction(str(number), found[order], scores[order], guesses[order])
    return prediction, Target(str(number), boxes, labels, month)


def _random_objects(count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return boxes `(count, 4)` xyxy, most smaller than 32 pixels as in LTDv2, and labels `(count,)` int64."""
    sides = 5 + 60 * torch.rand(count, 2, generator=generator) ** 3
    corner = torch.rand(count, 2, generator=generator) * (FRAME - sides)
    draws = torch.rand(count, generator=generator)
    return torch.cat((corner, corner + sides), dim=1), torch.bucketize(draws, CLASS_SHARES.cumsum(0)[:-1])


def _peak_mb() -> float:
    """Return the peak resident memory of this process in MB of 10^6 bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


if __name__ == "__main__":
    auto_cli(benchmark_evaluation, as_positional=False)
