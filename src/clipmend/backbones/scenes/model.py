"""The image tower of the bundled ``"scenes"`` backbone: a convolutional stem and a few transformer blocks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

__all__ = ["ImageTower", "ImageTowerConfig", "pixels_of"]


@dataclass(frozen=True)
class ImageTowerConfig:
    """Shape of the tower.

    Args:
        image_size: side of the square input in pixels; a multiple of 8.
        width: width of the transformer.
        depth: number of transformer blocks.
        heads: attention heads.
        embed_dim: size of the joint space.
        residual_blocks: residual convolution blocks in the stem, at a quarter of the resolution. An object of a dozen pixels
            spans three cells there; without them no unit sees all of it through more than two nonlinearities.
    """

    image_size: int = 64
    width: int = 192
    depth: int = 3
    heads: int = 6
    embed_dim: int = 384
    residual_blocks: int = 0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class ResidualConvolution(nn.Module):
    """``x + conv(gelu(norm(conv(gelu(norm(x))))))``; the last convolution starts at zero, so that a block put into a trained
    tower changes nothing at first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        last = nn.Conv2d(width, width, 3, 1, 1)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)  # type: ignore[arg-type]  # typed as optional
        self.body = nn.Sequential(
            nn.GroupNorm(1, width), nn.GELU(), nn.Conv2d(width, width, 3, 1, 1),
            nn.GroupNorm(1, width), nn.GELU(), last,
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """``[B, width, H, W]``, and the same back."""
        return x + self.body(x)


class ImageTower(nn.Module):
    """Pixels to a joint embedding, by way of one token per 8 x 8 patch.

    A stem of three stride-2 convolutions (Xiao et al., "Early convolutions help transformers see better", NeurIPS 2021) learns
    far quicker from few images than a linear patch embedding.
    """

    def __init__(self, config: ImageTowerConfig) -> None:
        super().__init__()
        self.config = config
        w = config.width
        self.stem = nn.Sequential(
            nn.Conv2d(3, w // 4, 3, 2, 1), nn.GroupNorm(1, w // 4), nn.GELU(),
            nn.Conv2d(w // 4, w // 2, 3, 2, 1), nn.GroupNorm(1, w // 2), nn.GELU(),
            nn.Conv2d(w // 2, w, 3, 2, 1), nn.GroupNorm(1, w), nn.GELU(),
            nn.Conv2d(w, w, 1),
        )  # fmt: skip
        self.residuals = nn.ModuleList(ResidualConvolution(w // 2) for _ in range(config.residual_blocks))
        self.position = nn.Parameter(torch.randn((config.image_size // 8) ** 2, w) * 0.02)
        block = nn.TransformerEncoderLayer(w, config.heads, 4 * w, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, config.depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(w)
        self.attention_pool = nn.Linear(w, 1)  # one score a token: empty background need not dilute the objects
        self.projection = nn.Linear(w, config.embed_dim)

    def tokens(self, pixels: Tensor) -> Tensor:
        """``[B, 3, S, S]`` pixels (of :func:`pixels_of`) to ``[B, (S/8)^2, width]`` normed patch tokens."""
        x = self.stem[:6](pixels)  # [B, W/2, S/4, S/4]
        for block in self.residuals:
            x = block(x)
        x = self.stem[6:](x).flatten(2).transpose(1, 2)  # [B, P, W]
        return self.norm(self.blocks(x + self.position))

    def patch_embeddings(self, pixels: Tensor) -> Tensor:
        """``[B, P, D]``: every patch token in the joint space, not normalised."""
        return self.projection(self.tokens(pixels))

    def forward(self, pixels: Tensor) -> Tensor:
        """``[B, 3, S, S]`` to ``[B, D]``, not normalised."""
        tokens = self.tokens(pixels)
        weights = self.attention_pool(tokens).softmax(1)  # [B, P, 1]
        return self.projection((weights * tokens).sum(1))


def pixels_of(images: list[Image.Image], size: int) -> Tensor:
    """RGB images to ``[B, 3, size, size]`` float32 in -1..1; others are resized (bicubic) to fit and padded on grey."""
    rows = []
    for image in images:
        if image.size != (size, size):  # shrink first: the square around a long strip would be enormous
            scale = size / max(image.size)
            small = image.resize([max(1, round(side * scale)) for side in image.size], Image.Resampling.BICUBIC)
            image = Image.new("RGB", (size, size), (127, 127, 127))
            image.paste(small, ((size - small.width) // 2, (size - small.height) // 2))
        rows.append(np.asarray(image, np.uint8))
    return to_float(torch.from_numpy(np.stack(rows)))


def to_float(pixels: Tensor) -> Tensor:
    """``[B, S, S, 3]`` uint8 to ``[B, 3, S, S]`` float32 in -1..1."""
    return pixels.permute(0, 3, 1, 2).float().div_(127.5).sub_(1)
