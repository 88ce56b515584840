"""Make the environment that `make` works in. Standard library only; runs before anything is installed.

    python scripts/set_up.py install VENV    make VENV and install the project with its developer tools
    python scripts/set_up.py check           say what is missing in this interpreter's environment

An environment that has torch keeps it: the installed versions of torch and torchvision are pinned while the rest is
installed, because pip would otherwise replace a ROCm or CPU build by the newest CUDA build.
"""

import importlib.util
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HELD = ("torch", "torchvision", "triton", "pytorch-triton-rocm", "triton-rocm")
IMPORTED = (
    "torch",
    "torchvision",
    "lightning",
    "ultralytics",
    "torchmetrics",
    "faster_coco_eval",
    "albumentations",
    "msgspec",
    "cv2",
    "jsonargparse",
    "matplotlib",
    "tensorboard",
    "pytest",
    "pytest_timeout",
    "xdist",
    "hypothesis",
)
STAMP = ".yolo_lightning"

INSTALLED_VERSIONS = f"""
import importlib.metadata as metadata
for name in {HELD!r}:
    try:
        print(name + "==" + metadata.version(name))
    except metadata.PackageNotFoundError:
        pass
"""


def install(folder: Path) -> None:
    """Make the environment and install the project into it, unless that was done since pyproject.toml changed."""
    stamp = folder / STAMP
    newest = max((ROOT / name).stat().st_mtime for name in ("pyproject.toml", "constraints.txt"))
    if stamp.is_file() and stamp.stat().st_mtime >= newest:
        return
    python = folder / "bin" / "python"
    if not python.exists():
        # The interpreter's own torch, as in AMD's container images, is used instead of downloading another.
        inherits = importlib.util.find_spec("torch") is not None
        print(f"making {folder}" + (", with the packages of this interpreter (it has torch)" if inherits else ""))
        venv.create(folder, with_pip=True, system_site_packages=inherits)
        stamp.touch()
        os.utime(stamp, (0, 0))  # ours, but not complete
    held = installed(python)
    print(
        "installing; torch and its libraries are several GB" if not held else f"installing; keeping {', '.join(held)}"
    )
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write("\n".join(held or tested_versions()) + "\n")
        constraints.flush()
        command = [str(python), "-m", "pip", "install", "--quiet", "--constraint", constraints.name, "--editable"]
        subprocess.run([*command, f"{ROOT}[dev]"], check=True)
    stamp.touch()


def installed(python: Path) -> list[str]:
    """Versions of torch and what belongs to it in an environment, as requirements."""
    output = subprocess.run([python, "-c", INSTALLED_VERSIONS], check=True, capture_output=True, text=True).stdout
    return output.split()


def tested_versions() -> list[str]:
    """The versions that the tests ran with, for an environment that has none yet."""
    return (ROOT / "constraints.txt").read_text().splitlines()


def check() -> int:
    """Name what this environment lacks, and how to add it without touching torch."""
    missing = [name for name in IMPORTED if importlib.util.find_spec(name) is None]
    if not missing:
        return 0
    print(f"{sys.executable} lacks {', '.join(missing)}; it is used as it is, so nothing was installed.")
    print(f"To add what is missing and keep its torch:  make install VENV={sys.prefix}")
    return 1


def main() -> int:
    """Run the command of the command line."""
    if len(sys.argv) == 3 and sys.argv[1] == "install":
        install(Path(os.path.abspath(sys.argv[2])))
        return 0
    if sys.argv[1:] == ["check"]:
        return check()
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main())
