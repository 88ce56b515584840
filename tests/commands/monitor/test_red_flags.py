from dataclasses import replace

import pytest

from tests.commands.monitor.known_states import NOW_S, STATUS
from yolo_lightning.commands.monitor.run_state import Judgement, RunState, RunVerdict, red_flags
from yolo_lightning.supervision.heartbeat import Phase
from yolo_lightning.supervision.watches import WatchFinding
from yolo_lightning.utils.moment import moment
from yolo_lightning.utils.process_identity import Process
from yolo_lightning.utils.sensors import Capacity, GpuReading, SensorReadings

COOL = GpuReading("GPU 0", busy_share=0.9, temperature_c=80.0, power_w=150.0, memory_used_bytes=97, memory_bytes=100)
WELL = RunState(
    folder="runs/x",
    now_s=NOW_S,
    judgement=Judgement(RunVerdict.RUNNING),
    phase=Phase.STEP,
    phase_s=120.0,
    status=replace(STATUS, device="cuda:0"),
    workers=(Process(7, "pt_data_worker", "S", memory_bytes=1),),
    machine=SensorReadings(gpus=(COOL,), memory=Capacity(89, 100), disk=Capacity(89, 100)),
)


def with_machine(**changed: object) -> RunState:
    return replace(WELL, machine=replace(WELL.machine, **changed))  # type: ignore[arg-type]


def with_gpu(**changed: object) -> RunState:
    return with_machine(gpus=(replace(COOL, **changed),))  # type: ignore[arg-type]


def with_findings(*findings: WatchFinding) -> RunState:
    return replace(WELL, status=replace(STATUS, device="cuda:0", findings=findings))


TOO_HOT = WatchFinding("GPU too hot", "84 °C, limit 80 °C", NOW_S - 600)


def test_healthy_run_close_to_all_limits_has_none() -> None:
    assert red_flags(WELL) == []


@pytest.mark.parametrize(
    ("state", "flag"),
    [
        (replace(WELL, phase_s=121.0), "no batch for 2 min 1 s"),
        (replace(WELL, status=replace(STATUS, losses={"train/box_loss": None})), "loss not finite: train/box_loss"),
        (replace(WELL, workers=(Process(7, "w", "T", memory_bytes=1),)), "loader worker 7 is stopped (T)"),
        (with_gpu(busy_share=0.0), "GPU at 0 %"),
        (with_findings(TOO_HOT), "GPU too hot: 84 °C, limit 80 °C, since " + moment(NOW_S - 600, NOW_S)),
        (with_machine(memory=Capacity(91, 100)), "memory 91 % full"),
        (with_machine(disk=Capacity(91, 100)), "disk 91 % full"),
        (with_machine(silent_s=30.0), "the sensors have not answered for 30 s"),
    ],
)
def test_each_trouble_raises_its_flag(state: RunState, flag: str) -> None:
    assert red_flags(state) == [flag]


@pytest.mark.parametrize(
    "state",
    [
        replace(WELL, phase=Phase.METRICS, phase_s=800.0),
        replace(WELL, judgement=Judgement(RunVerdict.GONE), phase_s=800.0),
        replace(with_gpu(busy_share=0.0), status=STATUS),  # trains on the CPU
        replace(with_gpu(busy_share=0.0), phase=Phase.METRICS),
        with_machine(gpus=(replace(COOL, busy_share=0.0), COOL)),  # one of two is used
        with_machine(gpus=(GpuReading("GPU 0"),), memory=None, disk=None),
        with_gpu(temperature_c=99.0, memory_used_bytes=100),
        with_findings(replace(TOO_HOT, until_s=NOW_S)),
        replace(with_findings(TOO_HOT), judgement=Judgement(RunVerdict.GONE)),
    ],
    ids=[
        *("scores take long", "ended", "on the CPU", "scores on the CPU", "one of two", "nothing known"),
        *("one reading", "over", "hot at its end"),
    ],
)
def test_no_flag_without_trouble(state: RunState) -> None:
    assert red_flags(state) == []
