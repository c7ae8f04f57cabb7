"""What the page does when the service fails, refuses, is slow or has nothing to show."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from selenium.webdriver.common.keys import Keys

from page.fake_service import FakeService

if TYPE_CHECKING:
    from page.browser import SearchPage

pytestmark = pytest.mark.page


def test_service_gone_and_back(fake_page: SearchPage, fake: FakeService) -> None:
    fake_page.open(q="squares")
    shown, port = fake_page.ids(), int(fake_page.address.rsplit(":", 1)[1].rstrip("/"))
    fake.stop()
    fake_page.ask("other squares")
    assert "does not answer" in fake_page.text("#banner")
    assert "clipmend serve" in fake_page.text("#banner")
    assert fake_page.ids() == shown  # what was there stays, faded
    assert "stale" in fake_page.one("#results").get_attribute("class")
    assert fake_page.text("#problem") == ""
    fake.start(port)
    fake_page.one("#banner button").click()
    fake_page.wait(lambda: not fake_page.shown("#banner"), "recovery")
    assert fake.requests[-1]["query"] == "other squares"
    assert "stale" not in fake_page.one("#results").get_attribute("class")


def test_service_that_is_not_there_at_the_start(fake_page: SearchPage, fake: FakeService) -> None:
    """The page itself was loaded; the service ended before it could introduce itself."""
    fake_page.driver.execute_cdp_cmd("Network.enable", {})
    fake_page.driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["*/api/about"]})
    try:
        fake_page.open()
        assert "does not answer" in fake_page.text("#banner")
    finally:
        fake_page.driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})
    fake_page.one("#banner button").click()
    fake_page.wait(lambda: len(fake_page.ids()) == 24, "images")
    assert not fake_page.shown("#banner")


def test_busy_service_is_asked_again(fake_page: SearchPage, fake: FakeService) -> None:
    fake_page.open()
    fake.failures = [(429, "too many requests"), (503, "no answer in time")]
    asked = len(fake.requests)
    fake_page.ask("squares")
    assert len(fake.requests) - asked == 3
    assert not fake_page.shown("#banner")
    fake.failures = [(503, "no answer in time")] * 3
    fake_page.ask("more squares")
    assert "busy: no answer in time" in fake_page.text("#banner")
    fake_page.one("#banner button").click()
    fake_page.wait(lambda: not fake_page.shown("#banner"), "recovery")


@pytest.mark.parametrize(("status", "message"), [(422, "that query cannot be read"), (413, "the upload is too large")])
def test_refusals_are_told_under_the_query(fake_page: SearchPage, fake: FakeService, status: int, message: str) -> None:
    fake_page.open()
    fake.failures = [(status, message)]
    fake_page.ask("squares")
    assert fake_page.text("#problem") == message[0].upper() + message[1:]
    assert not fake_page.shown("#banner")
    assert fake_page.one("#query").get_attribute("aria-describedby") == "problem"


def test_fault_of_the_service(fake_page: SearchPage, fake: FakeService) -> None:
    fake_page.open()
    fake.failures = [(500, "the index is damaged")]
    fake_page.ask("squares")
    assert "The index is damaged" in fake_page.text("#banner")
    assert fake_page.text("#problem") == ""


def test_token_is_asked_for_and_kept(fake_page: SearchPage, fake: FakeService) -> None:
    fake.token = "open sesame and more"
    fake_page.open(q="squares")
    fake_page.wait(lambda: fake_page.shown("#token"), "question for the token")
    fake_page.keys(Keys.ESCAPE)
    fake_page.wait(lambda: fake_page.shown("#token"), "question again")  # there is nothing behind it
    fake_page.keys("wrong", Keys.ENTER)
    fake_page.wait(lambda: "not the token" in fake_page.text("#token-problem"), "refusal")
    fake_page.keys(fake.token, Keys.ENTER)
    fake_page.wait(lambda: len(fake_page.ids()) == 24, "images")
    assert not fake_page.shown("#token")
    loaded = "return [...document.querySelectorAll('#after img')].slice(0, 6).every((one) => one.complete && one.naturalWidth > 0)"
    fake_page.wait(lambda: fake_page.js(loaded), "thumbnails, by cookie")
    fake_page.driver.refresh()
    fake_page.wait(lambda: len(fake_page.ids()) == 24, "images without asking again")
    assert not fake_page.shown("#token")
    assert fake.token not in fake_page.driver.current_url
    fake.token = "another one, longer"
    fake_page.one("#query").send_keys(Keys.ENTER)
    fake_page.wait(lambda: fake_page.shown("#token"), "question for the new token")
    assert "no longer" in fake_page.text("#token-problem")


def test_token_against_the_service_itself(chromium: object, drawn: object) -> None:
    """The same with the real login, cookie and headers."""
    from page.browser import SearchPage
    from page.drawn_gallery import served

    token = "a-token-of-thirty-two-characters"
    with served(drawn.index, patch=None, token=token) as address:  # type: ignore[attr-defined]
        page = SearchPage(chromium, address)  # type: ignore[arg-type]
        page.screen()
        page.open(q="a cat but no boat")
        page.wait(lambda: page.shown("#token"), "question for the token")
        page.keys(token, Keys.ENTER)
        page.wait(lambda: len(page.ids()) == 24, "images")
        page.settled()
        assert page.js("return [...document.querySelectorAll('#after img')].slice(0, 6).every((one) => one.naturalWidth > 0)")
        # Without a patch there is nothing to compare with, and the service says what that means for a query that denies.
        assert not page.shown("#mending")
        assert not page.shown("#before")
        assert "no patch" in page.text("#about")
        assert "--patch" in page.text("#hint")
        assert page.log() == [] or all("401" in line for line in page.log())
        page.js("sessionStorage.clear()")
        page.driver.delete_all_cookies()


def test_empty_index_says_how_to_fill_it(fake_page: SearchPage, fake: FakeService) -> None:
    fake.count = 0
    fake_page.open()
    assert "This index is empty" in fake_page.text("#empty")
    assert "clipmend index" in fake_page.text("#empty")
    assert not fake_page.shown("#more")


def test_image_without_a_thumbnail_has_its_name(fake_page: SearchPage, fake: FakeService) -> None:
    fake.missing = frozenset({0})
    fake_page.open(view="after", q="squares", strength="0")
    assert fake_page.text("#after li[data-id='0'] .none") == "000.png"
    fake_page.one("#after li[data-id='0'] button").click()
    assert fake_page.text("#detail-title") == "000.png"


def test_answer_that_comes_late_does_not_replace_a_newer_one(fake_page: SearchPage, fake: FakeService) -> None:
    fake_page.open(view="after", q="squares", strength="0")
    fake.held = "folder:cold"
    box = fake_page.one("#query")
    box.send_keys(Keys.CONTROL, "a")
    box.send_keys("first folder:cold", Keys.ENTER)
    fake_page.wait(lambda: "on" in fake_page.one("#progress").get_attribute("class").split(), "sign that it takes a while")
    assert fake_page.one("#results").get_attribute("aria-busy") == "true"
    fake_page.ask("second")
    fake.gate.set()
    time.sleep(0.5)
    assert "second" in fake_page.driver.title
    assert fake_page.ids()[:2] == [0, 1]  # the cold ones are 1, 3, 5, ...
    assert not fake_page.one("#results").get_attribute("aria-busy")
    assert not fake_page.shown("#banner")


def test_a_dragged_slider_asks_once_it_rests(fake_page: SearchPage, fake: FakeService) -> None:
    fake_page.open(q="squares")
    asked = len(fake.requests)
    fake_page.mark()
    fake_page.js(
        "const slider = document.getElementById('strength');"
        "for (let i = 0; i <= 40; i++) { slider.value = i / 20; slider.dispatchEvent(new Event('input', { bubbles: true })); }"
    )
    fake_page.answered()
    time.sleep(0.3)
    assert len(fake.requests) - asked == 1
    assert fake.requests[-1]["strength"] == 2.0
    assert fake_page.ids()[0] == 24  # turned round by two units of twelve places
    assert fake_page.ids("before")[0] == 0


def test_ids_beyond_what_a_number_holds_stay_whole(fake_page: SearchPage) -> None:
    script = """
        const done = arguments[0], real = window.fetch;
        window.fetch = async () => new Response('{"hits": [{"id": 9223372036854775807, "copies": [9007199254740993], "rank": 3}]}');
        import(new URL('page/api.js', location.href)).then((api) => api.search({}, null)).then((found) => {
            window.fetch = real;
            done([String(found.hits[0].id), String(found.hits[0].copies[0]), found.hits[0].rank]);
        });
    """
    fake_page.open()
    assert fake_page.driver.execute_async_script(script) == ["9223372036854775807", "9007199254740993", 3]
