"""What an index holds, what it refuses, and that its search is the plain one."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clipmend.search import ImageIndex, ImageIndexError, build_index
from clipmend.search.index import top_k
from data.zoo import make_zoo
from search.fakes import DIM, FakeEncoder, FakeMended, colour_folder


def folder_bytes(directory: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in directory.iterdir()}


def shard_of(directory: Path) -> Path:
    return next(directory.glob("vectors-*.npy"))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    colour_folder(tmp_path / "photos")
    return tmp_path / "photos"


def test_the_zoo_is_survived_and_every_file_accounted_for(tmp_path: Path) -> None:
    zoo = make_zoo(tmp_path / "zoo")
    encoder = FakeEncoder()
    report = build_index(encoder, tmp_path / "zoo", tmp_path / "index", batch_size=4)
    index = ImageIndex.open(tmp_path / "index", verify=True)
    good = {name for name, animal in zoo.items() if animal.size is not None}
    assert {entry.path for entry in index.entries} == good
    assert index.skipped.keys() == zoo.keys() - good
    assert report.skipped == index.skipped
    assert report.count == len(index) == len(good)
    assert all(reason for reason in index.skipped.values())
    for entry in index.entries:
        assert (entry.width, entry.height) == zoo[entry.path].size
        assert index.path(index.entries.index(entry)) == tmp_path.resolve() / "zoo" / entry.path
    own = encoder.encode_images([zoo[entry.path].path for entry in index.entries])
    assert np.allclose(index.embeddings(), own.numpy(), atol=1e-6)


def test_files_by_the_letter(tmp_path: Path, photos: Path) -> None:
    build_index(FakeEncoder(), photos, tmp_path / "index")
    manifest = json.loads((tmp_path / "index" / "manifest.json").read_text())
    assert manifest["format"] == "clipmend-image-index"
    assert manifest["version"] == 2
    assert manifest["backbone"] == {"name": "fake", "image": "image-side"}
    assert (manifest["embed_dim"], manifest["count"], manifest["dtype"]) == (DIM, 20, "float32")
    data = (tmp_path / "index" / "index.sqlite").read_bytes()
    assert manifest["database"] == hashlib.sha256(data).hexdigest()
    with sqlite3.connect(tmp_path / "index" / "index.sqlite") as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        assert dict(database.execute("SELECT key, value FROM meta"))["id"] == manifest["id"]
        assert database.execute("SELECT count(*) FROM images").fetchone() == (20,)
        ((file_number, first, rows, sha256),) = database.execute("SELECT * FROM shards").fetchall()
    assert (first, rows) == (0, 20)
    shard = tmp_path / "index" / f"vectors-{file_number:06d}.npy"
    assert hashlib.sha256(shard.read_bytes()).hexdigest() == sha256
    names = {path.name for path in (tmp_path / "index").iterdir()}
    assert names == {"manifest.json", "index.sqlite", "skipped.json", ".lock", shard.name}
    vectors = np.load(shard)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert json.loads((tmp_path / "index" / "skipped.json").read_text()) == []


def test_two_updates_in_a_row_embed_nothing_and_write_nothing(tmp_path: Path, photos: Path) -> None:
    encoder = FakeEncoder()
    first = build_index(encoder, photos, tmp_path / "index")
    assert (first.embedded, first.added, encoder.embedded) == (20, 20, 20)
    before = folder_bytes(tmp_path / "index")
    for _ in range(2):
        again = build_index(encoder, photos, tmp_path / "index")
        assert (again.embedded, again.unchanged, again.added, again.removed, again.count) == (0, 20, 0, 0, 20)
    assert encoder.embedded == 20
    assert folder_bytes(tmp_path / "index") == before


def test_new_changed_moved_copied_touched_and_deleted(tmp_path: Path, photos: Path) -> None:
    encoder = FakeEncoder()
    build_index(encoder, photos, tmp_path / "index")
    colour_folder(tmp_path / "more", 3, seed=9)
    shutil.copy(tmp_path / "more" / "a" / "000.png", photos / "new.png")
    shutil.copy(tmp_path / "more" / "b" / "001.png", photos / "a" / "000.png")  # changed
    (photos / "a" / "003.png").rename(photos / "moved.png")
    shutil.copy(photos / "a" / "006.png", photos / "copy.png")
    os.utime(photos / "a" / "009.png", (1, 1))
    (photos / "b" / "001.png").unlink()
    report = build_index(encoder, photos, tmp_path / "index")
    assert encoder.embedded == 20 + 2
    assert (report.embedded, report.added, report.changed, report.moved, report.removed) == (2, 2, 1, 1, 1)
    assert report.unchanged == 20 - 3
    assert report.count == 21
    index = ImageIndex.open(tmp_path / "index", verify=True)
    assert np.allclose(index.embeddings(), FakeEncoder().encode_images(index.paths).numpy(), atol=1e-6)
    fresh = ImageIndex.build(FakeEncoder(), photos, tmp_path / "fresh")
    assert fresh.paths == index.paths
    assert np.allclose(fresh.embeddings(), index.embeddings(), atol=1e-6)
    again = build_index(encoder, photos, tmp_path / "index")
    assert (again.embedded, again.unchanged) == (0, 21)


def test_an_image_that_goes_bad_leaves_and_comes_back_without_embedding(tmp_path: Path, photos: Path) -> None:
    encoder = FakeEncoder()
    build_index(encoder, photos, tmp_path / "index")
    data = (photos / "b" / "004.png").read_bytes()
    (photos / "b" / "004.png").write_bytes(data[:30])
    report = build_index(encoder, photos, tmp_path / "index")
    assert (report.count, report.removed, list(report.skipped)) == (19, 0, ["b/004.png"])
    (photos / "b" / "004.png").write_bytes(data)
    report = build_index(encoder, photos, tmp_path / "index")
    assert (report.count, report.skipped, encoder.embedded) == (20, {}, 20)
    assert ImageIndex.open(tmp_path / "index").skipped == {}


def test_update_in_place_and_another_root_trusts_contents_only(tmp_path: Path, photos: Path) -> None:
    encoder = FakeEncoder()
    index = ImageIndex.build(encoder, photos, tmp_path / "index")
    shutil.copytree(photos, tmp_path / "elsewhere", copy_function=shutil.copy2)
    (tmp_path / "elsewhere" / "a" / "000.png").write_bytes((photos / "a" / "003.png").read_bytes())
    stat = (photos / "a" / "000.png").stat()
    os.utime(tmp_path / "elsewhere" / "a" / "000.png", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    report = index.update(encoder, tmp_path / "elsewhere")
    assert (report.embedded, report.changed, report.unchanged) == (0, 1, 19)
    assert index.root == (tmp_path / "elsewhere").resolve()
    position = [entry.path for entry in index.entries].index("a/000.png")
    other = [entry.path for entry in index.entries].index("a/003.png")
    assert np.array_equal(index.embeddings([position]), index.embeddings([other]))
    assert index.update(encoder).unchanged == 20


def test_index_and_photos_moved_together_still_find_each_other(tmp_path: Path) -> None:
    colour_folder(tmp_path / "old" / "photos", 4)
    ImageIndex.build(FakeEncoder(), tmp_path / "old" / "photos", tmp_path / "old" / "index")
    (tmp_path / "old").rename(tmp_path / "new")
    index = ImageIndex.open(tmp_path / "new" / "index")
    assert all(path.is_file() for path in index.paths)


def test_an_empty_folder_never_wipes_an_index(tmp_path: Path, photos: Path) -> None:
    build_index(FakeEncoder(), photos, tmp_path / "index")
    photos.rename(tmp_path / "away")
    photos.mkdir()
    with pytest.raises(ValueError, match="no image under"):
        build_index(FakeEncoder(), photos, tmp_path / "index")
    assert len(ImageIndex.open(tmp_path / "index")) == 20


def test_dead_rows_are_compacted_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clipmend.search.maintain.LEAST_DEAD", 5)
    monkeypatch.setattr("clipmend.search.writer.SHARD_ROWS", 4)
    photos = tmp_path / "photos"
    colour_folder(photos, 30)
    encoder = FakeEncoder()
    build_index(encoder, photos, tmp_path / "index", batch_size=3)
    full = ImageIndex.open(tmp_path / "index")
    expected = dict(zip(full.paths, full.embeddings(), strict=True))
    for path in sorted(photos.rglob("*.png"))[:18]:
        path.unlink()
    report = build_index(encoder, photos, tmp_path / "index")
    index = ImageIndex.open(tmp_path / "index", verify=True)
    assert (report.removed, report.count, encoder.embedded) == (18, 12, 30)
    stored = [np.load(p) for p in (tmp_path / "index").glob("*.npy")]
    assert sum(len(vectors) for vectors in stored) == 12
    for path, vector in zip(index.paths, index.embeddings(), strict=True):
        assert np.array_equal(vector, expected[path])
    assert build_index(encoder, photos, tmp_path / "index").embedded == 0


def test_many_small_updates_do_not_leave_many_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clipmend.search.writer.MOST_SHARDS", 3)
    encoder = FakeEncoder()
    for count in range(2, 12):
        colour_folder(tmp_path / "photos", count)
        build_index(encoder, tmp_path / "photos", tmp_path / "index")
    assert encoder.embedded == 11
    assert len(list((tmp_path / "index").glob("*.npy"))) <= 4
    index = ImageIndex.open(tmp_path / "index", verify=True)
    assert np.allclose(index.embeddings(), FakeEncoder().encode_images(index.paths).numpy(), atol=1e-6)


def test_another_encoder_is_refused_a_patched_one_is_not(tmp_path: Path, photos: Path) -> None:
    index = ImageIndex.build(FakeEncoder(), photos, tmp_path / "index")
    before = folder_bytes(tmp_path / "index")
    patched = FakeMended(text="other text")
    index.check(patched)
    assert index.update(patched).embedded == 0
    assert folder_bytes(tmp_path / "index") == before
    stranger = FakeEncoder(image="other image side")
    with pytest.raises(ImageIndexError, match="made by 'fake'"):
        index.check(stranger)
    with pytest.raises(ImageIndexError, match="cannot be compared"):
        build_index(stranger, photos, tmp_path / "index")
    with pytest.raises(ValueError, match="no image side"):
        build_index(FakeEncoder(image=""), photos, tmp_path / "index")
    assert folder_bytes(tmp_path / "index") == before


def test_float16_is_half_the_size_and_still_unit(tmp_path: Path, photos: Path) -> None:
    exact = ImageIndex.build(FakeEncoder(), photos, tmp_path / "exact")
    half = ImageIndex.build(FakeEncoder(), photos, tmp_path / "half", dtype="float16")
    assert (exact.dtype, half.dtype) == ("float32", "float16")
    assert np.abs(exact.embeddings() - half.embeddings()).max() < 2e-3
    assert np.allclose(np.linalg.norm(half.embeddings(), axis=1), 1, atol=1e-6)
    with pytest.raises(ImageIndexError, match="stores float16, not float32"):
        build_index(FakeEncoder(), photos, tmp_path / "half", dtype="float32")
    with pytest.raises(ValueError, match="dtype"):
        build_index(FakeEncoder(), photos, tmp_path / "x", dtype="int8")


def test_odd_embeddings_are_skipped_with_the_reason(tmp_path: Path, photos: Path) -> None:
    class Odd(FakeEncoder):
        def embed(self, image: object) -> torch.Tensor:
            vector = super().embed(image)  # type: ignore[arg-type]
            if image.size == (1, 1):  # type: ignore[attr-defined]
                return vector * float("nan")
            if image.size == (3000, 1):  # type: ignore[attr-defined]
                raise ValueError("too wide for me")
            return vector

    make_zoo(tmp_path / "zoo")
    encoder = Odd()
    report = build_index(encoder, tmp_path / "zoo", tmp_path / "index", batch_size=64)
    assert "not finite" in report.skipped["one pixel.png"]
    assert "too wide for me" in report.skipped["very wide.png"]
    assert report.count > 30
    assert np.isfinite(ImageIndex.open(tmp_path / "index").embeddings()).all()


def test_a_broken_encoder_is_not_blamed_on_the_images(tmp_path: Path, photos: Path) -> None:
    def fail(_: int) -> None:
        raise RuntimeError("CUDA out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        build_index(FakeEncoder(before_batch=fail), photos, tmp_path / "index")


def test_large_images_end_a_batch_early(tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clipmend.search.embed.BATCH_PIXELS", 6 * 5 * 3)
    encoder = FakeEncoder()
    build_index(encoder, photos, tmp_path / "index", batch_size=8)
    assert encoder.batches == [3] * 6 + [2]


def test_max_pixels_skips_and_can_be_raised(tmp_path: Path, photos: Path) -> None:
    from PIL import Image

    Image.new("RGB", (100, 100), (1, 2, 3)).save(photos / "big.png")
    report = build_index(FakeEncoder(), photos, tmp_path / "index", max_pixels=9999)
    assert "over the limit" in report.skipped["big.png"]
    assert build_index(FakeEncoder(), photos, tmp_path / "index", max_pixels=None).count == 21


def test_a_folder_that_is_something_else_is_left_alone(tmp_path: Path, photos: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("years of work")
    with pytest.raises(ImageIndexError, match=r"not an image index and not empty.*thesis\.txt"):
        build_index(FakeEncoder(), photos, tmp_path / "precious")
    assert [p.name for p in (tmp_path / "precious").iterdir()] == ["thesis.txt"]


def test_one_writer_at_a_time(tmp_path: Path, photos: Path) -> None:
    build_index(FakeEncoder(), photos, tmp_path / "index")
    colour_folder(photos, 22)

    def interfere(_: int) -> None:
        with pytest.raises(ImageIndexError, match="being written by another process"):
            build_index(FakeEncoder(), photos, tmp_path / "index")

    assert build_index(FakeEncoder(before_batch=interfere), photos, tmp_path / "index").count == 22


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d, m: (d / "manifest.json").unlink(), "no image index"),
        (lambda d, m: (d / "manifest.json").write_text("{"), "not JSON"),
        (lambda d, m: (d / "manifest.json").write_text('{"format": "x"}'), "not the manifest of an image index"),
        (lambda d, m: (d / "manifest.json").write_text(json.dumps({**m, "version": 99})), "format version 99"),
        (lambda d, m: (d / "manifest.json").write_text(json.dumps({**m, "count": "many"})), "lacks what it must say"),
        (lambda d, m: (d / "manifest.json").write_text(json.dumps({k: v for k, v in m.items() if k != "dtype"})), "lacks.*dtype"),
        (lambda d, m: (d / "manifest.json").write_text(json.dumps({**m, "backbone": {}})), "lacks.*backbone"),
        (lambda d, m: (d / "manifest.json").write_text(json.dumps({**m, "id": "another"})), "is of another index than"),
        (lambda d, m: (d / "manifest.json").write_text(json.dumps({**m, "generation": 10**6})), "is older than"),
        (lambda d, m: (d / "index.sqlite").unlink(), "index.sqlite is missing"),
        (lambda d, m: (d / "index.sqlite").write_bytes(b""), "cannot be used"),
        (lambda d, m: (d / "index.sqlite").write_bytes(b"no database" * 1000), "cannot be used"),
        (lambda d, m: flip(d / "index.sqlite", -1), "its digest differs"),
        (lambda d, m: shard_of(d).unlink(), "cannot be read"),
        (lambda d, m: shard_of(d).write_bytes(b""), "cannot be read"),
        (lambda d, m: os.truncate(shard_of(d), 300), "cannot be read"),
        (lambda d, m: np.save(shard_of(d), np.zeros((20, 3), np.float32)), "the index says"),
        (lambda d, m: np.save(shard_of(d), np.array([{}], object)), "cannot be read"),
    ],
)
def test_damage_is_named(tmp_path: Path, photos: Path, damage: object, message: str) -> None:
    directory = tmp_path / "index"
    build_index(FakeEncoder(), photos, directory)
    damage(directory, json.loads((directory / "manifest.json").read_text()))  # type: ignore[operator]
    with pytest.raises(ImageIndexError, match=message):
        ImageIndex.open(directory)


def test_verify_finds_a_flipped_bit(tmp_path: Path, photos: Path) -> None:
    build_index(FakeEncoder(), photos, tmp_path / "index")
    shard = next((tmp_path / "index").glob("*.npy"))
    data = bytearray(shard.read_bytes())
    data[-3] ^= 1
    shard.write_bytes(bytes(data))
    ImageIndex.open(tmp_path / "index")
    with pytest.raises(ImageIndexError, match="not what was written"):
        ImageIndex.open(tmp_path / "index", verify=True)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_vector_that_is_no_number_is_damage_and_never_a_rank(tmp_path: Path, photos: Path, value: float) -> None:
    ImageIndex.build(FakeEncoder(), photos, tmp_path / "index")
    shard = next((tmp_path / "index").glob("*.npy"))
    vectors = np.load(shard)
    vectors[4, 2] = value
    np.save(shard, vectors)
    index = ImageIndex.open(tmp_path / "index")
    for ask in (lambda: index.search(np.ones(8), 3), lambda: index.scores(np.ones(8))):
        with pytest.raises(ImageIndexError, match="damaged: a vector holds NaN or infinity"):
            ask()


def test_queries_that_make_no_sense(tmp_path: Path, photos: Path) -> None:
    index = ImageIndex.build(FakeEncoder(), photos, tmp_path / "index")
    with pytest.raises(ValueError, match="8 dimensions"):
        index.search(np.ones(7), 3)
    with pytest.raises(ValueError, match="NaN"):
        index.search(np.full(8, np.nan), 3)
    with pytest.raises(ValueError, match="zero"):
        index.search(np.zeros(8), 3)
    with pytest.raises(ValueError, match="k must be"):
        index.search(np.ones(8), 0)


def test_k_over_the_gallery_gives_all(tmp_path: Path, photos: Path) -> None:
    index = ImageIndex.build(FakeEncoder(), photos, tmp_path / "index")
    scores, positions = index.search(np.ones(8), 1000)
    assert sorted(positions) == list(range(20))
    assert (np.diff(scores) <= 0).all()


def test_mean_embedding(tmp_path: Path, photos: Path) -> None:
    index = ImageIndex.build(FakeEncoder(), photos, tmp_path / "index")
    assert np.allclose(index.mean_embedding(), index.embeddings().mean(0), atol=1e-6)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> ImageIndex:
    """Several shards, dead rows, copies (equal vectors), rows in another order than paths."""
    root = tmp_path_factory.mktemp("sharded")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clipmend.search.writer.SHARD_ROWS", 7)
        colour_folder(root / "photos", 45)
        index = ImageIndex.build(FakeEncoder(), root / "photos", root / "index", batch_size=5)
        for i in (3, 10, 20):
            (root / "photos" / f"{chr(97 + i % 3)}/{i:03d}.png").unlink()
        for i in range(6):
            shutil.copy(root / "photos" / "a" / "000.png", root / "photos" / f"copy {i}.png")
        colour_folder(root / "photos" / "A first", 9, seed=5)
        index.update(FakeEncoder())
    assert len({entry.row for entry in index.entries}) < len(index)
    assert len(list((root / "index").glob("*.npy"))) > 5
    return index


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1), k=st.integers(1, 80), chunk=st.integers(1, 90), queries=st.integers(0, 4))
def test_search_is_brute_force(sharded: ImageIndex, seed: int, k: int, chunk: int, queries: int) -> None:
    rng = np.random.default_rng(seed)
    query = rng.normal(size=(queries, DIM) if queries else DIM).astype(np.float32)
    gallery = FakeEncoder().encode_images(sharded.paths).numpy()
    unit = query / np.linalg.norm(query, axis=-1, keepdims=True)
    truth = unit @ gallery.T
    assert np.allclose(sharded.scores(query, chunk=chunk), truth, atol=1e-5)
    scores, positions = sharded.search(query, k, chunk=chunk)
    size = min(k, len(sharded))
    assert scores.shape == positions.shape == (*query.shape[:-1], size)
    for s, p, t in zip(np.atleast_2d(scores), np.atleast_2d(positions), np.atleast_2d(truth), strict=True):
        assert len(set(p)) == size
        assert np.allclose(s, np.sort(t)[::-1][:size], atol=1e-5)
        assert np.allclose(s, t[p], atol=1e-5)
    tensor_scores, tensor_positions = sharded.search(torch.from_numpy(query), k, chunk=chunk)
    assert np.array_equal(tensor_scores, scores)
    assert np.array_equal(tensor_positions, positions)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=40), st.integers(1, 50), st.randoms())
def test_top_k_orders_ties_by_position(values: list[int], k: int, random: object) -> None:
    scores = np.array(values, np.float32)
    ties = np.arange(len(values))
    random.shuffle(ties)  # type: ignore[attr-defined]
    expected = sorted(range(len(values)), key=lambda i: (-scores[i], ties[i]))[:k]
    assert top_k(scores, ties, k).tolist() == expected


def test_equal_vectors_come_in_path_order(sharded: ImageIndex) -> None:
    position = [entry.path for entry in sharded.entries].index("copy 0.png")
    query = sharded.embeddings([position])[0]
    for chunk in (1, 5, 1000):
        scores, positions = sharded.search(query, 7, chunk=chunk)
        assert len(np.unique(scores)) == 1
        assert [sharded.entries[p].path for p in positions] == ["a/000.png", *(f"copy {i}.png" for i in range(6))]


def test_names_of_any_bytes(tmp_path: Path) -> None:
    colour_folder(tmp_path / "photos", 3)
    raw = os.path.join(os.fsencode(tmp_path), b"photos", b"caf\xe9 \n.png")
    try:
        shutil.copy(tmp_path / "photos" / "a" / "000.png", raw)
    except OSError:
        pytest.skip("the file system refuses such names")
    index = ImageIndex.build(FakeEncoder(), tmp_path / "photos", tmp_path / "index")
    assert os.fsencode(index.paths[-1]) == os.path.join(os.fsencode(tmp_path.resolve()), b"photos", b"caf\xe9 \n.png")
    assert index.paths[-1].is_file()
    assert index.update(FakeEncoder()).unchanged == 4
