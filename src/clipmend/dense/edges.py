"""Edge images: what is left of a picture without colour, material and texture. This file alone imports OpenCV."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

__all__ = ["EDGE_METHODS", "check_edges", "edge_image"]

EdgeMethod = Literal["opencv", "skimage"]

EDGE_METHODS = ("opencv", "skimage")
"""What finds the edges: OpenCV (extra ``edges``) or scikit-image (extra ``demo``)."""

_Finder = Callable[[NDArray[np.uint8], float, float], Any]


def _opencv() -> _Finder:
    try:
        import cv2
    except ImportError as error:
        raise ImportError(
            f"edges are found by OpenCV ({error}); install it with: pip install 'clipmend[edges]', or take scikit-image with "
            "edges='skimage' (--set edges=skimage)"
        ) from error
    return lambda grey, low, high: cv2.Canny(cv2.GaussianBlur(grey, (5, 5), 1.0), low, high, L2gradient=True)


def _skimage() -> _Finder:
    try:
        from skimage.feature import canny
    except ImportError as error:
        raise ImportError(
            f"edges='skimage' needs scikit-image ({error}); install it with: pip install scikit-image, or take OpenCV with "
            "edges='opencv'"
        ) from error
    # Both sum Sobel's kernel; scikit-image takes thresholds on the scale of the image's own type.
    return lambda grey, low, high: canny(grey, sigma=1.0, low_threshold=low, high_threshold=high)


def _finder(method: str) -> _Finder:
    if method not in EDGE_METHODS:
        raise ValueError(f"edges is {method!r}; it must be one of {', '.join(EDGE_METHODS)}")
    return _opencv() if method == "opencv" else _skimage()


def check_edges(method: str) -> None:
    """See that edges can be found this way.

    Raises:
        ValueError: no such method. ImportError: a package that is not installed, with the way to it.
    """
    _finder(method)


def edge_image(
    image: Image.Image, method: EdgeMethod = "opencv", *, size: int = 448, low: float = 100.0, high: float = 200.0
) -> Image.Image:
    """The edges of an image (Canny's), white on black, RGB.

    Args:
        image: RGB.
        method: see :data:`EDGE_METHODS`. Their smoothing differs a little, and so do single pixels.
        size: an image whose shorter side is longer is shrunk to this first; 0: never. Lines of one pixel in a photo of 4,000 are
            gone when an encoder shrinks it to 224.
        low, high: thresholds of the gradient (8-bit grey, Sobel): an edge starts above ``high`` and goes on above ``low``.

    Raises:
        ValueError, ImportError: as :func:`check_edges`.
    """
    find = _finder(method)
    shortest = min(image.size)
    if size and shortest > size:
        width, height = (max(1, math.floor(side * size / shortest + 0.5)) for side in image.size)
        image = image.resize((width, height), Image.Resampling.LANCZOS)
    if min(image.size) < 3:  # too small for a gradient
        return Image.new("RGB", image.size)
    found = np.asarray(find(np.array(image.convert("L")), low, high)).astype(bool)
    return Image.fromarray(found.astype(np.uint8) * 255).convert("RGB")
