"""Columns of tables that are not what they seem, and images that were added under a file's path."""

from __future__ import annotations

import os
import shutil
import time
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clipmend.search import ImageIndex
from clipmend.search.conditions import parse_time
from clipmend.search.gallery import Condition, Item
from clipmend.search.grammar import parse_query
from clipmend.search.opening import open_gallery
from clipmend.search.vector_tables import columns_of_table
from search.fakes import DIM, FakeEncoder, colour_folder


@pytest.fixture
def index(tmp_path: Path) -> ImageIndex:
    colour_folder(tmp_path / "photos", 6)
    return ImageIndex.build(FakeEncoder(), tmp_path / "photos", tmp_path / "index")


@pytest.mark.parametrize(
    ("first", "second"),
    [("00501", "501"), ("12345678901234567890", "12345678901234567891"), ("1" + "0" * 400, "2"), ("1_000", "1000")],
)
def test_codes_are_texts_and_not_taken_for_their_neighbours(index: ImageIndex, tmp_path: Path, first: str, second: str) -> None:
    table = tmp_path / "codes.csv"
    table.write_text(f"path,code\na/000.png,{first}\na/003.png,{second}\n")
    assert index.import_columns(table).fields == {"code": "text"}
    assert index.count([Condition("code", "=", first)]) == 1
    assert [item.fields["code"] for item in index.items([0, 1])] == [first, second]


@pytest.mark.parametrize("values", ["1,2", "-1.5,+2e3", "0,.5", "0.25,9007199254740992"])
def test_numbers_are_numbers(index: ImageIndex, tmp_path: Path, values: str) -> None:
    first, second = values.split(",")
    (tmp_path / "numbers.csv").write_text(f"path,n\na/000.png,{first}\na/003.png,{second}\n")
    assert index.import_columns(tmp_path / "numbers.csv").fields == {"n": "number"}
    assert [item.fields["n"] for item in index.items([0, 1])] == [float(first), float(second)]


def test_odd_values_of_json(index: ImageIndex, tmp_path: Path) -> None:
    table = tmp_path / "odd.jsonl"
    row = f'{{"path": "a/000.png", "flag": true, "huge": 1{"0" * 400}, "half": "\\ud800!", "exact": {2**60 + 1}}}\n'
    table.write_text(row + '{"path": "a/003.png", "flag": false, "huge": null}\n')
    assert set(index.import_columns(table).fields.values()) == {"text"}
    assert index.count(parse_query("flag:true", index.fields).where) == 1
    fields = index.items([0])[0].fields
    assert (fields["huge"], fields["half"], fields["exact"]) == ("1" + "0" * 400, "?!", str(2**60 + 1))


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="the zone of a process cannot be set here")
@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Tokyo"])
def test_times_without_a_zone_are_local_in_every_store(
    index: ImageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        nanoseconds = 1_714_564_800_000_000_001  # 2024-05-01T12:00Z and a bit, as pandas keeps times of files
        table = pyarrow.table(
            {
                "path": ["a/000.png", "a/003.png"],
                "day": pyarrow.array([date(2024, 5, 1), None]),
                "moment": pyarrow.array([datetime(2024, 5, 1, 23, 30), None]),
                "zoned": pyarrow.array([nanoseconds, None], pyarrow.timestamp("ns", "Europe/Berlin")),
                "naive": pyarrow.array([nanoseconds, None], pyarrow.timestamp("ns")),
            }
        )
        parquet.write_table(table, tmp_path / "times.parquet")
        index.import_columns(tmp_path / "times.parquet")
        columns = columns_of_table(table)
        imported = index.items([0])[0].fields
        for name in ("day", "moment", "naive", "zoned"):
            assert columns[name].take([0, 1]) == [pytest.approx(imported[name], abs=1e-5), None]
            if name != "zoned":
                where = parse_query(f"{name}:2024-05-01", index.fields).where
                assert index.count(where) == 1
                assert np.logical_and.reduce([columns[name].holding(condition) for condition in where]).tolist() == [True, False]
        assert imported["zoned"] == pytest.approx(nanoseconds / 1e9)
        assert parse_time("9999")[1] > parse_time("9999-12-31")[0] > parse_time("9998")[1]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_an_image_added_under_the_path_of_a_file_stays_itself(index: ImageIndex, tmp_path: Path) -> None:
    """Whoever adds vectors may name them as they like; the file of that path is another image, or, where alone, that one."""
    vector = np.ones((1, DIM), np.float32)
    index.add([Item(100, "a/000.png"), Item(101, "b/new.png")], np.repeat(vector, 2, 0))
    os.utime(tmp_path / "photos" / "a" / "000.png", (1_000_000_000, 1_000_000_000))
    index.update(FakeEncoder())
    np.testing.assert_allclose(index.vectors([100]), vector / np.sqrt(DIM), atol=1e-6)
    (tmp_path / "photos" / "a" / "000.png").rename(tmp_path / "photos" / "b" / "new.png")
    index.update(FakeEncoder())
    assert [entry.id for entry in index.entries if entry.path == "a/000.png"] == [100]
    assert [entry.id for entry in index.entries if entry.path == "b/new.png"] == [101]
    assert len(index) == 7


def test_infinity_and_endless_numbers_beside_an_array(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.eye(2, dtype=np.float32))
    rows = [f'{{"id": "a", "far": 1e999, "long": 1{"0" * 400}}}', '{"id": "b", "far": 2.5, "long": null}']
    (tmp_path / "x.ids.jsonl").write_text("\n".join(rows) + "\n")
    gallery = open_gallery(tmp_path / "x.npy")
    first, second = gallery.items([0, 1])
    assert "far" not in first.fields
    assert (first.fields["long"], second.fields["far"], "long" in second.fields) == ("1" + "0" * 400, 2.5, False)
    assert gallery.count([Condition("far", ">", 0.0)]) == 1


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet"])
def test_truth_values_are_the_same_text_from_every_table(index: ImageIndex, tmp_path: Path, ending: str) -> None:
    table = tmp_path / f"flags.{ending}"
    if ending == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"path": ["a/000.png", "a/003.png"], "keep": [True, False]}), table)
    elif ending == "jsonl":
        table.write_text('{"path": "a/000.png", "keep": true}\n{"path": "a/003.png", "keep": "FALSE"}\n')
    else:
        comma = "," if ending == "csv" else "\t"
        table.write_text(f"path{comma}keep\na/000.png{comma}True\na/003.png{comma}FALSE\nb/001.png{comma}\n")
    report = index.import_columns(table)
    assert report.fields == {"keep": "text"}
    assert "keep: true or false" in str(report)
    assert [item.fields["keep"] for item in index.items([0, 1])] == ["true", "false"]
    assert index.count(parse_query("keep:true", index.fields).where) == 1


def test_a_column_of_other_words_too_stays_as_it_is_written(index: ImageIndex, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("path,keep,when\na/000.png,True,2024-05-01\na/003.png,Maybe,last spring\n")
    report = index.import_columns(tmp_path / "t.csv")
    assert report.fields == {"keep": "text", "when": "text"}
    assert "keep: text, when: text" in str(report)
    assert [item.fields["keep"] for item in index.items([0, 1])] == ["True", "Maybe"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-05-01", datetime(2024, 5, 1).timestamp()),
        ("2024-05-01 23:30", datetime(2024, 5, 1, 23, 30).timestamp()),
        ("2024-05-01T23:30:15", datetime(2024, 5, 1, 23, 30, 15).timestamp()),
        ("2024-05-01T12:00:00Z", 1714564800.0),
        ("2024-05-01T12:00:00.25Z", 1714564800.25),
        ("2024-05-01T12:00:00.123456789+00:00", 1714564800.123456789),
        ("2024-05-01T14:00+02:00", 1714564800.0),
        ("2024-05-01T06:30:00-0530", 1714564800.0),
        ("2024-05-01 14:00:00 +02", 1714564800.0),
    ],
)
def test_iso_times_are_times(index: ImageIndex, tmp_path: Path, text: str, expected: float) -> None:
    (tmp_path / "t.csv").write_text(f'path,taken\na/000.png,"{text}"\na/003.png,2023-01-01\n')
    report = index.import_columns(tmp_path / "t.csv")
    assert report.fields == {"taken": "time"}
    assert "taken: time" in str(report)
    assert index.items([0])[0].fields["taken"] == pytest.approx(expected, abs=1e-5)
    assert index.count(parse_query("taken>=2024", index.fields).where) == 1


@pytest.mark.parametrize(
    "text", ["2024-02-30", "2024-05-01T25:00", "2024-05", "01.05.2024", "2024-05-01T12:00+99:00", "2024-05-01T12.5"]
)
def test_what_is_no_iso_time_stays_text(index: ImageIndex, tmp_path: Path, text: str) -> None:
    (tmp_path / "t.csv").write_text(f"path,taken\na/000.png,{text}\na/003.png,2023-01-01\n")
    assert index.import_columns(tmp_path / "t.csv").fields == {"taken": "text"}
    assert [item.fields["taken"] for item in index.items([0, 1])] == [text, "2023-01-01"]


def test_types_can_be_stated(index: ImageIndex, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("path,taken,code,when,keep\na/000.png,2024-05-01,007,1714564800,True\na/003.png,,8,2024-05-01T12:00Z,False\n")
    report = index.import_columns(table, types={"taken": "text", "code": "number", "when": "time", "keep": "text"})
    assert report.fields == {"taken": "text", "code": "number", "when": "time", "keep": "text"}
    first, second = index.items([0, 1])
    assert (first.fields["taken"], first.fields["code"], first.fields["keep"]) == ("2024-05-01", 7, "True")
    assert first.fields["when"] == second.fields["when"] == 1714564800
    table.write_text("path,taken\na/000.png,2024-06-01\n")
    assert index.import_columns(table).fields == {"taken": "text"}  # as it is already
    assert index.items([0])[0].fields["taken"] == "2024-06-01"


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ({"n": "number"}, "row 2: n is 'many', which is no number"),
        ({"n": "time"}, "row 2: n is 'many', which is no time"),
        ({"absent": "text"}, "no column 'absent' with values"),
        ({"n": "colour"}, "no type of a field"),
        ({"path": "text"}, "names the image"),
    ],
)
def test_types_that_do_not_fit(index: ImageIndex, tmp_path: Path, types: dict[str, Any], message: str) -> None:
    (tmp_path / "t.csv").write_text("path,n\na/000.png,1\na/003.png,many\n")
    with pytest.raises(ValueError, match=message):
        index.import_columns(tmp_path / "t.csv", types=types)
    assert "n" not in index.fields


def test_files_of_an_index_that_was_copied_without_them(index: ImageIndex, tmp_path: Path) -> None:
    index.close()
    shutil.copytree(tmp_path / "index", tmp_path / "elsewhere" / "index")
    (tmp_path / "photos").rename(tmp_path / "elsewhere" / "pictures")
    place = tmp_path / "elsewhere" / "pictures"
    with open_gallery(tmp_path / "elsewhere" / "index", images=place) as opened:
        assert isinstance(opened, ImageIndex)
        for item in opened.items([0, 1]):
            file = opened.file(item)
            assert file is not None
            assert file.is_file()
            assert opened.find(str(file)) == item.id
        assert all(path.is_file() for path in opened.paths)
        assert opened.file(Item(0, "../index/manifest.json")) is None
    with pytest.raises(TypeError, match="no option 'skip_bad'"):
        open_gallery(tmp_path / "elsewhere" / "index", images=place, skip_bad=True)


def test_files_of_an_index_of_vectors_from_elsewhere(tmp_path: Path) -> None:
    colour_folder(tmp_path / "photos", 2)
    with ImageIndex.create(tmp_path / "vectors", backbone="fake", image_digest="", embed_dim=DIM) as made:
        made.add([Item(7, "a/000.png"), Item(8, "https://example.com/x.png")], np.eye(2, DIM, dtype=np.float32))
    with open_gallery(tmp_path / "vectors") as without:
        assert without.file(without.items([7])[0]) is None
    with open_gallery(tmp_path / "vectors", images=tmp_path / "photos") as opened:
        assert opened.file(opened.items([7])[0]) == (tmp_path / "photos" / "a" / "000.png").resolve()
        assert opened.file(opened.items([8])[0]) is None
