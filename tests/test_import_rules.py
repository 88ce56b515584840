"""Rooms of the package, imports between rooms, and names, read from the source files."""

import ast
import sys
from collections import defaultdict

import pytest

from scripts import import_map
from tests.conftest import REPOSITORY

PACKAGE = import_map.PACKAGE
FILES = import_map.modules(PACKAGE)
IMPORTS = import_map.imports(FILES)
ARROWS = import_map.arrows(IMPORTS)
SCRIPTS = import_map.modules("scripts")
ULTRALYTICS = {
    f"{PACKAGE}.{name}" for name in ("model.graph", "model.loss", "model.postprocess", "training.optimizers")
}


@pytest.mark.parametrize("room", sorted({import_map.room_of(module) for module in FILES} - {"__init__"}))
def test_room_imports_rooms_of_lower_floors_only(room: str) -> None:
    floor = import_map.floor_of(room)
    assert {target for target in ARROWS.get(room, ()) if import_map.floor_of(target) >= floor} == set()


def test_no_two_files_import_each_other_directly_or_through_others() -> None:
    assert import_map.circles(IMPORTS) == []


def test_no_two_scripts_import_each_other_directly_or_through_others() -> None:
    assert import_map.circles(import_map.imports(SCRIPTS, "scripts.")) == []


def test_circle_is_found() -> None:
    imports = {"a": frozenset({"b"}), "b": frozenset({"c"}), "c": frozenset({"b"}), "d": frozenset({"a"})}
    assert import_map.circles(imports) == [("b", "c")]


def test_package_has_at_most_five_modules_of_its_own() -> None:
    assert len([module for module in FILES if module.count(".") == 1 and FILES[module].name != "__init__.py"]) <= 5


def test_diagram_shows_the_imports() -> None:
    page = import_map.CONTRIBUTING.read_text(encoding="utf-8")
    assert import_map.with_diagram(page, import_map.mermaid(ARROWS)) == page, "run scripts/import_map.py --write"


def test_classes_have_different_names() -> None:
    homes = defaultdict(set)
    for module, path in FILES.items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                homes[node.name].add(module)
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}


def test_rooms_hold_no_file_of_the_same_name() -> None:
    homes = defaultdict(set)
    for module in FILES:
        room, _, name = module.rpartition(".")
        if FILES[module].name != "__init__.py" and name not in ("command", "__main__"):
            homes[name].add(room)
    assert {name: rooms for name, rooms in homes.items() if len(rooms) > 1} == {}


@pytest.mark.parametrize("module", sorted(FILES.keys() - ULTRALYTICS))
def test_four_files_import_ultralytics(module: str) -> None:
    assert {name for name in import_map.imported_names(FILES[module]) if name.split(".")[0] == "ultralytics"} == set()


@pytest.mark.parametrize("module", [module for module in FILES if import_map.room_of(module) == "conv"])
def test_convolution_needs_torch_alone(module: str) -> None:
    packages = {name.split(".")[0] for name in import_map.imported_names(FILES[module])} - sys.stdlib_module_names
    assert packages <= {"torch", PACKAGE}


@pytest.mark.parametrize("folder", ["yolo_lightning", "tests", "scripts"])
def test_callbacks_are_imported_from_the_package(folder: str) -> None:
    """A user's project may have a folder `callbacks`, which would be found first."""
    importers = [
        module
        for module, path in import_map.modules(folder).items()
        if any(name.split(".")[0] == "callbacks" for name in import_map.imported_names(path))
    ]
    assert importers == []


def test_callbacks_are_the_folder_at_the_top_level() -> None:
    assert (REPOSITORY / PACKAGE / "callbacks").resolve() == REPOSITORY / "callbacks"


def test_every_package_is_installed() -> None:
    text = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    packages = [module for module, path in FILES.items() if path.name == "__init__.py"]
    assert [package for package in packages if f'"{package}"' not in text] == []
