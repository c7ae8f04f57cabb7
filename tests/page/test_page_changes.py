"""The page over an index that changes, or whose place another one takes, while it is looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from page.fake_service import FakeService

if TYPE_CHECKING:
    from page.browser import SearchPage

pytestmark = pytest.mark.page
PAGE = 24


class Changing:
    """Answers name their edition, and the ranking moves by so many places."""

    def __init__(self, fake: FakeService) -> None:
        self.edition, self.moved = "first.1", 0
        search, order = fake.search, fake.order

        def moved(request: dict[str, Any], strength: float) -> list[int]:
            ids = order(request, strength)
            return ids[-self.moved :] + ids[: -self.moved] if self.moved else ids

        fake.order = moved  # type: ignore[method-assign]
        fake.search = lambda request: {**search(request), "edition": self.edition}  # type: ignore[method-assign]


def sources(page: SearchPage) -> set[str]:
    """What index the pictures that are shown are asked of."""
    return set(page.js("return [...document.querySelectorAll('.tile img')].map((i) => new URL(i.src).searchParams.get('of'))"))


def test_images_that_moved_to_the_next_page_come_once(fake_page: SearchPage, fake: FakeService) -> None:
    changing = Changing(fake)
    fake_page.open(q="squares", view="after")
    first = fake_page.ids()
    changing.edition, changing.moved = "first.2", 3  # three images have come before all others
    fake_page.mark()
    fake_page.one("#more").click()
    fake_page.answered()
    assert fake.requests[-1]["offset"] == PAGE
    shown = fake_page.ids()
    assert shown[:PAGE] == first
    assert len(set(shown)) == len(shown) == 2 * PAGE - 3


def test_the_next_page_of_another_index_is_its_first(fake_page: SearchPage, fake: FakeService) -> None:
    changing = Changing(fake)
    fake_page.open(q="squares", view="after")
    assert sources(fake_page) == {"first"}
    changing.edition, changing.moved = "second.9", 5
    fake_page.one("#more").click()
    fake_page.wait(lambda: sources(fake_page) == {"second"}, "the other index's images alone")
    assert len(fake_page.ids()) == PAGE
    assert fake.requests[-1]["offset"] == 0


def test_a_number_of_another_index_is_another_image(fake_page: SearchPage, fake: FakeService) -> None:
    """Its tile is not kept for it, and the large picture and the file are asked of that index too."""
    changing = Changing(fake)
    fake_page.open(q="squares", view="after")
    before = fake_page.ids()
    changing.edition = "second.1"
    fake_page.open(q="squares again", view="after")
    assert fake_page.ids() == before
    assert sources(fake_page) == {"second"}
    fake_page.js("document.querySelector('.tile').click()")
    fake_page.wait(lambda: fake_page.shown("#detail-image"), "the large picture")
    assert "of=second" in fake_page.one("#detail-image").get_attribute("src")
    assert fake_page.one("#detail-open").get_attribute("href").endswith("?of=second")


def test_a_service_that_names_no_edition(fake_page: SearchPage, fake: FakeService) -> None:
    fake_page.open(q="squares", view="after")
    assert sources(fake_page) == {None}
    assert len(fake_page.ids()) == PAGE
