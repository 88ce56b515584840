import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
import torch
from synthetic import draw_dataset

from tests.conv.emulation import COMPILER, Guarded, compile_emulated
from tests.helpers.forks import Forks
from yolo_lightning.utils import activity
from yolo_lightning.utils.activity import Activity
from yolo_lightning.utils.offline import set_switches

set_switches()

REPOSITORY = Path(__file__).resolve().parent.parent
REAL_FRAMES = Path(
    os.environ.get("YOLO_LIGHTNING_REAL_FRAMES", REPOSITORY.parent / "shared" / "data" / "hit-uav-ltdv2")
)

TINY = ["--data.image_size", "64", "--trainer.num_sanity_val_steps", "0"]
"""Options that make any run small."""


def data_options(root: Path, index_root: Path) -> list[str]:
    """Return the options for a dataset that is loaded without worker processes."""
    options = {"data.root": root, "data.storage.index_root": index_root, "data.loader.num_workers": 0}
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("repeatable")


signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it, and tests and their processes would ignore it, too


def pytest_collection_finish() -> None:
    """Modules and thousands of tests stay to the end: the garbage collector need not look at them again and again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """At the end it must, or libraries report leaks."""
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def fixed_threads() -> None:
    """Use one thread, or OMP_NUM_THREADS threads. Bit-for-bit comparisons need a fixed number of threads."""
    threads = os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(int(threads))


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Guarded:
    """The GPU kernels, emulated on one CPU with a fiber per thread of a block."""
    if COMPILER is None:
        pytest.skip("there is no C++ compiler")
    return Guarded(compile_emulated(tmp_path_factory.mktemp("kernels")))


@pytest.fixture
def pictures() -> None:
    """Asks for best.pt and the report of a fit."""


@pytest.fixture(autouse=True)
def undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit writes no best.pt and no report, unless asked: they take longer than the rest of a small run."""
    if "pictures" in request.fixturenames:
        return
    if fit_summary := sys.modules.get("yolo_lightning.commands.fit_summary"):
        for name in ("write_pt", "write_report"):
            monkeypatch.setattr(fit_summary, name, lambda *_: None)


@pytest.fixture(autouse=True)
def no_activity() -> None:
    """An exception in an earlier test leaves its activity, for the record of the failure."""
    activity.note(Activity.NONE)


@pytest.fixture(autouse=True)
def in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """`trainer.precision: auto` chooses float32 on any processor, without a test of the device."""
    if run_plan := sys.modules.get("yolo_lightning.commands.run_plan"):
        choice = run_plan.PrecisionChoice("32-true", "in tests")
        monkeypatch.setattr(run_plan, "choose_precision", lambda *_: choice)


@pytest.fixture(params=[0.0, 1e6], ids=["uptime 0 s", "uptime 11 days"])
def any_uptime(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test on a monotonic clock that starts at 0, as on a freshly booted machine, and on one of long uptime.

    Only this process gets the clock; `make test-boot` gives it to child processes too, for all tests.
    """
    for name in ("monotonic", "perf_counter"):
        offset_ns = int(request.param * 1e9) - getattr(time, f"{name}_ns")()
        monkeypatch.setattr(time, f"{name}_ns", shifted(getattr(time, f"{name}_ns"), offset_ns))
        monkeypatch.setattr(time, name, shifted(getattr(time, name), offset_ns / 1e9))


def shifted(clock: Callable[[], float], offset: float) -> Callable[[], float]:
    """Return a clock that shows `offset` more than `clock`, in the unit of `clock`."""
    return lambda: clock() + offset


@pytest.fixture(scope="session")
def look_alike(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drawn dataset of 16, 8 and 4 frames of 96 x 64 pixels; shared, so never change it."""
    root = tmp_path_factory.mktemp("data") / "look-alike"
    draw_dataset(root, train_frames=16, valid_frames=8, test_frames=4, width=96, height=64)
    return root


@pytest.fixture(scope="session")
def index_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where packed indexes go, instead of the user's cache folder."""
    return tmp_path_factory.mktemp("index")


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """Starts scripts in processes that have imported Lightning and this package already."""
    started_forks = Forks()
    yield started_forks
    started_forks.close()


@pytest.fixture
def real_frames() -> Path:
    """969 real thermal frames in LTDv2's layout."""
    if not (REAL_FRAMES / "Train.json").is_file():
        pytest.skip(f"real frames are not at {REAL_FRAMES}")
    return REAL_FRAMES


@pytest.fixture
def run(tmp_path: Path, look_alike: Path, index_root: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Calls the command line in an empty working folder, on the drawn dataset, without loader workers."""
    from yolo_lightning.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["yolo_lightning"])

    def call(subcommand: str, *options: str, config: Path | None = None) -> None:
        first = ["--config", str(config)] if config else []
        data = data_options(look_alike, index_root)
        alone = ["--supervision.enabled", "false"] if subcommand == "fit" else []
        main([subcommand, *first, "--trainer.accelerator", "cpu", *data, *TINY, *alone, *options])

    return call


@pytest.fixture
def ultralytics_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The constant of Ultralytics' assigner, for comparisons of losses."""
    monkeypatch.setattr("yolo_lightning.model.loss.EPSILON", 1e-9)
