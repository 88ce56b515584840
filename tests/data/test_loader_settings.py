"""Environment of a real worker process, and the settings of the overlays in configs/loader."""

import os
import time
from itertools import islice
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch.utils.data import DataLoader

from tests.conftest import REPOSITORY
from tests.helpers.in_a_worker import AbortsWhenTornDown, Surroundings, first
from yolo_lightning.data.loader import describe, loader_arguments
from yolo_lightning.data.loader_settings import LoaderSettings
from yolo_lightning.data.worker_processes import (
    THREADS_VARIABLE,
)
from yolo_lightning.utils.stop_signals import STOP_SIGNALS

OVERLAYS = sorted((REPOSITORY / "configs" / "loader").glob("*.yaml"))


@pytest.mark.parametrize("multiprocessing_context", ["spawn", "forkserver"])
def test_worker_of_a_dropped_iterator_ends_without_being_torn_down(multiprocessing_context: Any) -> None:
    settings = LoaderSettings(num_workers=1, multiprocessing_context=multiprocessing_context)
    arguments = loader_arguments(settings, on_gpu=False, persistent=False)
    iterator = iter(DataLoader(AbortsWhenTornDown(), collate_fn=first, **arguments))
    next(iterator)
    (worker,) = iterator._workers  # type: ignore[attr-defined]
    del iterator
    worker.join()
    assert worker.exitcode == 0


@pytest.mark.parametrize("multiprocessing_context", ["spawn", "forkserver"])
def test_workers_ignore_what_a_process_group_receives_from_their_start_on(multiprocessing_context: Any) -> None:
    settings = LoaderSettings(num_workers=1, multiprocessing_context=multiprocessing_context)
    arguments = loader_arguments(settings, on_gpu=False, persistent=False)
    iterator = iter(DataLoader(Surroundings(), collate_fn=first, **arguments))
    (worker,) = iterator._workers  # type: ignore[attr-defined]
    processes = [worker.pid]
    if multiprocessing_context == "forkserver":
        processes.append(forkserver._forkserver._forkserver_pid)  # type: ignore[attr-defined]
    for _ in range(2):  # while the worker is being started, and afterwards
        for process in processes:
            for number in STOP_SIGNALS:
                os.kill(process, number)
        assert next(iterator)["process"] == worker.pid
    del iterator
    worker.join()
    assert worker.exitcode == 0


@pytest.mark.parametrize("multiprocessing_context", ["spawn", "forkserver"])
def test_terminate_ends_a_worker_that_hangs(multiprocessing_context: Any) -> None:
    settings = LoaderSettings(num_workers=1, multiprocessing_context=multiprocessing_context)
    arguments = loader_arguments(settings, on_gpu=False, persistent=False)
    context = arguments["multiprocessing_context"]
    worker = context.Process(target=time.sleep, args=(1000.0,), daemon=True)
    worker.start()
    worker.terminate()
    worker.join(20)
    assert not worker.is_alive()


def surroundings(multiprocessing_context: Any) -> dict[str, Any]:
    settings = LoaderSettings(num_workers=1, multiprocessing_context=multiprocessing_context)
    arguments = loader_arguments(settings, on_gpu=False, persistent=True)
    loader = DataLoader(Surroundings(), collate_fn=first, **arguments)
    (seen,) = islice(loader, 1)
    loader._iterator._shutdown_workers()  # type: ignore[union-attr]
    return dict(seen)


@pytest.mark.parametrize("multiprocessing_context", ["spawn", "forkserver"])
@pytest.mark.parametrize("before", [None, "7"])
def test_worker_has_one_thread_and_the_environment_is_restored(
    multiprocessing_context: str, before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(THREADS_VARIABLE, raising=False)
    if before is not None:
        monkeypatch.setenv(THREADS_VARIABLE, before)
    seen = surroundings(multiprocessing_context)
    assert seen["process"] != os.getpid()
    assert (seen["variable"], seen["torch"], seen["opencv"]) == ("1", 1, 1)
    # Main thread, the queue's feeder, what watches the parent, and BLAS.
    assert seen["threads"] <= 4
    assert not seen["inherited_gpu"]
    assert os.environ.get(THREADS_VARIABLE) == before


def test_workers_are_forked_from_one_server() -> None:
    parents = {surroundings("forkserver")["parent"] for _ in range(2)}
    assert parents == {forkserver._forkserver._forkserver_pid}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_workers", -1),
        ("prefetch_factor", 0),
    ],
)
def test_value_out_of_range_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"data\.loader\.{name} must be >= \d.*, got {value}"):
        LoaderSettings(**{name: value})


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            LoaderSettings(4),
            "4 spawn workers, persistent, prefetch 2, pinned",
        ),
        (
            LoaderSettings(2, False, 3, multiprocessing_context="forkserver", pin_memory=False),
            "2 forkserver workers, new every epoch, prefetch 3, not pinned",
        ),
        (LoaderSettings(0), "no workers, pinned"),
    ],
)
def test_line_of_the_log_says_what_is_in_force(settings: LoaderSettings, text: str) -> None:
    assert describe(loader_arguments(settings, on_gpu=True, persistent=True)) == text


def test_there_is_an_overlay_for_each_lower_fallback_level() -> None:
    assert [path.stem for path in OVERLAYS] == ["single", "spawn2"]


@pytest.mark.parametrize("path", OVERLAYS, ids=lambda path: path.stem)
def test_overlay_names_every_loader_setting_and_nothing_else(path: Path) -> None:
    content = yaml.safe_load(path.read_text())
    assert list(content) == ["data"]
    assert list(content["data"]) == ["loader"]
    assert set(content["data"]["loader"]) == set(LoaderSettings.__dataclass_fields__)


@pytest.mark.parametrize(("cores", "workers"), [(1, 1), (3, 3), (64, 4)])
def test_auto_workers_are_the_available_cores_up_to_four(
    cores: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("yolo_lightning.utils.host.available_cores", lambda: cores)
    assert loader_arguments(LoaderSettings(), on_gpu=False, persistent=True)["num_workers"] == workers
    assert loader_arguments(LoaderSettings(num_workers=7), on_gpu=False, persistent=True)["num_workers"] == 7


def test_fork_is_refused() -> None:
    with pytest.raises(ValueError, match=r"multiprocessing_context must be spawn or forkserver, got 'fork'"):
        LoaderSettings(multiprocessing_context="fork")  # type: ignore[arg-type]


def test_other_word_for_the_number_of_workers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"data\.loader\.num_workers must be an integer or auto, got 'all'"):
        LoaderSettings(num_workers="all")  # type: ignore[arg-type]
