"""Launches and traffic of a training step with the GPU kernels, counted on the meta device, which computes nothing."""

import pytest

from tests.conv.emulation import assume_available
from tests.helpers.dispatch_count import DispatchCount, count_step
from yolo_lightning.conv import Plan
from yolo_lightning.model.graph import build_graph
from yolo_lightning.model.layers import arrange

# Forward and backward of YOLOv8n, 8 gray images of 640 pixels, float32, channels_last. Lower a number with every
# improvement; never raise one.
KERNELS = 510
DISPATCHES = 1_700
GIGABYTES = 8.3
MILLISECONDS = 53.8  # modelled RX 5600 XT


@pytest.fixture(scope="module")
def step() -> DispatchCount:
    graph = arrange(build_graph("yolov8n", ("a", "b", "c", "d")), "gemm")
    arrange(graph, "gemm", plan=Plan())  # its own decisions: those on the meta device must not leave this test
    with assume_available("meta"):
        return count_step(graph, 8, 640)


def test_launches(step: DispatchCount) -> None:
    assert sum(step.kernels.values()) <= KERNELS, step.kernels
    assert step.dispatches <= DISPATCHES, step.dispatched
    assert not step.uploads


def test_traffic_and_modelled_time(step: DispatchCount) -> None:
    assert step.bytes <= GIGABYTES * 1e9
    assert step.seconds <= MILLISECONDS / 1e3


def test_the_products_are_those_of_the_network(step: DispatchCount) -> None:
    assert round(step.flop / 1e9) == 192
