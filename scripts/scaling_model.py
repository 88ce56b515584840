"""How many images per second 8 to 1,024 GPUs would train on: a model, not a measurement; docs/scaling.md explains it.

    python scripts/scaling_model.py --gpu_images_per_s 1000 --samples_per_worker_s 462 --workers_per_gpu 4

`benchmark` measures the images per second of one GPU, `benchmark_loader` the samples per second of one worker.
"""

from dataclasses import dataclass, fields
from enum import StrEnum
from math import ceil, log2

from jsonargparse import ArgumentParser

from yolo_lightning.data.sampling.global_batches import GlobalBatches

GPUS = (1, 8, 16, 64, 256, 1024)
EPOCH_FRAMES = 329_299
"""Training frames of LTDv2."""
COLUMNS = (
    *("GPUs", "averaging", "small messages", "efficiency"),
    *("images/s", "decided by", "steps in an epoch", "workers needed"),
)


class Bound(StrEnum):
    """What decides the speed."""

    GPU = "GPU"
    LOADER = "loader"


@dataclass(frozen=True)
class Cluster:
    """What is measured or assumed of one GPU, its loader and its network.

    Attributes:
        gpu_images_per_s: Of one GPU alone, with all its batches at hand.
        batch_size: Images per GPU and step.
        samples_per_worker_s: Augmented samples that one loader worker prepares per second, on a core of its own; as
            measured in docs/measurements.md, from a folder of frames of LTDv2's size.
        workers_per_gpu: Loader workers of each process.
        gradient_bytes: That each step averages; 4 bytes for each of yolov8n's 3,011,612 trainable parameters.
        node_bytes_per_s: Between GPUs of one node (NVLink).
        node_latency_s: Of one message there.
        network_bytes_per_s: Between nodes, for each GPU (200 Gb/s adapters).
        network_latency_s: Of one message there.
        gpus_per_node: GPUs that share a node.
    """

    gpu_images_per_s: float = 1000.0
    batch_size: int = 16
    samples_per_worker_s: float = 462.0
    workers_per_gpu: int = 4
    gradient_bytes: float = 4 * 3_011_612
    node_bytes_per_s: float = 150e9
    node_latency_s: float = 10e-6
    network_bytes_per_s: float = 25e9
    network_latency_s: float = 20e-6
    gpus_per_node: int = 8

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise ValueError(f"{field.name} is {getattr(self, field.name)}, allowed are values above 0")

    @property
    def loader_images_per_s(self) -> float:
        """Samples that the loader of one GPU prepares per second."""
        return self.samples_per_worker_s * self.workers_per_gpu


@dataclass(frozen=True)
class Scaling:
    """What the model says of a number of GPUs.

    Attributes:
        gpus: Their number.
        averaging_s: Averaging of gradients per step.
        messages_s: Small messages per step: losses, statistics.
        efficiency: Step alone by step with communication, if nothing overlaps; what the loader does is not in it.
        images_per_s: Of all together.
        bound: What decides that.
        steps: Of an epoch.
        workers_needed: Per GPU, with which the loader would keep up.
    """

    gpus: int
    averaging_s: float
    messages_s: float
    efficiency: float
    images_per_s: float
    bound: Bound
    steps: int
    workers_needed: int


def scaling(cluster: Cluster, gpus: int) -> Scaling:
    """Ring within a node, tree between the nodes; loaders prepare batches while GPUs work, so the slower decides."""
    inside, nodes = min(gpus, cluster.gpus_per_node), ceil(gpus / cluster.gpus_per_node)
    averaging_s = (
        2 * (inside - 1) / inside * cluster.gradient_bytes / cluster.node_bytes_per_s
        + 2 * (inside - 1) * cluster.node_latency_s
        + 2 * (nodes - 1) / nodes * cluster.gradient_bytes / inside / cluster.network_bytes_per_s
        + 2 * log2(nodes) * cluster.network_latency_s
    )
    messages_s = 4 * log2(gpus) * cluster.network_latency_s
    alone_s = cluster.batch_size / cluster.gpu_images_per_s
    step_s = alone_s + averaging_s + messages_s
    consumed = cluster.batch_size / step_s
    return Scaling(
        gpus=gpus,
        averaging_s=averaging_s,
        messages_s=messages_s,
        efficiency=alone_s / step_s,
        images_per_s=gpus * min(consumed, cluster.loader_images_per_s),
        bound=Bound.LOADER if cluster.loader_images_per_s < consumed else Bound.GPU,
        steps=GlobalBatches(cluster.batch_size, processes=gpus).count(EPOCH_FRAMES),
        workers_needed=ceil(consumed / cluster.samples_per_worker_s),
    )


def print_table(cluster: Cluster) -> None:
    """A line for each number of GPUs."""
    print(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}")
    for one in (scaling(cluster, gpus) for gpus in GPUS):
        print(
            f"| {one.gpus:,} | {one.averaging_s * 1e3:.2f} ms | {one.messages_s * 1e3:.2f} ms | {one.efficiency:.0%} "
            f"| {one.images_per_s:,.0f} | {one.bound} | {one.steps:,} | {one.workers_needed} |"
        )


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__)
    parser.add_class_arguments(Cluster)
    print_table(Cluster(**vars(parser.parse_args())))
