"""Trainings are compared with the constant of Ultralytics' assigner."""

import pytest


@pytest.fixture(autouse=True)
def same_assigner(ultralytics_epsilon: None) -> None:
    """Every test of this folder."""
