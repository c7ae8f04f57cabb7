"""A headless Chromium with the search page in it: what the tests do, in the words of who uses the page."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

from install_browser import WAY_OUT, find
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

Side = Literal["before", "after"]
DESKTOP, PHONE = (1280, 900), (390, 844)
PATIENCE = 30.0
"""Seconds until a page that does not do what it should is given up; the machines of CI are slow and shared."""

FLAGS = (
    "--headless=new",
    "--no-sandbox",  # as root, in a container
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--lang=en-GB",
)


def launch() -> webdriver.Chrome:
    """Start the browser.

    Raises:
        RuntimeError: there is none, with the way out.
    """
    found = find()
    if found is None:
        raise RuntimeError(WAY_OUT)
    options = webdriver.ChromeOptions()
    options.binary_location = found.binary
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(found.driver))
    driver.set_script_timeout(PATIENCE)
    return driver


class SearchPage:
    """The page at an address.

    Args:
        driver: the browser.
        address: of the service, with a slash at its end.
    """

    def __init__(self, driver: webdriver.Chrome, address: str) -> None:
        self.driver, self.address = driver, address

    # ---- the browser -------------------------------------------------------------------------------------------------------

    def screen(self, size: tuple[int, int] = DESKTOP, *, dark: bool = False, scale: float = 1, motion: bool = False) -> None:
        """How large the window is, in CSS pixels, and what its user prefers."""
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "no-preference" if motion else "reduce"},
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def open(self, **parameters: str) -> None:
        """Load the page anew and wait for its first answer (or for what it says in place of one)."""
        self.driver.get(self.address + ("?" + urlencode(parameters) if parameters else ""))
        self.wait(
            lambda: self.js(
                "return document.querySelector('#after .tile, dialog[open]') !== null || ['banner', 'empty'].some((id) => "
                "!document.getElementById(id).hidden) || document.getElementById('problem').textContent !== ''"
            ),
            "a first answer",
        )

    def js(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page."""
        return self.driver.execute_script(script, *arguments)

    def module(self, name: str, body: str, *arguments: Any) -> Any:
        """Run the body of a function of ``m``, a module of the page, and ``args``; gives what it returns."""
        script = (
            "const args = [...arguments], done = args.pop();"
            f"import(new URL('page/{name}', location.href))"
            f".then((m) => done([true, (() => {{ {body} }})()]), (error) => done([false, String(error)]));"
        )
        fine, value = self.driver.execute_async_script(script, *arguments)
        assert fine, value
        return value

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait until ``condition`` gives something true, and give that.

        Raises:
            AssertionError: it never does.
        """
        end = time.monotonic() + PATIENCE
        while True:
            try:
                value = condition()
            except StaleElementReferenceException:
                value = None
            if value:
                return value
            if time.monotonic() > end:
                raise AssertionError(f"no {what} within {PATIENCE:.0f} s; the page says: {self.one('body').text[:600]!r}")
            time.sleep(0.03)

    def settled(self) -> None:
        """Wait until nothing is asked any more and all images in view are there."""
        self.wait(lambda: not self.one("#results").get_attribute("aria-busy"), "end of the search")
        self.wait(
            lambda: self.js(
                "return [...document.querySelectorAll('.tile img, dialog[open] img')].every((image) => "
                "image.complete || image.getBoundingClientRect().top > innerHeight + 100)"
            ),
            "images",
        )

    def log(self) -> list[str]:
        """What the browser complained of since the last call: errors of scripts, blocked resources."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def save(self, path: Path) -> None:
        """A picture of the window's top."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.settled()
        time.sleep(0.4)  # thumbnails fade in
        self.driver.save_screenshot(str(path))

    # ---- what is on the page ---------------------------------------------------------------------------------------------------

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        return self.one(selector).text

    def shown(self, selector: str) -> bool:
        return any(element.is_displayed() for element in self.all(selector))

    def ids(self, side: Side = "after") -> list[int]:
        """The images of a list, best first."""
        script = "return [...document.querySelectorAll(`#${arguments[0]} li`)].map((item) => Number(item.dataset.id))"
        return self.js(script, side)

    def names(self, side: Side = "after") -> list[str]:
        """Their paths."""
        return self.js("return [...document.querySelectorAll(`#${arguments[0]} .tile`)].map((tile) => tile.title)", side)

    def moves(self, side: Side) -> dict[int, tuple[str, str]]:
        """What became of each image: kind and badge."""
        script = (
            "return [...document.querySelectorAll(`#${arguments[0]} li`)].map((item) => [Number(item.dataset.id), "
            "item.firstElementChild.dataset.move, item.querySelector('.badge').textContent])"
        )
        return {id: (kind, badge) for id, kind, badge in self.js(script, side)}

    def focused(self) -> str:
        """The id of the element that has the focus, or the title of a tile."""
        return self.js("return document.activeElement.id || document.activeElement.title || document.activeElement.tagName")

    def parameters(self) -> dict[str, str]:
        """Of the page's address."""
        return self.js("return Object.fromEntries(new URLSearchParams(location.search))")

    # ---- what is done --------------------------------------------------------------------------------------------------------

    def ask(self, query: str) -> None:
        """Type a query in place of the one that is there, press Enter, and wait for the answer."""
        box = self.one("#query")
        box.send_keys(Keys.CONTROL, "a")
        box.send_keys(query if query else Keys.DELETE)
        self.mark()
        box.send_keys(Keys.ENTER)
        self.answered()

    def mark(self) -> None:
        """Remember that what is shown is old: the page replaces this mark with its next answer."""
        self.js("document.getElementById('summary').append('…'); document.getElementById('problem').textContent = ''")

    def answered(self) -> None:
        """Wait for the answer after :meth:`mark`, or for a complaint."""
        self.wait(
            lambda: self.js(
                "return !document.getElementById('summary').textContent.endsWith('…') || "
                "document.getElementById('problem').textContent !== '' || !document.getElementById('banner').hidden"
            ),
            "answer",
        )

    def keys(self, *keys: str) -> None:
        """Press keys, wherever the focus is."""
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    def choose(self, selector: str, value: str) -> None:
        """Choose a value of a select, or of an input that has a picker."""
        script = (
            "const [control, value] = arguments; control.value = value;"
            "for (const name of ['input', 'change']) control.dispatchEvent(new Event(name, { bubbles: true }))"
        )
        self.mark()
        self.js(script, self.one(selector), value)
        self.answered()

    def strengthen(self, value: float) -> None:
        """Move the slider there in one go, as a drag does with its last event."""
        self.mark()
        script = (
            "const slider = document.getElementById('strength'); slider.value = arguments[0];"
            "slider.dispatchEvent(new Event('input', { bubbles: true }))"
        )
        self.js(script, value)
        self.answered()

    def drop(self, content: bytes, name: str = "picture.png", kind: str = "image/png") -> None:
        """Drag a file over the page and let it fall."""
        script = """
            const [bytes, name, kind] = arguments, transfer = new DataTransfer();
            transfer.items.add(new File([new Uint8Array(bytes)], name, { type: kind }));
            const options = { bubbles: true, cancelable: true, dataTransfer: transfer };
            const fire = (type) => document.body.dispatchEvent(new DragEvent(type, options));
            fire('dragenter'); fire('dragover');
            const seen = !document.getElementById('drop').hidden;
            fire('drop');
            return seen;
        """
        assert self.js(script, list(content), name, kind), "nothing said that the file may be dropped"

    def accessibility(self) -> list[dict[str, Any]]:
        """The nodes of the accessibility tree that are not ignored: role, name, focusable."""
        nodes = self.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        told = []
        for node in nodes:
            if node.get("ignored"):
                continue
            properties = {p["name"]: p["value"].get("value") for p in node.get("properties", [])}
            told.append(
                {
                    "role": node.get("role", {}).get("value"),
                    "name": node.get("name", {}).get("value", ""),
                    "focusable": bool(properties.get("focusable")),
                }
            )
        return json.loads(json.dumps(told))
