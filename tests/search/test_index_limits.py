"""An index at its limits: large imports, many small additions, many threads, deep pages, ids and texts that nothing can have."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipmend.search import ImageIndex, ImageIndexError, exact, store, writer
from clipmend.search.arrays import ArrayGallery
from clipmend.search.exact import Layout, Shards
from clipmend.search.gallery import Condition, Gallery, GalleryError, Item
from clipmend.search.store import Shard

DIM = 4


def filled(directory: Path, count: int, seed: int = 0) -> tuple[ImageIndex, np.ndarray]:
    vectors = np.random.default_rng(seed).normal(size=(count, DIM)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index = ImageIndex.create(directory, backbone="fake", image_digest="image-side", embed_dim=DIM)
    if count:
        index.add([Item(i, f"{i:06d}.png", {"folder": ""}) for i in range(count)], vectors)
    return index, vectors


def test_a_table_larger_than_the_database_cache_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clipmend.search.database.TIMEOUT", 0.5)
    index, _ = filled(tmp_path / "index", 3000)
    monkeypatch.setattr("clipmend.search.columns._BLOCK", 100)
    table = tmp_path / "notes.csv"
    table.write_text("path,note\n" + "".join(f"{i:06d}.png,{i} {'x' * 3000}\n" for i in range(3000)))
    assert index.import_columns(table).matched == 3000
    assert index.items([2999])[0].fields["note"] == f"2999 {'x' * 3000}"


def test_many_small_additions_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "MOST_SHARDS", 4)
    vectors = np.random.default_rng(0).normal(size=(24, DIM)).astype(np.float32)
    index, _ = filled(tmp_path / "index", 0)
    opened: ImageIndex | None = None
    for i in range(24):
        index.add([Item(i, f"{i}.png")], vectors[i : i + 1])
        assert len(list((tmp_path / "index").glob("vectors-*.npy"))) <= 5
        if i == 3:
            opened = ImageIndex.open(tmp_path / "index")
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(index.vectors(range(24)), unit, atol=1e-6)
    assert opened is not None
    np.testing.assert_allclose(opened.vectors(range(4)), unit[:4], atol=1e-6)  # opened before its files were joined
    opened.close()
    index.close()
    ImageIndex.open(tmp_path / "index", verify=True).close()


def test_a_limit_on_open_files_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path / "index", 3)[0].close()

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(store.np, "load", refuse)
    with pytest.raises(OSError, match="ulimit -n"):
        ImageIndex.open(tmp_path / "index")


def test_threads_that_ended_hold_no_connection(tmp_path: Path) -> None:
    index, _ = filled(tmp_path / "index", 3)
    found: list[int | None] = []
    for _ in range(20):
        thread = threading.Thread(target=lambda: found.append(index.find("000001.png")))
        thread.start()
        thread.join()
    assert found == [1] * 20
    assert len(index._connections._all) <= 3
    index.close()


def test_closing_an_edited_index_that_another_writes_is_no_error(tmp_path: Path) -> None:
    index, _ = filled(tmp_path / "index", 3)
    with store.locked(tmp_path / "index"):
        index.close()
    with pytest.raises(ImageIndexError, match="closed"):
        index.find("000001.png")
    with ImageIndex.open(tmp_path / "index", verify=True) as again:
        assert len(again) == 3


@pytest.mark.parametrize("kind", ["index", "array"])
@pytest.mark.parametrize("id_", [1 << 63, 1 << 64, -(1 << 70), 7])
def test_ids_that_no_image_has(tmp_path: Path, kind: str, id_: int) -> None:
    index, vectors = filled(tmp_path / "index", 3)
    gallery: Gallery = index if kind == "index" else ArrayGallery(vectors)
    with pytest.raises(GalleryError, match=str(id_)):
        gallery.vectors([id_])
    with pytest.raises(GalleryError, match=str(id_)):
        gallery.items([0, id_])
    assert index.remove([id_]) == 0


@pytest.mark.parametrize("op", ["=", "under", "like"])
def test_half_of_a_surrogate_pair_is_a_text_that_nothing_has(tmp_path: Path, op: Any) -> None:
    index, _ = filled(tmp_path / "index", 3)
    assert index.count([Condition("folder", op, "\ud800")]) == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 70), st.integers(1, 17), st.integers(1, 20))
def test_pieces_of_any_size_give_the_order_of_one_sort(
    tmp_path_factory: pytest.TempPathFactory, values: list[int], k: int, chunk: int, shard_rows: int
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    table = np.array([[1, 0], [0, 1], [0.6, 0.8], [0.8, 0.6]], np.float32)[values]
    shards = [
        store.write_shard(folder, number, first, table[first : first + shard_rows])
        for number, first in enumerate(range(0, len(table), shard_rows))
    ]
    query = np.array([[1, 0], [0, 1]], np.float32)
    scores, positions = Shards(folder, shards, 2, "float32").search(query, Layout(np.arange(len(table))), k, chunk)
    expected = np.argsort(-(query @ table.T), axis=1, kind="stable")[:, :k]
    assert positions.tolist() == expected.tolist()
    np.testing.assert_array_equal(scores, np.take_along_axis(query @ table.T, expected, 1))


def test_a_deep_page_over_many_shards_is_sorted_a_few_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = np.random.default_rng(0).normal(size=(400, DIM)).astype(np.float32)
    shards: list[Shard] = [store.write_shard(tmp_path, i, 10 * i, table[10 * i : 10 * i + 10]) for i in range(40)]
    sorts: list[int] = []

    def counted(scores: np.ndarray, *rest: Any) -> np.ndarray:
        sorts.append(len(scores))
        return top_k(scores, *rest)

    top_k = exact.top_k
    monkeypatch.setattr(exact, "top_k", counted)
    Shards(tmp_path, shards, DIM, "float32").search(table[:1], Layout(np.arange(400)), 400)
    assert sum(sorts) <= 800


def test_more_vectors_added_than_the_graph_holds_are_searched_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clipmend.search.reading.FEW", 0)
    monkeypatch.setattr("clipmend.search.reading.CHUNK", 50)
    index, vectors = filled(tmp_path / "index", 200)
    index.optimise(approximate=True)
    assert not index.nearest(vectors[0], 3).exact
    more = np.random.default_rng(1).normal(size=(60, DIM)).astype(np.float32)
    index.add([Item(1000 + i, f"more {i}.png") for i in range(60)], more)
    found = index.nearest(more[7], 1)
    assert found.exact
    assert found.ids.tolist() == [[1007]]


def test_small_files_that_cannot_be_joined_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index, vectors = filled(tmp_path / "index", 3)
    monkeypatch.setattr(writer, "MOST_SHARDS", 0)
    write, written = store.write_shard, list[int]()

    def full_when_joining(directory: Path, number: int, first: int, rows: np.ndarray) -> Shard:
        written.append(len(rows))
        if len(rows) > 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(directory, number, first, rows)

    monkeypatch.setattr(store, "write_shard", full_when_joining)
    index.add([Item(10, "x.png"), Item(11, "y.png")], vectors[:2])
    assert written == [2, 5]
    np.testing.assert_allclose(index.vectors([11, 2]), vectors[[1, 2]], atol=1e-6)
    index.close()
    ImageIndex.open(tmp_path / "index", verify=True).close()


def test_a_lock_that_was_taken_away_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")
    filled(tmp_path / "index", 3)[0].close()
    flock = fcntl.flock

    def late(*given: Any) -> None:
        (tmp_path / "index" / store.LOCK).unlink()
        flock(*given)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(ImageIndexError, match="run this again"), store.locked(tmp_path / "index"):
        raise AssertionError("not reached")


@pytest.mark.parametrize("value", [1.5, 1e300, -3.0, 2.0**53])
def test_numbers_that_are_no_whole_ones_are_kept(tmp_path: Path, value: float) -> None:
    index, _ = filled(tmp_path / "index", 0)
    index.add([Item(7, "a.png", {"width": value, "size": value})], np.ones((1, DIM)))
    assert index.items([7])[0].fields == {"width": value, "size": value}
    assert index.count([Condition("width", "=", value), Condition("size", "<=", value)]) == 1
