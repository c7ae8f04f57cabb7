"""What the page says of images that it cannot show, of uploads that are none, and of results that an error has left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from page.fake_service import FakeService

if TYPE_CHECKING:
    from page.browser import SearchPage

pytestmark = pytest.mark.page


def look_at(page: SearchPage, id: int) -> None:
    page.one(f"#after li[data-id='{id}'] button").click()
    page.wait(lambda: page.shown("#detail"), "the image large")


def test_a_gallery_that_does_not_know_its_files(fake_page: SearchPage, fake: FakeService) -> None:
    fake.files, fake.missing = False, frozenset(range(60))
    fake_page.open(q="squares", view="after")
    assert "clipmend serve INDEX --images DIR" in fake_page.text("#no-files")
    assert not fake_page.shown("#banner")
    look_at(fake_page, fake_page.ids()[0])
    fake_page.wait(lambda: "There is no file of image" in fake_page.text("#detail-none"), "reason")
    assert not fake_page.shown("#detail-open")


def test_nothing_is_said_of_files_that_are_known(fake_page: SearchPage) -> None:
    fake_page.open()
    assert not fake_page.shown("#no-files")


def test_a_query_that_the_gate_leaves_alone_is_said_to_be(fake_page: SearchPage, fake: FakeService) -> None:
    fake_page.open(q="squares")
    assert not fake_page.shown("#hint")
    fake_page.ask("plain squares")
    assert "the patch leaves this query as the model reads it" in fake_page.text("#hint")
    fake.hint = "a word of advice"  # of what is to be done: it comes before
    fake_page.ask("more plain squares")
    assert fake_page.text("#hint") == "a word of advice"
    fake.hint = None
    fake_page.ask("folder:cold")
    assert not fake_page.shown("#hint")


def test_an_image_that_is_not_shown_says_why(fake_page: SearchPage, fake: FakeService) -> None:
    fake.outside = frozenset({0})
    fake_page.open(q="squares", view="after", strength="0")
    look_at(fake_page, 0)
    reason = "The file of image 0 is a link to outside the indexed folder; it is not shown"
    fake_page.wait(lambda: fake_page.text("#detail-none") == reason, "reason")
    assert not fake_page.shown("#detail-open")
    assert not fake_page.shown("#detail-image")
    fake_page.one("#next").click()
    fake_page.wait(lambda: fake_page.shown("#detail-open") and fake_page.shown("#detail-image"), "the next image")
    assert fake_page.text("#detail-none") == ""


def test_an_upload_that_is_no_image_goes_away(fake_page: SearchPage, fake: FakeService) -> None:
    fake_page.open(q="squares")
    fake_page.drop(b"no image at all", name="broken.png")
    fake_page.wait(lambda: fake_page.text("#problem") == "“broken.png” is not an image that can be read", "refusal")
    assert not fake_page.shown("#picture")
    uploads = len(fake.uploads)
    fake_page.ask("other squares")
    assert len(fake.uploads) == uploads
    assert fake.requests[-1]["query"] == "other squares"
    assert fake_page.text("#problem") == ""


def test_a_refused_query_leaves_nothing_of_the_one_before(fake_page: SearchPage, fake: FakeService) -> None:
    fake.hint = "a word of advice"
    fake_page.open(q="squares folder:cold")
    fake_page.wait(lambda: fake_page.shown("#more"), "more")
    fake.failures = [(422, "that query cannot be read")]
    fake_page.ask("squares +")
    assert fake_page.ids() == fake_page.ids("before") == []
    for selector in ("#understood li", "#hint", "#more", "#empty", "#before", "#summary strong"):
        assert not fake_page.shown(selector), selector
    fake_page.ask("squares")
    assert len(fake_page.ids()) == len(fake_page.ids("before")) == 24
    assert fake_page.text("#problem") == ""


def test_results_without_an_answer_are_said_to_be_old(fake_page: SearchPage, fake: FakeService) -> None:
    fake_page.open(q="squares folder:cold")
    shown = fake_page.ids()
    fake.failures = [(500, "the index is damaged")]
    fake_page.ask("other squares")
    assert "What is shown below is the answer to “squares folder:cold”." in fake_page.text("#banner")
    assert fake_page.ids() == shown
    assert fake_page.all("#understood li") == []


def test_names_on_the_tiles_are_a_matter_of_the_browser(fake_page: SearchPage, fake: FakeService) -> None:
    fake_page.open(q="squares", view="after", strength="0")
    assert not fake_page.shown("#after .name")
    fake_page.one("#filters-open").click()
    asked = len(fake.requests)
    fake_page.one("#names").click()
    assert fake_page.text("#after li[data-id='0'] .name") == "000.png"
    assert len(fake.requests) == asked
    assert "names" not in fake_page.parameters()
    fake_page.open(q="squares", view="after", strength="0")
    assert fake_page.shown("#after .name")
    fake_page.js("document.activeElement.blur()")
    fake_page.keys("n")
    assert not fake_page.shown("#after .name")
    fake_page.driver.refresh()
    fake_page.wait(lambda: fake_page.ids(), "images")
    assert not fake_page.shown("#after .name")
