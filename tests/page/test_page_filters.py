"""Filters: the panel and the chips follow what was typed, and take it back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from selenium.webdriver.common.keys import Keys

from clipmend.search.gallery import BASE_FIELDS
from page.fake_service import FakeService

if TYPE_CHECKING:
    from page.browser import SearchPage

pytestmark = pytest.mark.page

FIELDS = {**BASE_FIELDS, "label": "text"}
NOTHING = {"q": "", "folder": "", "from": "", "until": "", "size": ""}


def value(page: SearchPage, selector: str) -> str:
    return str(page.one(selector).get_attribute("value"))


def press(page: SearchPage, selector: str, key: str) -> None:
    page.mark()
    page.one(selector).send_keys(key)
    page.answered()


def test_the_panel_follows_the_query(fake_page: SearchPage, fake: FakeService) -> None:
    fake_page.open()
    fake_page.one("#filters-open").click()
    fake_page.ask("squares folder:cold date>=2024-05 date<=2024-06-10")
    assert value(fake_page, "#folder") == "cold"
    assert (value(fake_page, "#from"), value(fake_page, "#until")) == ("2024-05-01", "2024-06-10")
    assert fake_page.text("#filters-count") == "2"
    fake_page.ask("squares folder:of/my/own")  # no folder of the menu
    assert value(fake_page, "#folder") == "of/my/own"
    fake_page.choose("#folder", "warm")  # takes the place of what was typed
    assert fake.requests[-1]["query"] == "squares folder:warm"
    assert value(fake_page, "#query") == "squares"
    fake_page.ask("squares")
    fake_page.choose("#folder", "")
    assert fake.requests[-1]["query"] == "squares"
    fake_page.ask("squares folder:cold")
    fake_page.mark()
    fake_page.one("#filters-clear").click()
    fake_page.answered()
    assert fake.requests[-1]["query"] == "squares"
    assert not fake_page.shown("#filters-count")


def test_chips_of_filters_are_removed_by_click_and_key(fake_page: SearchPage, fake: FakeService) -> None:
    fake.labels = {"cat": 3, "dog": 2}
    fake_page.open(q="squares label:cat", folder="cold")
    assert fake_page.text("#understood").split("\n") == ["label is cat", "in cold"]
    assert fake_page.one("#understood button").get_attribute("aria-label") == "Remove the filter: label is cat"
    fake_page.mark()
    fake_page.all("#understood button")[1].click()
    fake_page.answered()
    assert fake.requests[-1]["query"] == "squares label:cat"
    assert fake_page.parameters() == {"q": "squares label:cat"}
    press(fake_page, "#understood button", Keys.DELETE)
    assert fake.requests[-1]["query"] == "squares"
    assert fake_page.all("#understood li") == []
    fake_page.ask("squares folder:cold")
    press(fake_page, "#understood button", Keys.ENTER)
    assert value(fake_page, "#query") == fake.requests[-1]["query"] == "squares"


def test_a_field_of_few_values_has_a_menu(fake_page: SearchPage, fake: FakeService) -> None:
    fake.labels = {"cat": 3, "a dog": 1_200}
    fake_page.open(q="squares")
    fake_page.one("#filters-open").click()
    fake_page.wait(lambda: fake_page.all("#menus option"), "menu")
    assert [option.text for option in fake_page.all("#menus option")] == ["Any", "cat (3)", "a dog (1,200)"]
    fake_page.choose("#menus select", "a dog")
    assert fake.requests[-1]["query"] == 'squares label:"a dog"'
    assert fake_page.text("#filters-count") == "1"
    fake_page.ask("squares label:cat")
    assert value(fake_page, "#menus select") == "cat"
    fake_page.choose("#menus select", "")
    assert fake.requests[-1]["query"] == "squares"


def test_a_field_of_many_values_has_none(fake_page: SearchPage, fake: FakeService) -> None:
    fake.labels = {f"label {n}": 1 for n in range(51)}
    fake_page.open()
    fake_page.one("#filters-open").click()
    fake_page.ask("squares")
    assert fake_page.all("#menus select") == []


def test_what_the_panel_says_of_a_query(fake_page: SearchPage) -> None:
    fake_page.open()

    def panel(q: str, **state: str) -> dict[str, str]:
        shown = fake_page.module("query.js", "return m.panel(args[0], args[1])", {**NOTHING, "q": q, **state}, FIELDS)
        return {name: said for name, said in shown.items() if said}

    for query, wanted in [
        ("a cat", {}),
        ('folder:"my \\"own\\" one"', {"folder": 'my "own" one'}),
        ("folder=a", {}),  # the menu means a folder and all inside it
        ("folder:a*", {}),
        ("date:2024-02", {"from": "2024-02-01", "until": "2024-02-29"}),
        ("date:2024", {"from": "2024-01-01", "until": "2024-12-31"}),
        ("date<=2024-4", {"until": "2024-04-30"}),
        ("date>2024", {}),
        ("size>1MB", {"size": ">1MB"}),
        ("size>1", {}),
        ("label:cat label:dog", {"=label": "cat"}),
        ("label!=cat", {}),
        ('"folder:a" + "b"', {}),
    ]:
        assert panel(query) == wanted, query
    assert panel("folder:a", folder="b") == {"folder": "b"}

    def gone(q: str, where: list[str], position: int, **state: str) -> dict[str, str]:
        conditions = [{"field": field, "op": "", "value": ""} for field in where]
        body = "return m.withoutCondition(args[0], args[1], args[2], args[3])"
        return fake_page.module("query.js", body, {**NOTHING, "q": q, **state}, conditions, position, FIELDS)

    assert gone('"a  b" folder:x', ["folder"], 0) == {"q": '"a b"'}
    assert gone("a date:2024 size>1MB", ["date", "date", "size"], 1) == {"q": "a size>1MB"}
    assert gone("a date>=2024", ["date", "date"], 1, until="2024-05-01") == {"q": "a date>=2024", "until": ""}
    assert gone("a date>=2024", ["date", "date"], 0, until="2024-05-01") == {"q": "a"}
