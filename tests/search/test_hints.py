"""What an empty page says, and names of images in queries and answers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from clipmend.data.images import display_path
from clipmend.search.answers import answer_json
from clipmend.search.gallery import BASE_FIELDS, GalleryError, Item
from clipmend.search.grammar import QueryError, quote
from clipmend.search.searcher import Searcher
from clipmend.search.spelling import plain, shown_as
from search.fakes import DIM, FakeEncoder, FakeMended
from search.memory_gallery import MemoryGallery

FIELDS: Any = {**BASE_FIELDS, "cat": "text", "empty": "text"}
NAMES = [*(f"{i:02d}.jpg" for i in range(9)), "17", "0007", "b\udcffyte.jpg", "c\x1bd.jpg", "e\\xff.jpg", "nbsp\xa0.jpg"]


class Rows(MemoryGallery):
    """Fifteen images in two folders; ids from 100, and an image with the id 17, whose path is another."""

    def __init__(self) -> None:
        items = [
            Item(
                17 if i == 3 else 100 + i,
                name,
                {"folder": f"2024/{'holiday' if i % 3 else 'home'}", "name": name, "width": float(i)}
                | {"cat": "False" if i % 5 else "True"},
            )
            for i, name in enumerate(NAMES)
        ]
        super().__init__(items, np.random.default_rng(3).normal(size=(len(items), DIM)), fields=FIELDS)


@pytest.fixture(scope="module")
def searcher() -> Searcher:
    return Searcher(Rows(), FakeEncoder())


@pytest.mark.parametrize("words", ["", "red "])
@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("cat:true", "no image has cat = 'true' (did you mean 'True'?); values there: False (12), True (3)"),
        ("cat!=True cat!=False", "each filter fits some images, but none passes them all"),
        ("folder:2024/hollidays", "no image is in the folder '2024/hollidays' or in one inside it (did you mean '2024/holiday'?)"),
        ("folder:2O24", "(did you mean '2024'?); values there: 2024/holiday (10), 2024/home (5)"),
        ("folder=2024", "no image has folder = '2024'"),
        ("name:*.gif", "no image has name like '*.gif'; values there: "),
        ("empty:x", "no image has empty = 'x'; none has a value there"),
        ("width>=5000 size>1", "no image has width>=5000; no image has size>1"),
        ("cat:a cat:b cat:c cat:d cat:e", "nor does any image pass 2 more of the filters"),
    ],
)
def test_a_filter_that_fits_nothing_says_what_there_is(searcher: Searcher, words: str, where: str, said: str) -> None:
    answer = searcher.search(words + where)
    assert (answer.total, answer.hits) == (0, [])
    assert answer.hint is not None
    assert said in answer.hint
    assert "\udcff" not in answer.hint
    assert "\x1b" not in answer.hint


def test_filters_that_fit_say_nothing(searcher: Searcher) -> None:
    assert searcher.search("cat:True").hint is None
    assert searcher.search("red cat:True").hint is None


def test_a_store_that_cannot_count_values_says_the_rest(monkeypatch: pytest.MonkeyPatch, searcher: Searcher) -> None:
    def refuse(*_: object) -> None:
        raise GalleryError("no facets here")

    monkeypatch.setattr(Rows, "values", refuse)
    assert searcher.search("cat:true").hint == "no image has cat = 'true'"


@pytest.mark.parametrize("words", ["", "red "])
def test_an_offset_beyond_the_end(searcher: Searcher, words: str) -> None:
    assert searcher.search(f"{words}folder:.", 5, 15).hint == "offset 15 is beyond the end of 15 images that pass the filters"
    assert searcher.search(f"{words}name:17", 5, 1).hint == "offset 1 is beyond the end of 1 image that passes the filters"
    assert searcher.search(f"{words}folder:.", 5, 14).hint is None
    copies = searcher.search("red", 5, 14, collapse=0.01)
    assert not copies.hits
    assert copies.hint == "no more images: what is left are copies of those before"


def found(searcher: Searcher, like: str) -> str:
    return searcher.search(f"like:{quote(like)}", 1).hits[0].item.path


def test_like_takes_paths_before_ids_and_ids_as_they_are_written(searcher: Searcher) -> None:
    assert found(searcher, "17") == "17"
    assert found(searcher, "0007") == "0007"
    assert found(searcher, "101") == "01.jpg"
    for no_id in ("0101", "00", "00017", "1_01", "１０１", str(1 << 63), "9" * 19):
        with pytest.raises(QueryError, match="neither the id nor the path"):
            found(searcher, no_id)


@pytest.mark.parametrize("name", NAMES)
def test_like_takes_paths_as_they_are_shown(searcher: Searcher, name: str) -> None:
    assert found(searcher, display_path(name)) == name
    assert found(searcher, plain(name)) == name
    assert found(searcher, name) == name
    assert name in [display_path(name), *shown_as(display_path(name))]


def test_answers_are_json_for_strict_readers() -> None:
    searcher = Searcher(Rows(), FakeEncoder(), FakeMended())
    for query in ('like:"b\udcffyte.jpg" + "red"', 'name:"b\udcffyte.jpg"', "name:\udcff.jpg", "red cat:\ud800"):
        answer = searcher.search(query, compare=True)
        written = json.dumps(answer_json(answer, query), ensure_ascii=False, allow_nan=False)
        json.loads(written.encode())
    hit = answer_json(searcher.search('name:"b\udcffyte.jpg"'), "")["hits"][0]
    assert (hit["path"], hit["fields"]["name"], hit["score"], hit["key"]) == ("b\\xffyte.jpg", "b\\xffyte.jpg", None, "111")
