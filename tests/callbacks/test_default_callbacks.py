"""Callbacks of a run: the defaults, and the callbacks of the configuration that replace them."""

from typing import Any

import pytest
import yaml
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping

from tests.conftest import REPOSITORY
from yolo_lightning.callbacks import EMA, LastCheckpoint, MeanAP, StatusFile, StopOnSignal
from yolo_lightning.callbacks.default_callbacks import DEFAULTS, FIT_DEFAULTS, REQUIRED, with_default_callbacks


def kinds(callbacks: list[Callback]) -> list[type[Callback]]:
    return [type(callback) for callback in callbacks]


def test_configured_callback_replaces_the_default_of_its_class_and_others_are_added() -> None:
    class OwnMeanAP(MeanAP):
        pass

    average, scores, stopping = EMA(tau=20.0), OwnMeanAP(), EarlyStopping("val/map_50")
    callbacks = with_default_callbacks([stopping, scores, average], is_fit=True)
    assert kinds(callbacks).count(EMA) == 1
    assert average in callbacks
    assert MeanAP not in kinds(callbacks)
    assert callbacks.index(average) < callbacks.index(scores)  # in the order of the defaults
    assert callbacks[-1] is stopping
    assert len(callbacks) == len([*REQUIRED, *FIT_DEFAULTS, *DEFAULTS]) + 1


def test_two_callbacks_of_one_class_are_kept() -> None:
    several = [LastCheckpoint(interval_steps=10), LastCheckpoint(interval_steps=20)]
    callbacks = with_default_callbacks(several, is_fit=True)
    assert [callback for callback in callbacks if isinstance(callback, LastCheckpoint)] == several


def test_without_defaults_a_fit_has_the_required_and_the_configured_callbacks() -> None:
    status = StatusFile()
    assert with_default_callbacks([status], is_fit=False, use_defaults=False) == [status]
    callbacks = with_default_callbacks([status], is_fit=True, use_defaults=False)
    assert kinds(callbacks) == [*REQUIRED, StatusFile]
    assert StopOnSignal in kinds(callbacks)


@pytest.mark.parametrize("name", ["demo", "ltdv2", "yolo"])
def test_configurations_name_only_callbacks_that_differ_from_the_defaults(name: str) -> None:
    content: dict[str, Any] = yaml.safe_load((REPOSITORY / "configs" / f"{name}.yaml").read_text())
    entries = content["trainer"]["callbacks"]
    assert len(entries) <= 3
    assert all(entry["init_args"] for entry in entries)
