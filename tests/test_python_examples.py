"""The Python code of the README, docs/index.md and docs/python.md runs from top to bottom."""

import re
import textwrap
from pathlib import Path

import cv2
import numpy as np
import pytest

from tests.conftest import REPOSITORY
from tests.helpers.program import run_python

SIDE = 64
AT_TEST_SIZE = {
    'format="path/to/data.yaml"': f'format="data.yaml", image_size={SIDE}',
    f"image_size={SIDE}, image_size=640": f"image_size={SIDE}",
    "max_epochs=100": "max_epochs=1",
}


def code_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.fixture
def offline_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def draw_yolo_dataset(root: Path) -> None:
    """Write `data.yaml` with 16 images of one box per split, and `image.jpg`."""
    for split in ("train", "val"):
        for kind in ("images", "labels"):
            (root / kind / split).mkdir(parents=True)
        for number in range(16):
            pixels = np.random.default_rng(number).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
            cv2.imwrite(str(root / "images" / split / f"{number}.jpg"), pixels)
            (root / "labels" / split / f"{number}.txt").write_text("0 0.5 0.5 0.4 0.4\n")
    cv2.imwrite(str(root / "image.jpg"), pixels)
    (root / "data.yaml").write_text(f"path: {root}\ntrain: images/train\nval: images/val\nnames: [thing]\n")


@pytest.mark.whole_run
def test_python_page(offline_folder: Path) -> None:
    blocks = code_blocks(REPOSITORY / "docs" / "python.md")
    assert len(blocks) >= 6
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), namespace)
    assert (offline_folder / "run" / "checkpoints" / "best.ckpt").is_file()
    scores = namespace["scores"]
    assert isinstance(scores, dict)
    assert 0 <= scores["val/map"] <= 1
    results = namespace["results"]
    assert isinstance(results, list)
    assert len(results) == 3


def saved_block(folder: Path, page: str) -> Path:
    """Save the Python block of a page as a file of `folder`, with the dataset and the length of a test."""
    draw_yolo_dataset(folder)
    (block,) = code_blocks(REPOSITORY / page)
    for at_full_size, at_test_size in AT_TEST_SIZE.items():
        block = block.replace(at_full_size, at_test_size)
    assert "path/to" not in block
    assert (block.count(f"image_size={SIDE}"), block.count("max_epochs=1,")) == (1, 1)
    script = folder / "train.py"
    script.write_text(block)
    return script


@pytest.mark.whole_run
@pytest.mark.timeout(400)  # more than that of the script
@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_page_as_a_file(offline_folder: Path, page: str) -> None:
    done = run_python(offline_folder, saved_block(offline_folder, page).name, timeout_s=300)
    assert done.returncode == 0, done.stderr
    assert (offline_folder / "run" / "checkpoints" / "best.ckpt").is_file()


@pytest.mark.whole_run
def test_script_without_the_guard_ends_in_one_line(offline_folder: Path) -> None:
    script = saved_block(offline_folder, "README.md")
    head, _, body = script.read_text().partition("if __name__ == ")
    script.write_text(head + textwrap.dedent(body.partition("\n")[2]))
    done = run_python(offline_folder, script.name)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: train.py, line ")
    assert 'if __name__ == "__main__":' in done.stderr.splitlines()[-1]
