"""Every form of the package, in a project that has a folder `callbacks` of its own.

The forms are a checkout, a source archive or a checkout on Windows (a text file in place of the symbolic link
`yolo_lightning/callbacks`), and a wheel and an editable installation of both.
"""

import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.conftest import REPOSITORY

FIT = ("-m", "yolo_lightning", "fit", "--config", "demo", "--print_config")
PICKLING = """
import pickle
from yolo_lightning.callbacks import EMA
assert EMA.__module__ == "yolo_lightning.callbacks.ema"
assert type(pickle.loads(pickle.dumps(EMA()))) is EMA
"""
INSTALL = ("--quiet", "--no-deps", "--no-index")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's project, whose own package `callbacks` must not be imported."""
    folder = tmp_path / "project" / "callbacks"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise ImportError('the callbacks of another project were imported')\n")
    return folder.parent


@pytest.fixture(scope="session", params=["checkout", "archive"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this checkout with a symbolic link, or with a text file in its place."""
    source = tmp_path_factory.mktemp(request.param)
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout
    for name in filter(None, listed.split("\0")):
        original, copy = REPOSITORY / name, source / name
        if name.startswith("tests/") or not (original.exists() or original.is_symlink()):
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        if not original.is_symlink():
            copy.write_bytes(original.read_bytes())
        elif request.param == "checkout":
            copy.symlink_to(os.readlink(original))
        else:
            copy.write_text(os.readlink(original))
    return source


@pytest.fixture(scope="session")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy, built without network."""
    output = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", *INSTALL, "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", str(output), str(source)], check=True)
    return next(output.glob("*.whl"))


def test_every_folder_of_the_package_is_listed_for_the_wheel() -> None:
    content = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    packages = content["tool"]["setuptools"]["packages"]
    folders = {path.parent for path in (REPOSITORY / "yolo_lightning").rglob("*.py")}
    names = {".".join(folder.relative_to(REPOSITORY).parts) for folder in folders}
    assert names <= set(packages)


@pytest.mark.whole_run
def test_wheel_installs_no_global_package_but_its_own(wheel: Path) -> None:
    names = ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"yolo_lightning"}
    for path in (REPOSITORY / "callbacks").glob("*.py"):
        assert f"yolo_lightning/callbacks/{path.name}" in names
    for path in (REPOSITORY / "configs").rglob("*.yaml"):
        assert f"yolo_lightning/{path.relative_to(REPOSITORY)}" in names
    for folder in ("yolo_lightning/conv/kernels", "yolo_lightning/commands", "yolo_lightning/options"):
        for path in (REPOSITORY / folder).rglob("*"):
            if path.suffix in (".py", ".cpp", ".cu", ".cuh", ".h", ".html", ".json"):
                assert str(path.relative_to(REPOSITORY)) in names


@pytest.mark.whole_run
def test_wheel_runs_beside_foreign_callbacks(wheel: Path, project: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    subprocess.run([sys.executable, "-m", "pip", "install", *INSTALL, "--target", str(site), str(wheel)], check=True)
    assert f"{site}/yolo_lightning/callbacks/" in print_config(project, site).stderr


@pytest.mark.whole_run
def test_copy_runs_beside_foreign_callbacks(source: Path, project: Path) -> None:
    print_config(project, source)


@pytest.mark.whole_run
def test_editable_installation_runs_beside_foreign_callbacks(source: Path, project: Path, tmp_path: Path) -> None:
    """An environment of its own, because this environment may contain an editable installation, too."""
    venv.create(tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    site_packages = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "venv")}))
    # A path file adds the packages of this environment behind those of the new one, without its editable installations.
    (site_packages / "packages.pth").write_text(sysconfig.get_path("purelib"))
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", *INSTALL, "--no-build-isolation"]
    subprocess.run([*pip, "--editable", str(source)], check=True)
    assert f"{source}/" in print_config(project, None, python).stderr


def print_config(
    project: Path, site: Path | None, python: Path = Path(sys.executable)
) -> subprocess.CompletedProcess[str]:
    """Run `fit --print_config` in `project` with the package of `site`; standard error lists the imported files."""
    environment = os.environ | {"PYTHONPATH": str(site or ""), "PYTHONDONTWRITEBYTECODE": "1"}
    for arguments in (("-c", PICKLING), ("-v", *FIT)):
        done = subprocess.run([str(python), *arguments], cwd=project, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, "".join(line for line in done.stderr.splitlines(True) if line[0] != "#")
    assert "yolo_lightning.callbacks.EMA" in done.stdout
    return done
