"""What an index knows beside vectors: ids, fields, folders, conditions; and what can be added to it and taken from it."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import ExifTags, Image

from clipmend.search import ImageIndex, ImageIndexError, build_index
from clipmend.search.conditions import fulfils
from clipmend.search.gallery import Condition, GalleryError, Item
from search.fakes import DIM, FakeEncoder, colour_folder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    colour_folder(tmp_path / "photos")
    return tmp_path / "photos"


def ids_of(index: ImageIndex) -> dict[str, int]:
    return {entry.path: entry.id for entry in index.entries}


def test_ids_are_kept_when_images_come_go_and_move(tmp_path: Path, photos: Path) -> None:
    index = ImageIndex.build(FakeEncoder(), photos, tmp_path / "index")
    before = ids_of(index)
    assert sorted(before.values()) == list(range(20))
    (photos / "a" / "000.png").unlink()
    (photos / "a" / "003.png").rename(photos / "moved.png")
    colour_folder(photos / "0 first", 3, seed=9)
    index.update(FakeEncoder())
    after = ids_of(index)
    assert after["moved.png"] == before["a/003.png"]
    assert {name: after[name] for name in before.keys() & after.keys()} == {n: before[n] for n in before.keys() & after.keys()}
    assert sorted(set(after.values()) - set(before.values())) == [20, 21, 22]  # an id is never given again
    Image.new("RGB", (6, 5), (1, 2, 3)).save(photos / "b" / "001.png")  # changed in place: the same image, with another vector
    index.update(FakeEncoder())
    assert ids_of(index)["b/001.png"] == before["b/001.png"]


def test_an_image_that_went_and_is_back_is_the_same_one(tmp_path: Path, photos: Path) -> None:
    index = ImageIndex.build(FakeEncoder(), photos, tmp_path / "index")
    before = ids_of(index)
    (photos / "a" / "000.png").rename(tmp_path / "away.png")
    assert index.update(FakeEncoder()).removed == 1
    (tmp_path / "away.png").rename(photos / "a" / "000.png")
    encoder = FakeEncoder()
    assert index.update(encoder).added == 1
    assert encoder.embedded == 0
    assert ids_of(index) == before


def test_the_fields_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "photos" / "2024" / "sea").mkdir(parents=True)
    picture = Image.new("RGB", (30, 20), "blue")
    exif = picture.getexif()
    exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = "2021:05:06 07:08:09"
    exif[ExifTags.Base.Orientation] = 6
    picture.save(tmp_path / "photos" / "2024" / "sea" / "a b.jpg", exif=exif)
    Image.new("RGB", (4, 7), "red").save(tmp_path / "photos" / "top.png")
    os.utime(tmp_path / "photos" / "top.png", (1_000_000_000, 1_000_000_000))
    index = ImageIndex.build(FakeEncoder(), tmp_path / "photos", tmp_path / "index")
    sea, top = index.items([index.find("2024/sea/a b.jpg"), index.find("top.png")])  # type: ignore[list-item]
    assert sea.fields == {
        "folder": "2024/sea",
        "name": "a b.jpg",
        "date": datetime(2021, 5, 6, 7, 8, 9).timestamp(),
        "size": (tmp_path / "photos" / "2024" / "sea" / "a b.jpg").stat().st_size,
        "width": 20,  # upright
        "height": 30,
    }
    assert (top.fields["folder"], top.fields["date"], top.fields["width"]) == ("", 1_000_000_000, 4)
    assert len(top.sha256) == 64
    assert index.values("folder") == [("", 1), ("2024/sea", 1)]


@pytest.mark.parametrize("told", ["", "0000:00:00 00:00:00", "yesterday", "2021:13:45 99:00:00"])
def test_a_date_that_is_none_is_the_files_own(tmp_path: Path, told: str) -> None:
    (tmp_path / "photos").mkdir()
    picture = Image.new("RGB", (8, 8), "blue")
    exif = picture.getexif()
    exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = told
    picture.save(tmp_path / "photos" / "a.jpg", exif=exif)
    os.utime(tmp_path / "photos" / "a.jpg", (5e8, 5e8))
    index = ImageIndex.build(FakeEncoder(), tmp_path / "photos", tmp_path / "index")
    assert index.items([0])[0].fields["date"] == 5e8


# ---- several folders ----------------------------------------------------------------------------------------------------------


def test_several_folders_and_one_again(tmp_path: Path, photos: Path) -> None:
    colour_folder(tmp_path / "deep" / "photos", 6, seed=3)  # of the same name
    colour_folder(tmp_path / "scans", 6, seed=4)
    index = ImageIndex.build(FakeEncoder(), photos, tmp_path / "index")
    before = ids_of(index)
    encoder = FakeEncoder()
    report = index.update(encoder, [photos, tmp_path / "deep" / "photos", tmp_path / "scans"])
    assert (report.embedded, report.added, report.unchanged, report.count) == (12, 12, 20, 32)
    assert list(index.roots) == ["photos", "photos 2", "scans"]
    after = ids_of(index)
    assert {f"photos/{name}": id_ for name, id_ in before.items()}.items() <= after.items()
    assert index.root == tmp_path.resolve()
    for item in index.items(list(after.values())):
        assert index.file(item).is_file()  # type: ignore[union-attr]
        assert item.fields["folder"] == item.path.rpartition("/")[0]
        assert index.find(str(index.file(item))) == item.id
    assert all(path.is_file() for path in index.paths)
    assert index.count([Condition("folder", "under", "scans")]) == 6
    assert index.update(FakeEncoder()).unchanged == 32
    report = index.update(FakeEncoder(), photos)  # the others are no longer of it
    assert (report.removed, report.unchanged) == (12, 20)
    assert ids_of(index) == before
    assert set(index.roots) == {"photos"}


def test_a_file_that_moves_from_one_folder_to_another(tmp_path: Path, photos: Path) -> None:
    colour_folder(tmp_path / "scans", 6, seed=4)
    index = ImageIndex.build(FakeEncoder(), [photos, tmp_path / "scans"], tmp_path / "index")
    id_ = index.find("photos/a/000.png")
    (photos / "a" / "000.png").rename(tmp_path / "scans" / "new.png")
    assert index.update(FakeEncoder()).moved == 1
    assert index.find("scans/new.png") == id_


def test_folders_that_cannot_be(tmp_path: Path, photos: Path) -> None:
    with pytest.raises(ValueError, match="lies inside"):
        build_index(FakeEncoder(), [photos, photos / "a"], tmp_path / "index")
    with pytest.raises(FileNotFoundError, match="no such folder"):
        build_index(FakeEncoder(), [photos, tmp_path / "nowhere"], tmp_path / "index")
    with pytest.raises(ValueError, match="no folder"):
        build_index(FakeEncoder(), [], tmp_path / "index")
    assert not (tmp_path / "index").exists()
    assert ImageIndex.build(FakeEncoder(), [photos, photos], tmp_path / "index").count() == 20


# ---- conditions ---------------------------------------------------------------------------------------------------------------

WORDS = ["", "a", "a/b", "A", "ab", "ä", "Ä b", "a%_", "x*y", "straße", "STRASSE", "0"]


@pytest.fixture(scope="module")
def varied(tmp_path_factory: pytest.TempPathFactory) -> ImageIndex:
    index = ImageIndex.create(
        tmp_path_factory.mktemp("varied") / "index",
        backbone="x",
        image_digest="d",
        embed_dim=DIM,
        fields={"taken": "time", "shelf": "folder"},
    )
    rng = np.random.default_rng(0)
    items = []
    for i in range(80):
        fields: dict[str, str | float] = {"folder": WORDS[i % len(WORDS)], "name": WORDS[(i * 5) % len(WORDS)]}
        if i % 3:
            fields |= {"label": WORDS[i % 7], "stars": float(i % 5), "taken": float(i), "size": i}
        if i % 4:
            fields["shelf"] = WORDS[(i * 3) % len(WORDS)]
        items.append(Item(1000 + i * 3, f"p{(i * 37) % 80:02d}", fields, ""))
    index.add(items, rng.normal(size=(80, DIM)))
    return index


CONDITIONS = st.one_of(
    st.builds(
        Condition,
        st.sampled_from(["name", "label"]),
        st.sampled_from(["=", "!=", "like"]),
        st.sampled_from([*WORDS, "*", "?", "a*"]),
    ),
    st.builds(
        Condition, st.sampled_from(["folder", "shelf"]), st.sampled_from(["=", "!=", "under", "like"]), st.sampled_from(WORDS)
    ),
    st.builds(
        Condition,
        st.sampled_from(["stars", "taken", "size", "width"]),
        st.sampled_from(["=", "!=", "<", "<=", ">", ">="]),
        st.sampled_from([0.0, 1.0, 2.5, 40.0, -1.0]),
    ),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(where=st.lists(CONDITIONS, max_size=3), k=st.integers(1, 90), seed=st.integers(0, 99))
def test_conditions_hold_as_the_plain_rule_says(varied: ImageIndex, where: list[Condition], k: int, seed: int) -> None:
    everything = [id_ for block in varied.ids() for id_ in block]
    assert everything == sorted(everything)
    items = varied.items(everything)
    expected = [item.id for item in items if fulfils(item.fields, where)]
    assert [int(i) for block in varied.ids(where, block=7) for i in block] == expected
    assert varied.count(where) == len(expected)
    query = np.random.default_rng(seed).normal(size=DIM)
    found = varied.nearest(query, k, where=where)
    cosines = varied.vectors(expected) @ (query / np.linalg.norm(query)) if expected else np.empty(0)
    order = np.argsort(-cosines, kind="stable")[:k]
    assert found.exact
    assert found.ids.shape == (1, len(order))
    assert np.allclose(found.scores[0], cosines[order], atol=1e-6)
    assert set(found.ids[0]) == {expected[i] for i in order}


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (Condition("colour", "=", "red"), "no field 'colour'"),
        (Condition("name", "<", "red"), "does not fit"),
        (Condition("name", "=", 3.0), "no value of it"),
        (Condition("stars", "like", "3"), "does not fit"),
        (Condition("stars", "=", float("nan")), "no number"),
    ],
)
def test_conditions_that_cannot_be_asked(varied: ImageIndex, condition: Condition, message: str) -> None:
    for ask in (
        lambda: varied.count([condition]),
        lambda: varied.nearest(np.ones(DIM), 3, where=[condition]),
        lambda: list(varied.ids([condition])),
    ):
        with pytest.raises(ImageIndexError, match=message):
            ask()


def test_values_are_counted(varied: ImageIndex) -> None:
    told = dict(varied.values("label"))
    assert sum(told.values()) == sum(1 for i in range(80) if i % 3)
    assert len(varied.values("label", limit=2)) == 2
    with pytest.raises(ImageIndexError, match="no field 'stars' of texts"):
        varied.values("stars")


def test_names_of_any_bytes_are_found_and_filtered(tmp_path: Path) -> None:
    colour_folder(tmp_path / "photos", 3)
    raw = os.path.join(os.fsencode(tmp_path), b"photos", b"caf\xe9.png")
    try:
        shutil.copy(tmp_path / "photos" / "a" / "000.png", raw)
    except OSError:
        pytest.skip("the file system refuses such names")
    colour_folder(tmp_path / "more", 3, seed=8)
    index = ImageIndex.build(FakeEncoder(), [tmp_path / "photos", tmp_path / "more"], tmp_path / "index")
    name = os.fsdecode(b"caf\xe9.png")
    id_ = index.find(f"photos/{name}")
    assert id_ is not None
    assert index.find(os.fsdecode(raw)) == id_
    assert [list(block) for block in index.ids([Condition("name", "=", name)])] == [[id_]]
    assert [list(block) for block in index.ids([Condition("name", "like", "CAF*")])] == [[id_]]
    assert index.find("\ud800") is None
    assert index.find("nothing\0") is None
    index.update(FakeEncoder(), tmp_path / "photos")
    assert index.find(name) == id_


# ---- adding and removing ------------------------------------------------------------------------------------------------------


def empty(directory: Path, **options: object) -> ImageIndex:
    return ImageIndex.create(directory, backbone="fake", image_digest="image-side", embed_dim=DIM, **options)  # type: ignore[arg-type]


def test_added_is_there_replaced_and_removed(tmp_path: Path) -> None:
    index = empty(tmp_path / "index")
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(5, DIM)).astype(np.float32) * 7
    items = [Item(10 + i, f"http://x/{i}.jpg", {"name": f"{i}.jpg", "width": 5.0, "label": "cat"}, "ab" * 32) for i in range(5)]
    index.add(items, vectors)
    assert len(index) == 5
    assert index.items([12, 10]) == [items[2], items[0]]
    assert index.fields["label"] == "text"
    assert np.allclose(index.vectors([12]), vectors[2] / np.linalg.norm(vectors[2]), atol=1e-6)
    assert index.file(items[0]) is None
    index.add([Item(12, "new", {"label": "dog"})], vectors[:1])
    assert (len(index), index.items([12])[0].path) == (5, "new")
    assert np.allclose(index.vectors([12]), index.vectors([10]))
    assert index.remove([10, 11, 99, 10]) == 2
    assert len(index) == 3
    assert index.find("http://x/0.jpg") is None
    index.close()
    again = ImageIndex.open(tmp_path / "index", verify=True)
    assert [list(block) for block in again.ids()] == [[12, 13, 14]]
    with pytest.raises(ImageIndexError, match="no image 10"):
        again.vectors([12, 10])
    with pytest.raises(ImageIndexError, match="no image 99"):
        again.items([99])


def test_nothing_is_added_where_something_is_wrong(tmp_path: Path) -> None:
    index = empty(tmp_path / "index")
    good = Item(1, "a", {})
    one = np.ones((1, DIM))
    cases: list[tuple[list[Item], np.ndarray, str]] = [
        ([good], np.ones((1, DIM + 1)), "vectors must be"),
        ([good], one * np.nan, "not finite"),
        ([good], one * 0, "zero"),
        ([good, Item(1, "b", {})], np.ones((2, DIM)), "twice"),
        ([Item(-1, "a", {})], one, "0 or more"),
        ([Item(1, "a", {"width": "wide"})], one, "no value of it"),
        ([Item(1, "a", {"x": "t"}), Item(2, "b", {"x": 3.0})], np.ones((2, DIM)), "no value of it"),
        ([Item(1, "a", {}, "not hex")], one, "cannot be stored"),
        ([Item(1, "\ud800", {})], one, "cannot be stored"),
    ]
    for items, vectors, message in cases:
        with pytest.raises(ValueError, match=message):
            index.add(items, vectors)
    assert len(index) == 0
    assert not list((tmp_path / "index").glob("*.npy"))
    index.add([], np.empty((0, DIM)))


def test_many_additions_stay_few_files_and_dead_rows_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clipmend.search.writer.MOST_SHARDS", 3)
    monkeypatch.setattr("clipmend.search.maintain.LEAST_DEAD", 5)
    index = empty(tmp_path / "index")
    rng = np.random.default_rng(2)
    for i in range(10):
        index.add([Item(i, f"{i}", {"n": float(i)})], rng.normal(size=(1, DIM)))
    before = index.vectors(range(10))
    index.optimise()
    assert len(list((tmp_path / "index").glob("*.npy"))) == 1
    assert np.array_equal(index.vectors(range(10)), before)
    index.remove(range(8))
    index.optimise()
    assert np.array_equal(index.vectors([8, 9]), before[8:])
    assert index.items([9])[0].fields == {"n": 9.0}
    assert sum(len(np.load(path)) for path in (tmp_path / "index").glob("*.npy")) == 2
    ImageIndex.open(tmp_path / "index", verify=True)


def test_create_opens_its_own_and_refuses_others(tmp_path: Path, photos: Path) -> None:
    empty(tmp_path / "index").add([Item(0, "a", {})], np.ones((1, DIM)))
    assert len(empty(tmp_path / "index")) == 1
    with pytest.raises(ImageIndexError, match="choose another folder"):
        ImageIndex.create(tmp_path / "index", backbone="y", image_digest="other", embed_dim=DIM)
    with pytest.raises(ImageIndexError, match="not an image index"):
        empty(photos)
    index = ImageIndex.build(FakeEncoder(), photos, tmp_path / "index")  # files and what was added live beside each other
    assert len(index) == 21
    assert index.update(FakeEncoder()).unchanged == 20
    assert len(index) == 21


def test_an_edit_waits_for_no_one(tmp_path: Path, photos: Path) -> None:
    index = ImageIndex.build(FakeEncoder(), photos, tmp_path / "index")
    colour_folder(photos, 22)

    def interfere(_: int) -> None:
        with pytest.raises(ImageIndexError, match="being written by another process"):
            index.add([Item(99, "a", {})], np.ones((1, DIM)))

    build_index(FakeEncoder(before_batch=interfere), photos, tmp_path / "index")
    assert len(index) == 20  # a snapshot still
    index.add([Item(99, "a", {})], np.ones((1, DIM)))
    assert len(index) == 23  # after an edit of one's own: all that there is


def test_threads_share_an_index(tmp_path: Path, photos: Path) -> None:
    index = ImageIndex.build(FakeEncoder(), photos, tmp_path / "index")
    stop, errors, answers = time.monotonic() + 2, list[BaseException](), list[int]()

    def ask(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            while time.monotonic() < stop:
                found = index.nearest(rng.normal(size=DIM), 5, where=[Condition("name", "like", f"*{rng.integers(9)}.png")])
                answers.append(len(index.items(found.ids[0])))
                ImageIndex.open(tmp_path / "index").close()
        except BaseException as error:
            errors.append(error)

    def write() -> None:
        try:
            number = 1000
            while time.monotonic() < stop:
                with ImageIndex.open(tmp_path / "index") as other:
                    other.add([Item(number, f"x{number}", {})], np.ones((1, DIM)))
                    other.remove([number])
                number += 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)] + [threading.Thread(target=write)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert len(answers) > 10


def test_closed_is_closed(tmp_path: Path, photos: Path) -> None:
    with ImageIndex.build(FakeEncoder(), photos, tmp_path / "index") as index:
        assert index.count() == 20
    with pytest.raises(ImageIndexError, match="closed"):
        index.items([0])


# ---- imported columns ---------------------------------------------------------------------------------------------------------


def test_columns_from_every_kind_of_table(tmp_path: Path, photos: Path) -> None:
    index = ImageIndex.build(FakeEncoder(), photos, tmp_path / "index")
    (tmp_path / "labels.csv").write_text("path,label,stars\na/000.png,cat,5\nb/001.png,dog,\nnowhere.png,cat,1\n")
    report = index.import_columns(tmp_path / "labels.csv")
    assert (report.rows, report.matched, report.first_unmatched) == (3, 2, "nowhere.png")
    assert report.fields == {"label": "text", "stars": "number"}
    assert "2 of 3 rows" in str(report)
    assert index.count([Condition("label", "=", "cat")]) == 1
    assert index.count([Condition("stars", ">=", 1.0)]) == 1
    (tmp_path / "more.tsv").write_text(f"file\tlabel\n{photos / 'b' / '001.png'}\tfox\n")  # by the file itself
    index.import_columns(tmp_path / "more.tsv", key="file")
    assert index.count([Condition("label", "=", "fox")]) == 1
    (tmp_path / "j.jsonl").write_text(json.dumps({"path": "a/000.png", "checked": "yes"}) + "\n")
    index.import_columns(tmp_path / "j.jsonl")
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"path": ["a/000.png"], "when": [pandas.Timestamp("2024-01-02", tz="UTC")], "n": [float("nan")]})
    frame.assign(m=1.5).to_parquet(tmp_path / "p.parquet")
    index.import_columns(tmp_path / "p.parquet")
    item = index.items([index.find("a/000.png")])[0]  # type: ignore[list-item]
    assert item.fields["label"] == "cat"
    assert item.fields["stars"] == 5
    assert item.fields["checked"] == "yes"
    assert item.fields["when"] == datetime.fromisoformat("2024-01-02T00:00:00+00:00").timestamp()
    assert item.fields["m"] == 1.5
    assert "n" not in item.fields
    (photos / "a" / "000.png").rename(photos / "moved.png")  # what is known of an image moves with it
    index.update(FakeEncoder())
    assert index.items([index.find("moved.png")])[0].fields["label"] == "cat"  # type: ignore[list-item]


def test_columns_of_an_index_just_added_to(tmp_path: Path) -> None:
    index = empty(tmp_path / "index")
    index.add([Item(0, "a", {})], np.ones((1, DIM)))
    (tmp_path / "labels.csv").write_text("path,label\na,cat\n")
    assert index.import_columns(tmp_path / "labels.csv").matched == 1


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.csv", "file,label\na,b\n", "no column 'path'"),
        ("x.csv", "path,width\na/000.png,3\n", "a field 'width' already"),
        ("x.csv", "path\na/000.png\n", "no column with values"),
        ("x.csv", "path,label\nzzz,3\n", "no row names an image"),
        ("x.csv", "path,label\na/000.png\n", "x.csv"),
        ("x.jsonl", '{"path": "a/000.png", "label": [1]}\n', "not a text or a number"),
        ("x.jsonl", "{\n", "x.jsonl"),
        ("x.parquet", "nonsense", "broken Parquet"),
        ("x.txt", "a", "columns are read from"),
    ],
)
def test_tables_that_cannot_be_imported(tmp_path: Path, photos: Path, name: str, text: str, message: str) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    index = ImageIndex.build(FakeEncoder(), photos, tmp_path / "index")
    (tmp_path / name).write_text(text)
    with pytest.raises((GalleryError, ValueError), match=message):
        index.import_columns(tmp_path / name)
    assert set(index.fields) == {"folder", "name", "date", "size", "width", "height"}


def test_a_field_keeps_its_type(tmp_path: Path, photos: Path) -> None:
    index = ImageIndex.build(FakeEncoder(), photos, tmp_path / "index")
    (tmp_path / "a.csv").write_text("path,label\na/000.png,3\n")
    index.import_columns(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("path,label\na/000.png,three\n")
    with pytest.raises(ImageIndexError, match="is a number field already"):
        index.import_columns(tmp_path / "b.csv")
    assert index.items([index.find("a/000.png")])[0].fields["label"] == 3  # type: ignore[list-item]
