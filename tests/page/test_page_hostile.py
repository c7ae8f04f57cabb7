"""Names, columns and addresses that would be markup if they were let, answers that are none, and what is typed but not sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image
from selenium.webdriver.common.keys import Keys

from page.fake_service import FakeService

if TYPE_CHECKING:
    from selenium import webdriver

    from page.browser import SearchPage

pytestmark = pytest.mark.page

MARKUP = "<img src=x onerror=window.pwned=1>"
NAMES = (
    f"{MARKUP}.png",
    '"><script>window.pwned=1<\\script>.png',
    "' onload='window.pwned=1.png",
    "javascript:window.pwned=1.png",
    "${window.pwned=1}.png",
    "a\nb\r\tc.png",
    "&lt;b&gt;.png",
    "?size=9#.png",
    "%2e%2e.png",
    "gnp.\u202eexe.png",
)
FOLDERS = (MARKUP, 'q"uo\\te', "a b", "")


@pytest.fixture
def hostile(chromium: webdriver.Chrome, tmp_path: Path) -> Iterator[SearchPage]:
    """The real service over images whose every name, folder and column is markup."""
    from tests.search.fakes import FakeEncoder, FakeMended
    from tests.search.memory_gallery import MemoryGallery

    from clipmend.search.gallery import BASE_FIELDS, Item
    from clipmend.search.searcher import Searcher
    from clipmend.service import Settings
    from page.browser import SearchPage
    from page.drawn_gallery import serving

    fields = {**BASE_FIELDS, "label": "text", 'no"na<b>me': "text", "constructor": "text", "__proto__": "text"}
    items, vectors = [], []
    for id in range(20):
        folder, name = FOLDERS[id % 4], f"{id}{NAMES[id % len(NAMES)]}"
        picture = Image.new("RGB", (40, 30), (id * 12, 255 - id * 12, id))
        (tmp_path / folder).mkdir(exist_ok=True)
        picture.save(tmp_path / folder / name)
        told: dict[str, Any] = {"folder": folder, "name": name, "date": 1e18 if id == 3 else 1.7e9, "size": 9.0, "label": MARKUP}
        path = f"{folder}/{name}" if folder else name
        items.append(Item(id, path, {**told, 'no"na<b>me': MARKUP, "constructor": "c", "__proto__": "p"}))
        vectors.append(FakeEncoder().encode_images([picture])[0].numpy())
    gallery = MemoryGallery(items, vectors, fields=fields, root=tmp_path)
    gallery.values = lambda name, limit=100: Counter(str(i.fields[name]) for i in items).most_common(limit)  # type: ignore[method-assign]
    searcher = Searcher(gallery, FakeEncoder(), FakeMended(), files=False)
    with serving(searcher, Settings(name=MARKUP, patch=MARKUP, examples=(MARKUP, '"red" - "blue"'))) as address:
        page = SearchPage(chromium, address)
        page.screen()
        page.log()
        yield page
        chromium.get("about:blank")


def harmless(page: SearchPage) -> None:
    script = (
        "return [window.pwned === undefined, document.querySelectorAll('img[src=\"x\"], body script, [onerror], [onload]').length]"
    )
    assert page.js(script) == [True, 0]


def test_nothing_that_is_shown_is_markup(hostile: SearchPage) -> None:
    page = hostile
    page.open()
    page.settled()
    assert MARKUP in page.text("#about")
    assert page.text("#examples button") == MARKUP
    assert any(MARKUP in name for name in page.names())
    harmless(page)
    for query in (MARKUP, f'"{MARKUP}" - "red" label:"{MARKUP}"', f"{MARKUP} + blue", "red folder:nothing", f"nosuch:{MARKUP}"):
        page.ask(query)
        harmless(page)
    page.ask("red")
    page.one("#after .tile").click()
    for _ in page.ids():
        assert MARKUP in page.text("#detail-facts")
        harmless(page)
        page.keys(Keys.ARROW_RIGHT)
    page.keys(Keys.ESCAPE)
    page.keys("?")
    assert 'no"na<b>me' in page.text("#help-fields")
    harmless(page)
    page.open(q=MARKUP, folder=MARKUP, size=MARKUP, strength=MARKUP, view=MARKUP, **{"from": MARKUP})
    harmless(page)
    blocked = [line for line in page.log() if "Content Security Policy" in line]
    assert not blocked, blocked  # nothing even tried


def test_folders_of_any_name_can_be_chosen(hostile: SearchPage) -> None:
    hostile.open()
    hostile.one("#filters-open").click()
    values = hostile.js("return [...document.getElementById('folder').options].map((option) => option.value)")
    assert sorted(values) == sorted(["", *(folder for folder in FOLDERS if folder)])  # all of them once, not again as "(top)"
    for folder in FOLDERS[:3]:
        hostile.choose("#folder", folder)
        assert len(hostile.ids()) == 5
        assert all(name.startswith(f"{folder}/") for name in hostile.names())


def test_an_image_by_itself_runs_nothing(hostile: SearchPage) -> None:
    hostile.driver.get(f"{hostile.address}images/0")
    assert hostile.js("return [document.contentType, window.pwned === undefined]") == ["image/png", True]


@pytest.mark.parametrize("body", [b"<b>Sign in to the network</b>", b"", b"null", b'"yes"', b'{"hits": [', b"{}"], ids=range(6))
def test_answers_that_are_none(fake_page: SearchPage, fake: FakeService, body: bytes) -> None:
    """Of a proxy, of a sign-in page, or broken off: said in words, and it goes on afterwards."""
    fake_page.open(q="squares")
    fake.raw = body
    fake_page.ask("others")
    words = fake_page.text("#banner")
    assert ("is not clipmend serve" in words) if body != b"{}" else ("went wrong on this page" in words)
    fake.raw = None
    fake_page.mark()
    fake_page.one("#banner button").click()
    fake_page.wait(lambda: not fake_page.shown("#banner"), "recovery")
    assert len(fake_page.ids()) == 24


def test_an_answer_that_never_comes(fake_page: SearchPage, fake: FakeService) -> None:
    fake_page.open(q="squares")
    fake_page.js("const timeout = AbortSignal.timeout; AbortSignal.timeout = () => timeout.call(AbortSignal, 300)")
    fake.held = "slow"
    fake_page.ask("slow squares")
    assert "does not answer" in fake_page.text("#banner")
    assert fake_page.one("#results").get_attribute("aria-busy") is None
    fake.gate.set()


def test_trying_again_does_what_failed(fake_page: SearchPage, fake: FakeService) -> None:
    fake_page.open(q="squares", view="after")
    fake.failures = [(500, "the service failed at this")]
    fake_page.one("#more").click()
    fake_page.wait(lambda: fake_page.shown("#banner"), "complaint")
    fake_page.one("#banner button").click()
    fake_page.wait(lambda: len(fake_page.ids()) == 48, "next page")


def test_what_is_typed_is_not_lost(fake_page: SearchPage, fake: FakeService) -> None:
    """The slider, a filter and the view ask at once: with the words as they stand in the field."""
    fake_page.open(q="squares")
    fake_page.one("#query").send_keys(" one")
    fake_page.strengthen(2)
    assert fake.requests[-1]["query"] == "squares one"
    fake_page.one("#query").send_keys(" two")
    fake_page.js("document.querySelector('[name=view][value=after]').click()")
    fake_page.wait(lambda: fake.requests[-1]["query"] == "squares one two", "search")
    fake_page.one("#query").send_keys(" three")
    fake_page.choose("#folder", "cold")
    assert fake.requests[-1]["query"] == "squares one two three folder:cold"
    assert fake_page.one("#query").get_attribute("value") == "squares one two three"
    fake_page.driver.back()
    fake_page.wait(lambda: fake_page.parameters().get("q") == "squares one two", "page before")


def test_a_field_at_the_start_of_a_message_keeps_its_spelling(fake_page: SearchPage, fake: FakeService) -> None:
    fake_page.open()
    messages = {
        "src=x looks like a filter": "src=x looks",
        "width>=9 is none": "width>=9 is",
        "query: too long": "query: too",
        "no such": "No such",
    }
    for message, shown in messages.items():
        fake.failures = [(422, message)]
        fake_page.ask(f"squares {shown}")
        assert fake_page.text("#problem").startswith(shown)
