"""Training in processes that Ray Train starts; skipped if Ray is not installed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, TINY, data_options


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_processes_of_ray_finish_a_fit(tmp_path: Path, look_alike: Path, index_root: Path) -> None:
    pytest.importorskip("ray.train")
    words = [sys.executable, str(REPOSITORY / "scripts" / "fit_on_ray.py"), "2", "fit", "--trainer.accelerator", "cpu"]
    words += ["--config", str(REPOSITORY / "configs" / "engine" / "ray.yaml"), "--trainer.max_epochs", "1", *TINY]
    words += data_options(look_alike, index_root)
    settings = {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    options = ["--data.batch_size", "4", "--trainer.default_root_dir", "run"]
    subprocess.run([*words, *options], cwd=tmp_path, env=os.environ | settings, check=True, timeout=500)
    assert json.loads((tmp_path / "run/finished.json").read_text())["steps"] == 2
    assert (tmp_path / "run/heartbeat-rank1").is_file()
