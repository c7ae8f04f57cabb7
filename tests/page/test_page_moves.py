"""What is said to have come, left and moved, at the borders of the lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from page.fake_service import FakeService

if TYPE_CHECKING:
    from page.browser import SearchPage

pytestmark = pytest.mark.page

COUNT = 36


@pytest.mark.parametrize(
    ("strength", "left", "came", "moved"),
    [
        # The order is turned round by 12 places a unit of strength.
        ("0", {}, {}, ("same", "")),
        ("0.1", {0: "→ 36"}, {24: "from 25"}, ("up", "▲ 1")),
        ("2.9", {23: "→ 25"}, {35: "from 36"}, ("down", "▼ 1")),
    ],
)
def test_borders(
    fake_page: SearchPage, fake: FakeService, strength: str, left: dict[int, str], came: dict[int, str], moved: tuple[str, str]
) -> None:
    fake.count = COUNT
    fake_page.open(q="squares", strength=strength)
    before, after = fake_page.moves("before"), fake_page.moves("after")
    assert {id: badge for id, (kind, badge) in before.items() if kind == "left"} == left
    assert {id: badge for id, (kind, badge) in after.items() if kind == "came"} == came
    assert {move for id, move in after.items() if id not in came} == {moved}


def test_beyond_the_depth_that_was_looked_at(fake_page: SearchPage, fake: FakeService) -> None:
    def search(request: dict[str, Any]) -> dict[str, Any]:
        answer = FakeService.search(fake, request)
        answer["depth"] = 1000
        for hit in answer["hits"]:
            hit["rank_before"] = hit["score_before"] = None
        for hit in answer.get("before", []):
            hit["rank"] = None
        return answer

    fake.search = search  # type: ignore[method-assign]
    fake_page.open(q="squares")
    assert set(fake_page.moves("after").values()) == {("came", "from beyond 1,000")}
    assert set(fake_page.moves("before").values()) == {("left", "→ beyond 1,000")}
    fake_page.one("#after .tile").click()
    assert fake_page.text("#detail-rank") == "before beyond 1,000 → after 1"


def test_every_page_further_is_compared_as_a_whole(fake_page: SearchPage, fake: FakeService) -> None:
    fake.count = 300
    fake_page.open(q="squares", strength="1")
    for shown in (48, 72, 96, 120, 144, 168, 192):
        fake_page.mark()
        fake_page.one("#more").click()
        fake_page.answered()
        assert len(fake_page.ids("before")) == len(fake_page.ids()) == shown
        assert fake.requests[-1]["k"] == shown
        assert f"12 of the first {shown} are new" in fake_page.text("#summary")
    assert not fake_page.shown("#more")
    fake_page.mark()
    fake_page.all(".switch label")[1].click()
    fake_page.answered()
    for _ in range(12):
        fake_page.mark()
        fake_page.one("#more").click()
        fake_page.answered()
    assert fake_page.ids() == [*range(12, 300), *range(12)]
    assert fake.requests[-1]["offset"] == 288
    assert not fake_page.shown("#more")


def test_one_of_many_alike_says_how_many(fake_page: SearchPage, fake: FakeService) -> None:
    def search(request: dict[str, Any]) -> dict[str, Any]:
        answer = FakeService.search(fake, request)
        answer["hits"][0]["copies"] = [7, 8]
        return answer

    fake.search = search  # type: ignore[method-assign]
    fake_page.open(q="squares", collapse="1", view="after")
    assert fake.requests[-1]["collapse"] == 0.97
    assert fake_page.text("#after .copies") == "+2"
    tile = fake_page.one("#after .tile")
    assert tile.get_attribute("aria-label").endswith("with 2 near-duplicates")
    tile.click()
    assert fake_page.text("#detail-copies h3") == "2 near-duplicates"
    assert len(fake_page.all("#detail-copies img")) == 2


def test_ids_beyond_what_a_number_holds(fake_page: SearchPage, fake: FakeService) -> None:
    """Ids of other stores go up to 2^63; two that differ in their last digit are one number to JavaScript."""

    def search(request: dict[str, Any]) -> dict[str, Any]:
        answer = FakeService.search(fake, request)
        for hit in answer["hits"]:
            hit["id"] += 2**63 - 1000
            hit["key"] = str(hit["id"])
        return answer

    fake.search = search  # type: ignore[method-assign]
    fake_page.open(q="squares", view="after", strength="0")
    assert fake_page.js("return document.querySelectorAll('#after li').length") == 24
    fake_page.all("#after .tile")[3].click()
    assert fake_page.one("#detail-open").get_attribute("href").endswith(f"/images/{2**63 - 997}")
    fake_page.mark()
    fake_page.one("[data-like='only']").click()
    fake_page.answered()
    assert fake.requests[-1]["query"] == f"like:{2**63 - 997}"
