"""The page against the service itself, over drawn scenes whose contents are known."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

import pytest
from selenium.webdriver.common.keys import Keys

if TYPE_CHECKING:
    from page.browser import SearchPage
    from page.conftest import Drawn

pytestmark = pytest.mark.page

NO_CAT = "a picture with no cat"
PAGE = 24


def share(names: list[str], kind: str, drawn: Drawn) -> float:
    """The share of images that show something."""
    return sum(kind in drawn.shown[name] for name in names) / len(names)


def test_starts_with_the_images_and_examples(page: SearchPage, drawn: Drawn) -> None:
    page.open()
    assert len(page.ids()) == PAGE
    assert page.names() == sorted(drawn.shown)[:PAGE]  # the gallery's own order
    assert f"{len(drawn.shown)} images" in page.text("#about")
    assert "patch scenes" in page.text("#about")
    assert not page.shown("#before")
    page.mark()
    page.all("#examples button")[0].click()
    page.answered()
    assert page.one("#query").get_attribute("value") == NO_CAT
    assert page.parameters() == {"q": NO_CAT}
    assert not page.shown("#examples")


def test_before_and_after_show_what_moved(page: SearchPage, drawn: Drawn) -> None:
    page.open()
    page.ask(NO_CAT)
    before, after = page.ids("before"), page.ids("after")
    assert len(before) == len(after) == PAGE
    assert share(page.names("before"), "cat", drawn) > 0.9
    assert share(page.names("after"), "cat", drawn) < 0.1
    left, came = set(before) - set(after), set(after) - set(before)
    assert {id for id, (kind, _) in page.moves("before").items() if kind == "left"} == left
    assert {id for id, (kind, _) in page.moves("after").items() if kind == "came"} == came
    for id, (kind, badge) in page.moves("before").items():
        place = after.index(id) + 1 if id in after else None
        if place is not None:
            assert badge == ("" if kind == "same" else f"→ {place}")
    for id, (kind, badge) in page.moves("after").items():
        if id in before:
            moved = before.index(id) - after.index(id)
            assert (kind, badge) == (("same", "") if not moved else ("up", f"▲ {moved}") if moved > 0 else ("down", f"▼ {-moved}"))
    summary = page.text("#summary")
    assert f"{len(left)} left" in summary
    assert f"{len(came)} came" in summary
    assert f"{PAGE - len(came)} stayed" in summary


def test_slider_changes_the_order(page: SearchPage, drawn: Drawn) -> None:
    page.open(q=NO_CAT)
    shares = {1.0: share(page.names(), "cat", drawn)}
    for strength in (0.0, 0.25, 2.0):
        page.strengthen(strength)
        shares[strength] = share(page.names(), "cat", drawn)
        if strength == 0:
            assert page.ids("before") == page.ids("after")
            assert "Nothing moved" in page.text("#summary")
        assert page.parameters()["strength"] == f"{strength:g}"
        assert page.text("#strength-value") == f"{strength:g}"
    assert shares[0.0] > 0.9 > 0.1 > shares[1.0]
    assert shares[0.25] > shares[2.0] or shares[0.25] < shares[0.0]
    old = page.ids()
    slider = page.one("#strength")
    page.mark()
    slider.send_keys(Keys.HOME)  # by keyboard, as the browser moves it
    page.answered()
    assert page.ids() == page.ids("before") != old


def test_images_glide_to_their_new_places(page: SearchPage) -> None:
    page.screen(motion=True)
    page.open(q="a cat but no boat", strength="0")
    count = "return document.getAnimations().filter((one) => one.effect.target.matches('#after li')).length"
    page.js("window.most = 0; setInterval(() => { window.most = Math.max(window.most, (() => {" + count + "})()) }, 5)")
    page.strengthen(1.0)
    page.wait(lambda: page.js("return window.most") > 3, "animation")
    page.wait(lambda: page.js(count) == 0, "end of the animation")
    page.screen(motion=False)
    page.js("window.most = 0")
    page.strengthen(0.0)
    page.settled()
    assert page.js("return window.most") == 0  # whoever wants no motion gets none


def test_view_of_after_alone_and_back(page: SearchPage) -> None:
    page.open(q=NO_CAT)
    after = page.ids()
    page.mark()
    page.all(".switch label")[1].click()
    page.answered()
    assert not page.shown("#before")
    assert page.ids() == after
    assert page.parameters()["view"] == "after"
    assert {kind for kind, _ in page.moves("after").values()} == {""}
    page.driver.back()
    page.wait(lambda: page.shown("#before"), "pane of before")
    assert page.one("[name=view][value=compare]").is_selected()


def test_more_in_both_views(page: SearchPage) -> None:
    page.open(q=NO_CAT)
    first = page.ids()
    page.mark()
    page.one("#more").click()
    page.answered()
    assert len(page.ids("before")) == len(page.ids("after")) == 2 * PAGE
    assert page.ids()[:PAGE] == first
    page.open(q=NO_CAT, view="after")
    assert page.ids() == first
    for pages in range(2, 11):
        page.mark()
        page.one("#more").click()
        page.answered()
        assert len(set(page.ids())) == pages * PAGE
    assert not page.shown("#more")  # all 240 are there


def test_filters_by_folder_date_and_size(page: SearchPage, drawn: Drawn) -> None:
    page.open(q=NO_CAT)
    page.one("#filters-open").click()
    page.choose("#folder", "night sky")
    assert {name.split("/")[0] for name in page.names("before") + page.names("after")} == {"night sky"}
    assert page.text("#filters-count") == "1"
    page.choose("#folder", "")
    page.choose("#from", "2025-01-01")
    page.choose("#until", "2025-03-31")
    days = {date.fromtimestamp((drawn.images / name).stat().st_mtime) for name in page.names()}
    assert days <= {date.fromordinal(day) for day in range(date(2025, 1, 1).toordinal(), date(2025, 4, 1).toordinal())}
    assert len(page.names()) == PAGE
    page.choose("#size", ">1MB")
    assert page.ids() == []
    assert "No image fits" in page.text("#empty")
    assert not page.shown("#more")
    page.mark()
    page.one("#empty button").click()
    page.answered()
    assert len(page.ids()) == PAGE
    assert page.parameters() == {"q": NO_CAT}


def test_filters_in_the_query_are_understood(page: SearchPage) -> None:
    page.open()
    page.ask('"a beach" + 0.5 "a boat" - "a cat" folder:beach')
    assert page.text("#understood").split("\n") == ["+ “a beach”", "+ 0.5 × “a boat”", "− “a cat”", "in beach"]
    page.ask("folder:snow")  # filters alone list the images
    assert page.names() == sorted(page.names())
    assert {name.split("/")[0] for name in page.names()} == {"snow"}
    assert not page.shown("#before")


def test_permalink_says_everything(page: SearchPage) -> None:
    page.open(q="a cat but no boat", strength="0.5", folder="beach", view="after", collapse="1")
    shown = page.ids()
    assert page.one("#folder").get_attribute("value") == "beach"
    assert page.shown("#filters")
    assert page.text("#filters-count") == "2"
    assert page.text("#strength-value") == "0.5"
    assert "a cat but no boat" in page.driver.title
    page.driver.refresh()
    page.wait(lambda: page.ids() == shown, "the same images")
    page.ask("a red car")
    page.driver.back()
    page.wait(lambda: page.ids() == shown, "the images of the address before")
    assert page.one("#query").get_attribute("value") == "a cat but no boat"


def test_bad_parameters_do_no_harm(page: SearchPage) -> None:
    page.open(q="<script>alert(1)</script><u>cat</u>", strength="99", size="&lt;", **{"from": "yesterday"})
    assert page.text("#strength-value") == "1"
    assert len(page.ids()) == PAGE
    assert page.js("return document.querySelectorAll('u, body script').length") == 0


def test_a_dropped_image_is_searched_by(page: SearchPage, drawn: Drawn) -> None:
    name = next(name for name in sorted(drawn.shown) if name.startswith("desert/"))
    page.open()
    page.mark()
    page.drop((drawn.images / name).read_bytes())
    page.answered()
    assert page.names()[0] == name  # itself
    assert page.shown("#picture img")
    assert not page.shown("#before")  # no words: nothing that a patch could change
    page.ask("a cat")  # a query beside the image: both together
    assert page.text("#understood").split("\n") == ["+ your image", "+ “a cat”"]
    page.mark()
    page.one("#picture button").click()
    page.answered()
    assert not page.shown("#picture")
    assert page.shown("#before")


def test_a_chosen_image_is_searched_by(page: SearchPage, drawn: Drawn) -> None:
    name = sorted(drawn.shown)[-1]
    page.open()
    page.mark()
    page.one("#file").send_keys(str(drawn.images / name))
    page.answered()
    assert page.names()[0] == name


def test_what_is_no_image_is_refused(page: SearchPage) -> None:
    page.open()
    page.drop(b"%PDF", "paper.pdf", "application/pdf")
    page.wait(lambda: "“paper.pdf” is not an image" in page.text("#problem"), "complaint")
    page.drop(b"GIF89a nothing", "broken.gif", "image/gif")
    page.wait(lambda: "“broken.gif” starts as a GIF does" in page.text("#problem"), "the service's complaint")
    assert not page.shown("#picture")
    page.ask("a cat")


def test_one_image_large_with_what_is_known(page: SearchPage, drawn: Drawn) -> None:
    page.open(q="a cat but no boat")
    names, before, after = page.names(), page.ids("before"), page.ids("after")
    page.all("#after .tile")[0].click()
    assert page.text("#detail-title") == names[0].split("/")[1]
    facts = page.text("#detail-facts")
    for part in ("score before", "score after", names[0], "224 × 224", "date", "kB"):
        assert part in facts
    assert page.text("#detail-rank").endswith("after 1")
    if after[0] in before:
        assert page.text("#detail-rank").startswith(f"before {before.index(after[0]) + 1} ")
    page.wait(lambda: page.js("return document.getElementById('detail-image').naturalWidth") > 0, "picture")
    assert not page.one("#previous").is_enabled()
    page.one("#next").click()
    assert page.text("#detail-title") == names[1].split("/")[1]
    page.mark()
    page.one("[data-like='-']").click()
    page.answered()
    assert page.one("#query").get_attribute("value") == f'"a cat but no boat" - like:{after[1]}'
    assert after[1] not in page.ids()
    page.all("#after .tile")[0].click()
    like = page.ids()[0]
    page.mark()
    page.one("[data-like='only']").click()
    page.answered()
    assert page.one("#query").get_attribute("value") == f"like:{like}"


def test_the_same_image_is_pointed_out_in_the_other_list(page: SearchPage) -> None:
    page.open(q="a cat but no boat", strength="0.25")
    both = next(id for id in page.ids("before") if id in page.ids("after"))
    page.js("document.querySelector(`#before li[data-id='${arguments[0]}'] button`).focus()", both)
    assert page.js("return [...document.querySelectorAll('.twin')].map((one) => Number(one.parentElement.dataset.id))") == [both]
    assert page.js("return document.getElementById('thread').classList.contains('on')")


def test_ambiguous_query_offers_both_readings(page: SearchPage) -> None:
    page.open()
    page.ask("beach -cat")
    assert "two ways" in page.text("#problem")
    assert page.one("#query").get_attribute("aria-invalid") == "true"
    assert page.ids() == page.ids("before") == []  # what was there answers another question
    readings = [button.text for button in page.all("#problem button")]
    assert readings == ['"beach" - "cat"', '"beach -cat"']
    page.all("#problem button")[0].click()
    page.wait(lambda: page.text("#problem") == "", "end of the complaint")
    assert page.text("#understood").split("\n") == ["+ “beach”", "− “cat”"]


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ("colour:red car", "no field 'colour'"),
        ('"a cat', "never closed"),
        ("like:999999", "like:999999"),
        ("date>=soon", "no date"),
    ],
)
def test_bad_query_says_why(page: SearchPage, query: str, complaint: str) -> None:
    page.open()
    page.ask(query)
    assert complaint in page.text("#problem")
    assert "a cat" not in page.driver.title
    page.ask("a cat")
    assert page.text("#problem") == ""
    assert page.one("#query").get_attribute("aria-invalid") is None
