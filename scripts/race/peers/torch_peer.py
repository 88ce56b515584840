"""A plain PyTorch loop with snapshots, as in the tutorial of torchrun; with heartbeats under nvidia-resiliency-ext.

https://docs.pytorch.org/tutorials/beginner/ddp_series_fault_tolerance.html: a snapshot that every start loads if it
exists, DistributedDataParallel, `DistributedSampler.set_epoch`. The optimizer is added to the tutorial's snapshot, as
https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html recommends for resuming.
https://nvidia.github.io/nvidia-resiliency-ext/fault_tolerance/usage_guide.html: `RankMonitorClient`.
"""

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from ultralytics.utils.loss import v8DetectionLoss

from race.hook import Hook
from race.peers import yolo
from race.systems import Training


def main(*, heartbeats: bool) -> None:
    """Train, or resume from the snapshot."""
    training, hook = Training.read(), Hook()
    client: Any = None
    if heartbeats:
        client = importlib.import_module("nvidia_resiliency_ext.fault_tolerance").RankMonitorClient()
        client.init_workload_monitoring()
    torch.set_num_threads(1)
    torch.manual_seed(training.seed)
    distributed.init_process_group("gloo")
    graph = yolo.network()
    model = DistributedDataParallel(graph)
    optimizer = yolo.optimizer(model.parameters())
    frames = yolo.Frames(training)
    sampler: DistributedSampler[Any] = DistributedSampler(frames, seed=training.seed)
    loader = DataLoader(frames, training.batch, sampler=sampler, num_workers=training.workers, collate_fn=yolo.collate)
    snapshot_path = Path(training.run_folder) / "snapshot.pt"
    epochs_run = 0
    if os.path.exists(snapshot_path):
        snapshot = torch.load(snapshot_path)
        graph.load_state_dict(snapshot["MODEL_STATE"])
        optimizer.load_state_dict(snapshot["OPTIMIZER_STATE"])
        epochs_run = snapshot["EPOCHS_RUN"]
    criterion = v8DetectionLoss(graph)
    for epoch in range(epochs_run, training.epochs):
        sampler.set_epoch(epoch)
        for step, batch in enumerate(loader, start=epoch * len(loader) + 1):
            outputs = model(hook.images(batch["img"], step))
            loss = yolo.total_loss(criterion, outputs, batch)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            hook.step(step, loss)
            if client is not None:
                client.send_heartbeat()
        states = {"MODEL_STATE": graph.state_dict(), "OPTIMIZER_STATE": optimizer.state_dict()}
        torch.save({**states, "EPOCHS_RUN": epoch + 1}, snapshot_path)
    hook.finish(graph.state_dict())
    if client is not None:
        client.shutdown_workload_monitoring()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(heartbeats="--heartbeats" in sys.argv)
