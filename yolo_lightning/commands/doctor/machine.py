"""Facts about a machine as plain data, so that the rules can be tested without that machine."""

import re
from dataclasses import dataclass, field

from yolo_lightning.utils.sensors import KernelSettings, PciGpu, Vendor

INTEGRATED_BYTES = 3 << 30
"""A GPU with less dedicated memory counts as integrated graphics and is ignored."""

OPENCV = ("opencv-python", "opencv-python-headless", "opencv-contrib-python", "opencv-contrib-python-headless")


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """Build information from the version file of torch or torchvision."""

    version: str  # with the local part, as in 2.9.1+rocm6.4
    hip: str | None = None  # HIP version of a ROCm build
    cuda: str | None = None  # CUDA version of a CUDA build

    @property
    def vendor(self) -> Vendor | None:
        """Vendor of the supported GPUs; None for a CPU build."""
        return Vendor.AMD if self.hip else Vendor.NVIDIA if self.cuda else None

    def __str__(self) -> str:
        target = f"ROCm, HIP {self.hip}" if self.hip else f"CUDA {self.cuda}" if self.cuda else "CPU only"
        return f"torch {self.version}, built for {target}"


@dataclass(frozen=True, slots=True)
class FileSystem:
    """The file system that contains a folder; sizes are None if it did not answer within the time limit."""

    path: str  # need not exist
    total_bytes: int | None
    free_bytes: int | None  # available to this user


@dataclass(frozen=True, slots=True)
class Memory:
    """Main memory, limited to that of the container."""

    total_bytes: int
    available_bytes: int  # available without swapping
    swap_bytes: int  # size of the swap space


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """Everything that is known about a machine before probes run."""

    system: str  # kernel name and release
    processor: str
    cores: int  # cores that this process can use
    memory: Memory
    shared_memory: FileSystem | None  # /dev/shm; None if it does not exist
    run_disk: FileSystem
    data_disk: FileSystem | None  # None without --data_root
    gpus: tuple[PciGpu, ...] = ()
    nvidia_driver: str = ""  # version; empty if the driver is not loaded
    kfd_opens: bool | None = None  # whether this user can open /dev/kfd (AMD GPUs); None if it does not exist
    rocm: str = ""  # version installed on the system; a torch wheel contains its own ROCm
    torch: TorchBuild | None = None
    packages: dict[str, str] = field(default_factory=dict)  # versions by name
    environment: dict[str, str] = field(default_factory=dict)  # variables that affect GPUs and libraries
    python: tuple[int, int, int] = (3, 11, 0)
    start_method: str = "fork"  # default of Python's multiprocessing
    kernel: KernelSettings = field(default_factory=KernelSettings)
    is_root: bool = False

    @property
    def cards(self) -> tuple[PciGpu, ...]:
        """The GPUs that are not integrated graphics."""
        return tuple(gpu for gpu in self.gpus if not is_integrated(gpu))

    def has(self, vendor: Vendor) -> bool:
        """Return whether one of the cards is of a vendor."""
        return any(gpu.vendor is vendor for gpu in self.cards)


def is_integrated(gpu: PciGpu) -> bool:
    """Return whether a GPU has so little dedicated memory that it counts as integrated graphics."""
    return gpu.memory_bytes is not None and gpu.memory_bytes < INTEGRATED_BYTES


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, for example (6, 2, 41133) for 6.2.41133-dd7f95766."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()
