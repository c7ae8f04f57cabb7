"""Whether an opened index is still what lies there, and what one answers whose place another has taken."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clipmend.search import ArrayGallery, Condition, ImageIndex, ImageIndexError, Item, build_index, store
from clipmend.search.connections import Connections
from clipmend.search.database import Database
from search.fakes import DIM, FakeEncoder, colour_folder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    colour_folder(tmp_path / "photos", 12)
    build_index(FakeEncoder(), tmp_path / "photos", tmp_path / "index")
    return tmp_path


@pytest.fixture
def index(place: Path) -> Iterator[ImageIndex]:
    with ImageIndex.open(place / "index") as index:
        yield index


def break_off(place: Path) -> None:
    """An update with new images that is interrupted after the first four."""
    colour_folder(place / "photos/more", 8, seed=7)

    def stop(embedded: int) -> None:
        if embedded >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_index(FakeEncoder(before_batch=stop), place / "photos", place / "index", batch_size=2)


def update(place: Path) -> None:
    build_index(FakeEncoder(), place / "photos", place / "index")


def all_of(index: ImageIndex) -> list[Item]:
    return index.items(np.concatenate(list(index.ids())))


def test_what_changes_is_seen_and_what_does_not_is_not(place: Path, index: ImageIndex) -> None:
    before = {entry.path for entry in index.entries}
    assert not index.changed()
    update(place)
    assert not index.changed()
    (place / "photos/a/000.png").rename(place / "photos/moved.png")
    assert not index.changed()
    update(place)
    assert index.changed()
    assert index.changed()
    with index.reopened() as again:
        assert not again.changed()
        assert again.edition != index.edition
        assert {entry.path for entry in again.entries} == before - {"a/000.png"} | {"moved.png"}
    assert len(all_of(index)) == 12  # it goes on


def test_vectors_of_a_run_that_is_not_over_are_no_change(place: Path, index: ImageIndex) -> None:
    """An update takes hours; what it writes meanwhile is no reason to open a million images again every half minute."""
    break_off(place)
    database = Database(place / "index", store.read_manifest(place / "index"))
    assert database.meta("generation") > store.read_manifest(place / "index").generation
    database.close()
    assert not index.changed()
    update(place)
    assert index.changed()


def test_an_index_that_an_older_release_wrote(place: Path, index: ImageIndex) -> None:
    """It does not say when it changed: every transaction counts then."""
    database = Database(place / "index", store.read_manifest(place / "index"))
    database.connection.execute("DELETE FROM meta WHERE key = 'changed'")
    database.close()
    store.write_manifest(place / "index", replace(store.read_manifest(place / "index"), database=""))
    with ImageIndex.open(place / "index") as old:
        assert not old.changed()
        colour_folder(place / "photos/more", 2, seed=7)
        update(place)
        assert old.changed()
        with old.reopened() as again:
            assert len(again) == 14
            assert not again.changed()


def test_edits_by_the_same_handle_are_no_change(place: Path, index: ImageIndex) -> None:
    index.add([Item(100, "added.png")], np.eye(DIM, dtype=np.float32)[:1])
    assert not index.changed()
    assert len(index) == 13
    assert not index.changed()
    with ImageIndex.open(place / "index") as other:
        other.remove([100])
    assert index.changed()


def test_the_files_folder_goes_with_it(place: Path) -> None:
    with ImageIndex.open(place / "index") as index:
        index.images = place / "elsewhere"
        with index.reopened() as again:
            assert again.images == place / "elsewhere"


def test_what_cannot_be_read_is_a_change(place: Path, index: ImageIndex) -> None:
    manifest = place / "index/manifest.json"
    kept = manifest.read_bytes()
    manifest.write_text("{")
    assert index.changed()
    with pytest.raises(ImageIndexError, match="not JSON"):
        index.reopened()
    manifest.write_bytes(kept)
    assert not index.changed()
    shutil.rmtree(place / "index")
    assert index.changed()
    with pytest.raises(ImageIndexError, match="no image index"):
        index.reopened()


def test_a_closed_one_holds_no_file(place: Path) -> None:
    index = ImageIndex.open(place / "index")
    index.nearest(np.eye(DIM)[0], 3)
    index.close()
    with pytest.raises(ImageIndexError, match="closed"):
        len(index)
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert str(place / "index") not in maps.read_text()
    index.close()


def test_other_galleries_never_change(tmp_path: Path) -> None:
    gallery = ArrayGallery(np.eye(DIM, dtype=np.float32)[:3])
    assert not gallery.changed()
    assert gallery.reopened() is gallery
    assert gallery.edition == ""


@pytest.mark.parametrize("how", ["removed", "made again", "renamed over", "half made"])
def test_an_index_whose_place_is_taken_answers_as_before(place: Path, how: str) -> None:
    """In threads that asked before and in others; ids of the one are never looked up in the other."""
    with ImageIndex.open(place / "index") as index:
        query, small = FakeEncoder().encode_texts(["red"])[0].numpy(), [Condition("name", "like", "*1*")]
        before = (
            all_of(index),
            index.nearest(query, 5, where=small).ids.tolist(),
            index.values("name", 5),
            index.find("a/003.png"),
        )
        (place / "photos/a/000.png").unlink()
        Image.new("RGB", (6, 5), (9, 9, 9)).save(place / "photos/0.png")
        if how == "renamed over":
            build_index(FakeEncoder(), place / "photos", place / "second")
            os.rename(place / "index", place / "old")
            os.rename(place / "second", place / "index")
        else:
            shutil.rmtree(place / "index")
        if how == "made again":
            update(place)
        elif how == "half made":
            break_off(place)
        answers: list[object] = []

        def ask() -> None:
            where = [Condition("name", "like", "*1*"), Condition("width", ">", 1)]  # not asked before, so looked up now
            found = index.nearest(query, 5, where=where).ids.tolist()
            answers.append((all_of(index), found, index.values("name", 5), index.find("a/003.png")))

        ask()
        threads = [threading.Thread(target=ask) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == [before] * 6
        assert index.changed()


def test_a_journal_beside_another_database_is_not_taken_for_the_old_ones(place: Path) -> None:
    """Of an index that is made at the same place, and is in the middle of a transaction."""
    with ImageIndex.open(place / "index") as index:
        before = all_of(index)
        shutil.rmtree(place / "index")
        update(place)
        assert all_of(index) == before
        database = Database(place / "index", store.read_manifest(place / "index"))
        journal = place / "index/index.sqlite-journal"
        with database.transaction():
            database.execute("UPDATE images SET name = 'other'")
            assert journal.exists()
            assert all_of(index) == before
        database.close()


def test_connections_of_a_database_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ImageIndexError, match="missing"):
        Connections(tmp_path).rows("SELECT 1")
