"""A small run folder with all files of a report."""

import json
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import torch
import yaml

from yolo_lightning.data.batch import Prediction, Target
from yolo_lightning.evaluation.matching import match
from yolo_lightning.evaluation.record import EvaluationRecord
from yolo_lightning.evaluation.ultralytics_matching import match_as_ultralytics
from yolo_lightning.utils.run_files import ENVIRONMENT, FRAMES, INCIDENTS, METRICS, evaluation_record

CLASS_NAMES = ("person", "bicycle")
IMAGE_IDS = ("20200500101000000", "20200600102000000", "20210100103000000")
BOX, OTHER = [10.0, 10.0, 30.0, 50.0], [50.0, 10.0, 70.0, 50.0]

METRICS_TEXT = """\
epoch,step,time_s,train/loss,train/box_loss,lr/weight,lr/bias,val/box_loss,val/map_50,val/map,val/balanced
0,10,10.0,9.5,5.1,0.001,0.1,,,,
0,20,20.0,8.5,4.1,0.002,0.05,,,,
0,20,25.0,,,,,4.4,0.2,0.1,0.15
1,30,35.0,nan,3.1,0.003,0.003,,,,
1,40,45.0,6.5,2.1,0.002,0.002,,,,
1,40,50.0,,,,,2.4,0.4,0.2,0.35
"""


def make_run(folder: Path, class_names: Sequence[str] = CLASS_NAMES, image_id: str = IMAGE_IDS[0]) -> Path:
    """Create all files, with the given class names and id of the gallery frame."""
    folder.mkdir(parents=True)
    (folder / METRICS).write_text(METRICS_TEXT)
    (folder / "config.yaml").write_text(
        yaml.safe_dump(
            {
                "data": {"batch_size": 8, "class_names": list(class_names), "image_size": [480, 640]},
                "model": {"variant": "yolov8n", "weights": None},
                "supervision": {"notify": {"webhook": "https://hooks.example/secret", "ping": "$PING_URL"}},
                "trainer": {"logger": [{"init_args": {"api_key": "hidden-key", "password": "hidden-word"}}]},
            }
        )
    )
    (folder / ENVIRONMENT).write_text(json.dumps({"torch": "2.6.0", "host": "bench", "training images": "1,200"}))
    (folder / "finished.json").write_text("{}")
    make_checkpoint(folder)
    make_incident(folder, "20261121-095523", step=32)
    make_gallery(folder / FRAMES, class_names, image_id)
    (folder / FRAMES / "epochs").mkdir()
    (folder / FRAMES / "epochs" / "epoch-0002-step-000000040.jpg").write_bytes(jpeg())
    record(class_names).save(folder / evaluation_record("val"))
    return folder


def make_checkpoint(folder: Path) -> None:
    for name, epoch, steps in (("best.ckpt", 0, 20), ("step-000000040.ckpt", 1, 40)):
        path = folder / "checkpoints" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 2_000_000)
        sidecar = {"sha256": "0", "bytes": 2_000_000, "epoch": epoch, "steps": steps}
        path.with_name(f"{path.name}.json").write_text(json.dumps(sidecar))


def make_incident(folder: Path, name: str, step: int | None) -> None:
    path = folder / INCIDENTS / name / "incident.json"
    path.parent.mkdir(parents=True)
    report = {
        "time": "2026-11-21T09:55:27+0000",
        "class": "loader stall",
        "sentence": "loader stall: no progress for 8.0 s",
        "outcome": "restart in 0 s",
        "step": step,
    }
    path.write_text(json.dumps(report))


def make_gallery(folder: Path, class_names: Sequence[str], image_id: str) -> None:
    folder.mkdir(parents=True)
    (folder / "val-worst-1.jpg").write_bytes(jpeg())
    frame = {"group": "worst", "file": "val-worst-1.jpg", "image_id": image_id, "score": 0.25}
    content = {
        "stage": "val",
        "score_threshold": 0.25,
        "class_names": list(class_names),
        "frames": [frame | {"objects": 4, "misses": 3, "false_alarms": 3}],
    }
    (folder / "val.json").write_text(json.dumps(content))


def jpeg() -> bytes:
    done, content = cv2.imencode(".jpg", np.full((24, 48, 3), 90, np.uint8))
    assert done
    return content.tobytes()


def record(
    class_names: Sequence[str], months: Sequence[int] = (202005, 202006, 202101), first_box: Sequence[float] = BOX
) -> EvaluationRecord:
    """Three frames with one object each: detected if the first detection is `BOX`, missed, detected as another class.

    The months are 0 if they are unknown.
    """
    predictions = [
        Prediction(IMAGE_IDS[0], torch.tensor([first_box]), torch.tensor([0.9]), torch.tensor([0])),
        Prediction(IMAGE_IDS[1], torch.tensor([OTHER]), torch.tensor([0.8]), torch.tensor([0])),
        Prediction(IMAGE_IDS[2], torch.tensor([BOX]), torch.tensor([0.7]), torch.tensor([1])),
    ]
    truth = [
        Target(image_id, torch.tensor([BOX]), torch.tensor([0]), month)
        for image_id, month in zip(IMAGE_IDS, months, strict=True)
    ]
    classes = len(class_names)
    return EvaluationRecord(
        stage="val",
        class_names=tuple(class_names),
        image_ids=IMAGE_IDS,
        matches=match(predictions, truth, classes),
        ultralytics=match_as_ultralytics(predictions, truth, classes),
        epoch=1,
        steps=40,
    )
