"""Arrays, tables, clip-retrieval's folders and features as galleries: what is read, what is refused, what is said."""

from __future__ import annotations

import json
import warnings
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipmend.search import arrays
from clipmend.search.arrays import ArrayGallery, UnnormalisedWarning
from clipmend.search.gallery import Condition, GalleryError, Item
from clipmend.search.opening import open_gallery
from clipmend.search.tables import Numbers, Texts
from clipmend.search.vectors import write_vectors
from search.fakes import FakeEncoder


def unit(count: int, width: int = 8, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(count, width))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


VECTORS = unit(40)


def first(gallery: Any, query: np.ndarray) -> int:
    return int(gallery.nearest(query, 1).ids[0, 0])


# Arrays


def test_rows_of_an_array_are_images() -> None:
    gallery = open_gallery(VECTORS)
    assert len(gallery) == 40
    assert first(gallery, VECTORS[7]) == 7
    assert gallery.items([7]) == [Item(7, "7")]
    assert gallery.find("7") == 7
    assert gallery.fields == {}
    assert gallery.file(Item(7, "7")) is None


def test_unnormalised_rows_are_counted_and_normalised() -> None:
    scaled = VECTORS * np.linspace(0.5, 3, 40)[:, None]
    with pytest.warns(UnnormalisedWarning, match="40 of 40 vectors are not of length 1"):
        gallery = ArrayGallery(scaled)
    plain = ArrayGallery(VECTORS)
    for query in unit(5, seed=1):
        assert gallery.nearest(query, 40).ids.tolist() == plain.nearest(query, 40).ids.tolist()
        np.testing.assert_allclose(gallery.nearest(query, 40).scores, plain.nearest(query, 40).scores, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(gallery.vectors(range(40)), axis=1), 1, atol=1e-6)
    with pytest.warns(UnnormalisedWarning, match="1 of 40"):
        ArrayGallery(np.concatenate([VECTORS[:39], VECTORS[39:] * 2]))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_any_floating_type(dtype: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # half precision is not "not of length 1"
        gallery = ArrayGallery(VECTORS.astype(dtype))
    np.testing.assert_allclose(gallery.nearest(VECTORS[3], 1).scores, 1, atol=1e-3)
    np.testing.assert_allclose(np.linalg.norm(gallery.vectors([1, 2]), axis=1), 1, atol=1e-6)


def test_lengths_that_float32_cannot_square() -> None:
    with pytest.warns(UnnormalisedWarning):
        gallery = ArrayGallery(VECTORS.astype(np.float64) * np.where(np.arange(40) % 2, 1e25, 1e-25)[:, None])
    assert first(gallery, VECTORS[8]) == 8
    assert first(gallery, VECTORS[9]) == 9


@pytest.mark.parametrize("bad", [np.nan, np.inf, 0.0])
def test_rows_that_are_no_vectors_are_named_or_left_out(bad: float) -> None:
    broken = VECTORS.copy()
    broken[[3, 8]] = bad
    with pytest.raises(GalleryError, match=r"2 of 40 rows hold NaN, infinity or nothing but zeros \(row 3, 8\)"):
        ArrayGallery(broken)
    gallery = ArrayGallery(broken, skip_bad=True)
    assert isinstance(gallery, ArrayGallery)
    assert (len(gallery), gallery.skipped) == (38, 2)
    assert first(gallery, VECTORS[9]) == 9  # ids stay where they were
    with pytest.raises(GalleryError, match="no image of the id 8"):
        gallery.items([8])
    assert 3 not in np.concatenate(list(gallery.ids()))
    assert gallery.find("8") is None


def test_nothing_but_bad_rows() -> None:
    with pytest.raises(GalleryError, match="5 of 5 rows"):
        ArrayGallery(np.full((5, 3), np.nan, np.float32))
    assert len(ArrayGallery(np.zeros((5, 3), np.float32), skip_bad=True)) == 0


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones(8, np.float32), r"\[N, D\]"),
        (np.ones((2, 3, 4), np.float32), r"\[N, D\]"),
        (np.ones((2, 0), np.float32), r"\[N, D\]"),
        (np.ones((2, 3), np.int64), "floating-point"),
        ([unit(2, 3), unit(2, 4)], "cannot be one gallery"),
        ([], "no vectors"),
    ],
)
def test_what_is_no_array_of_vectors(array: Any, message: str) -> None:
    with pytest.raises(GalleryError, match=message):
        ArrayGallery(array)


def test_several_parts_are_one() -> None:
    parts = ArrayGallery([VECTORS[:7], VECTORS[7:7], VECTORS[7:30].astype(np.float16), VECTORS[30:]])
    assert [first(parts, VECTORS[row]) for row in (0, 6, 7, 29, 30, 39)] == [0, 6, 7, 29, 30, 39]
    np.testing.assert_allclose(parts.vectors([39, 0, 8]), VECTORS[[39, 0, 8]], atol=1e-3)


def test_chunks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [Item(int(i), f"{i}.jpg", {"n": float(i % 7)}) for i in np.random.default_rng(3).permutation(40)]
    whole = ArrayGallery(VECTORS, items)
    where = [Condition("n", "<=", 3.0)]
    wanted = [whole.nearest(unit(3, seed=2), 12, where=w).ids.tolist() for w in ([], where)]
    monkeypatch.setattr(arrays, "CHUNK", 40)  # five rows
    small = ArrayGallery([VECTORS[:11], VECTORS[11:]], items)
    assert [small.nearest(unit(3, seed=2), 12, where=w).ids.tolist() for w in ([], where)] == wanted


def test_items_must_fit() -> None:
    items = [Item(i, f"{i}") for i in range(40)]
    with pytest.raises(GalleryError, match="40 vectors, and 39 items"):
        ArrayGallery(VECTORS, items[1:])
    with pytest.raises(GalleryError, match="id 3 stands in several"):
        ArrayGallery(VECTORS, [*items[:39], Item(3, "again")])
    with pytest.raises(GalleryError, match="-1"):
        ArrayGallery(VECTORS, [*items[:39], Item(-1, "before")])
    with pytest.raises(GalleryError, match="label"):
        ArrayGallery(VECTORS, [*items[:38], Item(38, "a", {"label": "x"}), Item(39, "b", {"label": 1.0})])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.none() | st.text(st.characters(exclude_categories=[]), max_size=5), max_size=30), st.data())
def test_texts_in_a_buffer_are_the_texts(values: list[str | None], data: st.DataObject) -> None:
    column = Texts(values)
    assert len(column) == len(values)
    low = data.draw(st.integers(0, len(values)))
    assert column.block(low, len(values)).tolist() == values[low:]
    rows = list(range(len(values)))[::-1]
    assert column.take(rows) == values[::-1]


def test_missing_numbers_fulfil_nothing() -> None:
    column = Numbers(np.array([1.0, np.nan, 2.0]))
    assert column.take([0, 1]) == [1.0, None]
    for op in ("=", "!=", "<", "<=", ">", ">="):
        assert not column.holding(Condition("n", op, 1.5))[1]  # type: ignore[arg-type]


# Files


def test_what_encode_writes_as_npy(tmp_path: Path) -> None:
    names = [f"a/{i}.jpg" for i in range(39)] + ["b\udcff.jpg"]
    write_vectors(tmp_path / "p.npy", VECTORS, names)
    with open_gallery(tmp_path / "p.npy", images=tmp_path / "photos") as gallery:
        assert isinstance(gallery._parts[0], np.memmap)  # type: ignore[attr-defined]
        assert [item.path for item in gallery.items([0, 39])] == ["a/0.jpg", "b\udcff.jpg"]
        assert gallery.count([Condition("folder", "under", "a")]) == 39
        assert gallery.count([Condition("name", "like", "1?.JPG")]) == 10
        assert gallery.file(gallery.items([0])[0]) == (tmp_path / "photos/a/0.jpg").resolve()
        assert gallery.find(str(tmp_path / "photos/a/5.jpg")) == 5
        assert gallery.values("folder") == [("a", 39), ("", 1)]
        assert gallery.backbone == ""


def test_a_plain_npy(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", VECTORS)
    assert [item.path for item in open_gallery(str(tmp_path / "v.npy")).items([4])] == ["4"]


def test_a_parquet_beside_a_npy_says_what_the_rows_are(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    np.save(tmp_path / "v.npy", VECTORS)
    table = pyarrow.table({"url": [f"https://x.org/d/{i}.jpg?w=1" for i in range(40)], "price": list(range(40))})
    parquet.write_table(table, tmp_path / "v.parquet")
    gallery = open_gallery(tmp_path / "v.npy")
    (item,) = gallery.items([3])
    assert item == Item(3, "https://x.org/d/3.jpg?w=1", {"price": 3.0, "name": "3.jpg"})
    assert gallery.file(item) is None
    parquet.write_table(table.slice(1), tmp_path / "v.parquet")
    with pytest.raises(GalleryError, match="39 rows, and there are 40 vectors"):
        open_gallery(tmp_path / "v.npy")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('{"row": 0, "id": "a"}\n', "1 lines, and .* 2 vectors"),
        ('{"row": 0, "id": "a"}\n{"row": 2, "id": "b"}\n', "line 2 is of row 2"),
        ('{"row": 0, "id": "a"}\nnonsense\n', "line 2 is no JSON"),
        ('{"row": 0}\n{"row": 1, "id": "b"}\n', "line 1 has no 'id'"),
    ],
)
def test_a_listing_that_does_not_fit(tmp_path: Path, lines: str, message: str) -> None:
    np.save(tmp_path / "v.npy", VECTORS[:2])
    (tmp_path / "v.ids.jsonl").write_text(lines)
    with pytest.raises(GalleryError, match=message):
        open_gallery(tmp_path / "v.npy")


def test_more_in_a_listing_is_kept(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", VECTORS[:3])
    rows = [{"row": 0, "id": "a", "label": "cat"}, {"row": 1, "id": "b"}, {"row": 2, "id": "c", "label": "dog", "n": 1, "x": [1]}]
    (tmp_path / "v.ids.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    gallery = open_gallery(tmp_path / "v.npy")
    assert dict(gallery.fields) == {"label": "text", "n": "number", "folder": "folder", "name": "text"}
    assert gallery.count([Condition("label", "!=", "cat")]) == 1


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x93NUMPY\x01\x00garbage"])
def test_damaged_arrays(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "v.npy").write_bytes(content)
    with pytest.raises(GalleryError, match="damaged"):
        open_gallery(tmp_path / "v.npy")


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(GalleryError):
        open_gallery(tmp_path / "v.npy")


def test_an_archive_of_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "v.npz", a=VECTORS)
    (tmp_path / "v.npz").rename(tmp_path / "v.npy")
    with pytest.raises(GalleryError, match="archive"):
        open_gallery(tmp_path / "v.npy")


def test_what_encode_writes_as_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    write_vectors(tmp_path / "p.parquet", VECTORS, [f"{i}.jpg" for i in range(40)], model="scenes", patch="")
    gallery = open_gallery(tmp_path / "p.parquet")
    assert gallery.backbone == "scenes"
    assert first(gallery, VECTORS[11]) == 11
    assert gallery.items([11])[0].path == "11.jpg"


def table_of(vectors: Any, **columns: Any) -> Any:
    pyarrow = pytest.importorskip("pyarrow")
    return pyarrow.table({"vector": vectors, **columns})


def test_a_table_of_every_type(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    moments = [datetime(2024, 5, 1, 12, tzinfo=timezone.utc), None, datetime(2025, 1, 1, tzinfo=timezone.utc)]
    table = pyarrow.table({
        "id": [30, 10, 20],
        "image_path": ["a/x.jpg", "a/y.jpg", "z.jpg"],
        "sha256": ["0" * 64, None, "f" * 64],
        "emb": pyarrow.array([VECTORS[i].tolist() for i in range(3)], pyarrow.list_(pyarrow.float64())),
        "date": pyarrow.array(moments, pyarrow.timestamp("ms", "UTC")),
        "size": pyarrow.array([10, 20, None], pyarrow.int32()),
        "label": pyarrow.array(["cat", "cat", "dog"]).dictionary_encode(),
        "ok": [True, None, False],
        "tags": [["a"], [], ["b"]],
        "day": pyarrow.array([0, 1, 2], pyarrow.date32()),
        "ünï cöl": [1.5, None, float("nan")],
    })  # fmt: skip
    parquet.write_table(table, tmp_path / "t.parquet", row_group_size=2)
    gallery = open_gallery(tmp_path / "t.parquet")
    assert dict(gallery.fields) == {
        "date": "time", "size": "size", "label": "text", "ok": "text", "day": "time", "ünï cöl": "number", "folder": "folder",
        "name": "text",
    }  # fmt: skip
    assert np.concatenate(list(gallery.ids())).tolist() == [10, 20, 30]
    (item,) = gallery.items([30])
    assert (item.path, item.sha256, item.fields["date"], item.fields["ok"]) == ("a/x.jpg", "0" * 64, 1714564800.0, "true")
    assert dict(gallery.items([20])[0].fields) == {
        "label": "dog", "ok": "false", "date": 1735689600.0, "day": 172800.0, "folder": "", "name": "z.jpg",
    }  # fmt: skip
    assert first(gallery, VECTORS[0]) == 30
    assert gallery.count([Condition("label", "=", "cat"), Condition("size", ">", 15.0)]) == 1
    assert gallery.values("ok") == [("false", 1), ("true", 1)]


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ([[1.0, 0.0], [1.0]], "not all of one length"),
        ([[1.0, 0.0], [1.0], [1.0, 2.0, 3.0]], "not all of one length"),
        ([[1.0, 0.0], None], "row 1 has no vector"),
        (["a", "b"], "no column of vectors"),
        ([[1, 0], [0, 1]], "no column of vectors"),
    ],
)
def test_vectors_of_a_table_that_are_none(tmp_path: Path, vectors: Any, message: str) -> None:
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(table_of(vectors), tmp_path / "t.parquet")
    with pytest.raises(GalleryError, match=message):
        open_gallery(tmp_path / "t.parquet")


def test_the_column_of_vectors_is_chosen(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    one, two = VECTORS[:5].tolist(), VECTORS[5:10].tolist()
    parquet.write_table(pyarrow.table({"left": one, "right": two}), tmp_path / "t.parquet")
    with pytest.raises(GalleryError, match=r"several columns of vectors \(left, right\)"):
        open_gallery(tmp_path / "t.parquet")
    with pytest.raises(GalleryError, match="no column 'middle'"):
        open_gallery(tmp_path / "t.parquet", vector_column="middle")
    assert first(open_gallery(tmp_path / "t.parquet", vector_column="right"), VECTORS[7]) == 2


def test_large_tables_lie_in_a_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    from clipmend.search import vector_tables

    monkeypatch.setattr(vector_tables, "IN_MEMORY", 100)
    write_vectors(tmp_path / "p.parquet", VECTORS, [str(i) for i in range(40)])
    gallery = open_gallery(tmp_path / "p.parquet")
    assert isinstance(gallery._parts[0], np.memmap)  # type: ignore[attr-defined]
    assert first(gallery, VECTORS[11]) == 11


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1 nonsense PAR1"])
def test_damaged_tables(tmp_path: Path, content: bytes) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "t.parquet").write_bytes(content)
    with pytest.raises(GalleryError, match=r"t\.parquet cannot be read as Parquet"):
        open_gallery(tmp_path / "t.parquet")


def test_a_truncated_table(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "t.parquet"
    write_vectors(path, VECTORS, [str(i) for i in range(40)])
    data = path.read_bytes()
    for cut in (10, len(data) // 2, len(data) - 3):
        path.write_bytes(data[:cut])
        with pytest.raises(GalleryError):
            open_gallery(path)


# clip-retrieval


def clip_retrieval(folder: Path, counts: tuple[int, ...] = (15, 25), digits: int = 1) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    (folder / "img_emb").mkdir(parents=True)
    (folder / "metadata").mkdir()
    start = 0
    for number, count in enumerate(counts):
        text = str(number).zfill(digits)
        np.save(folder / f"img_emb/img_emb_{text}.npy", VECTORS[start : start + count].astype(np.float16))
        paths = [f"/data/photos/{i:03d}.jpg" for i in range(start, start + count)]
        columns: dict[str, Any] = {"image_path": paths, "caption": [f"number {i}" for i in range(start, start + count)]}
        if number == 1:
            columns["width"] = [640] * count
        parquet.write_table(pyarrow.table(columns), folder / f"metadata/metadata_{text}.parquet")
        start += count
    return folder


def test_a_folder_of_clip_retrieval(tmp_path: Path) -> None:
    folder = clip_retrieval(tmp_path / "embeddings", digits=3)
    gallery = open_gallery(folder, images="/data/photos")
    assert (len(gallery), gallery.embed_dim) == (40, 8)
    assert [first(gallery, VECTORS[row]) for row in (0, 14, 15, 39)] == [0, 14, 15, 39]
    (item,) = gallery.items([15])
    assert item.path == "/data/photos/015.jpg"
    assert dict(item.fields) == {"caption": "number 15", "width": 640.0, "folder": "data/photos", "name": "015.jpg"}
    assert "width" not in gallery.items([3])[0].fields
    assert gallery.file(item) == Path("/data/photos/015.jpg")
    assert open_gallery(folder).file(item) is None  # no folder of images: no file is handed out
    assert open_gallery(folder / "img_emb").find("/data/photos/020.jpg") == 20
    assert gallery.count([Condition("caption", "like", "number 1*")]) == 11


def test_parts_are_taken_by_number(tmp_path: Path) -> None:
    folder = clip_retrieval(tmp_path / "e", counts=(3,) * 11)
    assert [first(open_gallery(folder), VECTORS[row]) for row in (4, 7, 31, 32)] == [4, 7, 31, 32]  # 10 after 9, not after 1


def test_embeddings_without_metadata(tmp_path: Path) -> None:
    (tmp_path / "img_emb").mkdir()
    np.save(tmp_path / "img_emb/img_emb_0.npy", VECTORS)
    assert first(open_gallery(tmp_path), VECTORS[3]) == 3


def test_clip_retrieval_folders_that_are_broken(tmp_path: Path) -> None:
    folder = clip_retrieval(tmp_path / "e", counts=(10, 10, 10))
    np.save(folder / "img_emb/img_emb_1.npy", VECTORS[:9])
    with pytest.raises(GalleryError, match=r"metadata_1.parquet has 10 rows, and img_emb_1.npy 9 vectors"):
        open_gallery(folder)
    (folder / "img_emb/img_emb_1.npy").unlink()
    with pytest.raises(GalleryError, match="part 1 of 3 is missing"):
        open_gallery(folder)
    (folder / "metadata/metadata_0.parquet").unlink()
    np.save(folder / "img_emb/img_emb_1.npy", VECTORS[:10])
    with pytest.raises(FileNotFoundError, match="metadata_0"):
        open_gallery(folder)


def test_an_index_of_faiss_leads_to_the_embeddings(tmp_path: Path) -> None:
    (tmp_path / "image.index").write_bytes(b"IxFI")
    with pytest.raises(GalleryError, match="folder of embeddings"):
        open_gallery(tmp_path)


# Features


def test_a_folder_of_features(tmp_path: Path) -> None:
    from PIL import Image

    from clipmend.features import make_features

    encoder = FakeEncoder()
    for name, colour in (("red", (255, 0, 0)), ("green", (0, 255, 0)), ("blue", (0, 0, 255))):
        Image.new("RGB", (8, 8), colour).save(tmp_path / f"{name}.png")
    (tmp_path / "broken.png").write_bytes(b"no image")
    make_features(encoder, str(tmp_path), tmp_path / "work", texts=False)
    gallery = open_gallery(tmp_path / "work", images=tmp_path, model=encoder)
    assert (len(gallery), gallery.backbone, gallery.image_digest) == (3, "fake", "image-side")
    for name in ("red", "green", "blue"):
        (item,) = gallery.items(gallery.nearest(encoder.encode_texts([name]), 1).ids[0])
        assert item.path == f"{name}.png"
        assert gallery.file(item) == (tmp_path / f"{name}.png").resolve()
        assert len(item.sha256) == 64
    with pytest.raises(GalleryError, match="cannot be compared"):
        open_gallery(tmp_path / "work", model=FakeEncoder(image="other"))
    next((tmp_path / "work/features/images").glob("unit-*/embedding.npy")).unlink()
    with pytest.raises(GalleryError, match="missing"):
        open_gallery(tmp_path / "work")


# Which encoder, which kind


def test_the_encoder_where_the_gallery_does_not_say(tmp_path: Path) -> None:
    encoder = FakeEncoder()
    gallery = open_gallery(VECTORS, model=encoder)
    assert (gallery.backbone, gallery.image_digest) == ("fake", "image-side")
    with pytest.raises(GalleryError, match="dimensions"):
        open_gallery(unit(3, 5), model=encoder)
    assert open_gallery(VECTORS, model="scenes").backbone == "scenes"
    with pytest.raises(GalleryError, match="made by 'fake', not by 'scenes'"):
        open_gallery(gallery, model="scenes")
    assert open_gallery(gallery) is gallery


def test_what_is_not_there_and_what_is_nothing_of_the_kind(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.npy"):
        open_gallery(tmp_path / "none.npy")
    with pytest.raises(FileNotFoundError, match=r"none\.parquet"):
        open_gallery(tmp_path / "none.parquet")
    with pytest.raises(FileNotFoundError, match="none"):
        open_gallery(tmp_path / "none")
    (tmp_path / "text.txt").write_text("x")
    with pytest.raises(GalleryError, match="clip-retrieval"):
        open_gallery(tmp_path / "text.txt")
    with pytest.raises(GalleryError):
        open_gallery(tmp_path)
    np.save(tmp_path / "v.npy", VECTORS)
    with pytest.raises(TypeError, match="vector_column"):
        open_gallery(tmp_path / "v.npy", vector_column="x")


# Files of images


@pytest.mark.parametrize("path", ["../secret.jpg", "/etc/passwd", "link/secret.jpg", "a\0b.jpg", "", ".", "https://x.org/a.jpg"])
def test_no_file_outside_the_root_is_handed_out(tmp_path: Path, path: str) -> None:
    (tmp_path / "secret.jpg").write_bytes(b"")
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path)
    (root / "in.jpg").write_bytes(b"")
    gallery = ArrayGallery(VECTORS[:2], [Item(0, path), Item(1, "in.jpg")], images=root)
    assert gallery.file(gallery.items([0])[0]) is None
    assert gallery.file(gallery.items([1])[0]) == (root / "in.jpg").resolve()


# Types and extras


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
@pytest.mark.parametrize("fixed", [True, False])
def test_vectors_of_any_type_in_a_table(tmp_path: Path, kind: str, fixed: bool) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    flat = pyarrow.array(VECTORS.reshape(-1).astype(kind))
    if fixed:
        column = pyarrow.FixedSizeListArray.from_arrays(flat, 8)
    else:
        column = pyarrow.LargeListArray.from_arrays(np.arange(0, 321, 8), flat)
    parquet.write_table(pyarrow.table({"v": column}), tmp_path / "t.parquet")
    gallery = open_gallery(tmp_path / "t.parquet")
    assert [first(gallery, VECTORS[row]) for row in (0, 17, 39)] == [0, 17, 39]


def test_without_the_extras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    ours = ("clipmend.search.qdrant", "clipmend.search.qdrant_points")  # which fail to import, and so leave nothing behind
    for name in [name for name in sys.modules if name.split(".")[0] == "pyarrow" or name in ours]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("pyarrow", "qdrant_client"):
        monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    with pytest.raises(ImportError, match=r"pip install 'clipmend\[parquet\]'"):
        open_gallery(tmp_path / "t.parquet")
    with pytest.raises(ImportError, match=r"pip install 'clipmend\[qdrant\]'"):
        open_gallery(f"qdrant:{tmp_path}/c")
