"""Readers of files of unknown origin, each with valid files and one function that reads a changed file.

A reader writes its other files once into `folder` and returns the file to change, with its valid contents.
"""

import io
import json
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

IMAGE_NAME = "frames/20200502/clip_1_1142/image_0000.jpg"


@dataclass(frozen=True)
class Target:
    """What a reader is tried on."""

    file: Path  # receives the changed contents
    contents: Sequence[bytes]  # valid contents
    read: Callable[[], object]  # reads `file`


def annotations(categories: Sequence[tuple[int, str]]) -> bytes:
    images = [
        {
            "id": 20200502114223000 + number,
            "file_name": f"frames/20200502/clip_1_1142/image_{number:04d}.jpg",
            "width": 32,
            "height": 24,
            "date_captured": "2020-05-02T11:42:23",
            "meta": {"Temperature": 12.5, "Humidity": "80,5 %"},
        }
        for number in range(3)
    ]
    boxes = [
        {"id": number, "image_id": images[number % 3]["id"], "category_id": 1 + number % 4, "bbox": [1, 2, 3.5, 4]}
        for number in range(5)
    ]
    listed = [{"id": number, "name": name} for number, name in categories]
    return json.dumps({"images": images, "annotations": boxes, "categories": listed}).encode()


def ltdv2(folder: Path) -> Target:
    from yolo_lightning.data.formats.ltdv2 import CLASS_NAMES, read_annotations

    file = folder / "Train.json"
    return Target(file, [annotations(list(enumerate(("background", *CLASS_NAMES))))], lambda: read_annotations(file))


def coco(folder: Path) -> Target:
    from yolo_lightning.data.formats.coco import image_folders, read_coco

    file = folder / "instances_train.json"
    (folder / IMAGE_NAME).parent.mkdir(parents=True)
    (folder / IMAGE_NAME).touch()

    def read() -> None:
        names = [name.decode() for name in read_coco(file).file_names.tolist()]
        image_folders(file, folder, (), names)

    return Target(file, [annotations([(1, "a"), (2, "b"), (3, "c"), (4, "d")])], read)


def labels(folder: Path) -> Target:
    from yolo_lightning.data.formats.yolo_labels import read_labels

    file = folder / "a.txt"
    contents = [
        b"0 0.5 0.5 0.25 0.5\n3 0.1 0.1 0.1 0.1\n",
        b"1 0.1 0.1 0.2 0.2 0.3 0.1\n",
        b"\xef\xbb\xbf2 1 1 0 0\r\n",
    ]
    return Target(file, contents, lambda: (read_labels(file, 4), read_labels(file, 4, 6)))


def _data_yaml(folder: Path) -> Target:
    from yolo_lightning.data.formats.yolo_description import read_description

    for name in ("images/train", "images/val"):
        (folder / name).mkdir(parents=True)
    file = folder / "data.yaml"
    contents = [
        b"path: .\ntrain: images/train\nval: [images/val]\nnames: {0: a, 1: b}\nkpt_shape: [17, 3]\nchannels: 1\n",
        b"train: images/train\nval: images/val\nnc: 2\nnames:\n  - person\n  - 'a car'\n",
        b"names: &n [a, b]\nother: *n\nval: images/val\nnc: 2\n",
    ]
    return Target(
        file, contents, lambda: [read_description(file).places(key) for key in read_description(file).entries]
    )


def _image_list(folder: Path) -> Target:
    from yolo_lightning.data.formats.yolo import YoloSplit
    from yolo_lightning.data.formats.yolo_description import read_description

    (folder / "images").mkdir()
    for number, content in enumerate(pictures()[:2]):
        (folder / "images" / f"{number}.jpg").write_bytes(content)
    (folder / "data.yaml").write_text("train: list.txt\nnames: [a]\n")
    file = folder / "list.txt"

    def read() -> None:
        split = YoloSplit(read_description(folder), "train")
        split.state()
        split.read()

    return Target(file, [b"./images/0.jpg\nimages/1.jpg\n", b"\xef\xbb\xbfimages/0.jpg\r\n\r\n"], read)


def pictures() -> list[bytes]:
    import cv2
    import numpy as np
    from PIL import Image

    coarse = np.random.default_rng(0).integers(0, 256, (6, 8), dtype=np.uint8)
    pixels = cv2.resize(coarse, (32, 24), interpolation=cv2.INTER_CUBIC)
    suffixes = (".jpg", ".png", ".bmp", ".tif", ".webp", ".pgm")
    contents = [cv2.imencode(suffix, pixels)[1].tobytes() for suffix in suffixes]
    gif = io.BytesIO()
    Image.fromarray(pixels).save(gif, "GIF")
    return [*contents, gif.getvalue(), cv2.imencode(".tif", pixels.astype(np.float32))[1].tobytes()]


def image(folder: Path) -> Target:
    from yolo_lightning.data.formats.yolo import image_shape
    from yolo_lightning.data.storage.folder_frames import ImageFiles

    file, files = folder / "a.jpg", (ImageFiles(folder), ImageFiles(folder, 3))

    def read() -> None:
        image_shape(file)
        for reader in files:
            reader.read("a.jpg")

    return Target(file, pictures(), read)


def _raw_image(folder: Path) -> Target:
    import cv2
    import numpy as np

    from yolo_lightning.data.input_images import read_pictures
    from yolo_lightning.data.storage.folder_frames import ImageFiles
    from yolo_lightning.data.storage.frames import FrameError
    from yolo_lightning.data.storage.image_header import FrameLimits
    from yolo_lightning.data.transforms.pixel_range import PixelRange

    file, files = folder / "a.png", ImageFiles(folder, limits=FrameLimits(bits=16))
    pixels = np.random.default_rng(0).integers(7000, 9040, (24, 32), dtype=np.uint16)

    def read() -> None:
        try:
            files.read("a.png")
        except FrameError as error:
            _check_text(str(error))
        list(read_pictures(file, PixelRange("frame")))

    return Target(file, [cv2.imencode(suffix, pixels)[1].tobytes() for suffix in (".png", ".tif")], read)


def archive(compression: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as opened:
        opened.writestr("frames/", b"")
        for number, content in enumerate(pictures()[:3]):
            opened.writestr(f"frames/20200502/clip_1_1142/image_{number:04d}.jpg", content)
    return buffer.getvalue()


def zip_frames(folder: Path) -> Target:
    from yolo_lightning.data.storage.frames import FrameError
    from yolo_lightning.data.storage.zip_frames import ZipFrames

    file = folder / "frames.zip"

    def read() -> None:
        frames = ZipFrames(file, folder / "index")
        frames.missing([IMAGE_NAME, "absent"])
        for number in range(3):
            try:
                frames.read(f"frames/20200502/clip_1_1142/image_{number:04d}.jpg")
            except FrameError as error:
                _check_text(str(error))

    return Target(file, [archive(zipfile.ZIP_STORED), archive(zipfile.ZIP_DEFLATED)], read)


def packed(folder: Path) -> Target:
    """Change one file of a store: what `file` receives is the number of the file and its new content."""
    from yolo_lightning.data.storage.choose_storage import open_original
    from yolo_lightning.data.storage.frames import FrameError
    from yolo_lightning.data.storage.packed_frames import PackedFrames
    from yolo_lightning.data.storage.packing import complete_shards, describe, write_index, write_shard
    from yolo_lightning.data.storage.storage_settings import StorageSettings

    (folder / "frames.zip").write_bytes(archive(zipfile.ZIP_STORED))
    original, store = open_original(folder, StorageSettings(index_root=str(folder / "index"))), folder / "packed"
    names = [f"frames/20200502/clip_1_1142/image_{number:04d}.jpg" for number in range(3)]
    store.mkdir()
    shard, damaged = write_shard(store, original, describe(original), names)
    assert shard is not None
    write_index(store, [shard], damaged, describe(original))
    valid = {path: path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file()}
    paths = list(valid)

    def read() -> None:
        content = file.read_bytes()
        path = paths[content[0] % len(paths)] if content else paths[0]
        path.write_bytes(content[1:])
        try:
            complete_shards(store)
            frames = PackedFrames(store)
            frames.missing(names)
            for name in names:
                try:
                    frames.read(name)
                except FrameError as error:
                    _check_text(str(error))
        finally:
            path.write_bytes(valid[path])

    file = folder / "change"
    return Target(file, [bytes([number]) + valid[path] for number, path in enumerate(paths)], read)


def submission() -> bytes:
    entry = {"boxes": [[1, 2, 30.5, 40], [5, 5, 9, 9]], "scores": [0.5, 0.25], "labels": [1, 4]}
    empty: dict[str, list[Any]] = {"boxes": [], "scores": [], "labels": []}
    return json.dumps({"20200502114223000": entry, "20200502114223001": empty}).encode()


def check(file: Path) -> Callable[[], None]:
    from yolo_lightning.challenge.check import check_submission
    from yolo_lightning.challenge.content import Template

    template = Template(("20200502114223000", "20200502114223001"))

    def read() -> None:
        for expected in (None, template):
            report = check_submission(file, expected)
            for problem in report.problems:
                _check_text(problem.what)

    return read


def _submission_json(folder: Path) -> Target:
    result = {"image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4], "score": 0.5}
    file = folder / "predictions.json"
    return Target(file, [submission(), json.dumps([result, result]).encode()], check(file))


def _submission_zip(folder: Path) -> Target:
    contents = []
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", compression) as opened:
            opened.writestr("predictions.json", submission())
        contents.append(buffer.getvalue())
    file = folder / "predictions.zip"
    return Target(file, contents, check(file))


def truth(folder: Path) -> Target:
    from yolo_lightning.challenge.truth import read_truth
    from yolo_lightning.data.formats.ltdv2 import CLASS_NAMES

    file = folder / "truth.json"
    keyed = json.dumps({"20200502114223000": {"boxes": [[1, 2, 3, 4]], "labels": [1]}}).encode()
    return Target(file, [keyed, annotations(list(enumerate(("background", *CLASS_NAMES))))], lambda: read_truth(file))


def heartbeat(folder: Path) -> Target:
    from yolo_lightning.supervision.heartbeat import HeartbeatWriter, Phase, read_heartbeat

    file = folder / "heartbeat"
    writer = HeartbeatWriter(file)
    writer.beat(Phase.STEP)
    writer.close()
    return Target(file, [file.read_bytes()], lambda: read_heartbeat(file))


def checkpoint(folder: Path) -> Target:
    import torch

    from yolo_lightning.checkpoints.checkpoint_file import find_damage, steps_trained
    from yolo_lightning.checkpoints.resume import differences, remembered
    from yolo_lightning.checkpoints.torch_archive import load_checkpoint
    from yolo_lightning.model.graph import read_checkpoint
    from yolo_lightning.model.network_settings import read_settings

    content = {
        "state_dict": {"graph.a": torch.zeros(3, 4)},
        "hyper_parameters": {"variant": "yolov8n", "class_names": ["a", "b"], "class_width": 2},
        "input": {"image_size": 64, "channels": 1},
        "steps": 3,
        "epoch": 1,
        "loops": {"fit_loop": {"epoch_progress": {"current": {"processed": 2}}}},
        "config": {"data": {"batch_size": 4}},
    }
    buffer = io.BytesIO()
    torch.save(content, buffer)
    file = folder / "last.ckpt"

    def read() -> None:
        find_damage(file)
        steps_trained(file)
        loaded = load_checkpoint(file, "meta")
        read_settings(file)
        differences(remembered(loaded), {"data.batch_size": 8})
        if set(loaded.get("hyper_parameters", ())) != {
            "variant",
            "class_names",
            "class_width",
        }:  # else builds a network
            read_checkpoint(file)

    return Target(file, [buffer.getvalue()], read)


def weights(folder: Path) -> Target:
    import torch

    from yolo_lightning.model.graph import network_of, plain_graph
    from yolo_lightning.model.read_pt import read_pt
    from yolo_lightning.model.variants import description_of

    rows = [[-1, 1, "Conv", [8, 3, 2]], [-1, 1, "Conv", [8, 3, 2]]]
    small = {"nc": 2, "backbone": rows, "head": [[[0, 1], 1, "Detect", ["nc"]]], "scales": {"n": [1.0, 1.0, 1024]}}
    model = type(plain_graph(description_of("yolov8n"), 2))(small | {"scale": "n"}, ch=3, nc=2, verbose=False)
    buffer = io.BytesIO()
    torch.save({"model": model.half(), "ema": None, "train_args": {"imgsz": 64}}, buffer)
    file = folder / "weights.pt"
    return Target(file, [buffer.getvalue()], lambda: network_of(read_pt(file)))


def configuration(folder: Path) -> Target:
    from yolo_lightning.commands.report.read_report import Reader, as_text, without_secrets
    from yolo_lightning.utils.yaml_file import read_yaml

    file = folder / "config.yaml"
    content = (
        b"seed_everything: 0\ndata:\n  batch_size: 4\n  root: a\nsupervision:\n  notify: {webhook: $HOOK, ping: null}\n"
    )

    def read() -> None:
        Reader(folder).read(file, lambda path: as_text(without_secrets(read_yaml(path))))

    return Target(file, [content, b"trainer: {max_epochs: 3, callbacks: []}\nmodel: &m {a: 1}\nother: *m\n"], read)


def run_files(folder: Path) -> Target:
    """Change one file of a run folder, and show the run as `monitor` does."""
    from rich.console import Console

    from yolo_lightning.checkpoints.checkpoint_file import read_checksum
    from yolo_lightning.commands.monitor.command import as_json
    from yolo_lightning.commands.monitor.read_run import read_run
    from yolo_lightning.commands.monitor.screen import screen
    from yolo_lightning.commands.report.read_report import read_contents
    from yolo_lightning.supervision.fallback_levels import FallbackState, quarantined
    from yolo_lightning.supervision.incident import loader_stalls
    from yolo_lightning.supervision.phase_timeouts import AdaptiveTimeouts, PhaseTimeouts
    from yolo_lightning.supervision.run_disk import saved_steps
    from yolo_lightning.supervision.run_lock import read_holder
    from yolo_lightning.supervision.run_status import Scores, Status, SupervisorState, SupervisorStatus
    from yolo_lightning.supervision.watches import WatchFinding

    run = folder / "run"
    losses: dict[str, float | None] = {"train/loss": 1.5, "train/box": None}
    status = Status(
        3, 100, 1, 1, 1.8e9, 5.0, 99, 0, "host", "cpu", 2, 1, 50, 150, 0.5, 0.1, 100.0, 5.0, losses, {"lr": 0.1},
        (Scores(0, {"val/map_50": 0.5}),), 0.5, (WatchFinding("disk fills", "+4 GB/h", 1.8e9),),
    )  # fmt: skip
    standing = SupervisorStatus(SupervisorState.STALLED, 1.8e9, 98, 0, "host", "because", 2, 1, "no workers", 99)
    incident = {"time": "2026-11-21T09:55:27+0000", "class": "loader stall", "sentence": "s", "outcome": "o", "step": 3}
    checksum = {"sha256": "0", "bytes": 3, "epoch": 1, "steps": 40}
    metrics = "epoch,step,time_s,train/loss,val/map_50\n0,10,10.0,9.5,\n0,20,25.0,,0.2\n"
    valid = {
        "status.json": json.dumps(asdict(status)),
        "supervisor.json": json.dumps(asdict(standing)),
        "supervision.json": json.dumps(asdict(FallbackState(suspicions={"id=1": 1}, quarantined=("id=2",)))),
        "phase_timeouts.json": json.dumps(asdict(AdaptiveTimeouts(PhaseTimeouts(), {}))),
        "run.lock": json.dumps({"process": 1, "host": "h", "marker": "m"}),
        "metrics.csv": metrics,
        "environment.json": json.dumps({"torch": "2.6.0"}),
        "test_scores.json": json.dumps({"test/map_50": 0.3, "test/cov": None}),
        "incidents/20261121-095523/incident.json": json.dumps(incident | {"launch": "1", "attempt": 1}),
        "checkpoints/step-000000040.ckpt.json": json.dumps(checksum),
        "checkpoints/step-000000040.ckpt": "x",
    }
    for name, content in valid.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(content)
    names = list(valid)

    def read() -> None:
        content = file.read_bytes()
        name = names[content[0] % len(names)] if content else names[0]
        (run / name).write_bytes(content[1:])
        try:
            FallbackState.read(run / "supervision.json").for_new_supervisor()
            quarantined(run)
            saved_steps(run)
            loader_stalls(run, "1")
            read_holder(run / "run.lock")
            read_checksum(run / "checkpoints/step-000000040.ckpt")
            state = read_run(run)
            json.dumps(as_json(state))
            console = Console(file=io.StringIO(), width=100)
            console.print(screen(state))
            _check_text(console.file.getvalue())  # type: ignore[attr-defined]
            if name in ("metrics.csv", "environment.json", "test_scores.json"):
                read_contents(run)
        finally:
            (run / name).write_text(valid[name])

    file = folder / "change"
    return Target(file, [bytes([number]) + text.encode() for number, text in enumerate(valid.values())], read)


def evaluation(folder: Path) -> Target:
    import torch

    from yolo_lightning.data.batch import Prediction, Target as Truth
    from yolo_lightning.evaluation.matching import match
    from yolo_lightning.evaluation.record import EvaluationRecord
    from yolo_lightning.evaluation.ultralytics_matching import match_as_ultralytics

    box, label = torch.tensor([[1.0, 1.0, 9.0, 9.0]]), torch.tensor([0])
    predictions = [Prediction("1", box, torch.tensor([0.5]), label)]
    real = [Truth("1", box, label, 202005)]
    file = folder / "val.npz"
    EvaluationRecord(
        "val", ("a",), ("1",), match(predictions, real, 1), match_as_ultralytics(predictions, real, 1)
    ).save(file)
    return Target(file, [file.read_bytes()], lambda: EvaluationRecord.load(file))


def _check_text(text: str) -> None:
    """Raise an AssertionError if a text for a terminal contains control characters."""
    control_characters = {
        character for character in text if (character < " " and character not in "\n\t") or "\x7f" <= character < "\xa0"
    }
    assert not control_characters, f"control characters {sorted(control_characters)} in {text[:200]!r}"


READERS: dict[str, Callable[[Path], Target]] = {
    "annotations (LTDv2)": ltdv2,
    "annotations (COCO)": coco,
    "labels": labels,
    "data.yaml": _data_yaml,
    "image list": _image_list,
    "image": image,
    "image (16 bits)": _raw_image,
    "frames.zip": zip_frames,
    "packed store": packed,
    "submission (JSON)": _submission_json,
    "submission (zip)": _submission_zip,
    "ground truth": truth,
    "heartbeat": heartbeat,
    "checkpoint": checkpoint,
    "weights (.pt)": weights,
    "config.yaml": configuration,
    "run folder": run_files,
    "evaluation record": evaluation,
}
"""Function that prepares the reader, by the name of what is read.

Run folder: supervision.json, status.json and the other small files of a run, as `monitor` and `report` read them.
"""
