"""Whatever bytes an image file holds, the loader gives an RGB picture within its limits, or says why not; and HEIC."""

from __future__ import annotations

import builtins
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from clipmend.data.images import ImageError, date_taken, open_image

LIMIT = 100_000


def wholes() -> list[bytes]:
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8))
    files = []
    for file_format in ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "ICO", "TGA", "JPEG2000"):
        buffer = io.BytesIO()
        picture.save(buffer, file_format)
        files.append(buffer.getvalue())
    return files


WHOLES = wholes()


@st.composite
def files(draw: Any) -> bytes:
    """An image with a few bytes changed, cut out, put in or cut off; or any bytes."""
    if draw(st.integers(0, 9)) == 0:
        return bytes(draw(st.binary(max_size=300)))
    data = bytearray(draw(st.sampled_from(WHOLES)))
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        how = draw(st.sampled_from(["set", "insert", "delete", "cut"]))
        some = draw(st.binary(min_size=1, max_size=8))
        if how == "set":
            data[at : at + len(some)] = some
        elif how == "insert":
            data[at:at] = some
        elif how == "delete":
            del data[at : at + len(some)]
        else:
            del data[at:]
    return bytes(data)


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@settings(max_examples=400, deadline=5000)
@given(data=files())
def test_any_bytes_are_a_picture_or_an_image_error(data: bytes) -> None:
    try:
        picture = open_image(io.BytesIO(data), max_pixels=LIMIT)
    except ImageError as error:
        picture, reason = None, error.reason
    if picture is None:
        assert reason.strip()
        return
    assert picture.mode == "RGB"
    assert 0 < picture.width * picture.height <= LIMIT
    assert np.asarray(picture).shape == (picture.height, picture.width, 3)
    taken = date_taken(picture)
    assert taken is None or np.isfinite(taken)


def test_heic_opens_where_its_package_is_installed(tmp_path: Path) -> None:
    heif = pytest.importorskip("pillow_heif")
    heif.from_pillow(Image.new("RGB", (40, 20), (250, 10, 10))).save(tmp_path / "a.heic")
    picture = open_image(tmp_path / "a.heic")
    assert picture.size == (40, 20)
    assert np.abs(np.asarray(picture, int) - (250, 10, 10)).max() < 12
    data = bytearray((tmp_path / "a.heic").read_bytes())
    (tmp_path / "cut.heic").write_bytes(data[: len(data) // 2])
    with pytest.raises(ImageError, match=r"cut\.heic"):
        open_image(tmp_path / "cut.heic")


def test_heic_names_its_package_where_it_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.heic").write_bytes(b"\0\0\0\x18ftypheic" + b"\0" * 40)
    real = builtins.__import__

    def without(name: str, *arguments: Any) -> Any:
        if name == "pillow_heif":
            raise ImportError(name)
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setitem(Image.OPEN, "HEIF", None)
    monkeypatch.delitem(Image.OPEN, "HEIF")
    with pytest.raises(ImageError, match=r"pip install 'clipmend\[heic\]'"):
        open_image(tmp_path / "a.heic")
