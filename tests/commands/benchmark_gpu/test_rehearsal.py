"""The whole GPU benchmark on a CPU, with small shapes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from yolo_lightning.commands.benchmark_gpu.stage_records import Stage

BUDGET_S = 2400  # a loaded machine; 1 to 2 minutes on two free cores


@pytest.mark.whole_run
@pytest.mark.timeout(BUDGET_S + 60)
def test_rehearsal(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = [sys.executable, "-m", "yolo_lightning", "benchmark_gpu", str(out), "--device", "cpu", "--quick"]
    first = subprocess.run([*words, "--budget_s", str(BUDGET_S)], capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stdout + first.stderr
    stages = json.loads((out / "gpu.json").read_text())["stages"]
    assert {name: stage["state"] for name, stage in stages.items()} == {stage.value: "passed" for stage in Stage}
    resume = stages["resume"]["result"]
    assert resume["equal"]
    assert 0 < resume["runs"]["killed"]["steps_saved"] < resume["steps"]
    assert all(row["failure"] is None for row in stages["speed"]["result"]["step"])
    text = (out / "gpu.md").read_text()
    assert "incomplete" not in text
    assert f"page: {out / 'gpu.md'}" in first.stdout
    second = subprocess.run(words, capture_output=True, text=True, check=False)
    assert second.stderr.count("passed in an earlier call") == len(Stage)
    assert second.returncode == 0
