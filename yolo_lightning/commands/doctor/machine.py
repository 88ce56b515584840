"""A machine as the doctor sees it: plain data, so that judging it needs no machine."""

from dataclasses import dataclass, field
from enum import StrEnum

SMALL_BYTES = 3 << 30
"""Graphics memory below which a card counts as built into the processor: no card for a training."""


class Vendor(StrEnum):
    """Who makes a card, and so whose build of torch it needs."""

    AMD = "AMD"
    NVIDIA = "NVIDIA"


@dataclass(frozen=True, slots=True)
class PciGpu:
    """A graphics card on the PCI bus, with or without a driver.

    Attributes:
        vendor: Who makes it.
        name: For a person.
        architecture: As compilers call it (gfx1010); empty where the driver does not say.
        memory_bytes: Its own memory; None where the driver does not say.
    """

    vendor: Vendor
    name: str
    architecture: str = ""
    memory_bytes: int | None = None

    @property
    def is_small(self) -> bool:
        """Whether it has too little memory of its own to be meant."""
        return self.memory_bytes is not None and self.memory_bytes < SMALL_BYTES


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """What is written in torch's own version file.

    Attributes:
        version: With the local part, as 2.9.1+rocm6.4.
        hip: Version of HIP it was built for; None for other builds.
        cuda: Version of CUDA it was built for; None for other builds.
    """

    version: str
    hip: str | None = None
    cuda: str | None = None

    @property
    def vendor(self) -> Vendor | None:
        """Whose cards it computes on; None for a build for the CPU alone."""
        if self.hip:
            return Vendor.AMD
        return Vendor.NVIDIA if self.cuda else None

    def __str__(self) -> str:
        target = f"ROCm, HIP {self.hip}" if self.hip else f"CUDA {self.cuda}" if self.cuda else "the CPU alone"
        return f"torch {self.version}, built for {target}"


@dataclass(frozen=True, slots=True)
class FileSystem:
    """A file system.

    Attributes:
        path: Folder that was asked for; it need not exist yet.
        total_bytes: Its size; None where it did not answer in time.
        free_bytes: What this user may still write; None likewise.
    """

    path: str
    total_bytes: int | None
    free_bytes: int | None


@dataclass(frozen=True, slots=True)
class Memory:
    """Main memory, of the container where that is less.

    Attributes:
        total_bytes: Size.
        available_bytes: What programs can still get without swapping.
        swap_bytes: Size of the swap space.
    """

    total_bytes: int
    available_bytes: int
    swap_bytes: int


@dataclass(frozen=True, slots=True)
class KernelSettings:
    """Settings of Linux that matter; None where the kernel does not have one.

    Attributes:
        huge_pages: always, madvise or never.
        numa_balancing: Whether pages move between memory nodes.
        ptrace_scope: 0 any process of the user may be looked into, 1 descendants, 2 by root only, 3 none.
        log_restricted: Whether only root reads the kernel's log.
    """

    huge_pages: str | None = None
    numa_balancing: bool | None = None
    ptrace_scope: int | None = None
    log_restricted: bool | None = None


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """All that the doctor looks at before it tries anything.

    Attributes:
        system: Kernel and its release.
        processor: Product name.
        cores: That this process may use.
        memory: Main memory.
        shared_memory: /dev/shm, through which loader workers hand over batches; None where there is none.
        run_disk: Where run folders go.
        data_disk: Where the dataset is; None where it was not named.
        gpus: Cards on the PCI bus.
        nvidia_driver: Its version; empty where it is not loaded.
        kfd_opens: Whether /dev/kfd, the door to AMD cards, opens for this user; None where it is not there.
        rocm: Version installed on the system; empty for none. A wheel of torch brings its own.
        torch: None where it is not installed.
        packages: Versions of installed packages that matter, by name.
        environment: Variables that bear on GPUs and libraries.
        python: Version.
        start_method: How Python's multiprocessing starts processes where nobody says how.
        kernel: Settings of Linux.
        is_root: Whether this is root.
    """

    system: str
    processor: str
    cores: int
    memory: Memory
    shared_memory: FileSystem | None
    run_disk: FileSystem
    data_disk: FileSystem | None
    gpus: tuple[PciGpu, ...] = ()
    nvidia_driver: str = ""
    kfd_opens: bool | None = None
    rocm: str = ""
    torch: TorchBuild | None = None
    packages: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    python: tuple[int, int, int] = (3, 11, 0)
    start_method: str = "fork"
    kernel: KernelSettings = field(default_factory=KernelSettings)
    is_root: bool = False

    @property
    def cards(self) -> tuple[PciGpu, ...]:
        """The cards that a training may be meant for."""
        return tuple(gpu for gpu in self.gpus if not gpu.is_small)

    def has(self, vendor: Vendor) -> bool:
        """Whether a card of this vendor may be meant."""
        return any(gpu.vendor is vendor for gpu in self.cards)


def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: 6.2.41133-dd7f95766 gives (6, 2, 41133)."""
    found = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        found.append(int(digits))
        if digits != part:
            break
    return tuple(found)
