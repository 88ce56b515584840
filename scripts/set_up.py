"""Create the environment that `make` uses. Standard library only; runs before anything is installed.

    python scripts/set_up.py install VENV    create VENV and install the project with its developer tools
    python scripts/set_up.py check           print which packages this environment lacks
    python scripts/set_up.py minimum         print the oldest supported version of each dependency, as pip constraints

An installed torch is kept: the installed versions of torch and torchvision are pinned during the installation, because
pip would otherwise replace a ROCm or CPU build by the newest CUDA build.
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

ROOT = Path(__file__).resolve().parent.parent
HELD = ("torch", "torchvision", "triton", "pytorch-triton-rocm", "triton-rocm")
IMPORTED = (
    *("torch", "torchvision", "lightning", "ultralytics", "torchmetrics", "albumentations"),
    *("msgspec", "cv2", "jsonargparse", "matplotlib", "tensorboard"),
    *("faster_coco_eval", "hypothesis", "pytest", "pytest_timeout", "xdist"),
)
"""Packages of the project and, in the last line, of its tests."""
STAMP = ".yolo_lightning"


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
    print(f"installing; keeping {', '.join(held)}" if held else "installing; torch and its libraries are several GB")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        tested = (ROOT / "constraints.txt").read_text().splitlines()
        constraints.write("\n".join(held or tested) + "\n")
        constraints.flush()
        command = [str(python), "-m", "pip", "install", "--quiet", "--constraint", constraints.name, "--editable"]
        subprocess.run([*command, f"{ROOT}[dev]"], check=True)
    stamp.touch()


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
    found = [pattern.match(requirement) for requirement in required]
    assert all(found), "every dependency has a minimum version"
    return [f"{one[1]}=={one[2]}" for one in found if one]


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "install":
        install(Path(os.path.abspath(sys.argv[2])))
    elif sys.argv[1:] == ["check"]:
        sys.exit(check())
    elif sys.argv[1:] == ["minimum"]:
        print("\n".join(minimum()))
    else:
        sys.exit(__doc__)
