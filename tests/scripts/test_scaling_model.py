"""The scaling model: its formulas and the table of docs/scaling.md."""

import sys

import pytest

from tests.conftest import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "scripts"))

from scaling_model import Cluster, scaling, table


def test_one_gpu_needs_no_communication() -> None:
    one = scaling(Cluster(gpu_images_per_s=800, batch_size=8), 1)
    assert (one.averaging_s, one.messages_s, one.efficiency, one.images_per_s) == (0, 0, 1, pytest.approx(800))


def test_communication_of_a_node_by_hand() -> None:
    eight = scaling(Cluster(gradient_bytes=8e9, node_bytes_per_s=1e9, node_latency_s=1.0, network_latency_s=0.5), 8)
    assert eight.averaging_s == pytest.approx(2 * 7 / 8 * 8 + 14 * 1)
    assert eight.messages_s == pytest.approx(4 * 3 * 0.5)


def test_communication_between_nodes_by_hand() -> None:
    node = Cluster(gradient_bytes=8e9, node_bytes_per_s=1e99, node_latency_s=1e-99, network_bytes_per_s=1e9)
    assert scaling(node, 32).averaging_s == pytest.approx(2 * 3 / 4 * 1 + 2 * 2 * node.network_latency_s)


@pytest.mark.parametrize(
    ("workers", "bound", "images_per_s"), [(1, "loader", 8 * 400), (2, "loader", 8 * 800), (3, "GPU", 7748)]
)
def test_the_slower_of_gpu_and_loader_decides(workers: int, bound: str, images_per_s: float) -> None:
    found = scaling(Cluster(samples_per_worker_s=400, workers_per_gpu=workers), 8)
    assert (found.bound, found.workers_needed) == (bound, 3)
    assert found.images_per_s == pytest.approx(images_per_s, rel=1e-3)


def test_page_contains_the_table_of_the_model() -> None:
    assert table(Cluster()) in (REPOSITORY / "docs" / "scaling.md").read_text()


def test_values_must_be_positive() -> None:
    with pytest.raises(ValueError, match="--workers_per_gpu must be > 0, got 0"):
        Cluster(workers_per_gpu=0)
