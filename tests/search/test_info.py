"""``index_info`` of indexes that were damaged, linked or written to while it looked: an answer, or an error of this library."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clipmend.search import ImageIndex, ImageIndexError, build_index, info
from clipmend.search.info import index_info
from search.fakes import FakeEncoder, colour_folder

DEEP = b"[" * 100_000


@pytest.fixture
def place(tmp_path: Path) -> Path:
    colour_folder(tmp_path / "photos", 6)
    (tmp_path / "photos/broken.png").write_bytes(b"x")
    build_index(FakeEncoder(), tmp_path / "photos", tmp_path / "index", approximate=True)
    (tmp_path / "table.csv").write_text("path,label\na/000.png,one\n")
    with ImageIndex.open(tmp_path / "index") as index:
        index.import_columns(tmp_path / "table.csv")
    return tmp_path / "index"


def change(place: Path, **fields: Any) -> None:
    place.write_text(json.dumps({**json.loads(place.read_text()), **fields}))


def change_database(place: Path, statement: str) -> None:
    connection = sqlite3.connect(place / "index.sqlite")
    with connection:
        connection.execute(statement)
        connection.execute("UPDATE meta SET value = value + 1 WHERE key = 'generation'")  # so that the digest does not tell
    connection.close()


def test_an_index_whose_files_are_links(place: Path) -> None:
    """As stores by content keep them."""
    linked = place.with_name("linked")
    linked.mkdir()
    for file in place.iterdir():
        (linked / file.name).symlink_to(file)
    (linked / "nowhere").symlink_to("nothing")
    told, plain = index_info(linked), index_info(place)
    assert (told.images, told.bytes, told.written) == (plain.images, plain.bytes, plain.written)


def test_a_journal_that_goes_while_it_is_looked_at(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "index.sqlite-journal").write_bytes(b"")
    whole, stat = info._files(place), os.stat

    def went(path: Any, **options: Any) -> os.stat_result:
        if str(path).endswith("-journal"):
            raise FileNotFoundError(path)
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", went)
    assert set(info._files(place)) == set(whole) - {"index.sqlite-journal"}


@pytest.mark.parametrize(
    "damage",
    [
        lambda place: (place / "manifest.json").write_bytes(DEEP),
        lambda place: change(place / "manifest.json", embed_dim=True),
        lambda place: change(place / "manifest.json", count=False),
        lambda place: (place / "skipped.json").write_bytes(DEEP),
        lambda place: (place / "skipped.json").write_text('[{"path": 1, "reason": "x"}]'),
        lambda place: (place / "skipped.json").write_text('[{"path": "x", "reason": null}]'),
        lambda place: change_database(place, "UPDATE roots SET name = NULL"),
        lambda place: change_database(place, "UPDATE roots SET prefix = x'00ff'"),
        lambda place: change_database(place, "UPDATE fields SET name = x'00ff'"),
        lambda place: change_database(place, "UPDATE fields SET type = 'colour'"),
    ],
)
def test_damage_is_said_to_be_damage(place: Path, damage: Callable[[Path], None]) -> None:
    damage(place)
    with pytest.raises(ImageIndexError) as told:
        index_info(place)
    assert "damaged" in str(told.value)
    assert "\n" not in str(told.value)


def test_a_schema_whose_damage_is_no_text(place: Path) -> None:
    file = place / "index.sqlite"
    data = file.read_bytes()
    file.write_bytes(data.replace(b"CREATE TABLE shards(", b"CREATE TABLE \xa2\xa2\xa2\xa2 \xa2(", 1))
    change(place / "manifest.json", database="")
    with pytest.raises(ImageIndexError, match=r"index\.sqlite"):
        index_info(place)


@pytest.mark.parametrize(
    "fields",
    [{"file": "nearest-\0"}, {"file": "nearest-\ud800"}, {"recall": "much"}, {"recall": None}, {"recall": float("nan")}],
)
def test_a_damaged_graph_is_passed_over(place: Path, fields: dict[str, Any]) -> None:
    change(place / "nearest.json", **fields)
    graph = index_info(place).graph
    assert (graph.state, graph.problem) == ("unusable", "nearest.json is damaged")


def test_a_graph_whose_description_is_nested_without_end(place: Path) -> None:
    (place / "nearest.json").write_bytes(DEEP)
    assert index_info(place).graph.state == "unusable"


def test_what_the_manifest_says_is_fit_for_json(place: Path) -> None:
    """Half a surrogate pair can be written in JSON, and not on standard output."""
    change(place / "manifest.json", clipmend="\ud800", backbone={"name": "\ud800", "image": "\ud800"})
    told = json.dumps(index_info(place).as_json(), ensure_ascii=False, allow_nan=False)
    assert told.encode()
