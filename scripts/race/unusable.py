"""Delete the checkpoints of a folder that cannot be loaded or that contain NaN, as a person would before a restart."""

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

SUFFIXES = (".ckpt", ".pt")


def is_finite(content: Any) -> bool:
    """Whether all tensors in nested containers and modules are finite."""
    if isinstance(content, Tensor):
        return bool(torch.isfinite(content).all())
    if isinstance(content, nn.Module):
        return is_finite(content.state_dict())
    if isinstance(content, dict):
        return all(map(is_finite, content.values()))
    return all(map(is_finite, content)) if isinstance(content, list | tuple) else True


def _is_usable(path: Path) -> bool:
    """Whether a checkpoint can be loaded and is finite."""
    try:
        return is_finite(torch.load(path, map_location="cpu", weights_only=False))
    except Exception as error:  # a damaged file can raise any error
        print(f"{path}: {error!r}")
        return False


def main(folder: Path) -> None:
    """Print and delete the unusable checkpoints; a link whose file has been deleted is unusable as well."""
    paths = [path for path in sorted(folder.rglob("*")) if path.suffix in SUFFIXES]
    for path in sorted(paths, key=Path.is_symlink):
        if not _is_usable(path):
            print(f"deleted {path}")
            path.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
