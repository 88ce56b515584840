"""Checkpoints in storage that is not local, by fsspec: put there once, read by all, whole or passed over."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import filter as matching
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs

from yolo_lightning.checkpoints.checkpoint_file import (
    checksum_path,
    find_damage,
    link_checkpoint,
    training_age,
)
from yolo_lightning.utils.files import TEMPORARY_PREFIX, cache_folder
from yolo_lightning.utils.run_files import BEST_CHECKPOINT, CHECKSUM_SUFFIX, STEP_CHECKPOINTS

SCHEME = "://"
LOCAL = f"file{SCHEME}"
RENAMING = frozenset({"file", "memory", "sftp", "hdfs"})
"""Protocols that show half-written files, and rename at once; elsewhere an object appears whole or not at all."""

STEPS_KEPT = 3
"""Checkpoints `step-*.ckpt` that stay in a mirror."""


def is_address(name: str) -> bool:
    """Whether a name is an address, such as `s3://bucket/x.ckpt`, and no path."""
    return SCHEME in name


@contextmanager
def reaching(address: str) -> Iterator[None]:
    """A block that talks to a store.

    Raises:
        FileNotFoundError: If something is not there.
        ConnectionError: Whatever else goes wrong: the stores' clients have exceptions of their own.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ConnectionError(f"{address}: {type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class RemoteFolder:
    """A folder of checkpoints in any store that fsspec knows. All methods raise the errors of `reaching`.

    Attributes:
        address: Such as `s3://bucket/runs/ltdv2`.

    Raises:
        ValueError: If fsspec does not know the protocol, or lacks a package for it.
    """

    address: str

    def __post_init__(self) -> None:
        try:
            self._open()
        except (ImportError, ValueError) as error:
            raise ValueError(f"{self.address} cannot be opened: {error}") from error

    def names(self) -> list[str]:
        """Files and folders in it, sorted; none where it does not exist."""
        with reaching(self.address):
            store, root = self._open()
            store.invalidate_cache()
            try:
                return sorted(Path(path).name for path in store.ls(root, detail=False))
            except FileNotFoundError:
                return []

    def whole(self) -> list[str]:
        """Checkpoints with a sidecar, sorted; an upload that was cut off leaves none."""
        names = self.names()
        return [name for name in matching(names, "*.ckpt") if f"{name}{CHECKSUM_SUFFIX}" in names]

    def holds(self, path: Path) -> bool:
        """Whether the very checkpoint `path` is there, going by the sidecars."""
        with reaching(self.address):
            store, root = self._open()
            try:
                return bool(store.cat_file(f"{root}/{checksum_path(path).name}") == checksum_path(path).read_bytes())
            except FileNotFoundError:
                return False

    def upload(self, path: Path) -> None:
        """Put a local checkpoint there: aside and renamed where the store can, and its sidecar last."""
        checksum = checksum_path(path).read_bytes()
        self.remove(checksum_path(path).name)
        with reaching(self.address):
            store, root = self._open()
            if not renames(store):
                store.put_file(str(path), f"{root}/{path.name}")
            else:
                store.makedirs(root, exist_ok=True)
                aside = f"{root}/{TEMPORARY_PREFIX}{path.name}"
                store.put_file(str(path), aside)
                store.mv(aside, f"{root}/{path.name}")
            store.pipe_file(f"{root}/{checksum_path(path).name}", checksum)

    def download(self, name: str, target: Path) -> None:
        """Make `target` a checked copy of a checkpoint there; it is whole or not there.

        Raises:
            ValueError: If that is damaged.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=target.parent, prefix=".fetching-") as aside:
            copy = Path(aside) / name
            with reaching(self.address):
                store, root = self._open()
                store.get_file(f"{root}/{name}", str(copy))
                if store.exists(f"{root}/{checksum_path(copy).name}"):
                    store.get_file(f"{root}/{checksum_path(copy).name}", str(checksum_path(copy)))
            damage = find_damage(copy)
            if damage is not None:
                raise ValueError(f"checkpoint {self.address}/{name} cannot be used: {damage}")
            link_checkpoint(copy, target)

    def remove(self, name: str) -> None:
        """Delete a file, if it is there; a checkpoint with its sidecar, and that first."""
        with reaching(self.address):
            store, root = self._open()
            for path in (f"{root}/{name}{CHECKSUM_SUFFIX}", f"{root}/{name}"):
                if store.exists(path):
                    store.rm_file(path)

    def _open(self) -> tuple[AbstractFileSystem, str]:
        store, root = url_to_fs(self.address)
        return store, root.rstrip("/")


def renames(store: AbstractFileSystem) -> bool:
    """Whether a file there can be written aside and renamed."""
    protocols = (store.protocol,) if isinstance(store.protocol, str) else store.protocol
    return not RENAMING.isdisjoint(protocols)


def below(address: str, name: str) -> RemoteFolder:
    """The folder `name` in a mirror."""
    return RemoteFolder(f"{address.rstrip('/')}/{name}")


def not_copied(folder: Path, copied: Mapping[str, bytes]) -> dict[Path, bytes]:
    """The step checkpoint trained longest, and `best.ckpt`, with their sidecars; without those in `copied`, by name."""
    found = {}
    for path in (*sorted(folder.glob(STEP_CHECKPOINTS), key=training_age)[-1:], folder / BEST_CHECKPOINT):
        with suppress(FileNotFoundError):  # the sidecar is written last
            found[path] = checksum_path(path).read_bytes()
    return {path: sidecar for path, sidecar in found.items() if copied.get(path.name) != sidecar}


def copy(paths: Iterable[Path], remote: RemoteFolder) -> None:
    """Copy whole checkpoints into a mirror, and give up old ones there.

    Raises:
        OSError: If that fails; see `reaching`.
    """
    for path in paths:
        if not remote.holds(path):
            remote.upload(path)
        if path.name != BEST_CHECKPOINT:
            give_up(remote, path.name)


def give_up(remote: RemoteFolder, newest: str) -> None:
    """Delete all step checkpoints but a few up to `newest`, and what uploads that were cut off have left.

    Those of later steps are of another course of the run: they stay.
    """
    names = remote.names()
    steps = [name for name in matching(names, STEP_CHECKPOINTS) if name <= newest]
    for name in steps[:-STEPS_KEPT] + matching(names, f"{TEMPORARY_PREFIX}*"):
        remote.remove(name)


def fetch_run(remote: RemoteFolder, folder: Path) -> tuple[Path | None, dict[str, str]]:
    """Copy `best.ckpt` of a mirror, then its newest whole `step-*.ckpt`, into a run's folder of checkpoints.

    Returns:
        The one to continue, None where the mirror holds none; and why others were passed over.

    Raises:
        OSError: If the store cannot be reached, or the folder not be written.
    """
    names = remote.whole()
    fetched, damaged = None, dict[str, str]()
    for name in (*matching(names, BEST_CHECKPOINT), *reversed(matching(names, STEP_CHECKPOINTS))):
        try:
            remote.download(name, folder / name)
        except ValueError as error:
            damaged[name] = str(error)
            continue
        fetched = folder / name
        if name != BEST_CHECKPOINT:
            break
    return fetched, damaged


def local_checkpoint(name: str) -> Path:
    """The file that a path or an address names; a remote one is copied into the user's cache folder, and checked.

    Raises:
        ValueError: If an address cannot be read, or what lies there is damaged.
    """
    if name.startswith(LOCAL):
        return Path(name.removeprefix(LOCAL))
    if not is_address(name):
        return Path(name).expanduser()
    address, _, file = name.rpartition("/")
    remote = RemoteFolder(address)
    target = cache_folder() / "remote" / sha256(address.encode()).hexdigest()[:16] / file
    try:
        if find_damage(target) is not None or not remote.holds(target):
            remote.download(file, target)
    except OSError as error:
        raise ValueError(f"checkpoint {name} cannot be read: {error}") from error
    return target
