"""The graph for approximate search: made, extended, passed over when it does not fit; and what it finds."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest

from clipmend.search import ImageIndex
from clipmend.search.gallery import Condition, Item

DIM = 32
COUNT = 12_000


def clustered(count: int, seed: int) -> np.ndarray:
    """Vectors as encoders make them: around a common mean, in clusters of a few free directions."""
    centres = np.random.default_rng(123).normal(size=(40, DIM)) + 1.0
    rng = np.random.default_rng(seed)
    return (centres[rng.integers(0, 40, count)] + rng.normal(size=(count, DIM)) * 0.5).astype(np.float32)


def items(first: int, count: int) -> list[Item]:
    return [Item(i, f"{i % 97:02d}/{i}", {"n": float(i), "folder": f"{i % 97:02d}"}) for i in range(first, first + count)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("graph") / "index"
    with ImageIndex.create(directory, backbone="x", image_digest="d", embed_dim=DIM) as index:
        index.add(items(0, COUNT), clustered(COUNT, 0))
        index.optimise(approximate=True)
    return directory


@pytest.fixture
def index(made: Path, tmp_path: Path) -> ImageIndex:
    """A copy to change."""
    import shutil

    shutil.copytree(made, tmp_path / "index")
    return ImageIndex.open(tmp_path / "index")


QUERIES = clustered(50, 7)


def recall(index: ImageIndex, k: int = 10, where: tuple[Condition, ...] = ()) -> float:
    found = index.nearest(QUERIES, k, where=where)
    true = index.nearest(QUERIES, k, where=where, exact=True)
    assert not found.exact
    assert true.exact
    assert (np.diff(found.scores, axis=1) <= 0).all()
    own = np.einsum(
        "qd,qkd->qk",
        QUERIES / np.linalg.norm(QUERIES, axis=1, keepdims=True),
        index.vectors(found.ids.reshape(-1)).reshape(len(QUERIES), -1, DIM),
    )
    assert np.allclose(found.scores, own, atol=1e-6)  # the vectors' own scores, not those of 16 bits
    return float(np.mean([len(set(a) & set(b)) / k for a, b in zip(found.ids, true.ids, strict=True)]))


def test_it_finds_what_is_near(made: Path) -> None:
    index = ImageIndex.open(made, verify=True)
    about = json.loads((made / "nearest.json").read_text())
    assert about["rows"] == COUNT
    assert about["recall"] >= 0.98
    assert recall(index) >= 0.98
    assert recall(index, 100) >= 0.98
    assert index.nearest(QUERIES, COUNT).exact  # all there are: nothing to be quick about
    assert index.nearest(QUERIES, 5, where=[Condition("folder", "=", "05")]).exact


def test_wide_conditions_go_through_it_and_hold(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clipmend.search.reading.FEW", 3000)
    index = ImageIndex.open(made)
    where = (Condition("n", "<", COUNT / 2),)
    assert recall(index, where=where) >= 0.97
    assert (index.nearest(QUERIES, 10, where=where).ids < COUNT / 2).all()


def test_what_is_newer_is_found_and_what_went_is_not(index: ImageIndex) -> None:
    target = QUERIES[:1] / np.linalg.norm(QUERIES[:1])
    index.add([Item(10**9, "new", {"n": -1.0})], target)
    found = index.nearest(target, 5)
    assert (int(found.ids[0, 0]), found.exact) == (10**9, False)
    near = [int(i) for i in found.ids[0]]
    index.remove(near)
    again = index.nearest(target, 5)
    assert not set(near) & set(map(int, again.ids[0]))
    true = index.nearest(target, 5, exact=True)
    assert len(set(map(int, true.ids[0])) & set(map(int, again.ids[0]))) >= 4


def test_it_is_extended_and_made_anew(index: ImageIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clipmend.search.nearest.STALE", 10)
    before = next(index.directory.glob("nearest-*.usearch"))
    index.add(items(COUNT, 100), clustered(100, 5))
    index.optimise()  # a twentieth is not yet reached
    assert before.exists()
    index.add(items(COUNT + 100, 900), clustered(900, 6))
    index.optimise()
    about = json.loads((index.directory / "nearest.json").read_text())
    assert about["rows"] == COUNT + 1000
    assert not before.exists()
    assert recall(index) >= 0.98
    index.remove(range(8000))  # most are dead: rows are numbered anew
    index.optimise()
    assert json.loads((index.directory / "nearest.json").read_text())["rows"] == COUNT + 1000 - 8000
    assert recall(index) >= 0.98
    index.optimise(approximate=False)
    assert not list(index.directory.glob("nearest*"))
    assert index.nearest(QUERIES, 10).exact


def test_small_indexes_have_none_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = ImageIndex.create(tmp_path / "index", backbone="x", image_digest="d", embed_dim=DIM)
    index.add(items(0, 5000), clustered(5000, 1))
    index.optimise()
    assert index.nearest(QUERIES, 3).exact
    assert not list((tmp_path / "index").glob("nearest*"))
    monkeypatch.setattr("clipmend.search.nearest.APPROXIMATE_FROM", 5000)
    index.optimise()
    assert not index.nearest(QUERIES, 3).exact
    assert index.nearest(QUERIES, 3, exact=True).exact


def damage(path: Path, how: str) -> None:
    if how == "gone":
        path.unlink()
    elif how == "cut":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif how == "empty":
        path.write_bytes(b"")
    else:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(bytes(data))


@pytest.mark.parametrize("name", ["nearest-*.usearch", "nearest.json"])
@pytest.mark.parametrize("how", ["gone", "cut", "empty", "flipped"])
def test_damage_is_passed_over_with_a_word_and_mended(index: ImageIndex, name: str, how: str) -> None:
    true = index.nearest(QUERIES, 10, exact=True)
    damage(next(index.directory.glob(name)), how)
    if (name, how) == ("nearest.json", "gone"):  # then there is none, as far as anybody can tell
        opened = ImageIndex.open(index.directory)
        assert opened.nearest(QUERIES, 10).exact
        return
    with pytest.warns(UserWarning, match="search is exact and slower; the next 'clipmend index' makes it again"):
        found = ImageIndex.open(index.directory).nearest(QUERIES, 10)
    assert found.exact
    assert np.array_equal(found.ids, true.ids)
    index.optimise()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not index.nearest(QUERIES, 10).exact


def test_a_graph_of_another_index_is_not_used(index: ImageIndex, made: Path) -> None:
    other = index.directory.with_name("other")
    with ImageIndex.create(other, backbone="x", image_digest="d", embed_dim=DIM) as second:
        second.add(items(0, COUNT), clustered(COUNT, 3))
    for path in made.glob("nearest*"):
        (other / path.name).write_bytes(path.read_bytes())
    with pytest.warns(UserWarning, match="it is of other rows"):
        assert ImageIndex.open(other).nearest(QUERIES, 10).exact
