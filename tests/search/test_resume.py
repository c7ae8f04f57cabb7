"""Killed at any moment, by an exception or by SIGKILL: the next run resumes, and the index ends up as if nothing had happened."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clipmend.search import ImageIndex, ImageIndexError, build_index, database, store
from search.fakes import FakeEncoder, colour_folder

COUNT = 40


class Killed(BaseException):
    """Not an Exception: nothing may swallow it, as nothing survives a kill."""


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clipmend.search.writer.SHARD_ROWS", 6)
    monkeypatch.setattr("clipmend.search.maintain.LEAST_DEAD", 4)
    monkeypatch.setattr(database, "SYNCHRONOUS", "OFF")
    monkeypatch.setattr(os, "fsync", lambda _: None)  # these deaths are of the process, not of the machine: spare the disk


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resume") / "photos"
    colour_folder(folder, COUNT)
    (folder / "bad.png").write_bytes(b"no")
    return folder


def assert_like_fresh(directory: Path, photos: Path, scratch: Path) -> None:
    """The index answers as one built in one go, and holds nothing but what its manifest names."""
    index = ImageIndex.open(directory, verify=True)
    fresh = ImageIndex.build(FakeEncoder(), photos, scratch)
    assert index.paths == fresh.paths
    assert index.skipped == fresh.skipped
    for seed in range(3):
        query = np.random.default_rng(seed).normal(size=index.embed_dim)
        for a, b in zip(index.search(query, 15), fresh.search(query, 15), strict=True):
            assert np.allclose(a, b, atol=1e-6)
    with sqlite3.connect(directory / store.DATABASE) as known:
        named = {f"vectors-{number:06d}.npy" for (number,) in known.execute("SELECT number FROM shards")}
        assert known.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert {p.name for p in directory.iterdir()} == named | {"manifest.json", "index.sqlite", "skipped.json", ".lock"}
    shutil.rmtree(scratch)


@pytest.mark.parametrize("batch_size", [1, 7])
def test_an_interruption_while_embedding_loses_nothing_that_was_embedded(tmp_path: Path, photos: Path, batch_size: int) -> None:
    done = 0
    for stop_at in (5, 11, 12, 30):

        def interrupt(embedded: int, left: int = stop_at - done) -> None:
            if embedded >= left:
                raise KeyboardInterrupt

        encoder = FakeEncoder(before_batch=interrupt)
        with pytest.raises(KeyboardInterrupt):
            build_index(encoder, photos, tmp_path / "index", batch_size=batch_size)
        done += encoder.embedded
        with pytest.raises(ImageIndexError, match="never finished"):
            ImageIndex.open(tmp_path / "index")
    encoder = FakeEncoder()
    report = build_index(encoder, photos, tmp_path / "index", batch_size=batch_size)
    assert encoder.embedded == COUNT - done
    assert report.resumed == done
    assert_like_fresh(tmp_path / "index", photos, tmp_path / "fresh")


def kill_at(monkeypatch: pytest.MonkeyPatch, step: int) -> Callable[[], int]:
    """Die at the ``step``-th thing done to the disk: before a write, between write and rename, after a rename, or in a removal.

    Once dead, nothing more reaches the disk: the clean-up code of a dying Python must not help.
    """
    count = 0
    real_replace, real_unlink, real_write = os.replace, Path.unlink, store.write_atomically
    real_commit = database.commit

    def tick() -> None:
        nonlocal count
        count += 1
        if count >= step:
            raise Killed

    def replace(a: object, b: object) -> None:
        tick()
        real_replace(a, b)  # type: ignore[arg-type]

    def unlink(self: Path, missing_ok: bool = False) -> None:
        tick()
        real_unlink(self, missing_ok=missing_ok)

    def write(path: Path, data: bytes) -> None:
        if count + 1 == step:  # half a file, as a full disk or a power cut leaves it
            path.with_name(path.name + ".tmp").write_bytes(data[: len(data) // 2])
        tick()
        real_write(path, data)

    def commit(connection: sqlite3.Connection) -> None:
        tick()  # before it: a transaction that is taken back
        real_commit(connection)
        tick()  # after it: what must follow did not

    monkeypatch.setattr(database, "commit", commit)
    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(Path, "unlink", unlink)
    monkeypatch.setattr(store, "write_atomically", write)
    return lambda: count


def test_killed_at_every_step_of_writing_a_first_index(tmp_path: Path, photos: Path) -> None:
    for step in range(1, 200):
        directory = tmp_path / f"index {step}"
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, step)
            try:
                build_index(FakeEncoder(), photos, directory, batch_size=5)
                finished = True
            except Killed:
                finished = False
        encoder = FakeEncoder()
        build_index(encoder, photos, directory, batch_size=5)
        assert_like_fresh(directory, photos, tmp_path / "fresh")
        if finished:
            assert encoder.embedded == 0
            break
    else:
        pytest.fail("the run never finished")
    assert step > 20


def test_killed_at_every_step_of_an_update_the_old_index_stays_or_the_new_one_is_there(tmp_path: Path, photos: Path) -> None:
    folder, old = tmp_path / "photos", tmp_path / "old"
    shutil.copytree(photos, folder, copy_function=shutil.copy2)
    ImageIndex.build(FakeEncoder(), folder, old, batch_size=5)
    for path in sorted(folder.rglob("*.png"))[:25]:  # enough to make it compact, too
        path.unlink()
    colour_folder(folder / "more", 12, seed=4)
    sizes = set()
    for step in range(1, 200):
        directory = tmp_path / f"index {step}"
        shutil.copytree(old, directory)
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, step)
            try:
                build_index(FakeEncoder(), folder, directory, batch_size=5)
                finished = True
            except Killed:
                finished = False
        sizes.add(len(ImageIndex.open(directory, verify=True)))  # whole at every moment
        encoder = FakeEncoder()
        report = build_index(encoder, folder, directory, batch_size=5)
        assert encoder.embedded + report.resumed in (0, 12)
        assert_like_fresh(directory, folder, tmp_path / "fresh")
        if finished:
            break
    else:
        pytest.fail("the update never finished")
    assert step > 12
    assert sizes == {COUNT, COUNT - 25 + 12}


SCRIPT = """
import random, sys
from search.fakes import FakeEncoder, die_after
from clipmend.search import build, writer
writer.SHARD_ROWS = 6
build.build_index(FakeEncoder(before_batch=die_after(int(sys.argv[3]))), sys.argv[1], sys.argv[2], batch_size=2)
"""


def test_sigkill_in_another_process(tmp_path: Path, photos: Path) -> None:
    """Really killed, several times, at random moments; what reached a shard is never embedded again."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    rng = np.random.default_rng(11)
    directory = tmp_path / "index"
    for _ in range(3):
        arguments = [str(photos), str(directory), str(rng.integers(7, 14))]
        run = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(SCRIPT), *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert run.returncode == -signal.SIGKILL, run.stderr
    encoder = FakeEncoder()
    report = build_index(encoder, photos, directory)
    assert report.resumed >= 18  # at least one shard of 6 a run
    assert encoder.embedded == COUNT - report.resumed
    assert_like_fresh(directory, photos, tmp_path / "fresh")


def test_what_another_encoder_left_is_not_adopted(tmp_path: Path, photos: Path) -> None:
    def interrupt(embedded: int) -> None:
        if embedded >= 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_index(FakeEncoder(before_batch=interrupt), photos, tmp_path / "index", batch_size=5)
    (tmp_path / "index" / "manifest.json").unlink()  # a user starts again, by half
    with pytest.raises(ImageIndexError, match="not an image index and not empty"):
        build_index(FakeEncoder(image="other"), photos, tmp_path / "index")
    manifest = store.Manifest("another id", {"name": "x", "image": "other"}, embed_dim=8, dtype="float32")
    store.write_manifest(tmp_path / "index", manifest)
    with pytest.raises(ImageIndexError, match="is of another index"):
        build_index(FakeEncoder(image="other"), photos, tmp_path / "index")


def test_leftovers_are_removed(tmp_path: Path, photos: Path) -> None:
    def interrupt(embedded: int) -> None:
        if embedded >= 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_index(FakeEncoder(before_batch=interrupt), photos, tmp_path / "index", batch_size=6)
    for name in ("vectors-000002.npy", "vectors-000003.npy.tmp", "manifest.json.tmp", "nearest-4.usearch"):
        (tmp_path / "index" / name).write_bytes(b"half")  # written, never named
    encoder = FakeEncoder()
    assert build_index(encoder, photos, tmp_path / "index").resumed == 12
    assert encoder.embedded == COUNT - 12
    assert_like_fresh(tmp_path / "index", photos, tmp_path / "fresh")


def test_an_index_opened_before_an_update_goes_on_answering(tmp_path: Path) -> None:
    colour_folder(tmp_path / "photos", 20)
    opened = ImageIndex.build(FakeEncoder(), tmp_path / "photos", tmp_path / "index")
    query = np.ones(8)
    before = opened.search(query, 20)
    for path in sorted((tmp_path / "photos").rglob("*.png"))[:15]:
        path.unlink()
    build_index(FakeEncoder(), tmp_path / "photos", tmp_path / "index")  # compacts: the old shards are deleted
    after = opened.search(query, 20)
    assert np.array_equal(before[0], after[0])
    assert np.array_equal(before[1], after[1])
    assert len(ImageIndex.open(tmp_path / "index")) == 5


def test_a_file_that_changes_while_it_is_read_is_left_for_the_next_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    colour_folder(tmp_path / "photos", 5)
    victim = tmp_path / "photos" / "b" / "001.png"
    real = store.file_digest

    def digest(path: Path) -> str:
        value = real(path)
        if path == victim:
            path.write_bytes(path.read_bytes() + b"\0")
        return value

    monkeypatch.setattr(store, "file_digest", digest)
    report = build_index(FakeEncoder(), tmp_path / "photos", tmp_path / "index")
    assert list(report.skipped) == ["b/001.png"]
    assert "changed while it was read" in report.skipped["b/001.png"]
    monkeypatch.undo()
    assert build_index(FakeEncoder(), tmp_path / "photos", tmp_path / "index").count == 5


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_first_index_that_fails_at_once_leaves_nothing(tmp_path: Path, photos: Path, error: type[BaseException]) -> None:
    def fail(embedded: int) -> None:
        raise error("no further")

    with pytest.raises(error, match="no further"):
        build_index(FakeEncoder(before_batch=fail), photos, tmp_path / "index")
    assert list(tmp_path.iterdir()) == []
    build_index(FakeEncoder(), photos, tmp_path / "index")
    before = {path.name: path.read_bytes() for path in (tmp_path / "index").iterdir()}
    shutil.copytree(photos, tmp_path / "more")
    Image.new("RGB", (9, 9), "orange").save(tmp_path / "more" / "new.png")
    with pytest.raises(error, match="no further"):
        build_index(FakeEncoder(before_batch=fail), tmp_path / "more", tmp_path / "index")
    assert {path.name: path.read_bytes() for path in (tmp_path / "index").iterdir()} == before
