"""One browser, one drawn gallery and one service for all tests of the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from page.fake_service import FakeService

if TYPE_CHECKING:
    from selenium import webdriver

    from page.browser import SearchPage


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screenshots", type=Path, default=None, metavar="DIR", help="write README's pictures of the page there")


@dataclass(frozen=True)
class Drawn:
    """The service over drawn scenes: where it is, where its images are, and what each shows."""

    address: str
    images: Path
    shown: dict[str, frozenset[str]]
    index: Path


@pytest.fixture(scope="session")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drawn]:
    import clipmend
    from clipmend.search.index import ImageIndex
    from page.drawn_gallery import draw, served

    root = tmp_path_factory.mktemp("page")
    shown = draw(root / "scenes")
    ImageIndex.build(clipmend.load("scenes"), root / "scenes", root / "index").close()
    with served(root / "index") as address:
        yield Drawn(address, root / "scenes", shown, root / "index")


@pytest.fixture(scope="session")
def chromium() -> Iterator[webdriver.Chrome]:
    from page.browser import launch

    driver = launch()
    yield driver
    driver.quit()


@pytest.fixture
def page(chromium: webdriver.Chrome, drawn: Drawn) -> Iterator[SearchPage]:
    """The page of the real service, on a desktop; a test that ends with complaints of the browser fails."""
    yield from _page(chromium, drawn.address)


@pytest.fixture
def fake() -> Iterator[FakeService]:
    service = FakeService()
    yield service
    service.stop()


@pytest.fixture
def fake_page(chromium: webdriver.Chrome, fake: FakeService) -> Iterator[SearchPage]:
    """The page of a service that can be told to fail; what the browser complains of is left to the test."""
    from page.browser import SearchPage

    page = SearchPage(chromium, fake.start())
    page.screen()
    page.log()
    yield page
    chromium.get("about:blank")


def _page(chromium: webdriver.Chrome, address: str) -> Iterator[SearchPage]:
    from page.browser import SearchPage

    page = SearchPage(chromium, address)
    page.screen()
    page.log()
    yield page
    complaints = page.log()
    chromium.get(address)
    chromium.execute_script("localStorage.clear(); sessionStorage.clear()")
    chromium.get("about:blank")
    chromium.delete_all_cookies()
    assert not [line for line in complaints if "422" not in line], complaints
