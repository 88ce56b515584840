"""Scores of one network on the same real thermal frames, by `YOLO.val` and by this package."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from torch import nn
from ultralytics import YOLO
from ultralytics.models.yolo.detect import DetectionValidator
from ultralytics.utils.metrics import DetMetrics

from tests.callbacks.tiny_training import tiny_trainer
from tests.helpers.data_module import data_module
from tests.parity.training_twins import SCORES
from yolo_lightning.callbacks import MeanAP
from yolo_lightning.data.batch import Batch
from yolo_lightning.data.boxes import clip_boxes, corners_to_centres
from yolo_lightning.data.formats.ltdv2 import CLASS_NAMES
from yolo_lightning.data.loader import LoaderSettings
from yolo_lightning.evaluation.record import EvaluationRecord
from yolo_lightning.evaluation.ultralytics_matching import CONFUSION_SCORE_THRESHOLD
from yolo_lightning.model.conv_backend import ConvolutionSettings
from yolo_lightning.model.layers import restore
from yolo_lightning.module import YOLOModule

HEIGHT, WIDTH = 160, 192
"""Pixels of a tile. Tiles are neither scaled nor resampled, and their edges cut through objects."""

TILES, BATCH_SIZE, STEPS = 16, 8, 60


def write_tiles(real_frames: Path, folder: Path) -> Path:
    """Cut the frames into tiles, keep those with the most objects at an edge; return the `data.yaml`."""
    content = json.loads((real_frames / "Valid.json").read_text())
    boxes: dict[int, list[list[float]]] = {}
    for one in content["annotations"]:
        left, top, width, height = one["bbox"]
        boxes.setdefault(one["image_id"], []).append([one["category_id"] - 1, left, top, left + width, top + height])
    tiles = []
    for image in content["images"]:
        objects = np.array(boxes.get(image["id"], []), np.float32).reshape(-1, 5)
        for top in range(0, image["height"] - HEIGHT + 1, HEIGHT):
            for left in range(0, image["width"] - WIDTH + 1, WIDTH):
                moved = objects[:, 1:] - np.array([left, top] * 2, np.float32)
                seen = clip_boxes(moved, HEIGHT, WIDTH)
                kept = (seen[:, 2:] - seen[:, :2]).min(axis=1, initial=np.inf) >= 4
                cut = int((moved != seen).any(axis=1)[kept].sum())
                tiles.append((cut, image["file_name"], top, left, objects[kept, 0], seen[kept]))
    tiles.sort(key=lambda tile: (-tile[0], *tile[1:4]))
    for kind in ("images", "labels"):
        (folder / kind / "val").mkdir(parents=True)
    for number, (_, file_name, top, left, labels, corners) in enumerate(tiles[:TILES]):
        pixels = cv2.imread(str(real_frames / file_name), cv2.IMREAD_GRAYSCALE)
        assert pixels is not None
        cv2.imwrite(
            str(folder / "images" / "val" / f"{number:02d}.png"), pixels[top : top + HEIGHT, left : left + WIDTH]
        )
        shares = corners_to_centres(corners) / [WIDTH, HEIGHT, WIDTH, HEIGHT]
        rows = [
            f"{label:.0f} " + " ".join(f"{share:.8f}" for share in row)
            for label, row in zip(labels, shares, strict=True)
        ]
        (folder / "labels" / "val" / f"{number:02d}.txt").write_text("\n".join(rows) + "\n")
    description = folder / "data.yaml"
    description.write_text(
        f"path: {folder}\ntrain: images/val\nval: images/val\nnames: {json.dumps(list(CLASS_NAMES))}\n"
    )
    return description


def learn(module: YOLOModule, batches: list[Batch]) -> None:
    """Train on the tiles until scores differ from 0 and 1."""
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = 0.2  # the usual one needs more steps
    optimizer = torch.optim.AdamW(module.graph.parameters(), 2e-3)
    module.train()
    for step in range(STEPS):
        batch = batches[step % len(batches)]
        loss, _ = module.detection_loss(module.graph(batch.images / 255), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    module.eval()


class Validator(DetectionValidator):
    """Fills the confusion matrix without drawing pictures."""

    def update_metrics(self, preds: list[dict[str, torch.Tensor]], batch: dict[str, Any]) -> None:
        self.args.plots = True
        super().update_metrics(preds, batch)
        self.args.plots = False


def their_scores(module: YOLOModule, description: Path, folder: Path, **options: Any) -> DetMetrics:
    """Return what `YOLO.val` computes with the weights of `module`."""
    model = YOLO("yolov8n.yaml")
    model.model = deepcopy(module.graph)
    restore(model.model)
    model.model.names = dict(enumerate(CLASS_NAMES))
    places = {"data": str(description), "project": str(folder), "device": "cpu", "workers": 0}
    return model.val(Validator, **places, imgsz=WIDTH, batch=4, rect=False, plots=False, verbose=False, **options)


@pytest.mark.whole_run
def test_scores_are_those_of_ultralytics_val(real_frames: Path, index_root: Path, tmp_path: Path) -> None:
    description = write_tiles(real_frames, tmp_path / "tiles")
    data = data_module(
        format=str(description),
        index_root=str(index_root),
        image_size=WIDTH,
        batch_size=BATCH_SIZE,
        loader=LoaderSettings(num_workers=0),
    )
    torch.manual_seed(0)
    module = YOLOModule(convolution=ConvolutionSettings(backend="native"))
    trainer = tiny_trainer(tmp_path, MeanAP())
    data.trainer = trainer
    data.setup("validate")
    learn(module, list(data.val_dataloader()))
    (ours,) = trainer.validate(module, datamodule=data, verbose=False)
    theirs = their_scores(module, description, tmp_path)
    assert theirs.box.map > 0.1, "the case is too easy"
    for column, name in SCORES.items():
        assert ours[name] == pytest.approx(theirs.results_dict[column], abs=1e-4), name
    assert ours["val/f1"] == pytest.approx(theirs.box.f1.mean(), abs=1e-4)
    assert ours["val/map_50"] > ours["val/ultralytics_map_50"] + 0.005, "no box overhangs a tile"
    matrix = their_scores(module, description, tmp_path, conf=CONFUSION_SCORE_THRESHOLD).confusion_matrix.matrix
    record = EvaluationRecord.load(tmp_path / "evaluations" / "val.npz")
    assert record.ultralytics.confusion().tolist() == matrix.tolist()
