"""Very long, narrow images: reduced to what a central crop keeps before they are resized, not after.

CLIP's preprocessing brings the short side to ``S`` pixels and then cuts out the centre. Of an image of 20,000 x 1 pixels it makes
one of 4,480,000 x 224, to keep 224 x 224 of that. Here little more is computed than what is kept: Pillow resizes a region of an
image with the same filter, the same phase and the same neighbouring pixels as it would the whole, so what comes out is what the
encoder's own preprocessing would have kept (to one level of 255, by rounding), and that finds nothing left but to crop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from PIL import Image

__all__ = ["LONGEST", "CentralCrop", "Fit", "crop_of_processor", "crop_of_transform", "entry_of_size", "pillow_filter"]

_WARPED = 384  # from this size on, ConvNeXT's preprocessing warps an image to a square
LONGEST = 8
"""Images whose long side is at most this many times the short one are left as they are."""


@dataclass(frozen=True)
class CentralCrop:
    """Preprocessing of the kind "short side to a size, then the central crop".

    Args:
        edges: what the short side becomes in (an image wider than high, an image higher than wide).
        crop: (height, width) of the crop.
        resample: the filter.
        whole: from the exact length of the resized long side to whole pixels.
        start: where a crop begins: (length of the side, length of the crop) to the first pixel kept.
        rows_first: the resizing is torchvision's, which always goes along the rows first; Pillow (from 13 on) begins with the
            columns where that is less work, and both round and clip in between.
    """

    edges: tuple[int, int]
    crop: tuple[int, int]
    resample: Image.Resampling
    whole: Callable[[float], int]
    start: Callable[[int, int], int]
    rows_first: bool = False

    def __call__(self, image: Image.Image) -> Image.Image:
        """``image`` itself, or for a narrow one its central part, resized but not yet cropped."""
        wide = image.width > image.height
        long, short = max(image.size), min(image.size)
        if short < 1 or long <= LONGEST * short:
            return image
        edge, kept = (self.edges[0], self.crop[1]) if wide else (self.edges[1], self.crop[0])
        length = self.whole(edge * long / short)
        # Far more than is kept, so that the ends of the region, where the filter misses its neighbours, are cut off afterwards, and
        # so that Pillow, which chooses the order of its two passes by the shape, chooses it as for the whole.
        part = LONGEST * max(edge, kept)
        if length <= part:
            return image
        scale = long / length
        first = self.start(length, kept) - self.start(part, kept)
        low, high = math.floor(first * scale), min(long, math.ceil((first + part) * scale))
        # Whole pixels are cut before, because Pillow keeps the bounds of a region in single precision.
        near = image.crop((low, 0, high, short) if wide else (0, low, short, high))
        begin, end = first * scale - low, min(float(high - low), (first + part) * scale - low)
        if wide:
            return near.resize((part, edge), self.resample, box=(begin, 0, end, short))
        if self.rows_first:
            near = near.resize((edge, near.height), self.resample)
        return near.resize((edge, part), self.resample, box=(0, begin, near.width, end))


@dataclass(frozen=True)
class Fit:
    """Preprocessing of the kind "long side to a size, then padding": only keeps a narrow image from vanishing.

    Args:
        size: (height, width) that the image is fitted into.
        resample: the filter.
    """

    size: tuple[int, int]
    resample: Image.Resampling

    def __call__(self, image: Image.Image) -> Image.Image:
        """``image`` itself, or resized with one pixel for its short side where rounding would leave none."""
        ratio = max(image.height / self.size[0], image.width / self.size[1])
        width, height = round(image.width / ratio), round(image.height / ratio)
        return image if width and height else image.resize((max(1, width), max(1, height)), self.resample)


def crop_of_processor(processor: Any) -> CentralCrop | None:
    """The resizing and cropping of a transformers image processor; ``None`` where it is of another kind."""
    size, crop = getattr(processor, "size", None), getattr(processor, "crop_size", None)
    edge, height, width = entry_of_size(size, "shortest_edge"), entry_of_size(crop, "height"), entry_of_size(crop, "width")
    share, crops = getattr(processor, "crop_pct", None), getattr(processor, "do_center_crop", False)
    if edge and type(processor).__name__.startswith("ConvNextImageProcessor"):  # ConvNeXT's and ResNet's crops while it resizes
        if crops or not share or edge >= _WARPED:
            return None
        crops, height, width = True, edge, edge
    if not (getattr(processor, "do_resize", False) and crops):
        return None
    if edge and share:
        edge = int(edge / share)
    if not (edge and height and width) or any(entry_of_size(size, other) for other in ("longest_edge", "height", "width")):
        return None
    chosen = getattr(processor, "resample", None)
    resample = pillow_filter(Image.Resampling.BILINEAR if chosen is None else chosen)
    if resample is None:
        return None
    torchvision = getattr(processor, "backend", "") == "torchvision" or type(processor).__name__.endswith("Fast")
    return CentralCrop((edge, edge), (height, width), resample, int, _start, rows_first=torchvision)


def crop_of_transform(transform: Any) -> CentralCrop | Fit | None:
    """The resizing and cropping that an evaluation transform of open_clip (or torchvision) begins with; ``None`` for another."""
    steps = list(getattr(transform, "transforms", None) or [])[:2]
    kinds = [type(step).__name__ for step in steps]
    if len(steps) < 2 or kinds[0] not in ("Resize", "ResizeKeepRatio"):
        return None
    resize, crop = steps
    resample = pillow_filter(resize.interpolation)
    sizes, target = _pair(resize.size), _pair(getattr(crop, "size", None))
    if resample is None or sizes is None or target is None:
        return None
    if kinds == ["Resize", "CenterCrop"]:
        scalar = isinstance(resize.size, int) or len(resize.size) == 1
        if not scalar or getattr(resize, "max_size", None) is not None:
            return None
        return CentralCrop(sizes, target, resample, int, _rounded_start)
    if kinds[0] == "ResizeKeepRatio" and not (resize.random_scale_prob or resize.random_aspect_prob):
        if resize.longest == 0 and kinds[1] == "CenterCrop":
            return CentralCrop(sizes, target, resample, round, _rounded_start)
        if resize.longest == 1:
            return Fit(sizes, resample)
    return None


def _start(length: int, kept: int) -> int:
    """Where transformers' central crop begins."""
    return (length - kept) // 2


def _rounded_start(length: int, kept: int) -> int:
    """Where torchvision's central crop begins (half a pixel goes to the even neighbour)."""
    return round((length - kept) / 2.0)


def entry_of_size(size: Any, key: str) -> int | None:
    """An entry of a size that is a mapping, or an object with attributes, by the version of the library."""
    value = size.get(key) if isinstance(size, Mapping) else getattr(size, key, None)
    return int(value) if value else None


def _pair(size: Any) -> tuple[int, int] | None:
    """(height, width) of a size given as one number, or as a sequence of one or two."""
    if isinstance(size, int):
        return size, size
    if not isinstance(size, (tuple, list)) or len(size) not in (1, 2):
        return None
    return int(size[0]), int(size[-1])


def pillow_filter(chosen: Any) -> Image.Resampling | None:
    """Pillow's filter of a number of Pillow's or an interpolation mode of torchvision's (which has Pillow's names)."""
    if isinstance(chosen, int):
        return Image.Resampling(chosen) if chosen in {int(known) for known in Image.Resampling} else None
    return Image.Resampling.__members__.get(str(getattr(chosen, "name", "")))
