"""Everyone can use it: by keyboard alone, read aloud, on a phone, in the dark, with weak eyes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from selenium.webdriver.common.keys import Keys

from page.browser import DESKTOP, PHONE

if TYPE_CHECKING:
    from page.browser import SearchPage
    from page.conftest import Drawn

pytestmark = pytest.mark.page

# The contrast of every text that is seen, by WCAG 2's formula. Where something translucent lies over an image, the image may have
# any colour: the worst of black and white counts. Colours go through a canvas, which understands every notation.
CONTRAST = """
const canvas = document.createElement('canvas'); canvas.width = canvas.height = 1;
const pen = canvas.getContext('2d', { willReadFrequently: true });
const rgba = (colour) => { pen.clearRect(0, 0, 1, 1); pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1);
  const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data; return [r, g, b, a / 255]; };
const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3]));
const part = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
const canvasColour = rgba(getComputedStyle(document.documentElement).backgroundColor);
const found = [];
const roots = document.querySelector('dialog[open]') ? [document.querySelector('dialog[open]')] : [document.body];
for (const root of roots) for (const element of root.querySelectorAll('*')) {
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  const placeholder = element.matches('input') && element.placeholder && !element.value;
  if (!own && !placeholder && !(element.matches('input, select') && element.value)) continue;
  if (!element.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true })) continue;
  const box = element.getBoundingClientRect();
  if (box.width < 2 || box.height < 2 || element.closest('.unseen, .skip, :disabled')) continue;
  if (element.matches('input[type=radio], input[type=checkbox], input[type=range], input[type=file], option, noscript *')) continue;
  const layers = [];
  let image = false;
  for (let node = element; node; node = node.parentElement) {
    const colour = rgba(getComputedStyle(node).backgroundColor);
    if (colour[3] > 0) layers.push(colour);
    if (colour[3] === 1) break;
    if (node.matches('.tile') && node.querySelector('img')) { image = true; break; }
  }
  const style = getComputedStyle(element, placeholder ? '::placeholder' : null);
  const text = rgba(style.color);
  const bases = image ? [[0, 0, 0], [255, 255, 255]] : [over(canvasColour, [255, 255, 255])];
  const worst = Math.min(...bases.map((base) => {
    const ground = layers.reduceRight((below, layer) => over(layer, below), base);
    return ratio(over(text, ground), ground);
  }));
  const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
  const words = (element.textContent || element.placeholder).trim().slice(0, 30);
  found.push([worst, large ? 3 : 4.5, `${element.id || element.className || element.tagName}: ${words}`]);
}
return found;
"""

STATES = {
    "start": {},
    "compared": {"q": "a cat but no boat"},
    "filtered": {"q": '"a beach" + 0.5 "a boat" - "a cat"', "folder": "beach"},
    "nothing": {"q": "a cat", "size": ">20MB"},
    "wrong": {"q": "beach -cat"},
}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_contrast(page: SearchPage, size: tuple[int, int], dark: bool) -> None:
    page.screen(size, dark=dark)
    for name, parameters in STATES.items():
        page.open(**parameters)
        page.settled()
        measured = page.js(CONTRAST)
        assert len(measured) > 5, name
        assert [m for m in measured if m[0] < m[1]] == [], name
        background = page.js("return getComputedStyle(document.documentElement).backgroundColor")
        assert (sum(int(part) for part in background[4:-1].split(",")) < 200) == dark
    page.open(q="a cat but no boat")
    for opener in ("#after .tile", "#help-open"):
        page.one(opener).click()
        measured = page.js(CONTRAST)
        assert len(measured) > 5
        assert [m for m in measured if m[0] < m[1]] == [], opener
        page.keys(Keys.ESCAPE)


def test_colours_can_be_chosen_and_are_kept(page: SearchPage) -> None:
    page.open()
    ground = "return getComputedStyle(document.documentElement).backgroundColor"
    light = page.js(ground)
    button = page.one("#theme")
    button.click()
    button.click()
    assert button.get_attribute("aria-label") == "Colours: dark"
    dark = page.js(ground)
    assert dark != light
    page.open()
    assert page.js(ground) == dark
    page.one("#theme").click()
    assert page.js(ground) == light


SIZES = ((320, 640), PHONE, (768, 1024), DESKTOP, (1920, 1080))


def test_nothing_scrolls_sideways(page: SearchPage) -> None:
    beyond = """
        return [...document.querySelectorAll('button, input, select, h2, p')].filter((one) => one.checkVisibility()
          && !one.closest('.unseen, .skip') && one.getBoundingClientRect().right > innerWidth + 1)
          .map((one) => one.id || one.className)
    """
    within = (
        "const { left, right } = document.getElementById('detail').getBoundingClientRect(); return left >= 0 && right <= innerWidth"
    )
    for name, parameters in STATES.items():
        page.open(**parameters)
        for size in SIZES:
            page.screen(size)
            assert page.js("return innerWidth") == size[0]
            assert page.js("return document.documentElement.scrollWidth") <= size[0], (name, size)
            assert page.js(beyond) == [], (name, size)
    page.open(q="a cat but no boat")
    page.one("#after .tile").click()
    for size in SIZES:
        page.screen(size)
        assert page.js(within), size


def test_on_a_phone_both_lists_stand_side_by_side(page: SearchPage) -> None:
    page.screen(PHONE)
    page.open(q="a cat but no boat")
    boxes = page.js("""
        return ['before', 'after'].map((id) => {
          const box = document.getElementById(id).getBoundingClientRect(); return [box.left, box.right, box.top] })
    """)
    assert boxes[0][1] <= boxes[1][0]
    assert boxes[0][2] == boxes[1][2] < PHONE[1] / 2  # both seen without scrolling
    small = """
        return [...document.querySelectorAll('main button, main label, main input:not([type=radio]), main select')]
          .filter((one) => one.checkVisibility())
          .filter((one) => { const { width, height } = one.getBoundingClientRect(); return Math.min(width, height) < 24; })
          .map((one) => one.id || one.className)
    """
    assert set(page.js(small)) <= {"", "file"}  # large enough for a finger (WCAG 2.5.8); texts of labels aside


def test_by_keyboard_alone(page: SearchPage) -> None:
    page.open()
    page.js("document.activeElement.blur()")
    page.keys("/")
    assert page.focused() == "query"
    page.mark()
    page.keys("a cat but no boat", Keys.ENTER)
    page.answered()
    after, before = page.names(), page.names("before")
    page.keys(Keys.ARROW_DOWN)
    assert page.focused() == after[0]
    page.keys(Keys.ARROW_RIGHT)
    assert page.focused() == after[1]
    page.keys(Keys.ARROW_DOWN)
    assert page.focused() == after[5]  # four in a row
    page.keys(Keys.ARROW_LEFT, Keys.ARROW_LEFT)  # over into the other list
    assert page.focused() == before[7]
    page.keys(Keys.ARROW_RIGHT, Keys.ENTER)
    assert page.shown("#detail")
    assert page.text("#detail-title") == after[4].split("/")[1]
    page.keys(Keys.ARROW_RIGHT)
    assert page.text("#detail-title") == after[5].split("/")[1]
    page.keys(Keys.ESCAPE)
    assert not page.shown("#detail")
    page.wait(lambda: page.focused() == after[5], "focus on the image that was looked at")
    page.keys(Keys.ENTER)
    assert page.shown("#detail")
    page.keys(Keys.ENTER)
    assert not page.shown("#detail")
    page.mark()
    page.keys("[")
    page.answered()
    assert page.text("#strength-value") == "0.75"
    page.mark()
    page.keys("c")
    page.answered()
    assert not page.shown("#before")
    page.keys("?")
    assert page.shown("#help")
    page.keys(Keys.ESCAPE)
    assert not page.shown("#help")
    page.keys(Keys.ESCAPE)
    assert page.focused() == "query"
    page.keys("/?c[]")  # in the query these are letters
    assert page.one("#query").get_attribute("value").endswith("/?c[]")
    assert not page.shown("#help")


def test_tab_reaches_everything_once(page: SearchPage) -> None:
    page.open(q="a cat but no boat")
    page.js("document.activeElement.blur()")
    reached: dict[str, bool] = {}
    for _ in range(30):
        page.keys(Keys.TAB)
        name, ringed = page.js("""
            const one = document.activeElement;
            const name = one.id || (one.closest('.tile') ? 'tile' : one.name || one.className || one.tagName);
            const shown = one.matches('#query') ? one.closest('.box') : one.matches('#file') ? one.closest('label')
              : one.matches('[name=view]') ? one.nextElementSibling : one;
            const style = getComputedStyle(shown);
            return [name, style.outlineStyle === 'solid' && parseFloat(style.outlineWidth) >= 2]
        """)
        if name in reached or name == "BODY":
            break
        reached[name] = ringed
    order = list(reached)
    assert order[0] == "skip"
    for needed in ("theme", "help-open", "query", "clear", "file", "go", "filters-open", "view", "strength", "tile", "more"):
        assert needed in order
    assert order.index("query") < order.index("strength") < order.index("tile") < order.index("more")
    assert [name for name, ringed in reached.items() if not ringed] == []  # who has the focus is seen


def test_everything_has_a_name(page: SearchPage, drawn: Drawn) -> None:
    acting = {"button", "link", "textbox", "searchbox", "combobox", "slider", "radio", "checkbox", "Date", "menuitem"}
    page.open(q="a cat but no boat")
    page.one("#filters-open").click()
    nodes = page.accessibility()
    nameless = [
        node
        for node in nodes
        if (node["role"] in acting or node["focusable"])
        and not node["name"]
        and node["role"] not in ("RootWebArea", "generic", "dialog")
    ]
    assert nameless == []
    names = [node["name"] for node in nodes if node["role"] == "button"]
    first = page.names()[0].split("/")[1]
    assert any(name.startswith(f"1: {first}, ") for name in names)
    moved = [name for name in names if "came from rank" in name or "now at" in name]
    assert len(moved) > 10
    roles = {node["role"] for node in nodes}
    assert {"search", "main", "banner", "region", "status", "list", "listitem", "heading", "slider"} <= roles
    slider = next(node for node in nodes if node["role"] == "slider")
    assert slider["name"] == "Strength"
    page.one("#after .tile").click()
    assert {"dialog", "image"} <= {node["role"] for node in page.accessibility()}
    assert page.js("return document.documentElement.lang") == "en"


def test_what_changed_is_read_aloud(page: SearchPage) -> None:
    page.open(q="a cat but no boat")
    live = page.one("#summary")
    assert live.get_attribute("aria-live") == "polite"
    assert "came" in live.text
    page.strengthen(0.0)
    assert "Nothing moved" in live.text
    assert page.one("#problem").get_attribute("role") == page.one("#banner").get_attribute("role") == "alert"
