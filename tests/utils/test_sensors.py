"""Fake /sys and /proc trees, and the real ones."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from yolo_lightning.utils import sensors
from yolo_lightning.utils.sensors import Capacity, GpuReading


def write(root: Path, files: dict[str, object]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensors, "BUSY_PAUSE_S", 0.0)


CARD = "sys/class/drm/card1/device"
NAVI10 = {
    f"{CARD}/vendor": "0x1002",
    f"{CARD}/gpu_busy_percent": 97,
    f"{CARD}/mem_info_vram_used": 5_000_000_000,
    f"{CARD}/mem_info_vram_total": 8_573_157_376,
    f"{CARD}/hwmon/hwmon3/temp1_input": 71_000,
    f"{CARD}/hwmon/hwmon3/power1_average": 180_000_000,
    "sys/class/drm/card1-DP-1/device/vendor": "0x1002",  # a socket of the card
    "sys/class/drm/card0/device/vendor": "0x8086",
}


def test_machine_without_files_has_unknown_readings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(nvmlInit=lambda: 1 / 0))  # type: ignore[arg-type]
    assert sensors.amd_gpus(tmp_path) == sensors.nvidia_gpus() == []
    assert sensors.memory(tmp_path) is sensors.disk(tmp_path / "nowhere") is sensors.evicted_ms(8, tmp_path) is None


def test_amd_card_is_read_and_others_are_left_out(tmp_path: Path) -> None:
    (reading,) = sensors.amd_gpus(write(tmp_path, NAVI10))
    assert reading == GpuReading("AMD GPU 1", 0.97, 71.0, 180.0, 5_000_000_000, 8_573_157_376)


def test_newer_card_names_its_power_otherwise(tmp_path: Path) -> None:
    files = {name: content for name, content in NAVI10.items() if "power" not in name}
    files |= {f"{CARD}/hwmon/hwmon3/power1_input": 90_000_000, f"{CARD}/product_name": "AMD Radeon Pro W7900"}
    (reading,) = sensors.amd_gpus(write(tmp_path, files))
    assert (reading.name, reading.power_w) == ("AMD Radeon Pro W7900", 90.0)


def test_card_that_says_nothing_or_nonsense_is_named_all_the_same(tmp_path: Path) -> None:
    files = {f"{CARD}/vendor": "0x1002", f"{CARD}/gpu_busy_percent": "N/A", f"{CARD}/hwmon/hwmon3/temp1_input": ""}
    assert sensors.amd_gpus(write(tmp_path, files)) == [GpuReading("AMD GPU 1")]


def test_use_is_the_most_of_several_readings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, NAVI10)
    readings = iter([0, 0, 60, 0, 10])
    busy = tmp_path / CARD / "gpu_busy_percent"
    real = sensors.integer
    monkeypatch.setattr(sensors, "integer", lambda path: next(readings) if path == busy else real(path))
    assert sensors.amd_gpus(tmp_path)[0].busy_share == 0.6


def test_evicted_time_is_summed_over_gpus(tmp_path: Path) -> None:
    place = "sys/class/kfd/kfd/proc/7"
    write(tmp_path, {f"{place}/stats_11/evicted_ms": 1500, f"{place}/stats_12/evicted_ms": 20})
    assert sensors.evicted_ms(7, tmp_path) == 1520


MEMINFO = "MemTotal:       16000000 kB\nMemFree:         100000 kB\nMemAvailable:   12000000 kB"


def test_memory_counts_what_the_kernel_can_give_back_as_free(tmp_path: Path) -> None:
    assert sensors.memory(write(tmp_path, {"proc/meminfo": MEMINFO})) == Capacity(4_000_000 * 1024, 16_000_000 * 1024)


def test_memory_of_a_container_is_its_limit(tmp_path: Path) -> None:
    group = {"memory.max": 1000, "memory.current": 700, "memory.stat": "anon 1\ninactive_file 200"}
    write(tmp_path, {f"sys/fs/cgroup/{name}": content for name, content in group.items()})
    write(tmp_path, {"proc/meminfo": MEMINFO})
    assert sensors.memory(tmp_path) == Capacity(500, 1000)
    for no_limit in ("max", 2**62):
        write(tmp_path, {"sys/fs/cgroup/memory.max": no_limit})
        assert sensors.memory(tmp_path) == Capacity(4_000_000 * 1024, 16_000_000 * 1024)


def test_disk_of_this_folder(tmp_path: Path) -> None:
    reading = sensors.disk(tmp_path)
    assert reading is not None
    assert 0 < reading.used_bytes <= reading.total_bytes


class FakeNvml(SimpleNamespace):
    """Two GPUs; the second does not report its power."""

    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        pass

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        if handle == 1:
            raise self.NVMLError
        return 250_000


def test_nvidia_cards_answer_as_far_as_they_can(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[bool] = []
    fake = FakeNvml(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: ended.append(True),
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetName=lambda handle: b"NVIDIA H200",
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=3, total=7),
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=42),
        nvmlDeviceGetTemperature=lambda handle, kind: 55,
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)  # type: ignore[arg-type]
    assert sensors.nvidia_gpus() == [
        GpuReading("NVIDIA H200", 0.42, 55.0, 250.0, 3, 7),
        GpuReading("NVIDIA H200", 0.42, 55.0, None, 3, 7),
    ]
    assert ended == [True]
