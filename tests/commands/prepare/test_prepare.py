"""`prepare`: packing, resuming, repairing, error messages."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.archives import drawn_frames, pixels, write_annotations, write_zip
from yolo_lightning.commands.prepare import command
from yolo_lightning.commands.prepare.command import LOCK, pack_frames
from yolo_lightning.data.storage.packed_frames import MANIFEST, PackedFrames, read_manifest
from yolo_lightning.utils.exit_codes import INTERRUPTED

FRAMES = drawn_frames(8)
NAMES = sorted(FRAMES)


def annotate(root: Path, names: list[str], file: str = "Train.json", height: int = 24, width: int = 32) -> None:
    write_annotations(root / file, names, height, width)


def put(root: Path, frames: dict[str, bytes]) -> None:
    for name, content in frames.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    put(tmp_path, FRAMES)
    annotate(tmp_path, NAMES)
    return tmp_path


@pytest.fixture
def pack(root: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., PackedFrames]:
    def call(shard_frames: int = 3, **options: object) -> PackedFrames:
        monkeypatch.setattr(command, "SHARD_FRAMES", shard_frames)
        options = {"index_root": str(root / "index"), "workers": 1, **options}
        pack_frames(str(root), **options)  # type: ignore[arg-type]
        return PackedFrames(Path(str(options.get("store", root / "packed"))))

    return call


def assert_holds(source: PackedFrames, frames: dict[str, bytes]) -> None:
    assert source.missing(frames) == []
    for name, frame in pixels(frames).items():
        assert np.array_equal(source.read(name), frame)


def flip(path: Path, place: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_packs_only_the_frames_that_are_named(root: Path, pack: Callable[..., PackedFrames]) -> None:
    annotate(root, NAMES[:3])
    annotate(root, NAMES[2:5], "Valid.json")
    packed = pack(workers=2)
    assert_holds(packed, {name: FRAMES[name] for name in NAMES[:5]})
    assert packed.missing(NAMES) == NAMES[5:]


def test_packs_from_the_archive(root: Path, pack: Callable[..., PackedFrames]) -> None:
    write_zip(root / "frames.zip", FRAMES)
    shutil.rmtree(root / "frames")
    assert_holds(pack(store=str(root / "elsewhere")), FRAMES)


def test_second_run_packs_nothing(pack: Callable[..., PackedFrames], capfd: pytest.CaptureFixture[str]) -> None:
    first = pack()
    assert "packed 8 of 8" in capfd.readouterr().out
    before = {path: path.stat().st_mtime_ns for path in first.store.rglob("*.*") if path.name != LOCK}
    pack()
    assert "packing 0 frames" in capfd.readouterr().out
    changed = {path.name for path, moment in before.items() if path.stat().st_mtime_ns != moment}
    assert changed <= {MANIFEST}


def test_leftovers_of_a_killed_run_are_deleted(root: Path, pack: Callable[..., PackedFrames]) -> None:
    leftovers = (root / "packed" / ".writing-1-shard-0123.u8.part", root / "packed" / ".writing-1-index-0123.part")
    leftovers[1].mkdir(parents=True)
    leftovers[0].write_bytes(b"half a shard")
    for leftover in leftovers:
        os.utime(leftover, (0, 0))
    pack()
    assert not any(path.exists() for path in leftovers)


def test_another_annotation_file_adds_its_frames(
    root: Path, pack: Callable[..., PackedFrames], capfd: pytest.CaptureFixture[str]
) -> None:
    annotate(root, NAMES[:5])
    pack()
    annotate(root, NAMES[5:], "Valid.json")
    packed = pack(shard_frames=2)
    assert "packing 3 frames" in capfd.readouterr().out
    assert_holds(packed, FRAMES)


def test_damaged_and_missing_frames_are_listed_and_left_out(
    root: Path, pack: Callable[..., PackedFrames], capfd: pytest.CaptureFixture[str]
) -> None:
    (root / NAMES[0]).write_bytes(FRAMES[NAMES[0]][:99])
    (root / NAMES[1]).unlink()
    packed = pack()
    output = capfd.readouterr().out
    assert f"left out 1 damaged frames: {NAMES[0]}: the JPEG is truncated (99 bytes" in output
    assert f"left out 1 missing frames: {NAMES[1]}" in output
    assert packed.missing(NAMES) == [NAMES[1]]
    put(root, FRAMES)
    assert_holds(pack(), FRAMES)


def test_frames_of_another_dataset_are_refused(root: Path, pack: Callable[..., PackedFrames]) -> None:
    annotate(root, [name.replace("clip_1", "clip_7") for name in NAMES])
    with pytest.raises(ValueError, match=r"none of the 8 frames of the annotation files are in .*frames"):
        pack()


def test_store_without_one_usable_frame_is_refused(root: Path, pack: Callable[..., PackedFrames]) -> None:
    put(root, dict.fromkeys(NAMES, b"<html>"))
    with pytest.raises(ValueError, match=r"none of the 8 frames .* can be used: .*not an image"):
        pack()
    assert not (root / "packed" / MANIFEST).exists()


@pytest.mark.parametrize("damage", ["cut", "delete", "description"])
def test_broken_shard_is_packed_again_and_said_so(
    root: Path, pack: Callable[..., PackedFrames], capfd: pytest.CaptureFixture[str], damage: str
) -> None:
    shard = pack().store / read_manifest(root / "packed").shards[0].file
    if damage == "cut":
        shard.write_bytes(shard.read_bytes()[:-1])
    elif damage == "delete":
        shard.unlink()
    else:
        flip(shard.with_suffix(".json"), 30)
    packed = pack()
    assert f"{shard} is incomplete: its frames are packed again" in capfd.readouterr().out
    assert_holds(packed, FRAMES)


def test_verify_finds_a_flipped_byte_and_packs_the_shard_again(
    root: Path, pack: Callable[..., PackedFrames], capfd: pytest.CaptureFixture[str]
) -> None:
    packed = pack()
    shard = packed.store / read_manifest(packed.store).shards[0].file
    names = json.loads(shard.with_suffix(".json").read_text().partition("\n")[2])["names"]
    flip(shard)
    pack(verify=True)
    output = capfd.readouterr().out
    assert f"{shard} is damaged ({names[0]}): packed again" in output
    assert output.count("is damaged") == 1
    assert_holds(PackedFrames(packed.store), FRAMES)


def test_store_of_other_frames_is_refused(root: Path, pack: Callable[..., PackedFrames]) -> None:
    write_zip(root / "frames.zip", FRAMES)
    pack()
    with pytest.raises(ValueError, match=r"was packed from kind folder, path .*, not from kind zip"):
        pack(storage="zip")


def test_store_of_a_dataset_that_was_moved_is_kept(
    root: Path, pack: Callable[..., PackedFrames], capfd: pytest.CaptureFixture[str]
) -> None:
    pack()
    shards = [shard.file for shard in read_manifest(root / "packed").shards]
    root.rename(root.with_name("moved"))
    moved = root.with_name("moved")
    command.pack_frames(str(moved), index_root=str(moved / "index"), workers=1)
    output = capfd.readouterr().out
    assert f"was packed from {root / 'frames'}, whose sampled frames are equal to those of {moved / 'frames'}" in output
    assert [shard.file for shard in read_manifest(moved / "packed").shards] == shards
    for path in (moved / "frames").rglob("*.jpg"):
        path.write_bytes(next(iter(FRAMES.values())))
    moved.rename(root)
    moved_again = root.rename(root.with_name("again"))
    with pytest.raises(ValueError, match=r"was packed from kind folder, path .*, not from kind folder, path .*/again"):
        command.pack_frames(str(moved_again), index_root=str(moved_again / "index"), workers=1)


def test_small_disk_is_noticed_before_anything_is_written(
    root: Path, pack: Callable[..., PackedFrames], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(root)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1_000_000))
    with pytest.raises(ValueError, match=r"needs 67\.1 MB, 1\.0 MB are free.*another disk"):
        pack()
    assert not list((root / "packed").glob("shard-*"))


def test_shards_grow_so_that_all_of_them_can_be_open(
    pack: Callable[..., PackedFrames], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "MOST_SHARDS", 3)
    assert len(read_manifest(pack(shard_frames=2).store).shards) == 3


@pytest.fixture
def small_files() -> Iterator[None]:
    """Limit the size of files to 100 kB: writing raises `OSError`, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_disk_full_half_way_keeps_finished_shards(
    root: Path, pack: Callable[..., PackedFrames], request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]
) -> None:
    large = drawn_frames(1, clip="frames/20200502/clip_9_2359", height=400, width=400)
    put(root, large)
    annotate(root, [*NAMES, *large])
    request.getfixturevalue("small_files")
    with pytest.raises(ValueError, match=r"no space for .*packed .*finished shards are kept; free some space"):
        pack(shard_frames=4, workers=1)
    assert len(list((root / "packed").glob("shard-*.u8"))) == 2
    assert not list((root / "packed").glob(".writing-*"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    packed = pack(shard_frames=4)
    assert "packing 1 frames" in capfd.readouterr().out
    assert_holds(packed, {**FRAMES, **large})


@pytest.mark.parametrize("place", ["/proc/packed", "{root}/Train.json/packed"])
def test_store_that_cannot_be_written_is_named(root: Path, pack: Callable[..., PackedFrames], place: str) -> None:
    with pytest.raises(ValueError, match=r"cannot write .*packed: .*; set store to a writable folder"):
        pack(store=place.format(root=root))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers must be >= 1, got 0"),
        ({"storage": "tar"}, r"storage\.kind must be auto, packed, folder or zip, got 'tar'"),
        ({"storage": "zip"}, r"frames\.zip does not exist"),
        ({"annotations": ["Other.json"]}, r"Other\.json does not exist"),
        ({"annotations": []}, "contains none of Train.json, Valid.json, TestNoLabels.json"),
    ],
)
def test_bad_option_is_refused(pack: Callable[..., PackedFrames], options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pack(**options)


def test_missing_root_is_named_as_the_option_of_this_command() -> None:
    with pytest.raises(ValueError, match="--root must be the dataset folder with --format ltdv2, got null"):
        pack_frames()


def test_only_ltdv2_is_packed() -> None:
    with pytest.raises(ValueError, match="format must be ltdv2, got coco"):
        pack_frames("x", format="coco")


@pytest.mark.whole_run
@pytest.mark.parametrize(
    "ending",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_ended_half_way_it_is_continued(
    root: Path, pack: Callable[..., PackedFrames], capfd: pytest.CaptureFixture[str], ending: signal.Signals
) -> None:
    frames = drawn_frames(1500)
    put(root, frames)
    annotate(root, sorted(frames))
    call = f"command.pack_frames({str(root)!r}, index_root={str(root / 'index')!r}, workers=1)"
    script = f"from yolo_lightning.commands.prepare import command\ncommand.SHARD_FRAMES = 4\n{call}"
    with subprocess.Popen([sys.executable, "-c", script], start_new_session=True, stdout=subprocess.PIPE) as process:
        deadline_s = time.monotonic() + 60
        while len(list((root / "packed").glob("*.json"))) < 10:
            assert process.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.005)
        process.send_signal(signal.SIGSTOP)  # else it may finish before the next lines
        with pytest.raises(ValueError, match=rf"process {process.pid} is writing into .*; wait until it has ended"):
            pack()
        os.killpg(process.pid, ending) if ending == signal.SIGINT else process.send_signal(ending)
        process.send_signal(signal.SIGCONT)
        output = process.communicate()[0].decode()
    if ending == signal.SIGINT:
        assert process.returncode == INTERRUPTED
        assert "interrupted: finished shards" in output
    assert not (root / "packed" / MANIFEST).exists(), "it was too fast"
    with pytest.raises(ValueError, match="is not a finished packed store"):
        PackedFrames(root / "packed")
    packed = pack()
    progress_lines = [line for line in capfd.readouterr().out.splitlines() if line.startswith("packing ")]
    assert 40 <= int(progress_lines[-1].split()[-2]) < len(frames)
    assert_holds(packed, frames)
    assert not list((root / "packed").glob(".writing-*"))
