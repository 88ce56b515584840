"""How a training step divides between work and communication among 1, 2, ... processes of this machine.

    python scripts/benchmark_scaling.py --processes 1 2 4

Every process computes YOLOv8n's forward and backward pass on its own random images, and DistributedDataParallel
averages the gradients, as in a fit. The same steps are run with and without that averaging, in turns, so that other
load on the machine meets both; bare all-reduces of a tensor of as many bytes are timed apart. With more processes than
free cores the absolute times say nothing about several machines; the bytes per step do, and docs/scaling.md uses them.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from yolo_lightning.model.graph import build_graph
from yolo_lightning.module import YOLOModule

WARM_UP = 2
RANK_VARIABLE = "RANK"


def median_s(work: Callable[[], object], times: int) -> float:
    """Seconds that `work` takes."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def measure(images: int, size: int, rounds: int) -> dict[str, float]:
    """One process' part; the first one's figures are those of all, as each step waits for the slowest."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    graph = build_graph("yolov8n", YOLOModule.__init__.__defaults__[1], "native").train()  # type: ignore[index]
    network = DistributedDataParallel(graph)
    batch = torch.rand(images, 1, size, size)
    parameters = [parameter for parameter in graph.parameters() if parameter.requires_grad]

    def step(averaging: bool) -> None:
        for parameter in parameters:
            parameter.grad = None
        with nullcontext() if averaging else network.no_sync():
            raw = network(batch)
            (raw["boxes"].square().mean() + raw["scores"].square().mean()).backward()

    for _ in range(WARM_UP):
        step(True)
    gradients = torch.zeros(sum(parameter.numel() for parameter in parameters))
    with_s, without_s, bare_s = [], [], []
    for _ in range(rounds):
        dist.barrier()
        with_s.append(median_s(lambda: step(True), 1))
        dist.barrier()
        without_s.append(median_s(lambda: step(False), 1))
        dist.barrier()
        bare_s.append(median_s(lambda: dist.all_reduce(gradients), 1))
    found = {
        "processes": dist.get_world_size(),
        "step_s": statistics.median(with_s),
        "step_without_averaging_s": statistics.median(without_s),
        "all_reduce_s": statistics.median(bare_s),
        "gradient_bytes": gradients.numel() * gradients.element_size(),
    }
    dist.destroy_process_group()
    return found


def launch(processes: int, arguments: list[str]) -> dict[str, float]:
    """Measure with so many processes."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = {"PYTHONPATH": str(Path(__file__).resolve().parents[1]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*torchrun, __file__, *arguments],
        env=os.environ | environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Print a table, a line for each number of processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--images", type=int, default=2, help="per process and step")
    parser.add_argument("--size", type=int, default=320, help="side of the input, pixels")
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    if RANK_VARIABLE in os.environ:
        found = measure(options.images, options.size, options.rounds)
        if os.environ[RANK_VARIABLE] == "0":
            print(json.dumps(found))
        return
    given = [f"--images={options.images}", f"--size={options.size}", f"--rounds={options.rounds}"]
    print("| processes | step | step without averaging | share of it | bare all-reduce | gradients |")
    print("| --- | --- | --- | --- | --- | --- |")
    for processes in options.processes:
        one = launch(processes, given)
        share = max(0.0, 1 - one["step_without_averaging_s"] / one["step_s"])
        print(
            f"| {processes} | {one['step_s'] * 1000:.0f} ms | {one['step_without_averaging_s'] * 1000:.0f} ms "
            f"| {share:.1%} | {one['all_reduce_s'] * 1000:.1f} ms | {one['gradient_bytes'] / 1e6:.2f} MB |",
            flush=True,
        )


if __name__ == "__main__":
    main()
