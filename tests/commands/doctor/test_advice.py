"""Recommended settings for several machines."""

from dataclasses import replace
from typing import get_args

import pytest

from tests.commands.doctor.machines import GIB, H200, NAVI, PLAIN, ROCM, results, with_disk
from yolo_lightning.commands.doctor.command import Value, recommended_commands, recommended_options
from yolo_lightning.commands.doctor.inspect_machine import SHARED_MEMORY, MachineFacts
from yolo_lightning.commands.doctor.probes import Outcome, Probe, ProbeOutcome
from yolo_lightning.commands.doctor.read_hardware import KernelSettings
from yolo_lightning.data.loader_settings import LoaderSettings
from yolo_lightning.model.convolution_settings import Convolution
from yolo_lightning.model.precision_trial import LARGEST_SHARE
from yolo_lightning.utils.sensors import Capacity

AMD = replace(PLAIN, gpus=(NAVI,), torch=ROCM, kfd_opens=True)
OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"


def options(machine: MachineFacts, found: list[ProbeOutcome]) -> dict[str, Value]:
    return {option.key: option.value for option in recommended_options(machine, found)}


def commands(machine: MachineFacts, found: list[ProbeOutcome]) -> list[str]:
    return [command.text for command in recommended_commands(machine, found)]


def with_facts(found: list[ProbeOutcome], **facts: object) -> list[ProbeOutcome]:
    return [replace(one, facts=one.facts | facts) if one.probe is Probe.DEVICE else one for one in found]


@pytest.mark.parametrize(
    ("outcome", "own", "value"),
    [
        (Outcome.WORKS, Outcome.WORKS, "auto"),
        (Outcome.SLOWER, Outcome.WORKS, "gemm"),
        (Outcome.HANGS, Outcome.WORKS, "gemm"),
        (Outcome.WRONG, Outcome.WORKS, "gemm"),
        (Outcome.NOT_TRIED, Outcome.WORKS, "gemm"),
        (Outcome.WORKS, Outcome.CRASHES, "native"),
    ],
)
def test_convolution(outcome: Outcome, own: Outcome, value: str) -> None:
    assert options(AMD, results(convolution=outcome, own_convolution=own))["model.convolution.backend"] == value
    assert value in get_args(Convolution)


def test_convolution_on_a_cpu() -> None:
    assert options(PLAIN, results("cpu"))["model.convolution.backend"] == "auto"


def test_precision_depends_on_the_card_and_the_probes() -> None:
    nvidia = replace(PLAIN, gpus=(H200,))
    new, old = (with_facts(results(), capability=[major, 0]) for major in (9, 7))
    assert options(nvidia, new)["trainer.precision"] == "bf16-mixed"
    assert options(nvidia, old)["trainer.precision"] == "32-true"
    broken = with_facts(results(matmul_bfloat16=Outcome.WRONG), capability=[9, 0])
    assert options(nvidia, broken)["trainer.precision"] == "32-true"
    assert options(AMD, results())["trainer.precision"] == "32-true"
    assert options(nvidia, [])["trainer.precision"] == "32-true", "no probe has run"


@pytest.mark.parametrize(
    ("share", "works", "precision"), [(0.5, True, "bf16-mixed"), (0.95, True, "32-true"), (0.5, False, "32-true")]
)
def test_precision_on_a_cpu_depends_on_the_measured_time(share: float, works: bool, precision: str) -> None:
    outcome = Outcome.WORKS if works else Outcome.WRONG
    found = [
        replace(one, facts={"bfloat16_share": share, "pays": share <= LARGEST_SHARE})
        if one.probe is Probe.MATMUL_BFLOAT16
        else one
        for one in results("cpu", matmul_bfloat16=outcome)
    ]
    assert options(PLAIN, found)["trainer.precision"] == precision


@pytest.mark.parametrize(
    ("machine", "workers"),
    [
        (PLAIN, 4),
        (replace(PLAIN, cores=3), 3),
        (replace(PLAIN, cores=1), 1),
        (replace(PLAIN, memory=Capacity(3 * GIB, 8 * GIB)), 2),
        (with_disk(PLAIN, SHARED_MEMORY, 64 << 20, 60 << 20), 0),
        (replace(PLAIN, disks={SHARED_MEMORY: None}), 0),
    ],
)
def test_workers_depend_on_cores_memory_and_shared_memory(machine: MachineFacts, workers: int) -> None:
    assert options(machine, results("cpu"))["data.loader.num_workers"] == workers


def test_no_workers_after_a_hang_of_the_loader() -> None:
    found = options(PLAIN, results("cpu", loader=Outcome.HANGS))
    assert found["data.loader.num_workers"] == 0
    assert "data.loader.multiprocessing_context" not in found


@pytest.mark.parametrize("machine", [PLAIN, AMD])
def test_recommended_loader_options_exist(machine: MachineFacts) -> None:
    found = options(machine, results())
    names = {key.removeprefix("data.loader."): value for key, value in found.items() if key.startswith("data.loader.")}
    LoaderSettings(**names)  # type: ignore[arg-type]


def test_batches_are_pinned_on_amd() -> None:
    assert options(AMD, results())["data.loader.pin_memory"] is True
    assert options(PLAIN, results("cpu"))["data.loader.pin_memory"] is None


def test_an_unneeded_override_is_unset() -> None:
    machine = replace(AMD, environment={OVERRIDE: "10.3.0"})
    assert commands(machine, results()) == [f"unset {OVERRIDE}"]


@pytest.mark.parametrize("built", ["gfx1030", "gfx1100"])
def test_a_build_for_the_card_is_recommended_and_no_override(built: str) -> None:
    found = with_facts(results(), architectures=[built])
    install = "pip install 'torch[device-gfx1010]' 'torchvision[device-gfx1010]'"
    assert commands(AMD, found) == [install]
    assert commands(replace(AMD, environment={OVERRIDE: "10.3.0"}), found) == [install, f"unset {OVERRIDE}"]
    assert commands(AMD, results()) == []


def test_kernel_settings_are_recommended_for_amd_cards_only() -> None:
    kernel = KernelSettings("always", True)
    assert [one.split()[0:2] for one in commands(replace(AMD, kernel=kernel), results())] == [
        ["echo", "madvise"],
        ["sudo", "sysctl"],
    ]
    assert commands(replace(PLAIN, kernel=kernel), results("cpu")) == []
