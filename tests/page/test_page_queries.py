"""The query that the page puts together from its controls is one that the grammar reads as meant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from clipmend.search.gallery import BASE_FIELDS
from clipmend.search.grammar import Query, parse_query

if TYPE_CHECKING:
    from page.browser import SearchPage

pytestmark = pytest.mark.page

NOTHING = {"q": "", "image": None, "folder": "", "from": "", "until": "", "size": ""}


def composed(page: SearchPage, **state: Any) -> Query:
    text = page.module("query.js", "return m.compose(args[0], args[1])", {**NOTHING, **state}, dict(BASE_FIELDS))
    return parse_query(text, BASE_FIELDS)


def terms(query: Query) -> list[tuple[float, str, str]]:
    return [(term.weight, term.kind, term.value) for term in query.terms]


def test_queries_of_the_controls(fake_page: SearchPage) -> None:
    fake_page.open()
    cat = (1.0, "text", "a cat")
    upload = (1.0, "image", "upload")
    cases: list[tuple[dict[str, Any], list[tuple[float, str, str]], list[str]]] = [
        ({"q": "a cat"}, [cat], []),
        ({"q": "a cat", "folder": "2024/summer"}, [cat], ["folder"]),
        ({"q": "a cat", "folder": 'odd "folder" \\ name'}, [cat], ["folder"]),
        ({"q": "a cat", "folder": "ünï cødé"}, [cat], ["folder"]),
        ({"q": "a cat", "from": "2024-05-01", "until": "2024-05-31"}, [cat], ["date", "date"]),
        ({"q": "a cat", "size": ">1MB"}, [cat], ["size"]),
        ({"q": "a cat", "size": "<100kB"}, [cat], ["size"]),
        ({"folder": "beach"}, [], ["folder"]),
        ({"image": True}, [upload], []),
        ({"image": True, "q": "a cat"}, [upload, cat], []),
        ({"image": True, "q": 'the 5" disk'}, [upload, (1.0, "text", 'the 5" disk')], []),
        ({"image": True, "q": "a cat folder:beach"}, [upload, cat], ["folder"]),
        ({"image": True, "q": "folder:beach"}, [upload], ["folder"]),
        ({"image": True, "q": "folder:beach", "size": ">1MB"}, [upload], ["folder", "size"]),
        ({"image": True, "q": '- 0.5 "a dog"'}, [upload, (-0.5, "text", "a dog")], []),
        ({"image": True, "q": '"a cat" + like:12'}, [upload, cat, (1.0, "like", "12")], []),
        ({"image": True, "q": 'image:upload - "a cat"'}, [upload, (-1.0, "text", "a cat")], []),
        ({"q": '"a cat" - 2 * "a dog" name:*.jpg', "folder": "x"}, [cat, (-2.0, "text", "a dog")], ["name", "folder"]),
    ]
    for state, wanted, fields in cases:
        query = composed(fake_page, **state)
        assert terms(query) == wanted, state
        assert [condition.field for condition in query.where] == fields, state
    odd = composed(fake_page, q="a cat", folder='odd "folder" \\ name').where[0]
    assert odd.value == 'odd "folder" \\ name'


def test_more_and_less_like_an_image(fake_page: SearchPage) -> None:
    fake_page.open()
    for text, how, wanted in [
        ("a cat", "-", [(1.0, "text", "a cat"), (-1.0, "like", "7")]),
        ("a cat folder:x", "+", [(1.0, "text", "a cat"), (1.0, "like", "7")]),
        ('say "hi" there', "+", [(1.0, "text", 'say "hi" there'), (1.0, "like", "7")]),
        ('"a" + like:3', "-", [(1.0, "text", "a"), (1.0, "like", "3"), (-1.0, "like", "7")]),
        ("", "+", [(1.0, "like", "7")]),
        ("folder:x", "-", [(-1.0, "like", "7")]),
    ]:
        made = fake_page.module(
            "query.js", "return m.withTerm(args[0], args[1], args[2])", text, f"{how} like:7", dict(BASE_FIELDS)
        )
        query = parse_query(made, BASE_FIELDS)
        assert terms(query) == wanted, made
        assert bool(query.where) == ("folder:" in text)


def test_address_and_state_say_the_same(fake_page: SearchPage) -> None:
    fake_page.open()
    for address in (
        "",
        "?q=a+cat",
        "?q=%22a%22+-+%22b%22&folder=x+y&from=2024-05-01&strength=0.5&view=after&collapse=1&rerank=1",
        "?strength=0",
    ):
        assert fake_page.module("query.js", "return m.toAddress(m.fromAddress(args[0]))", address) == address
    for bad in ("?strength=4", "?strength=x", "?from=may", "?size=9", "?view=sideways"):
        assert fake_page.module("query.js", "return m.toAddress(m.fromAddress(args[0]))", bad) == ""
