from pathlib import Path

import pytest

from tests.helpers.networks import lively_checkpoint

CLASSES = ("person", "bicycle", "motorcycle", "vehicle")
IMAGE_SIZE = 64


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a network with random weights whose boxes and scores differ from place to place."""
    return lively_checkpoint(
        tmp_path_factory.mktemp("trained"), class_names=CLASSES, backend="gemm", activation_checkpointing=True
    )
