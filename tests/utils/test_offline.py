"""Other libraries stay offline in calls of this package, and as their users set them elsewhere."""

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from yolo_lightning.utils import offline as switches
from yolo_lightning.utils.offline import offline, prefer_fast_find

REFUSE = """
import logging, os, socket, subprocess, sys
attempts = []
def refused(*arguments, **keywords):
    attempts.append(arguments[0])
    raise OSError("refused")
socket.getaddrinfo = socket.socket.connect = socket.create_connection = refused
before = dict(os.environ)
"""
CALLS = """
import yolo_lightning
from yolo_lightning import Detector, YOLOModule
from yolo_lightning.model.graph import open_ultralytics
YOLOModule(class_names=["one"])
subprocess.Popen.__init__ = subprocess.run = refused
try:
    open_ultralytics(__import__("pathlib").Path(sys.argv[1]), allow_pickle=True)
    raise SystemExit("opened a pickle of an absent module")
except ValueError:
    pass
assert not attempts, attempts
"""
OURS_FIRST = (
    CALLS
    + """
from ultralytics import utils
assert {"YOLO_OFFLINE", "YOLO_VERBOSE", "NO_ALBUMENTATIONS_UPDATE"}.isdisjoint(os.environ)
assert utils.VERBOSE and utils.AUTOINSTALL and utils.LOGGER.level == logging.INFO
assert utils.checks.AUTOINSTALL
assert not utils.ONLINE and attempts, "Ultralytics' own use tests the network"
"""
)
OURS_SECOND = (
    """
import lightning.pytorch  # sets variables of its own
from ultralytics import utils
from ultralytics.utils import checks
assert attempts.pop() and not attempts.clear()
utils.ONLINE = checks.ONLINE = True  # as with a network
utils.LOGGER.setLevel(logging.DEBUG)
before = dict(os.environ)
"""
    + CALLS
    + """
assert (utils.ONLINE, checks.ONLINE, utils.AUTOINSTALL, checks.AUTOINSTALL, utils.VERBOSE) == (True,) * 5
assert utils.LOGGER.level == logging.DEBUG
assert dict(os.environ) == before
"""
)


class Absent:
    """Class of a module that the reading process does not have."""


@pytest.mark.whole_run
@pytest.mark.parametrize("script", [OURS_FIRST, OURS_SECOND], ids=["ours first", "ours second"])
def test_calls_stay_offline_in_either_order(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("YOLO_OFFLINE", "YOLO_AUTOINSTALL", "YOLO_VERBOSE", "NO_ALBUMENTATIONS_UPDATE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Absent, "__module__", "absent_module")
    monkeypatch.setitem(sys.modules, "absent_module", sys.modules[__name__])
    torch.save({"model": Absent()}, tmp_path / "absent.pt")
    words = [sys.executable, "-c", REFUSE + script, str(tmp_path / "absent.pt")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout


def test_import_of_the_package_changes_nothing() -> None:
    script = """
import logging, os, sys
before, names = dict(os.environ), set(logging.root.manager.loggerDict)
import yolo_lightning
assert dict(os.environ) == before and set(logging.root.manager.loggerDict) == names
assert "ultralytics" not in sys.modules and "Detector" in dir(yolo_lightning)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_fast_find_of_miopen_is_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MIOPEN_FIND_MODE", raising=False)
    prefer_fast_find()
    assert os.environ["MIOPEN_FIND_MODE"] == "FAST"
    monkeypatch.setenv("MIOPEN_FIND_MODE", "NORMAL")
    prefer_fast_find()
    assert os.environ["MIOPEN_FIND_MODE"] == "NORMAL"


def test_user_without_a_home_folder_can_import_ultralytics(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(user: int) -> None:
        raise KeyError(user)

    monkeypatch.setattr(switches, "cache_folder", lambda: tmp_path)
    monkeypatch.delenv("YOLO_CONFIG_DIR", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", refuse)  # as for a number that a container gives to a process
    with offline():
        assert os.environ["YOLO_CONFIG_DIR"] == str(tmp_path)
    assert "YOLO_CONFIG_DIR" not in os.environ
    monkeypatch.setenv("HOME", str(tmp_path))
    with offline():
        assert "YOLO_CONFIG_DIR" not in os.environ
