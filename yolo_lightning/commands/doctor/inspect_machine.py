"""Facts about this machine from files and package metadata; no package is imported and nothing is computed.

Reads that can block for ever (a network file system, a GPU driver) run in a child process with a time limit.
"""

import importlib.metadata
import importlib.util
import os
import platform
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from yolo_lightning.commands.doctor import read_hardware
from yolo_lightning.commands.doctor.read_hardware import KernelSettings, PciGpu, Vendor
from yolo_lightning.supervision.helper_process import bounded
from yolo_lightning.utils import sensors
from yolo_lightning.utils.addresses import SECRET
from yolo_lightning.utils.host import available_cores
from yolo_lightning.utils.offline import ENVIRONMENT_SWITCHES
from yolo_lightning.utils.sensors import Capacity

INTEGRATED_BYTES = 3 << 30
"""A GPU with less dedicated memory counts as integrated graphics and is ignored."""

PACKAGES = ("torch", "torchvision", "lightning", "pytorch-lightning", "ultralytics", "py-spy", "opencv-python-headless")
ENVIRONMENT = re.compile(r"(OMP|MKL|HSA|HIP|ROCR?|GPU|CUDA|NVIDIA|PYTORCH|TORCH|MIOPEN|AMD)_\w+")
ASSIGNMENT = re.compile(r"^(__version__|hip|cuda)\b[^=\n]*= *['\"](.+)['\"]", re.MULTILINE)
LIBRARIES = {"rocBLAS": "lib/rocblas/library", "MIOpen": "share/miopen/db"}
"""AMD's libraries whose files name the GPU architectures in file names, and the folders of these files."""
JOURNALS = ("var/log/journal", "run/log/journal")
GFX = re.compile(r"gfx\d+[0-9a-f]")
ANSWER_S = 5.0
"""Time limit for a driver or a file system, in seconds."""

SHARED_MEMORY = "/dev/shm"
RUN_DISK = "disk for runs"
"""Names of the checks of free space."""


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """Build information from the version file of torch or torchvision."""

    version: str  # with the local part, as in 2.9.1+rocm6.4
    hip: str | None = None  # HIP version of a ROCm build
    cuda: str | None = None  # CUDA version of a CUDA build

    @property
    def vendor(self) -> Vendor | None:
        """Vendor of the supported GPUs; None for a CPU build."""
        if self.hip:
            return Vendor.AMD
        if self.cuda:
            return Vendor.NVIDIA
        return None

    def __str__(self) -> str:
        target = "CPU only"
        if self.hip:
            target = f"ROCm, HIP {self.hip}"
        elif self.cuda:
            target = f"CUDA {self.cuda}"
        return f"torch {self.version}, built for {target}"


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """Everything that is known about a machine before probes run; plain data, so that the rules can be tested."""

    system: str  # kernel name and release
    processor: str
    cores: int  # cores that this process can use
    memory: Capacity  # main memory, limited to that of the container
    swap_bytes: int  # size of the swap space
    disks: dict[str, Capacity | None]  # by check; None if there is no such folder or it does not answer
    gpus: tuple[PciGpu, ...] = ()
    nvidia_driver: str = ""  # version; empty if the driver is not loaded
    kfd_opens: bool | None = None  # whether this user can open /dev/kfd (AMD GPUs); None if it does not exist
    rocm: str = ""  # version installed on the system; a torch wheel contains its own ROCm
    # Architectures in the file names of `LIBRARIES` by library; None without a folder of such files
    libraries: dict[str, tuple[str, ...] | None] = field(default_factory=dict)
    torch: TorchBuild | None = None
    packages: dict[str, str] = field(default_factory=dict)  # versions by name
    environment: dict[str, str] = field(default_factory=dict)  # variables that affect GPUs and libraries
    kernel: KernelSettings = field(default_factory=KernelSettings)
    is_root: bool = False
    reads_journal: bool = False  # whether this user can read the system journal

    @property
    def cards(self) -> tuple[PciGpu, ...]:
        """The GPUs that are not integrated graphics."""
        return tuple(gpu for gpu in self.gpus if not is_integrated(gpu))

    @property
    def torch_vendor(self) -> Vendor | None:
        """Vendor of the GPUs that the torch build supports; None without torch and for a CPU build."""
        return None if self.torch is None else self.torch.vendor

    def has(self, vendor: Vendor) -> bool:
        """Return whether one of the cards is of a vendor."""
        return any(gpu.vendor is vendor for gpu in self.cards)


def is_integrated(gpu: PciGpu) -> bool:
    """Return whether a GPU has so little dedicated memory that it counts as integrated graphics."""
    return gpu.memory_bytes is not None and gpu.memory_bytes < INTEGRATED_BYTES


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, for example (6, 2, 41133) for 6.2.41133-dd7f95766."""
    match = re.match(r"\d+(\.\d+)*", version)
    if match is None:
        return ()
    return tuple(map(int, match[0].split(".")))


def inspect_machine(run: Path, root: Path = sensors.ROOT) -> MachineFacts:
    """Return the facts about this machine; `run` need not exist, `root` contains proc, sys, dev and opt."""
    shared = root / "dev/shm"
    kfd = root / "dev/kfd"
    packages = {}
    torchvision = _find_build("torchvision")
    if torchvision is not None:
        packages["torchvision"] = torchvision.version
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            packages.setdefault(name, importlib.metadata.version(name))
    return MachineFacts(
        system=f"{platform.system()} {platform.release()}",
        processor=sensors.fields_of(sensors.text(root / "proc/cpuinfo")).get("model name")
        or platform.processor()
        or platform.machine(),
        cores=available_cores(),
        memory=sensors.memory(root) or Capacity(0, 0),
        swap_bytes=sensors.meminfo_bytes(root, "SwapTotal") or 0,
        disks={SHARED_MEMORY: disk(shared) if shared.is_dir() else None, RUN_DISK: disk(run)},
        gpus=bounded(lambda: read_hardware.pci_gpus(root), ANSWER_S) or (),
        nvidia_driver=read_hardware.nvidia_driver_version(root),
        # Permissions only: opening the device would create a GPU context.
        kfd_opens=os.access(kfd, os.R_OK | os.W_OK) if kfd.exists() else None,
        rocm=sensors.text(root / "opt/rocm/.info/version"),
        libraries={name: architectures(_folders_of(folder, root)) for name, folder in LIBRARIES.items()},
        torch=_find_build("torch"),
        packages=packages,
        environment={
            name: value
            for name, value in sorted(os.environ.items())
            if ENVIRONMENT.fullmatch(name) and not SECRET.search(name) and value != ENVIRONMENT_SWITCHES.get(name)
        },
        kernel=read_hardware.kernel_settings(root),
        is_root=os.geteuid() == 0,
        reads_journal=any(
            os.access(file, os.R_OK) for name in JOURNALS for file in (root / name).glob("*/system.journal")
        ),
    )


def _folders_of(folder: str, root: Path) -> list[Path]:
    """Return the folders of a library of AMD: those of the installed torch wheel, else that of /opt/rocm."""
    spec = importlib.util.find_spec("torch")
    if spec is not None and spec.origin is not None:
        torch = Path(spec.origin).parent
        # `_rocm_sdk_*`: packages on which the wheels of TheRock depend.
        homes = [torch, *sorted(torch.parent.glob("_rocm_sdk*"))]
        in_wheels = [home / folder for home in homes if (home / folder).is_dir()]
        if in_wheels:
            return in_wheels
    return [root / "opt/rocm" / folder]


def architectures(folders: Sequence[Path]) -> tuple[str, ...] | None:
    """Return the GPU architectures in the names of files, for example `gfx1010`; None if no folder exists."""
    existing = [folder for folder in folders if folder.is_dir()]
    if not existing:
        return None
    names: set[str] = set()
    for folder in existing:
        for path in folder.iterdir():
            names.update(GFX.findall(path.name))
    return tuple(sorted(names))


def disk(path: Path) -> Capacity | None:
    """Return the usage of the file system of the nearest existing parent of `path`; None if it does not answer."""
    folders = (path.absolute(), *path.absolute().parents)
    return bounded(lambda: sensors.disk(next(folder for folder in folders if folder.exists())), ANSWER_S)


def _find_build(package: str) -> TorchBuild | None:
    """Return the build of torch or torchvision that an import would load, or None."""
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            return read_build(Path(spec.origin).with_name("version.py"))
    return None


def read_build(version_file: Path) -> TorchBuild | None:
    """Return the build that a file `version.py` describes, or None if it contains no version.

    Unlike package metadata, the file contains the local part of the version, as in 2.15.0+cu132.
    """
    values = dict(ASSIGNMENT.findall(sensors.text(version_file)))
    version = values.get("__version__")
    if version is None:
        return None
    return TorchBuild(version, values.get("hip"), values.get("cuda"))
