"""Checkpoints in any storage that fsspec supports.

The checksum file is written last and removed first: a checkpoint without one is an interrupted upload and is ignored.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from fnmatch import filter as matching
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fsspec.core import split_protocol, url_to_fs
from fsspec.registry import get_filesystem_class

from yolo_lightning.checkpoints.checkpoint_file import (
    checksum_path,
    find_damage,
    link_checkpoint,
    serialized,
    training_age,
)
from yolo_lightning.errors import UserError, places
from yolo_lightning.utils.addresses import redacted, resolved
from yolo_lightning.utils.files import cache_folder, temporary_prefix
from yolo_lightning.utils.paths import user_path
from yolo_lightning.utils.regular_files import read_regular
from yolo_lightning.utils.run_files import BEST_CHECKPOINT, CHECKPOINT_PATTERN, CHECKSUM_SUFFIX, STEP_CHECKPOINTS
from yolo_lightning.utils.suspect_checkpoints import SUSPECT_SUFFIX

SCHEME = "://"
LOCAL = f"file{SCHEME}"

STEPS_KEPT = 3  # number of `step-*.ckpt` that a mirror keeps


def is_address(name: str) -> bool:
    return SCHEME in name


def is_remote(name: str | Path) -> bool:
    """Whether a name is an address of a storage; an address that begins with `file://` is that of a local file."""
    return is_address(str(name)) and not str(name).startswith(LOCAL)


def local_path(name: str | Path) -> Path:
    """Return the path of a local file or folder, also of an address that begins with `file://`.

    Raises:
        UserError: If `name` was an address before it became a path: `Path("s3://bucket")` is the folder `s3:/bucket`.
    """
    path = Path(str(name).removeprefix(LOCAL))
    for folder in (path, *path.parents):
        if re.fullmatch(r"[a-zA-Z][a-zA-Z0-9+.-]+:", folder.name) and not folder.exists():
            raise UserError(
                f"{path} is a local folder named {folder.name}: give an address as text, such as s3://bucket/runs, and "
                "a local folder without file://"
            )
    return path


MISTAKES = (AssertionError, AttributeError, LookupError, NameError, TypeError)
"""Exceptions that a mistake in this file raises, too; the message contains the place."""


class RemoteFolder:
    """Folder of checkpoints in any storage that fsspec supports.

    All methods raise FileNotFoundError for a missing file, and ConnectionError for any other failure, because the
    clients of the storages have exception types of their own. An `address`, such as `s3://bucket/runs/ltdv2`, with an
    unknown protocol or without the package for it is a ValueError. `$NAME` stands for an environment variable.
    """

    def __init__(self, address: str) -> None:
        if not isinstance(address, str) or re.fullmatch(r"|\w+:(?!//).*|\w+//.*", address):
            raise UserError(f"a mirror must be an address, such as s3://bucket/runs or file:///folder, got {address!r}")
        self._secret = resolved(address).rstrip("/")
        self.address = redacted(self._secret)  # for messages
        try:
            get_filesystem_class(split_protocol(self._secret)[0])
        except (ImportError, ValueError) as error:
            raise UserError(f"{self.address} cannot be opened: {redacted(str(error))}") from error

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        """Connect; some stores, such as FTP, do so when they are created."""
        try:
            store, root = url_to_fs(self._secret)
            self._root = root.rstrip("/")
            yield store
        except FileNotFoundError:
            raise
        except Exception as error:  # clients of storages have exception classes of their own
            place = f" in {places(error)}" if isinstance(error, MISTAKES) else ""
            problem = f"{type(error).__name__}: {redacted(str(error))}{place}"
            raise ConnectionError(f"{self.address}: {problem}") from error

    def folder(self, name: str) -> "RemoteFolder":
        return RemoteFolder(f"{self._secret}/{name}")

    def names(self) -> list[str]:
        """Return the sorted names of all files and folders; none if the folder does not exist."""
        with self._connected() as store:
            store.invalidate_cache()
            try:
                return sorted(Path(path).name for path in store.ls(self._root, detail=False))
            except FileNotFoundError:
                return []

    def complete(self) -> list[str]:
        names = self.names()
        return [name for name in matching(names, "*.ckpt") if f"{name}{CHECKSUM_SUFFIX}" in names]

    def holds(self, path: Path) -> bool:
        """Whether the folder contains the same checkpoint as `path`, by its checksum file."""
        with self._connected() as store, suppress(FileNotFoundError):
            stored = store.cat_file(f"{self._root}/{checksum_path(path).name}")
            return bool(stored == read_regular(checksum_path(path)))
        return False

    def upload(self, path: Path) -> None:
        """Copy a local checkpoint into the folder, and its checksum file last."""
        checksum = read_regular(checksum_path(path))
        self.remove(checksum_path(path).name)
        with self._connected() as store:
            store.makedirs(self._root, exist_ok=True)
            store.put_file(str(path), f"{self._root}/{path.name}")
            store.pipe_file(f"{self._root}/{checksum_path(path).name}", checksum)

    def write(self, name: str, checkpoint: Mapping[str, Any]) -> None:
        """Write a checkpoint into the folder, and its checksum file last."""
        content, checksum = serialized(checkpoint)
        self.remove(f"{name}{CHECKSUM_SUFFIX}")
        with self._connected() as store:
            store.makedirs(self._root, exist_ok=True)
            store.pipe_file(f"{self._root}/{name}", bytes(content))
            store.pipe_file(f"{self._root}/{name}{CHECKSUM_SUFFIX}", json.dumps(asdict(checksum)).encode())

    def download(self, name: str, target: Path) -> None:
        """Copy a checkpoint to `target`, which is replaced only by an undamaged file; a damaged one is a ValueError."""
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=target.parent, prefix=temporary_prefix()) as folder:
            copy = Path(folder) / name
            with self._connected() as store:
                store.get_file(f"{self._root}/{name}", str(copy))
                if store.exists(f"{self._root}/{checksum_path(copy).name}"):
                    store.get_file(f"{self._root}/{checksum_path(copy).name}", str(checksum_path(copy)))
            damage = find_damage(copy)
            if damage is not None:
                raise UserError(f"checkpoint {self.address}/{name} cannot be used: {damage}")
            link_checkpoint(copy, target)

    def remove(self, name: str) -> None:
        """Delete a file if it exists, after its checksum file."""
        with self._connected() as store:
            for path in (f"{self._root}/{name}{CHECKSUM_SUFFIX}", f"{self._root}/{name}"):
                if store.exists(path):
                    store.rm_file(path)


def to_mirror(folder: Path) -> dict[Path, bytes]:
    """Return the newest step checkpoint and `best.ckpt` of a folder, with the contents of their checksum files."""
    checksums = {}
    for path in (*sorted(folder.glob(STEP_CHECKPOINTS), key=training_age)[-1:], folder / BEST_CHECKPOINT):
        with suppress(FileNotFoundError):  # the checksum file is written last
            checksums[path] = read_regular(checksum_path(path))
    return checksums


def mirror(paths: Iterable[Path], remote: RemoteFolder) -> None:
    """Copy checkpoints that a mirror does not contain, and delete all but the newest step checkpoints up to them.

    Step checkpoints with more steps than the copied one belong to another course of the run and are kept.
    """
    for path in paths:
        if not remote.holds(path):
            remote.upload(path)
        if path.name != BEST_CHECKPOINT:
            steps = [name for name in matching(remote.names(), STEP_CHECKPOINTS) if name <= path.name]
            for name in steps[:-STEPS_KEPT]:
                remote.remove(name)


def remove_suspects(folder: Path, remote: RemoteFolder) -> None:
    """Delete the copies of checkpoints that were set aside after a wrong result and not written again."""
    mirrored = set(remote.names())
    for path in folder.glob(CHECKPOINT_PATTERN + SUSPECT_SUFFIX):
        name = path.name.removesuffix(SUSPECT_SUFFIX)
        if name in mirrored and not (folder / name).exists():
            remote.remove(name)


def fetch_run(remote: RemoteFolder, folder: Path) -> tuple[Path | None, dict[str, str]]:
    """Copy `best.ckpt` and the newest undamaged `step-*.ckpt` of a mirror into the checkpoint folder of a run.

    Return the checkpoint to resume, or None if the mirror contains none, and the reason why others cannot be used.
    """
    names = remote.complete()
    fetched: Path | None = None
    damaged: dict[str, str] = {}
    for name in (*matching(names, BEST_CHECKPOINT), *reversed(matching(names, STEP_CHECKPOINTS))):
        try:
            remote.download(name, folder / name)
        except UserError as error:
            damaged[name] = str(error)
            continue
        fetched = folder / name
        if name != BEST_CHECKPOINT:
            break
    return fetched, damaged


def local_checkpoint(name: str) -> Path:
    """Return the file of a path or address; a remote file is checked and copied into the user's cache folder."""
    if not is_remote(name):
        return user_path(local_path(name))
    address, _, file = name.rpartition("/")
    remote = RemoteFolder(address)
    target = cache_folder() / "remote" / sha256(address.encode()).hexdigest()[:16] / file
    try:
        if find_damage(target) is not None or not remote.holds(target):
            remote.download(file, target)
    except OSError as error:
        raise UserError(f"checkpoint {redacted(name)} cannot be read: {error}") from error
    return target
