"""Resizing a photograph before transformers' image processor sees it, to the very pixels that the processor would make.

The processors that work with Pillow turn the whole image into an array first, put its channels in front, and turn it back for
Pillow to resize: of 12 megapixels that takes longer than to decode them. Here Pillow resizes the image as it is. The processor then
finds it at its size and has nothing left to resize. Whether the bits are the same is not believed but tried out, on small noise,
for each processor and each of its settings; one that gives other bits (torchvision's resizing does) is left to itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

from clipmend.backbones.strips import entry_of_size, pillow_filter

__all__ = ["Resizing"]

Resize = Callable[[Image.Image], Image.Image]
_PROBES = ((97, 61), (61, 97), (40, 40), (9, 7), (641, 360), (360, 641))
"""Widths and heights that resizing is tried out on: either way round, and both larger and smaller than what it makes."""
_SETTINGS = ("do_resize", "size", "resample", "default_to_square", "do_center_crop", "crop_size", "crop_pct", "do_pad", "pad_size")


class Resizing:
    """What can be done of a processor's resizing beforehand.

    Args:
        processor: an image processor of transformers, whose settings may change.
    """

    def __init__(self, processor: Any) -> None:
        self.processor = processor
        self._known: dict[str, Resize | None] = {}

    def __call__(self, image: Image.Image) -> Image.Image:
        """``image`` resized as the processor would, or ``image`` itself where that cannot be done with the same bits."""
        resize = self._resize()
        return image if resize is None or image.mode != "RGB" else resize(image)

    def _resize(self) -> Resize | None:
        settings = repr([getattr(self.processor, name, None) for name in _SETTINGS])
        if settings not in self._known:  # several threads may find it out at once, all the same
            resize = _of_settings(self.processor)
            self._known[settings] = resize if resize is not None and _same_bits(self.processor, resize) else None
        return self._known[settings]


def _of_settings(processor: Any) -> Resize | None:
    """Resizing to a fixed size, or of the short side to a length; ``None`` for any other kind."""
    size, chosen = getattr(processor, "size", None), getattr(processor, "resample", None)
    resample = pillow_filter(Image.Resampling.BILINEAR if chosen is None else chosen)
    if not getattr(processor, "do_resize", False) or resample is None:
        return None
    edge, height, width = (entry_of_size(size, key) for key in ("shortest_edge", "height", "width"))
    if any(entry_of_size(size, key) for key in ("longest_edge", "max_height", "max_width")):
        return None

    def resize(image: Image.Image) -> Image.Image:
        if edge:
            short, long = sorted(image.size)
            other = int(edge * long / short)
            target = (edge, other) if image.width <= image.height else (other, edge)
        else:
            assert width is not None
            assert height is not None
            target = (width, height)
        return image if image.size == target else image.resize(target, resample)

    return resize if edge or (height and width) else None


def _same_bits(processor: Any, resize: Resize) -> bool:
    rng = np.random.default_rng(0)
    for width, height in _PROBES:
        image = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
        try:
            whole, after = (processor(images=[tried], return_tensors="np")["pixel_values"] for tried in (image, resize(image)))
        except Exception:  # a processor that refuses such an image will say so itself, of the user's
            return False
        if np.shape(whole) != np.shape(after) or not np.array_equal(whole, after):
            return False
    return True
