"""The package as a wheel and as a checkout, in a project that has a folder `callbacks` of its own."""

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.conftest import REPOSITORY

FIT = (sys.executable, "-m", "yolo_lightning", "fit", "--config", str(REPOSITORY / "configs" / "demo.yaml"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's project, whose own package `callbacks` must not be imported."""
    folder = tmp_path / "project" / "callbacks"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise ImportError('the callbacks of another project were imported')\n")
    return folder.parent


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built without network."""
    source, output = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout
    for name in filter(None, listed.split("\0")):
        original, copy = REPOSITORY / name, source / name
        if name.startswith("tests/") or not (original.exists() or original.is_symlink()):
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        if original.is_symlink():
            copy.symlink_to(os.readlink(original))
        else:
            copy.write_bytes(original.read_bytes())
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*build, "--wheel-dir", str(output), str(source)], check=True)
    return next(output.glob("*.whl"))


@pytest.mark.whole_run
def test_wheel_installs_no_global_package_but_its_own(wheel: Path) -> None:
    names = ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"yolo_lightning"}
    for path in (REPOSITORY / "callbacks").glob("*.py"):
        assert f"yolo_lightning/callbacks/{path.name}" in names
    for folder in ("yolo_lightning/conv/kernels", "yolo_lightning/commands"):
        for path in (REPOSITORY / folder).rglob("*"):
            if path.suffix in (".py", ".cpp", ".cu", ".cuh", ".h", ".html"):
                assert str(path.relative_to(REPOSITORY)) in names


@pytest.mark.whole_run
def test_wheel_runs_beside_foreign_callbacks(wheel: Path, project: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([*install, str(wheel)], check=True)
    printed = print_config(project, site)
    assert f"{site}/yolo_lightning/callbacks/" in printed.stderr
    assert "yolo_lightning.callbacks.EMA" in printed.stdout


@pytest.mark.whole_run
def test_checkout_runs_beside_foreign_callbacks(project: Path) -> None:
    printed = print_config(project, REPOSITORY)
    assert "yolo_lightning.callbacks.EMA" in printed.stdout


def print_config(project: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Run `fit --print_config` in `project` with the package of `site`; standard error lists the imported files."""
    environment = os.environ | {"PYTHONPATH": str(site), "PYTHONVERBOSE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([*FIT, "--print_config"], cwd=project, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done
