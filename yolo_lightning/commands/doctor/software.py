"""Installed packages, from their files: importing one may hang, crash or do harm."""

import ast
import importlib.metadata
import importlib.util
from pathlib import Path

from yolo_lightning.commands.doctor.machine import TorchBuild

OPENCV = ("opencv-python", "opencv-python-headless", "opencv-contrib-python", "opencv-contrib-python-headless")
PACKAGES = ("torch", "torchvision", "lightning", "pytorch-lightning", "ultralytics", "py-spy", *OPENCV)


def installed() -> dict[str, str]:
    """Versions of the packages that matter, by name."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    vision = find_build("torchvision")
    return found if vision is None else found | {"torchvision": vision.version}


def find_build(package: str) -> TorchBuild | None:
    """Of torch or torchvision, as an import would load it; None where there is none."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    return read_build(Path(spec.origin).with_name("version.py"))


def read_build(version_file: Path) -> TorchBuild | None:
    """What a version file says; None where it cannot be understood.

    Unlike the package's metadata it holds the local part of the version, as in 2.15.0+cu132.
    """
    try:
        statements = ast.parse(version_file.read_text()).body
    except (OSError, ValueError, SyntaxError):
        return None
    values: dict[str, str] = {}
    for statement in statements:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        value = getattr(statement, "value", None)
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            values |= {target.id: value.value for target in targets if isinstance(target, ast.Name)}
    version = values.get("__version__")
    return None if version is None else TorchBuild(version, values.get("hip"), values.get("cuda"))
