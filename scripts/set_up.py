"""Create the environment that `make` uses. Standard library only; runs before anything is installed.

    python scripts/set_up.py install VENV    create VENV and install the project with its developer tools
    python scripts/set_up.py check           print which packages this environment lacks
    python scripts/set_up.py minimum         print the oldest supported version of each dependency, as pip constraints

An installed torch is kept: the installed versions of torch and torchvision are pinned during the installation, because
pip would otherwise replace a ROCm or CPU build by the newest CUDA build. Without a torch, a Linux machine without a GPU
gets the CPU builds of both packages, if pip finds them with its configuration and environment variables.
"""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

# The path must be set before. These modules need the standard library only.
from yolo_lightning.commands.doctor.inspect_machine import is_integrated  # noqa: E402
from yolo_lightning.commands.doctor.read_hardware import Vendor, pci_gpus  # noqa: E402

HELD = ("torch", "torchvision", "triton", "pytorch-triton-rocm", "triton-rocm")
IMPORTED = (
    *("torch", "torchvision", "lightning", "ultralytics", "torchmetrics", "albumentations"),
    *("msgspec", "cv2", "jsonargparse", "matplotlib", "tensorboard"),
    *("faster_coco_eval", "hypothesis", "pytest", "pytest_timeout", "xdist"),
)
"""Packages of the project and, in the last line, of its tests."""
STAMP = ".yolo_lightning"
PAIR = ("torch", "torchvision")
"""Both must be of one build: with another torchvision, `import torchvision` fails."""
CPU = "+cpu"
"""End of the version of a CPU build on Linux."""
OTHER_GPUS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg", "/dev/nvhost-gpu")
"""Devices of GPUs that a container, WSL or a Jetson has without an entry on the PCI bus."""
STANDARD_SIZE = "3.4 GB to download, 7.0 GB on the disk"
CPU_SIZE = "0.6 GB to download, 2.2 GB on the disk"
OTHERS_SIZE = "0.4 GB to download, 1.5 GB on the disk"
"""All packages; with the CPU build of torch; without torch. On Linux with Python 3.11 and the tested versions."""


class TorchChoice(NamedTuple):
    """Versions of all packages for an environment without torch."""

    constraints: list[str]  # of pip
    line: str  # says what is chosen, why, and its size


def install(folder: Path) -> None:
    """Create the environment and install the project, unless this was done after the last change of pyproject.toml."""
    stamp = folder / STAMP
    newest = max((ROOT / name).stat().st_mtime for name in ("pyproject.toml", "constraints.txt"))
    if stamp.is_file() and stamp.stat().st_mtime >= newest:
        return
    python = folder / "bin" / "python"
    if not python.exists():
        # If this interpreter has torch, as in AMD's container images, the environment uses that torch.
        inherits = importlib.util.find_spec("torch") is not None
        print(f"creating {folder}" + (", with the packages of this interpreter (it has torch)" if inherits else ""))
        venv.create(folder, with_pip=True, system_site_packages=inherits)
        stamp.touch()
        os.utime(stamp, (0, 0))  # created by this script, but not complete
    held = installed(python)
    tested = (ROOT / "constraints.txt").read_text().splitlines()
    if held:
        print(f"installing into {folder}: {OTHERS_SIZE}; keeping {', '.join(held)}", flush=True)
        install_packages(python, held)
    else:
        choice = choose_torch(python, tested)
        print(f"installing into {folder}: {choice.line}", flush=True)
        install_packages(python, choice.constraints)
    stamp.touch()


def install_packages(python: Path, constraints: list[str]) -> None:
    """Install the project and its developer tools with pip, as configured by the user."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(constraints) + "\n")
        file.flush()
        command = [str(python), "-m", "pip", "install", "--quiet", "--constraint", file.name, "--editable"]
        subprocess.run([*command, f"{ROOT}[dev]"], check=True)


def choose_torch(python: Path, tested: list[str]) -> TorchChoice:
    """Return the builds of torch and torchvision for this machine; `tested` are the constraints of all packages."""
    if sys.platform != "linux":
        return TorchChoice(tested, OTHERS_SIZE)
    versions = {name: available_versions(python, name) for name in PAIR}
    gpu = find_gpu()
    if gpu is not None:
        return standard_build(gpu, tested, versions)
    missing = [name for name in PAIR if not any(version.endswith(CPU) for version in versions[name])]
    if missing:
        line = (
            f"standard build of torch, {STANDARD_SIZE}. There is no GPU, but pip finds no CPU build of "
            f"{' and '.join(missing)}; a smaller installation: docs/usage.md"
        )
        return TorchChoice(tested, line)
    further_packages = [line for line in tested if line.partition("==")[0] not in PAIR]
    tested_pair = pair_of(tested)
    if all(version + CPU in versions[name] for name, version in tested_pair.items()):
        pair = [f"{name}=={version}{CPU}" for name, version in tested_pair.items()]
    else:
        pair = [only_cpu_builds(name, versions[name]) for name in PAIR]  # pip selects two that belong together
    return TorchChoice(further_packages + pair, f"CPU build of torch, {CPU_SIZE}, because there is no GPU")


def standard_build(gpu: str, tested: list[str], versions: dict[str, list[str]]) -> TorchChoice:
    """Return the build for a machine with a GPU: no CPU build, which pip would prefer, if there is another one."""
    not_cpu = [f"{name}!={version}{CPU}" for name, version in pair_of(tested).items() if version in versions[name]]
    line = f"standard build of torch, {STANDARD_SIZE}, because there is a GPU ({gpu})"
    if gpu.startswith(Vendor.AMD):
        line += ". It is built for NVIDIA: stop with Ctrl-C and install a ROCm build first, see docs/usage.md"
    return TorchChoice(tested + not_cpu, line)


def pair_of(constraints: list[str]) -> dict[str, str]:
    """Return the versions of torch and torchvision in constraints of pip."""
    versions = dict(line.split("==") for line in constraints)
    return {name: versions[name] for name in PAIR}


def only_cpu_builds(name: str, versions: list[str]) -> str:
    """Return a constraint that excludes all builds of a package except CPU builds.

    `!=2.13.0` would exclude `2.13.0+cpu` as well; pip prefers the latter to `2.13.0`.
    """
    excluded = [
        version
        for version in versions
        if not version.endswith(CPU) and ("+" in version or version + CPU not in versions)
    ]
    return name + ",".join(f"!={version}" for version in excluded)


def find_gpu() -> str | None:
    """Return the name of a GPU of this machine, or None; as in `doctor`, a card without a loaded driver counts."""
    cards = [gpu for gpu in pci_gpus() if not is_integrated(gpu)]
    if cards:
        return cards[0].name
    return next((device for device in OTHER_GPUS if os.path.exists(device)), None)


def available_versions(python: Path, name: str) -> list[str]:
    """Return the versions of a package that pip finds for this platform, the newest first; none without an answer."""
    command = [str(python), "-m", "pip", "index", "versions", name, "--disable-pip-version-check"]
    answer = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout
    match = re.search(r"^Available versions: (.*)$", answer, re.MULTILINE)
    return match[1].split(", ") if match else []


def installed(python: Path) -> list[str]:
    """Return the installed versions of torch and its companions as requirements."""
    command = [str(python), "-m", "pip", "list", "--format", "freeze", "--disable-pip-version-check"]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    return [line for line in lines if line.partition("==")[0] in HELD]


def check() -> int:
    """Print the missing packages and how to add them without replacing torch; return 1 if any is missing."""
    missing = [name for name in IMPORTED if importlib.util.find_spec(name) is None]
    if missing:
        print(f"{sys.executable} lacks {', '.join(missing)}. Nothing was installed.")
        print(f"To add the missing packages and keep the installed torch:  make install VENV={sys.prefix}")
    return int(bool(missing))


def minimum() -> list[str]:
    """Return the oldest supported version of each dependency, and of the extra `dev`: `numpy==1.26`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pattern = re.compile(r"([\w-]+)(?:\[\w+\])?[>=]=([\d.]+)")
    required = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    matches = [pattern.match(requirement) for requirement in required]
    assert all(matches), "every dependency has a minimum version"
    return [f"{match[1]}=={match[2]}" for match in matches if match]


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "install":
        install(Path(os.path.abspath(sys.argv[2])))
    elif sys.argv[1:] == ["check"]:
        sys.exit(check())
    elif sys.argv[1:] == ["minimum"]:
        print("\n".join(minimum()))
    else:
        sys.exit(__doc__)
