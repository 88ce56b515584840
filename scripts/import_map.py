"""Read the imports of the package and print the rooms (sub-packages), their floors and the arrows between them.

    python scripts/import_map.py                    print the Mermaid diagram of CONTRIBUTING.md
    python scripts/import_map.py --write            replace the diagram in CONTRIBUTING.md

Uses the standard library only and imports nothing of the package: the source files are parsed.
"""

import argparse
import ast
import os
from collections import defaultdict
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "yolo_lightning"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
DIAGRAM = ("```mermaid\n", "```\n")

FLOORS = (
    ("errors",),
    ("conv", "utils"),
    ("data", "supervision", "checkpoints", "options"),
    ("model", "evaluation", "training"),
    ("challenge", "detector"),
    ("callbacks",),
    ("module",),
    ("commands",),
    ("cli",),
    ("__main__",),
)
"""Rooms from the lowest floor to the highest. A room imports rooms of lower floors only."""

Imports = Mapping[str, frozenset[str]]
"""Imported modules by importing module, both as dotted names."""


def modules(*folders: str) -> dict[str, Path]:
    """Return the source file of every module below `folders`, by dotted name."""
    files = {}
    for folder in folders:
        # Path.rglob does not follow `yolo_lightning/callbacks`, a symbolic link.
        walked = os.walk(ROOT / folder, followlinks=True)
        for path in sorted(Path(place, name) for place, _, names in walked for name in names if name.endswith(".py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def imported_names(path: Path) -> set[str]:
    """Return the dotted names that a source file imports, `package.name` for `from package import name`."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} uses a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def imports(files: Mapping[str, Path], prefix: str = "") -> Imports:
    """Return which of `files` each of them imports; scripts import their neighbours by names without `prefix`."""
    graph = {}
    for name, path in files.items():
        targets = set()
        for imported in imported_names(path):
            parent = imported.rpartition(".")[0]
            candidates = (imported, prefix + imported, parent, prefix + parent)
            targets |= {next((candidate for candidate in candidates if candidate in files), name)}
        graph[name] = frozenset(targets - {name})
    return graph


def room_of(module: str) -> str:
    """Return the room of a module: the name below the package, `__init__` for the package itself."""
    _, _, below = module.partition(".")
    return below.partition(".")[0] or "__init__"


def arrows(graph: Imports) -> dict[str, set[str]]:
    """Return the imported rooms by importing room; `yolo_lightning/__init__.py`, the public API, is none."""
    between: dict[str, set[str]] = defaultdict(set)
    for importer, targets in graph.items():
        between[room_of(importer)] |= {room_of(target) for target in targets} - {room_of(importer), "__init__"}
    return {room: targets for room, targets in between.items() if targets and room != "__init__"}


def floor_of(room: str) -> int:
    """Return the floor of a room, 0 for the lowest; raise KeyError if `FLOORS` does not contain the room."""
    return {name: floor for floor, rooms in enumerate(FLOORS) for name in rooms}[room]


def circles(graph: Imports) -> list[tuple[str, ...]]:
    """Return the sorted modules of one circle of imports, an empty list if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [tuple(sorted(set(error.args[1])))]
    return []


def mermaid(between: Mapping[str, set[str]]) -> str:
    """Return the diagram of rooms and arrows, one subgraph per floor, without arrows that a longer way implies."""
    lines = ["flowchart TD"]
    for floor in reversed(range(len(FLOORS))):
        lines.append(f"  subgraph floor{floor}[floor {floor}]")
        lines += [f"    {room.strip('_')}" for room in FLOORS[floor]]
        lines.append("  end")
    for room in sorted(between, key=lambda name: (-floor_of(name), name)):
        below = between[room]
        implied = {far for near in below for far in _reachable(near, between)}
        lines += [f"  {room.strip('_')} --> {target.strip('_')}" for target in sorted(below - implied)]
    return "\n".join(lines) + "\n"


def _reachable(room: str, between: Mapping[str, set[str]]) -> set[str]:
    """Return the rooms that `room` imports, directly or through other rooms."""
    near = between.get(room, set())
    return near | {far for target in near for far in _reachable(target, between)}


def with_diagram(text: str, diagram: str) -> str:
    """Return a page with its Mermaid diagram replaced."""
    before, begin, rest = text.partition(DIAGRAM[0])
    _, end, after = rest.partition(DIAGRAM[1])
    assert end, "the page has no complete Mermaid diagram"
    return before + begin + diagram + end + after


def main() -> None:
    """Print the diagram, or write it into CONTRIBUTING.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="replace the diagram in CONTRIBUTING.md")
    diagram = mermaid(arrows(imports(modules(PACKAGE))))
    if parser.parse_args().write:
        CONTRIBUTING.write_text(with_diagram(CONTRIBUTING.read_text(encoding="utf-8"), diagram), encoding="utf-8")
    else:
        print(diagram, end="")


if __name__ == "__main__":
    main()
