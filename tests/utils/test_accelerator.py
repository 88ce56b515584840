"""Accelerators of other vendors, with stubs of torch's modules."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from yolo_lightning.callbacks.random_state import generators, restore
from yolo_lightning.utils import accelerator
from yolo_lightning.utils.accelerator import (
    accelerator_type,
    device_name,
    free_cached_memory,
    is_out_of_memory,
    random_states,
    set_random_states,
    uses_pinned_memory,
)


class StubBackend:
    """The functions of `torch.xpu` (several devices) or `torch.mps` (one device) that this package calls."""

    def __init__(self, kind: str, devices: int) -> None:
        self.kind, self.states, self.freed = kind, [torch.full((2,), number) for number in range(devices)], 0
        if kind == "mps":
            self.functions: dict[str, Any] = {"get_rng_state": lambda: self.states[0], "set_rng_state": self.set_one}
        else:
            self.functions = {
                "get_rng_state": lambda device=0: self.states[device],
                "get_rng_state_all": lambda: self.states,
                "set_rng_state_all": self.set_all,
                "get_device_name": lambda device: "Arc A770",
            }
        self.functions["empty_cache"] = self.empty_cache

    def set_one(self, state: Tensor) -> None:
        self.states = [state]

    def set_all(self, states: list[Tensor]) -> None:
        self.states = states

    def empty_cache(self) -> None:
        self.freed += 1


@pytest.fixture(params=[("xpu", 2), ("mps", 1)])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> StubBackend:
    stub = StubBackend(*request.param)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(stub.kind))
    monkeypatch.setattr(accelerator.torch, "get_device_module", lambda kind: SimpleNamespace(**stub.functions))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return stub


def test_accelerator_of_any_vendor(backend: StubBackend) -> None:
    device = torch.device(backend.kind)
    assert accelerator_type() == backend.kind
    assert device_name(device) == ("Arc A770" if backend.kind == "xpu" else "mps")
    assert uses_pinned_memory(device) == (backend.kind == "xpu")
    free_cached_memory(device)
    assert backend.freed == 1


def test_random_generators_of_an_accelerator_are_saved_and_restored(backend: StubBackend) -> None:
    saved = generators()
    before, backend.states = backend.states, [torch.full((2,), 9) for _ in backend.states]
    assert (saved["accelerator"], saved["accelerator_states"]) == (backend.kind, before)
    restore(saved)
    assert all(torch.equal(state, other) for state, other in zip(backend.states, before, strict=True))


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_states_of_another_accelerator_are_left_out(backend: StubBackend, kind: str) -> None:
    before = backend.states
    set_random_states(kind, [torch.full((2,), 9) for _ in before])
    assert backend.states is before


def test_cpu_has_no_further_generators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert random_states() == ("cpu", [])
    assert not uses_pinned_memory(torch.device("cpu"))
    free_cached_memory(torch.device("cpu"))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("tried to allocate 7 GiB"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 8.8 GiB, max allowed: 9.0 GiB)"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("expected scalar type Half but found Float"), False),
    ],
)
def test_errors_that_report_a_lack_of_memory(error: RuntimeError, expected: bool) -> None:
    assert is_out_of_memory(error) is expected
