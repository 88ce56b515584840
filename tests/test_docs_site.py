"""The documentation as a site: strict build, API reference, and nothing loaded from other servers."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import REPOSITORY
from yolo_lightning import __all__ as public_names

HAS_MKDOCS = all(importlib.util.find_spec(name) for name in ("mkdocs", "material", "mkdocstrings"))
LOADED = re.compile(
    r"""<(?:script|img|iframe)[^>]*\ssrc=["']?(https?:[^"'\s>]+)|<link[^>]*stylesheet[^>]*href=["']?(https?:)"""
)


def pages(entry: object) -> list[str]:
    """Return the files in the navigation of mkdocs.yml."""
    if isinstance(entry, str):
        return [entry]
    return [page for part in (entry.values() if isinstance(entry, dict) else entry) for page in pages(part)]  # type: ignore[attr-defined]


def test_navigation_contains_every_page() -> None:
    listed = pages(yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    assert sorted(listed) == sorted(path.name for path in (REPOSITORY / "docs").glob("*.md"))


@pytest.mark.parametrize("name", public_names)
def test_public_names_are_in_the_reference(name: str) -> None:
    text = (REPOSITORY / "docs" / "api.md").read_text(encoding="utf-8")
    assert re.search(rf"^::: yolo_lightning\.[a-z_.]+\.{name}$", text, re.MULTILINE)


@pytest.mark.whole_run
@pytest.mark.skipif(not HAS_MKDOCS, reason="the extra docs is not installed")
def test_strict_build_loads_nothing_from_other_servers(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    built = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "site").rglob("*.html")}
    assert "The weights record the image size" in built["api.html"]
    assert {name: LOADED.findall(page) for name, page in built.items() if LOADED.search(page)} == {}
