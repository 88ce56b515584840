"""Checkpoints in stores of fsspec (memory, and a local folder instead of a bucket), and runs resumed from them."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest
import torch

from tests.checkpoints.test_resume_choice import RESUMABLE
from yolo_lightning.checkpoints.checkpoint_file import find_damage, read_checksum, write_checkpoint
from yolo_lightning.checkpoints.remote_folder import (
    RemoteFolder,
    fetch_run,
    local_checkpoint,
    mirror as copy,
    to_mirror,
)
from yolo_lightning.checkpoints.resume import checkpoint_to_resume, download
from yolo_lightning.checkpoints.run_folder import folder_to_fit, folder_to_resume

MEMORY = fsspec.filesystem("memory")
MIRROR = "memory://mirror"
RUN = Path("runs/yolo")
Run = Callable[..., None]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield
    MEMORY.store.clear()
    MEMORY.pseudo_dirs[:] = [""]


@pytest.fixture(params=["memory", "file"])
def remote(request: pytest.FixtureRequest, tmp_path: Path) -> RemoteFolder:
    return RemoteFolder("memory://bucket/run" if request.param == "memory" else f"file://{tmp_path}/bucket/run")


def save(folder: Path, steps: int, name: str | None = None, **more: int) -> Path:
    path = folder / (name or f"step-{steps:09d}.ckpt")
    write_checkpoint(
        {**RESUMABLE, "state_dict": {"weight": torch.full((2,), float(steps))}, "steps": steps, **more}, path
    )
    return path


def mirror(folder: Path, remote: RemoteFolder) -> None:
    copy(to_mirror(folder), remote)


def put(remote: RemoteFolder, name: str, content: bytes) -> None:
    with fsspec.open(f"{remote.address}/{name}", "wb") as file:
        file.write(content)


def get(remote: RemoteFolder, name: str) -> bytes:
    with fsspec.open(f"{remote.address}/{name}", "rb") as file:
        content: bytes = file.read()
    return content


def test_copy_is_the_same_file_with_the_same_sidecar_and_made_once(
    tmp_path: Path, remote: RemoteFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fetch_run(remote, tmp_path / "other") == (None, {})
    path = save(tmp_path / "run", 5)
    best = save(tmp_path / "run", 4, "best.ckpt")
    mirror(tmp_path / "run", remote)
    assert remote.complete() == ["best.ckpt", path.name]
    fetched, damaged = fetch_run(remote, tmp_path / "other")
    assert (fetched, damaged) == (tmp_path / "other" / path.name, {})
    for file in (path, best):
        assert (tmp_path / "other" / file.name).read_bytes() == file.read_bytes()
        assert read_checksum(tmp_path / "other" / file.name) == read_checksum(file)
    assert {entry.name for entry in (tmp_path / "other").iterdir()} == set(remote.names())
    monkeypatch.setattr(RemoteFolder, "upload", lambda self, path: pytest.fail(f"{path} again"))
    mirror(tmp_path / "run", remote)


def test_a_few_generations_stay_and_those_of_a_longer_course(tmp_path: Path, remote: RemoteFolder) -> None:
    save(tmp_path / "long", 900)
    mirror(tmp_path / "long", remote)
    for steps in range(1, 7):
        save(tmp_path / "short", steps)
        mirror(tmp_path / "short", remote)
    assert remote.complete() == [f"step-{steps:09d}.ckpt" for steps in (4, 5, 6, 900)]
    assert len(remote.names()) == 8


def test_the_one_trained_longest_is_copied_whatever_the_clock_said(tmp_path: Path) -> None:
    for steps, written in ((500, 200), (550, 100)):
        os.utime(save(tmp_path, steps), (written, written))
    assert [path.name for path in to_mirror(tmp_path)] == ["step-000000550.ckpt"]
    (tmp_path / "step-000000550.ckpt.json").unlink()
    assert to_mirror(tmp_path) == {}


def cut(remote: RemoteFolder, name: str) -> None:
    put(remote, name, get(remote, name)[:-7])


def change(remote: RemoteFolder, name: str) -> None:
    content = bytearray(get(remote, name))
    content[len(content) // 2] ^= 1
    put(remote, name, bytes(content))


def lose_sidecar(remote: RemoteFolder, name: str) -> None:
    fsspec.core.url_to_fs(remote.address)[0].rm_file(f"{fsspec.core.url_to_fs(remote.address)[1]}/{name}.json")


@pytest.mark.parametrize("harm", [cut, change, lose_sidecar])
def test_torn_upload_is_passed_over(
    tmp_path: Path, remote: RemoteFolder, harm: Callable[[RemoteFolder, str], None]
) -> None:
    for steps in (1, 2):
        save(tmp_path / "run", steps)
        mirror(tmp_path / "run", remote)
    harm(remote, "step-000000002.ckpt")
    fetched, damaged = fetch_run(remote, tmp_path / "other")
    assert fetched == tmp_path / "other/step-000000001.ckpt"
    assert list(damaged) == ([] if harm is lose_sidecar else ["step-000000002.ckpt"])
    assert not (tmp_path / "other/step-000000002.ckpt").exists()


def test_upload_that_is_cut_off_is_no_checkpoint_and_repeated(
    tmp_path: Path, remote: RemoteFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where an older checkpoint has the same name."""
    mirror(save(tmp_path / "older", 5).parent, remote)
    path = save(tmp_path / "run", 5, extra=1)
    store = fsspec.core.url_to_fs(remote.address)[0]

    def cut_off(store: object, local: str, target: str, **options: object) -> None:
        put(remote, Path(target).name, Path(local).read_bytes()[:9])
        raise OSError("connection lost")

    with monkeypatch.context() as patched:
        patched.setattr(type(store), "put_file", cut_off)
        with pytest.raises(ConnectionError, match="connection lost"):
            mirror(path.parent, remote)
    assert remote.complete() == []
    mirror(path.parent, remote)
    assert remote.complete() == [path.name]
    assert get(remote, path.name) == path.read_bytes()


def test_clients_own_exceptions_become_errors_of_the_connection(
    tmp_path: Path, remote: RemoteFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoCredentialsError(Exception):
        pass

    def refuse(*args: object, **options: object) -> None:
        raise NoCredentialsError("who are you?")

    monkeypatch.setattr(type(fsspec.core.url_to_fs(remote.address)[0]), "ls", refuse)
    with pytest.raises(ConnectionError, match=r"bucket/run: NoCredentialsError: who are you\?"):
        remote.names()


def test_local_copy_of_an_address_is_checked_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path, 5)
    remote = RemoteFolder("memory://bucket/run")
    mirror(tmp_path, remote)
    copied = local_checkpoint(f"memory://bucket/run/{path.name}")
    assert tmp_path / "cache" in copied.parents
    assert copied.read_bytes() == path.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(RemoteFolder, "download", lambda *args: pytest.fail("fetched again"))
        assert local_checkpoint(f"memory://bucket/run/{path.name}") == copied
    save(tmp_path, 6, path.name)
    mirror(tmp_path, remote)
    assert local_checkpoint(f"memory://bucket/run/{path.name}").read_bytes() == path.read_bytes()


def test_address_without_sidecar_is_judged_by_loading(tmp_path: Path) -> None:
    path = save(tmp_path, 5)
    put(RemoteFolder("memory://bucket"), "x.ckpt", path.read_bytes())
    assert find_damage(local_checkpoint("memory://bucket/x.ckpt")) is None
    put(RemoteFolder("memory://bucket"), "x.ckpt", path.read_bytes()[:-500])
    with pytest.raises(ValueError, match=r"memory://bucket/x.ckpt cannot be used: it cannot be loaded"):
        local_checkpoint("memory://bucket/x.ckpt")


def test_address_of_nothing_is_named_and_that_of_a_file_is_the_file(tmp_path: Path) -> None:
    assert local_checkpoint(f"file://{tmp_path}/x.ckpt") == tmp_path / "x.ckpt"
    with pytest.raises(ValueError, match=r"checkpoint memory://bucket/none.ckpt cannot be read"):
        local_checkpoint("memory://bucket/none.ckpt")


def test_newest_run_is_fetched_where_there_is_none(tmp_path: Path) -> None:
    for name, steps in (("yolo", 90), ("yolo-2", 40), ("yolo-10", 10), ("other", 99)):
        save(tmp_path / "away" / name, steps)
        mirror(tmp_path / "away" / name, RemoteFolder(f"{MIRROR}/{name}"))
    folder = folder_to_resume(tmp_path / "yolo", MIRROR)
    download(folder, MIRROR)
    assert [path.name for path in tmp_path.glob("yolo*")] == ["yolo-10"]
    fetched = checkpoint_to_resume(folder)
    assert fetched == tmp_path / "yolo-10/checkpoints/step-000000010.ckpt"
    assert folder_to_fit(tmp_path / "yolo", fetched, MIRROR) == tmp_path / "yolo-10"


def test_run_that_is_here_is_continued_without_asking_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "yolo/checkpoints", 5)
    monkeypatch.setattr(RemoteFolder, "names", lambda remote: pytest.fail("asked"))
    assert folder_to_resume(tmp_path / "yolo", MIRROR) == tmp_path / "yolo"
    download(tmp_path / "yolo", MIRROR)


def test_run_whose_checkpoints_are_all_damaged_is_continued_from_the_mirror(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    folder = tmp_path / "yolo/checkpoints"
    save(folder, 5)
    mirror(folder, RemoteFolder(f"{MIRROR}/yolo"))
    newer = save(folder, 9)
    for path in folder.glob("*.ckpt"):  # as after a power cut
        path.write_bytes(b"")
    download(tmp_path / "yolo", MIRROR)
    fetched = checkpoint_to_resume(tmp_path / "yolo")
    assert (fetched.name, find_damage(fetched)) == ("step-000000005.ckpt", None)
    assert [str(newer) in str(warning.message) for warning in recwarn] == [True]


def test_new_run_takes_no_name_that_a_mirrored_one_has(tmp_path: Path) -> None:
    save(tmp_path / "away", 90)
    mirror(tmp_path / "away", RemoteFolder(f"{MIRROR}/yolo"))
    assert folder_to_fit(tmp_path / "yolo", None, MIRROR) == tmp_path / "yolo-2"
    assert folder_to_fit(tmp_path / "yolo", None) == tmp_path / "yolo"


@pytest.mark.parametrize("address", ["ftp://127.0.0.1:9/runs", "http://127.0.0.1:9/runs"])
def test_store_that_is_away_is_an_error_at_the_start_of_a_run(tmp_path: Path, address: str) -> None:
    with pytest.raises(ValueError, match=f"mirror {address} cannot be read: .*127.0.0.1:9"):
        download(tmp_path / "yolo", address)
    with pytest.raises(ValueError, match=f"mirror {address} cannot be read"):
        folder_to_fit(tmp_path / "yolo", None, address)


def test_unknown_kind_of_mirror_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere://\*\*\* cannot be opened"):
        folder_to_fit(tmp_path / "yolo", None, "nowhere://runs")


def test_folder_of_the_run_must_be_local(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("fit", "--trainer.default_root_dir", "s3://bucket/run")
    assert "must be a local folder, got s3:" in capsys.readouterr().err


@pytest.mark.whole_run
def test_lost_machine_is_replaced(run: Run) -> None:
    run("fit", "--mirror", MIRROR, "--trainer.max_epochs", "1", "--data.batch_size", "8")
    newest = RUN / "checkpoints/step-000000002.ckpt"
    content = newest.read_bytes()
    shutil.rmtree(RUN)
    run("fit", "--mirror", MIRROR, "--resume", "--trainer.max_epochs", "2", "--data.batch_size", "8")
    assert newest.read_bytes() == content
    assert torch.load(RUN / "checkpoints/last.ckpt", weights_only=True)["steps"] == 4
    assert "step-000000004.ckpt" in RemoteFolder(f"{MIRROR}/yolo").complete()
    run("predict", "--ckpt_path", f"{MIRROR}/yolo/best.ckpt", "--trainer.default_root_dir", "elsewhere")
    assert Path("elsewhere/predictions.json").is_file()
