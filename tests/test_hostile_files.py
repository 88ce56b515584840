"""FIFOs, devices and huge files in a run folder or dataset, unknown home folders, loops of links and aliases."""

import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.commands.report.run_folder_maker import make_run
from yolo_lightning.callbacks.metrics_file import append_rows, read_rows
from yolo_lightning.checkpoints.resume import checkpoint_to_resume
from yolo_lightning.cli import main
from yolo_lightning.data.formats.ltdv2 import read_annotations
from yolo_lightning.utils.yaml_file import read_yaml

LIMIT_S = 20


def fifo(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


@pytest.fixture(autouse=True)
def limits() -> Iterator[None]:
    """End a command that waits, and limit its memory."""

    def ended(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ended)
    signal.alarm(LIMIT_S)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 30), hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("replace", [fifo, endless, sparse])
@pytest.mark.parametrize(
    "words", [["report"], ["monitor", "--once", "true"], ["bootstrap"]], ids=lambda words: words[0]
)
def test_run_folder_of_files_that_are_none(
    words: list[str], replace: Callable[[Path], None], tmp_path: Path, pictures: None
) -> None:
    run = make_run(tmp_path / "run")
    for path in sorted(path for path in run.rglob("*") if path.is_file()):
        path.unlink()
        replace(path)
    for name in ("status.json", "supervisor.json", "supervision.json", "phase_timeouts.json", "heartbeat", "started"):
        replace(run / name)
    with suppress(SystemExit):
        main([words[0], str(run), *words[1:]])


@pytest.mark.parametrize("replace", [fifo, endless, sparse])
def test_resumed_run_skips_files_that_are_none(replace: Callable[[Path], None], tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    for path in (run / "checkpoints").iterdir():
        path.unlink()
        replace(path)
    replace(run / "started")
    with pytest.raises(ValueError, match=r"every checkpoint of .* is damaged"):
        checkpoint_to_resume(run)


@pytest.mark.parametrize("replace", [fifo, endless, sparse])
def test_annotations_that_are_no_file(replace: Callable[[Path], None], tmp_path: Path) -> None:
    replace(tmp_path / "Train.json")
    with pytest.raises(ValueError, match=r"Train\.json"):
        read_annotations(tmp_path / "Train.json")


def test_sparse_annotations_below_the_limit_are_not_read(tmp_path: Path) -> None:
    with (tmp_path / "Train.json").open("wb") as file:
        file.truncate(3 << 30)
    with pytest.raises(ValueError, match="is not an LTDv2 annotation file"):
        read_annotations(tmp_path / "Train.json")


def test_metrics_that_are_no_file_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    fifo(path)
    append_rows(path, [{"epoch": 0, "step": 1, "time_s": 1.0}])
    assert read_rows(path) == [{"epoch": "0", "step": "1", "time_s": "1.0"}]
    path.unlink()
    sparse(path)
    with pytest.raises(OSError, match="more than"):
        read_rows(path)


def test_alias_that_contains_itself(tmp_path: Path) -> None:
    for text in ("a: &x {b: *x}", "&x [*x]", "a: &x [1, &y {z: [*x]}]"):
        (tmp_path / "config.yaml").write_text(text)
        with pytest.raises(ValueError, match="contains itself"):
            read_yaml(tmp_path / "config.yaml")
    (tmp_path / "config.yaml").write_text("a: &x [1]\nb: *x")
    assert read_yaml(tmp_path / "config.yaml") == {"a": [1], "b": [1]}


def test_key_that_is_given_twice(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("data:\n  batch_size: 4\n  batch_size: 8\n")
    with pytest.raises(ValueError, match="the key batch_size is given twice, line 2"):
        read_yaml(tmp_path / "config.yaml")


def loop(path: Path) -> Path:
    path.symlink_to(path)
    return path


@pytest.mark.parametrize(
    "words",
    [
        ["average", "{run}", "--output", "{loop}.ckpt"],
        ["submission", "fuse", "{loop}.zip", "b.zip", "--output", "{loop}.json"],
        ["submission", "check", "{loop}.zip"],
        ["recalibrate", "{run}", "--output", "{loop}.ckpt", "--checkpoint", "{loop}.ckpt"],
        ["export", "--checkpoint", "{loop}.ckpt", "--output", "{loop}.ckpt"],
        ["average", "~nouser/run"],
        ["bootstrap", "~nouser/run"],
        ["report", "~nouser/run"],
        ["export", "--checkpoint", "~nouser/best.ckpt"],
        ["predict", "~nouser/a.png", "--weights", "~nouser/best.ckpt"],
        ["fit", "--data.root", "~nouser/data"],
        ["fit", "--data.format", "~nouser/data.yaml"],
        ["fit", "--data.root", "{data}", "--model.weights", "~nouser/a.pt", "--trainer.accelerator", "cpu"],
        ["fit", "--data.format", "{yaml}"],
        ["fit", "--config", "{cyclic}"],
        ["validate", "--ckpt_path", "{loop}.ckpt", "--data.root", "{data}"],
    ],
    ids=" ".join,
)
def test_path_that_cannot_be_resolved_is_one_line(
    words: list[str],
    tmp_path: Path,
    look_alike: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for suffix in (".ckpt", ".zip", ".json"):
        loop(tmp_path / f"loop{suffix}")
    (tmp_path / "data.yaml").write_text("path: ~nouser/set\ntrain: ~nouser/images\nval: images\nnames: [a]\n")
    (tmp_path / "cyclic.yaml").write_text("model: &x {loss: *x}\n")
    places = {"run": make_run(tmp_path / "run"), "loop": tmp_path / "loop", "data": look_alike}
    places |= {"yaml": tmp_path / "data.yaml", "cyclic": tmp_path / "cyclic.yaml"}
    with pytest.raises(SystemExit) as ended:
        main([word.format(**places) for word in words])
    assert ended.value.code in (1, 2)
    assert "Traceback" not in capsys.readouterr().err
