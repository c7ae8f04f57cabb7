"""Columns of tables that are not what they seem, and images that were added under a file's path."""

from __future__ import annotations

import os
import time
from datetime import date, datetime
from pathlib import Path

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
