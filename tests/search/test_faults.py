"""What may go wrong on a machine goes wrong: nothing is lost, and answers are right or there is a clear error.

``make test-faults`` runs these, the long ones included.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clipmend.search import ImageIndex, ImageIndexError, build_index
from search.fakes import FakeEncoder, colour_folder

faults = pytest.importorskip("search.faults", reason="needs fork and resource limits")

COUNT = 60


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults") / "photos"
    colour_folder(folder, COUNT)
    (folder / "bad.png").write_bytes(b"no")
    return folder


def assert_answers(index: ImageIndex, folder: Path) -> None:
    """Every image of the folder is there with its own vector, and search is what comparing with each gives."""
    encoder = FakeEncoder()
    good = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*.png") if p.name != "bad.png")
    assert [entry.path for entry in index.entries] == good
    own = encoder.encode_images([folder / name for name in good]).numpy()
    assert np.allclose(index.embeddings(), own, atol=1e-6)
    query = np.random.default_rng(0).normal(size=own.shape[1]).astype(np.float32)
    scores, positions = index.search(query, 10)
    assert np.allclose(scores, np.sort(own @ query / np.linalg.norm(query))[::-1][:10], atol=1e-5)
    assert len(set(map(int, positions))) == len(positions)


# ---- kill -9 ------------------------------------------------------------------------------------------------------------------


def kill_while_indexing(tmp_path: Path, photos: Path, moments: int, seed: int) -> None:
    random_moment = random.Random(seed)
    directory = tmp_path / "index"
    timed = faults.Process(faults.index_slowly, [str(photos)], str(tmp_path / "timed"), 6, 0.02)
    started = time.monotonic()
    assert timed.outcome() == COUNT
    whole = time.monotonic() - started
    killed, resumed = 0, 0
    for _ in range(moments):
        process = faults.Process(faults.index_slowly, [str(photos)], str(directory), 6, 0.02)
        time.sleep(random_moment.uniform(0, whole))
        killed += process.kill()
        if not (directory / "manifest.json").exists():
            continue
        with sqlite3.connect(directory / "index.sqlite") as known:
            complete = dict(known.execute("SELECT key, value FROM meta"))["complete"]
        if complete:  # finished, in spite of us
            with ImageIndex.open(directory, verify=True) as index:
                assert_answers(index, photos)
        else:
            with pytest.raises(ImageIndexError, match="never finished"):  # and nothing worse
                ImageIndex.open(directory, verify=True)
            resumed += 1
        if random_moment.random() < 0.3:  # start over now and then
            shutil.rmtree(directory)
    encoder = FakeEncoder()
    report = build_index(encoder, photos, directory)
    assert report.count == COUNT
    assert encoder.embedded + report.resumed + report.unchanged == COUNT
    assert_answers(ImageIndex.open(directory, verify=True), photos)
    assert killed > moments // 3
    assert resumed > moments // 5


def kill_while_updating(tmp_path: Path, moments: int, seed: int) -> None:
    """The folder changes, the run that is to follow it is killed: the index is what it was, or what it was to be."""
    random_moment = random.Random(seed)
    folder, directory = tmp_path / "changing", tmp_path / "index"
    colour_folder(folder, COUNT)
    ImageIndex.build(FakeEncoder(), folder, directory).close()
    before = {p.relative_to(folder).as_posix() for p in folder.rglob("*.png")}
    timed = faults.Process(faults.index_slowly, [str(folder)], str(tmp_path / "timed"), 6, 0.005)
    started = time.monotonic()
    timed.outcome()
    whole = time.monotonic() - started
    kept = 0
    for step in range(moments):
        files = sorted(folder.rglob("*.png"))
        for path in random_moment.sample(files, 20):
            path.unlink()
        colour_folder(folder / f"new {step}", 20, seed=step)
        now = {p.relative_to(folder).as_posix() for p in folder.rglob("*.png")}
        process = faults.Process(faults.index_slowly, [str(folder)], str(directory), 6, 0.005)
        time.sleep(random_moment.uniform(0, whole))
        process.kill()
        with ImageIndex.open(directory, verify=True) as index:
            found = {entry.path for entry in index.entries}
        assert found in (before, now)
        kept += found == before
        if found == now:
            before = now
    assert kept > moments // 5
    build_index(FakeEncoder(), folder, directory)
    assert_answers(ImageIndex.open(directory, verify=True), folder)


def test_killed_at_four_moments(tmp_path: Path, photos: Path) -> None:
    kill_while_indexing(tmp_path / "first", photos, 4, seed=1)
    kill_while_updating(tmp_path / "update", 4, seed=2)


@pytest.mark.slow
def test_killed_at_twenty_moments(tmp_path: Path, photos: Path) -> None:
    kill_while_indexing(tmp_path / "first", photos, 20, seed=3)
    kill_while_updating(tmp_path / "update", 20, seed=4)


# ---- no space -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small disk can be mounted by root only")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(path: Path) -> None:
    with suppress(OSError), open(path, "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 1024)


def test_a_disk_that_is_full(small_disk: Path, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    colour_folder(folder, COUNT)
    directory = small_disk / "index"
    ImageIndex.build(FakeEncoder(), folder, directory).close()
    before = ImageIndex.open(directory, verify=True).entries[:]
    filler = small_disk / "filler"
    for kept in (60_000, 20_000, 8_000, 3_000, 0):
        for number in range(40):
            colour_folder(folder / f"{'long name ' * 8}{kept} {number}", 9, seed=number + kept)
        fill(filler)
        os.truncate(filler, max(0, filler.stat().st_size - kept))
        with pytest.raises(OSError, match=r"(?i)space") as caught:
            build_index(FakeEncoder(), folder, directory)
        assert caught.value.errno == errno.ENOSPC
        with ImageIndex.open(directory, verify=True) as index:
            assert index.entries[:] == before
        filler.unlink()
    for path in folder.iterdir():
        if path.name.startswith("long"):
            shutil.rmtree(path)
    assert build_index(FakeEncoder(), folder, directory).unchanged == COUNT
    assert_answers(ImageIndex.open(directory, verify=True), folder)


@pytest.mark.parametrize("most", [100, 700, 5_000, 20_000, 61_000])
def test_files_that_may_not_grow(tmp_path: Path, photos: Path, most: int) -> None:
    """The same by a limit on the size of files, which every user has: a write fails in the middle, in SQLite too."""
    directory = tmp_path / "index"
    told = faults.Process(faults.index_within, [str(photos)], str(directory), most).outcome()
    assert isinstance(told, str)
    assert "OSError" in told
    assert build_index(FakeEncoder(), photos, directory).count == COUNT
    assert_answers(ImageIndex.open(directory, verify=True), photos)


# ---- several at once ----------------------------------------------------------------------------------------------------------


def test_two_writers_and_a_reader(tmp_path: Path, photos: Path) -> None:
    directory = tmp_path / "index"
    folder = tmp_path / "photos"
    shutil.copytree(photos, folder, copy_function=shutil.copy2)
    ImageIndex.build(FakeEncoder(), folder, directory).close()
    colour_folder(folder / "more", 30, seed=5)
    writers = [faults.Process(faults.index_slowly, [str(folder)], str(directory), 6, 0.05) for _ in range(3)]
    sizes = set()
    until = time.monotonic() + 2
    while time.monotonic() < until:
        with ImageIndex.open(directory) as index:
            sizes.add(len(index))
            index.items(index.nearest(np.ones(8), 3).ids[0])
    outcomes = [writer.outcome() for writer in writers]
    assert COUNT + 30 in outcomes
    assert all(outcome == COUNT + 30 or "being written by another process" in str(outcome) for outcome in outcomes)
    assert sizes <= {COUNT, COUNT + 30}
    assert_answers(ImageIndex.open(directory, verify=True), folder)


# ---- damage -------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Path:
    directory = tmp_path_factory.mktemp("sound") / "index"
    build_index(FakeEncoder(), photos, directory, approximate=True)
    return directory


def damaged_copies(sound: Path, tmp_path: Path, pattern: str, count: int, seed: int) -> Iterator[Path]:
    rng = np.random.default_rng(seed)
    for number in range(count):
        directory = tmp_path / f"copy {number}"
        shutil.copytree(sound, directory)
        path = next(directory.glob(pattern))
        data = bytearray(path.read_bytes())
        at = int(rng.integers(len(data)))
        if number % 3 == 0:
            data = data[:at]
        elif number % 3 == 1:
            data[at] ^= 1 << int(rng.integers(8))
        else:
            data[at : at + 64] = rng.integers(0, 256, len(data[at : at + 64]), np.uint8).tobytes()
        path.write_bytes(bytes(data))
        yield directory
        shutil.rmtree(directory)


def test_a_damaged_manifest(tmp_path: Path, sound: Path, photos: Path) -> None:
    refused = 0
    for directory in damaged_copies(sound, tmp_path, "manifest.json", 60, 1):
        try:
            with ImageIndex.open(directory, verify=True) as index:
                index.check(FakeEncoder())
                assert_answers(index, photos)  # a blank more, another count: nothing that matters
        except ImageIndexError:
            refused += 1
    assert refused > 30


def test_a_damaged_database(tmp_path: Path, sound: Path, photos: Path) -> None:
    for directory in damaged_copies(sound, tmp_path, "index.sqlite", 60, 2):
        with pytest.raises(ImageIndexError, match="damaged"):
            ImageIndex.open(directory)
        with pytest.raises(ImageIndexError, match="damaged"):
            build_index(FakeEncoder(), photos, directory)


def test_a_damaged_database_too_large_to_read_whole_each_time(tmp_path: Path, sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then damage may be found late, but by its name; and verify finds it."""
    monkeypatch.setattr("clipmend.search.database.CHECKED_BYTES", 0)
    for directory in damaged_copies(sound, tmp_path, "index.sqlite", 60, 3):
        with pytest.raises(ImageIndexError):
            ImageIndex.open(directory, verify=True)
        try:
            with ImageIndex.open(directory) as index:
                index.items(index.nearest(np.ones(8), 5).ids[0])
                list(index.entries)
                index.values("folder")
        except ImageIndexError:
            continue


def test_damaged_vectors(tmp_path: Path, sound: Path) -> None:
    for directory in damaged_copies(sound, tmp_path, "vectors-*.npy", 40, 4):
        with pytest.raises(ImageIndexError, match="damaged"):
            ImageIndex.open(directory, verify=True)
        with suppress(ImageIndexError), ImageIndex.open(directory) as index:  # found at once, or by verify
            index.search(np.ones(8), 5)


@pytest.mark.filterwarnings("ignore:.*graph for approximate search is not used")
def test_a_damaged_graph(tmp_path: Path, sound: Path, photos: Path) -> None:
    for pattern in ("nearest-*.usearch", "nearest.json"):
        for directory in damaged_copies(sound, tmp_path, pattern, 30, 5):
            with ImageIndex.open(directory, verify=True) as index:
                assert_answers(index, photos)
            build_index(FakeEncoder(), photos, directory)
            about = json.loads((directory / "nearest.json").read_text())
            assert about["rows"] == COUNT


def test_a_journal_that_is_nonsense(tmp_path: Path, sound: Path, photos: Path) -> None:
    directory = tmp_path / "index"
    shutil.copytree(sound, directory)
    (directory / "index.sqlite-journal").write_bytes(b"nonsense" * 100)
    with ImageIndex.open(directory, verify=True) as index:
        assert_answers(index, photos)


# ---- files ----------------------------------------------------------------------------------------------------------------------


def test_files_that_vanish_while_they_are_indexed(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    colour_folder(folder, COUNT)

    def vanish(embedded: int) -> None:
        if embedded == 10:
            shutil.rmtree(folder / "b")
            for path in sorted((folder / "c").iterdir())[10:]:
                path.unlink()

    report = build_index(FakeEncoder(before_batch=vanish), folder, tmp_path / "index", batch_size=2, workers=1)
    assert report.skipped
    assert all("no such file" in reason or "not found" in reason for reason in report.skipped.values())
    assert report.count + len(report.skipped) == COUNT
    report = build_index(FakeEncoder(), folder, tmp_path / "index")
    assert report.skipped == {}
    assert_answers(ImageIndex.open(tmp_path / "index", verify=True), folder)


def test_a_folder_that_vanishes_whole(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    colour_folder(folder, 10)
    build_index(FakeEncoder(), folder, tmp_path / "index")
    colour_folder(folder / "more", 10, seed=3)

    def vanish(_: int) -> None:
        shutil.rmtree(folder, ignore_errors=True)

    build_index(FakeEncoder(before_batch=vanish), folder, tmp_path / "index", batch_size=1, workers=1)
    with ImageIndex.open(tmp_path / "index", verify=True) as index:
        assert len(index) >= 10  # what was seen to be there a moment ago, and what could still be read
    with pytest.raises(FileNotFoundError):
        build_index(FakeEncoder(), folder, tmp_path / "index")


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_a_thousand_hostile_images(tmp_path: Path) -> None:
    names = faults.hostile_files(tmp_path / "hostile", 1000)
    started = time.monotonic()
    encoder = FakeEncoder()
    report = build_index(encoder, tmp_path / "hostile", tmp_path / "index", max_pixels=1_000_000)
    with ImageIndex.open(tmp_path / "index", verify=True) as index:
        found = {entry.path for entry in index.entries}
        assert found | index.skipped.keys() == set(names)
        assert not found & index.skipped.keys()
        assert np.isfinite(index.embeddings()).all()
    assert report.count == len(found) > 100
    assert len(report.skipped) > 300
    assert all(reason.strip() for reason in report.skipped.values())
    for name in found:
        with Image.open(tmp_path / "hostile" / name) as image:
            assert image.width * image.height <= 1_000_000
    assert time.monotonic() - started < 300
