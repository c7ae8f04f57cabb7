"""Boxes in images: cutting them out, and finding them again in what an encoder sees."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image
from torch import Tensor

__all__ = ["MOST_ASPECT", "Box", "Frames", "clip_box", "crop_box", "patch_coverage"]

Box = tuple[int, int, int, int]
"""Left, top, right and bottom in pixels; right and bottom are no longer inside."""

Frame = tuple[float, float, float, float]

MOST_ASPECT = 8.0
"""A crop is at most this many times as long as it is wide."""


def clip_box(box: tuple[float, float, float, float], size: tuple[int, int]) -> Box | None:
    """The part of a box inside an image of ``(width, height)``, whole pixels; ``None`` where there is none."""
    left, top = max(0, math.floor(box[0])), max(0, math.floor(box[1]))
    right, bottom = min(size[0], math.ceil(box[2])), min(size[1], math.ceil(box[3]))
    return (left, top, right, bottom) if left < right and top < bottom else None


def crop_box(image: Image.Image, box: Box, most_aspect: float = MOST_ASPECT) -> Image.Image:
    """The part of an image in a box.

    A very thin box is widened first, as far as the image goes: an encoder that scales the shorter side to 224 pixels would make
    224 x 200,000 of a line, and see its middle only.

    Args:
        image: the image.
        box: inside it.
        most_aspect: most that the longer side may be, as a multiple of the shorter one.
    """
    left, top, right, bottom = box
    least = math.ceil(max(right - left, bottom - top) / most_aspect)
    left, right = _widened(left, right, least, image.width)
    top, bottom = _widened(top, bottom, least, image.height)
    return image.crop((left, top, right, bottom))


def _widened(low: int, high: int, least: int, most: int) -> tuple[int, int]:
    missing = min(least, most) - (high - low)
    if missing <= 0:
        return low, high
    low = min(max(0, low - missing // 2), most - (high - low) - missing)
    return low, low + min(least, most)


def patch_coverage(boxes: Tensor, patches: int) -> Tensor:
    """How much of each patch lies under each box.

    Args:
        boxes: ``[M, 4]``: left, top, right and bottom as shares, 0 to 1, of what the encoder sees; they may reach beyond it.
        patches: number ``P`` of patches, in rows of a square.

    Returns:
        ``[M, P]`` areas as shares of the box's visible area: a row sums to 1, or is zero where nothing of the box is seen.

    Raises:
        ValueError: patches that make no square.
    """
    side = math.isqrt(patches)
    if side * side != patches:
        raise ValueError(f"{patches} patches are no square, so that it cannot be told which of them lie under a box")
    edges = torch.arange(side + 1, device=boxes.device, dtype=boxes.dtype) / side

    def overlap(low: Tensor, high: Tensor) -> Tensor:
        return (torch.minimum(high[:, None], edges[1:]) - torch.maximum(low[:, None], edges[:-1])).clamp_min(0)

    across, down = overlap(boxes[:, 0], boxes[:, 2]), overlap(boxes[:, 1], boxes[:, 3])
    area = (down[:, :, None] * across[:, None, :]).flatten(1)
    total = area.sum(1, keepdim=True)
    return torch.where(total > 0, area / total.clamp_min(torch.finfo(area.dtype).tiny), torch.zeros_like(area))


class Frames:
    """Which part of an image an encoder sees, whatever its preprocessing: CLIP crops the middle, SigLIP squeezes the whole.

    Found out by preprocessing a picture whose colours tell where a pixel was; once for each size of image.

    Args:
        prepare: an encoder's ``prepare_image``: an RGB image to ``[3, H, W]``.
    """

    _KEPT = 4096

    def __init__(self, prepare: Callable[[Image.Image], Tensor | None]) -> None:
        self.prepare = prepare
        self.known: dict[tuple[int, int], Frame] = {}
        self.range: tuple[np.ndarray, np.ndarray] | None = None

    def __call__(self, size: tuple[int, int]) -> Frame:
        """Left, top, right and bottom of what is seen, as shares of an image of ``(width, height)``."""
        if size not in self.known:
            if len(self.known) >= self._KEPT:
                self.known.clear()
            self.known[size] = self._find(size)
        return self.known[size]

    def _pixels(self, picture: np.ndarray) -> np.ndarray:
        pixels = self.prepare(Image.fromarray(picture))
        assert pixels is not None
        return pixels.double().numpy()[:2]

    def _find(self, size: tuple[int, int]) -> Frame:
        width, height = size
        if self.range is None:
            black, white = (np.full((32, 32, 3), value, np.uint8) for value in (0, 255))
            self.range = self._pixels(black).mean((1, 2)), self._pixels(white).mean((1, 2))
        low, high = self.range
        places = np.zeros((height, width, 3), np.uint8)
        places[:, :, 0] = np.linspace(0, 255, width).round().astype(np.uint8)
        places[:, :, 1] = np.linspace(0, 255, height).round().astype(np.uint8)[:, None]
        seen = (self._pixels(places) - low[:, None, None]) / (high - low)[:, None, None]
        left, right = _line(np.median(seen[0], 0), width)
        top, bottom = _line(np.median(seen[1], 1), height)
        return left, top, right, bottom


def _line(values: np.ndarray, size: int) -> tuple[float, float]:
    """Where a side begins and ends, from the shares that stand along it; the clamped ends and any padding are left out."""
    places = (np.arange(len(values)) + 0.5) / len(values)
    shares = (values * (size - 1) + 0.5) / size
    steps = np.gradient(shares) if len(shares) > 1 else np.zeros(1)
    rising = steps > 0.5 * np.quantile(steps, 0.9)
    if size < 2 or rising.sum() < 2 or steps.max() <= 0:
        return 0.0, 1.0
    slope, begin = np.polyfit(places[rising], shares[rising], 1)
    return float(begin), float(begin + slope)
