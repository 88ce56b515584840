"""Model of the training speed on 8 to 1,024 GPUs, not a measurement; docs/scaling.md explains the formulas.

    python scripts/scaling_model.py --gpu_images_per_s 1000 --samples_per_worker_s 462 --workers_per_gpu 4

`benchmark` measures the images per second of one GPU, `benchmark_loader` the samples per second of one worker.
"""

from dataclasses import dataclass, fields
from math import ceil, log2

from common import markdown_table
from jsonargparse import ArgumentParser

from yolo_lightning.data.sampling.resumable_loader import GlobalBatches

GPUS = (1, 8, 16, 64, 256, 1024)
EPOCH_FRAMES = 329_299  # training frames of LTDv2
COLUMNS = (
    *("GPUs", "averaging", "small messages", "efficiency"),
    *("images/s", "decided by", "steps in an epoch", "workers needed"),
)


@dataclass(frozen=True)
class Cluster:
    """Measured or assumed properties of one GPU, its loader and its network.

    Attributes:
        gpu_images_per_s: Images per second of one GPU without communication.
        batch_size: Images per GPU and step.
        samples_per_worker_s: Augmented samples per second of one loader worker on its own core. The default is
            measured in docs/measurements.md, from a folder of frames of LTDv2's size.
        workers_per_gpu: Loader workers of each process.
        gradient_bytes: Bytes averaged per step; 4 for each of the 3,011,612 trainable parameters of yolov8n.
        node_bytes_per_s: Bandwidth between GPUs of one node (NVLink).
        node_latency_s: Latency of a message between GPUs of one node.
        network_bytes_per_s: Bandwidth between nodes, per GPU (200 Gb/s adapters).
        network_latency_s: Latency of a message between nodes.
        gpus_per_node: GPUs per node.
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
                raise ValueError(f"--{field.name} must be > 0, got {getattr(self, field.name)}")


@dataclass(frozen=True)
class Scaling:
    """Result of the model for a number of GPUs."""

    gpus: int
    averaging_s: float  # averaging of gradients per step
    messages_s: float  # small messages per step: losses, statistics
    efficiency: float  # step without communication / step with communication, without overlap and loader
    images_per_s: float  # of all GPUs
    bound: str  # GPU or loader, whichever is slower
    steps: int  # per epoch
    workers_needed: int  # per GPU, with which the loader is not slower than the GPU


def scaling(cluster: Cluster, gpus: int) -> Scaling:
    """Return the speed of `gpus` GPUs: a ring within each node, a tree between nodes, loaders that run in parallel."""
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
    loaded = cluster.samples_per_worker_s * cluster.workers_per_gpu
    return Scaling(
        gpus=gpus,
        averaging_s=averaging_s,
        messages_s=messages_s,
        efficiency=alone_s / step_s,
        images_per_s=gpus * min(consumed, loaded),
        bound="loader" if loaded < consumed else "GPU",
        steps=GlobalBatches(cluster.batch_size, processes=gpus).count(EPOCH_FRAMES),
        workers_needed=ceil(consumed / cluster.samples_per_worker_s),
    )


def table(cluster: Cluster) -> str:
    """Return a Markdown table with a row per number of GPUs."""
    rows = []
    for one in (scaling(cluster, gpus) for gpus in GPUS):
        times = f"{one.averaging_s * 1e3:.2f} ms", f"{one.messages_s * 1e3:.2f} ms", f"{one.efficiency:.0%}"
        counts = f"{one.steps:,}", str(one.workers_needed)
        rows.append((f"{one.gpus:,}", *times, f"{one.images_per_s:,.0f}", one.bound, *counts))
    return markdown_table(COLUMNS, rows)


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__)
    parser.add_class_arguments(Cluster)
    print(table(Cluster(**vars(parser.parse_args()))))
