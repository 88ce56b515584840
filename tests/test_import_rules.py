"""The arrows between the rooms, read from the imports."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "yolo_lightning"
LEAVES = {
    f"{PACKAGE}.{name}"
    for name in (
        "batch",
        "boxes",
        "evaluation",
        "run_folder",
        "checkpoint_file",
        "remote_checkpoints",
        "files",
        "progress",
        "allowances",
        "status",
        "position",
        "ranks",
        "stopping",
    )
}
ULTRALYTICS = {f"{PACKAGE}/{name}.py" for name in ("graph", "loss", "postprocess")}
ROOMS = {
    # room: rooms that it may import besides itself
    "conv": set(),
    "choices": set(),
    "ranks": set(),
    "stopping": set(),
    "host": set(),
    "boxes": set(),
    "batch": {"boxes"},
    "files": set(),
    "checkpoint_file": {"files"},
    "run_folder": {"checkpoint_file", "files"},
    "remote_checkpoints": {"checkpoint_file", "files", "run_folder"},
    "averaging": {"checkpoint_file", "run_folder"},
    "option_layers": set(),
    "network_settings": {"boxes", "checkpoint_file", "graph", "run_folder"},
    "progress": set(),
    "allowances": {"progress"},
    "status": {"files"},
    "sensors": set(),
    "supervise": {"progress", "allowances", "files", "status", "stopping"},
    "monitoring": {"progress", "allowances", "run_folder", "status", "sensors", "supervise"},
    "reporting": {"monitoring", "evaluation", "run_folder", "status", "progress", "supervise"},
    "supervised_fit": {"supervise"},
    "position": set(),
    "nonfinite": set(),
    "guarded_step": {"batch"},
    "rollback": {"checkpoint_file", "run_folder", "position"},
    "data": {"batch", "boxes", "files", "host", "position", "stopping"},
    "evaluation": {"batch", "boxes", "files"},
    "device_transforms": {"batch", "boxes"},
    "optim": set(),
    "backend": {"conv", "files"},
    "graph": {"conv", "backend", "choices"},
    "loss": {"batch"},
    "postprocess": {"batch", "boxes"},
    "module": {
        "device_transforms",
        *("graph", "backend", "host", "loss", "postprocess", "optim", "batch", "data.ltdv2"),
        *("position", "nonfinite", "guarded_step", "rollback", "test_time_augmentation"),
        *("checkpoint_file", "network_settings"),
    },
    "__init__": set(),
    "__main__": {"cli", "progress", "stopping", "tools"},
    "benchmarking": {"module", "backend", "conv", "choices", "data", "batch", "boxes", "files"},
    "exporting": {"graph", "network_settings", "backend", "boxes", "files"},
    "test_time_augmentation": {"boxes"},
    "sweeping": {
        *("detecting", "test_time_augmentation", "postprocess", "device_transforms"),
        *("evaluation", "batch", "data"),
    },
    "detecting": {
        *("graph", "network_settings", "backend", "postprocess", "test_time_augmentation"),
        *("batch", "boxes", "data", "files"),
    },
    "diagnosis": {"supervise", "sensors", "conv", "data", "files", "host"},
    "tools": {
        "averaging",
        "sweeping",
        "benchmarking",
        "diagnosis",
        "exporting",
        "detecting",
        "network_settings",
        "backend",
        "choices",
        "monitoring",
        "reporting",
        "run_folder",
        "checkpoint_file",
        "remote_checkpoints",
        "data",
        "evaluation",
        "batch",
        "boxes",
        "files",
        "host",
    },
    "continuation": {"averaging", "run_folder", "checkpoint_file", "remote_checkpoints", "ranks"},
    "endings": {
        *("checkpoint_file", "files", "position", "ranks", "run_folder", "stopping"),
        *("supervise", "supervised_fit"),
    },
    "cli": {
        "checkpoint_file",
        "files",
        "module",
        "endings",
        "network_settings",
        "option_layers",
        "ranks",
        "remote_checkpoints",
        "data",
        "continuation",
        "run_folder",
        "tools",
        "progress",
        "supervise",
        "supervised_fit",
        "callbacks",
    },
}


def files(*folders: str) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for folder in folders for path in (ROOT / folder).rglob("*.py"))


def imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} uses a relative import"
            names |= {node.module or ""} if node.module != PACKAGE else {f"{PACKAGE}.{a.name}" for a in node.names}
    return names


def below(name: str, parents: set[str]) -> bool:
    return any(name == parent or name.startswith(f"{parent}.") for parent in parents)


@pytest.mark.parametrize("file", files(PACKAGE))
def test_room_imports_only_the_rooms_it_may(file: str) -> None:
    parts = Path(file).with_suffix("").parts[1:]
    room = parts[0]
    assert room in ROOMS, f"{file} belongs to no room of the table"
    allowed = {f"{PACKAGE}.{name}" for name in ROOMS[room] | {room}} | (ROOMS[room] & {"callbacks"})
    own = {name for name in imports(ROOT / file) if name.split(".")[0] in (PACKAGE, "callbacks")}
    assert {name for name in own if not below(name, allowed)} == set()


@pytest.mark.parametrize("file", files("callbacks"))
def test_callbacks_import_only_leaves(file: str) -> None:
    own = {name for name in imports(ROOT / file) if name.split(".")[0] == PACKAGE}
    assert {name for name in own if not below(name, LEAVES)} == set()


@pytest.mark.parametrize("file", [file for file in files(PACKAGE, "callbacks") if file not in ULTRALYTICS])
def test_ultralytics_has_three_doors(file: str) -> None:
    assert {name for name in imports(ROOT / file) if name.split(".")[0] == "ultralytics"} == set()


@pytest.mark.parametrize("file", files(f"{PACKAGE}/conv"))
def test_convolution_needs_torch_alone(file: str) -> None:
    others = {name.split(".")[0] for name in imports(ROOT / file)} - {PACKAGE} - sys.stdlib_module_names
    assert others <= {"torch"}


def test_nothing_but_the_command_line_imports_all() -> None:
    importers = [file for file in files(PACKAGE) if "callbacks" in imports(ROOT / file)]
    assert importers == [f"{PACKAGE}/cli.py"]
