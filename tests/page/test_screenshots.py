"""README's pictures of the page, and that what they show is so.

make test-page ARGS="--screenshots docs/images"
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from page.browser import PHONE

if TYPE_CHECKING:
    from page.browser import SearchPage

pytestmark = pytest.mark.page

LIMIT = 250_000
PICTURES = {
    # name: (window, dark, what is asked)
    "page.png": ((1280, 800), False, {"q": "a cat but no boat"}),
    "page-dark.png": ((1280, 800), True, {"q": "a picture with no cat"}),
    "page-phone.png": (PHONE, False, {"q": "a cat but no boat"}),
}


@pytest.mark.parametrize("name", PICTURES)
def test_screenshot(page: SearchPage, name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    size, dark, parameters = PICTURES[name]
    folder: Path = request.config.getoption("--screenshots") or tmp_path
    page.screen(size, dark=dark, scale=1 if size[0] > 600 else 2)
    page.open(**parameters)
    page.js("document.activeElement.blur()")
    page.save(folder / name)
    small(folder / name)
    with Image.open(folder / name) as image:
        assert image.size[0] % size[0] == 0
        assert len(image.convert("RGB").resize((160, 100)).getcolors(16_000) or []) > 200  # not a blank page
    assert (folder / name).stat().st_size < LIMIT
    kinds = {kind for kind, _ in page.moves("before").values()} | {kind for kind, _ in page.moves("after").values()}
    assert {"came", "left"} <= kinds


def small(path: Path) -> None:
    """256 colours are enough for drawings and letters; without dithering, so that areas stay calm."""
    with Image.open(path) as image:
        few = image.convert("RGB").quantize(256, method=Image.Quantize.MEDIANCUT, kmeans=1, dither=Image.Dither.NONE)
    few.save(path, optimize=True)
