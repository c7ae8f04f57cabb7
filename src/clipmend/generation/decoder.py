"""The decoder of the drawn world: an image embedding, and noise, to a scene of 64 x 64 pixels.

In the manner of unCLIP (Ramesh et al., "Hierarchical text-conditional image generation with CLIP latents", 2022). Three parts:
:class:`PatchBasis`, a fixed linear map from patches of pixels to a few numbers each and back; the small UNet of
:class:`SceneDecoder`, of diffusers' blocks, which is the velocity of a flow over a grid of such numbers; and :class:`Refiner`,
which puts back the edges that the few numbers lose.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["DecoderConfig", "PatchBasis", "Refiner", "SceneDecoder"]

EXTRA = "images are generated with diffusers, which is not installed: pip install 'clipmend[generate]'"


@dataclass(frozen=True)
class DecoderConfig:
    """Shape of the decoder.

    Args:
        embed_dim: size of the image embedding.
        image_size: side of the square image in pixels; a multiple of ``2 * patch``.
        patch: side of a patch in pixels: a power of 2. The UNet works on the grid of patches and on one of half its side.
        components: numbers that stand for a patch, of ``3 * patch**2``.
        widths: channels on the two grids; multiples of 16.
        blocks: residual blocks, each followed by attention, on the coarser grid.
        embedding: size of what carries time and condition to the blocks.
        refiner: channels of the refiner; 0 for none.
    """

    embed_dim: int = 384
    image_size: int = 64
    patch: int = 4
    components: int = 20
    widths: tuple[int, int] = (48, 112)
    blocks: int = 4
    embedding: int = 160
    refiner: int = 24

    def __post_init__(self) -> None:
        if self.patch < 2 or self.patch & (self.patch - 1) or self.image_size % (2 * self.patch):
            raise ValueError(
                f"patch must be a power of 2 and image_size a multiple of twice that, not {self.patch} and {self.image_size}"
            )
        if not 1 <= self.components <= 3 * self.patch**2:
            raise ValueError(f"a patch has 1 to {3 * self.patch**2} components, not {self.components}")
        if len(self.widths) != 2 or any(width % 16 for width in self.widths) or self.blocks < 1:
            raise ValueError(f"widths must be two multiples of 16, and blocks at least 1, not {self.widths} and {self.blocks}")

    @property
    def grid(self) -> int:
        """Patches a side."""
        return self.image_size // self.patch

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> DecoderConfig:
        return cls(**{**values, "widths": tuple(values["widths"])})


class PatchBasis(nn.Module):
    """Principal components of patches of pixels, all of about the same size; fixed once fitted.

    Args:
        patch: side of a patch.
        components: how many are kept.
    """

    mean: Tensor
    basis: Tensor
    scale: Tensor
    deviation: Tensor

    def __init__(self, patch: int, components: int) -> None:
        super().__init__()
        size = 3 * patch**2
        self.patch = patch
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("basis", torch.eye(size)[:, :components].clone())
        self.register_buffer("scale", torch.ones(components))
        self.register_buffer("deviation", torch.ones(components))  # of what encode gives

    @torch.no_grad()
    def fit(self, pixels: Tensor) -> float:
        """Take the basis of ``[N, 3, S, S]`` pixels in -1..1; returns the share of their variance that it keeps.

        A component is divided by the square root of its deviation: with equal deviations a fine one, which is nearly always 0,
        would count as much as the colour of the patch, and as they are it would drown in the noise.
        """
        rows = F.pixel_unshuffle(pixels.double(), self.patch).movedim(1, -1).flatten(0, -2)
        mean = rows.mean(0)
        values, vectors = torch.linalg.eigh((rows - mean).T @ (rows - mean) / len(rows))
        count = len(self.scale)
        values, vectors = values.flip(0), vectors.flip(1)[:, :count]
        vectors = vectors * torch.where(vectors.sum(0) < 0, -1.0, 1.0)  # eigenvectors have no sign of their own
        deviation = values[:count].clamp(min=1e-12).sqrt()
        scale = deviation.sqrt()
        scale = scale * (deviation / scale).square().mean().sqrt()  # the kept numbers have variance 1 together
        for name, value in (("mean", mean), ("basis", vectors), ("scale", scale), ("deviation", deviation / scale)):
            getattr(self, name).copy_(value)
        return float(values[:count].sum() / values.sum())

    def encode(self, pixels: Tensor) -> Tensor:
        """``[B, 3, S, S]`` pixels in -1..1 to ``[B, components, S / patch, S / patch]``."""
        rows = F.pixel_unshuffle(pixels, self.patch).movedim(1, -1)
        return ((rows - self.mean) @ (self.basis / self.scale)).movedim(-1, 1)

    def decode(self, latents: Tensor) -> Tensor:
        """The pixels nearest to ``latents``: the inverse of :meth:`encode`, but for what it dropped."""
        rows = latents.movedim(1, -1) @ (self.basis * self.scale).T + self.mean
        return F.pixel_shuffle(rows.movedim(-1, 1), self.patch)


class Refiner(nn.Module):
    """What to add to the pixels of :meth:`PatchBasis.decode`, from the numbers of a patch and those around it.

    Args:
        components: numbers a patch.
        width: channels.
        patch: side of a patch.
    """

    def __init__(self, components: int, width: int, patch: int) -> None:
        super().__init__()
        self.patch = patch
        self.first = nn.Conv2d(components, width, 3, 1, 1)
        self.body = nn.Sequential(
            nn.GroupNorm(1, width), nn.SiLU(), nn.Conv2d(width, width, 3, 1, 1),
            nn.GroupNorm(1, width), nn.SiLU(), nn.Conv2d(width, width, 3, 1, 1),
        )  # fmt: skip
        fine = 16
        self.widen = nn.Conv2d(width, fine * (patch // 2) ** 2, 3, 1, 1)
        self.middle = nn.Conv2d(fine, fine, 3, 1, 1)
        self.last = nn.Conv2d(fine, 3 * 4, 3, 1, 1)
        nn.init.zeros_(self.last.weight)  # at first it changes nothing
        nn.init.zeros_(self.last.bias)  # type: ignore[arg-type]  # typed as optional

    def forward(self, latents: Tensor) -> Tensor:
        """``[B, components, G, G]`` to ``[B, 3, S, S]``."""
        x = self.first(latents)
        x = F.silu(F.pixel_shuffle(self.widen(x + self.body(x)), self.patch // 2))
        return F.pixel_shuffle(self.last(F.silu(self.middle(x))), 2)


class SceneDecoder(nn.Module):
    """The velocity of a flow from noise to scenes, given an image embedding.

    The condition may be an embedding of an image (``estimated`` 0) or a prior's estimate of one (1): an estimate is an average over
    all images that a text allows, so that what it does not tell is left to the noise.

    Args:
        config: its shape.

    Raises:
        ImportError: diffusers is not installed.
    """

    condition_mean: Tensor
    condition_scale: Tensor

    def __init__(self, config: DecoderConfig | None = None) -> None:
        super().__init__()
        try:
            from diffusers.models.attention_processor import Attention
            from diffusers.models.embeddings import TimestepEmbedding, Timesteps
            from diffusers.models.resnet import Downsample2D, ResnetBlock2D, Upsample2D
        except ImportError as error:
            raise ImportError(EXTRA) from error
        self.config = config = config or DecoderConfig()
        fine, coarse = config.widths

        def block(before: int, after: int) -> nn.Module:
            return ResnetBlock2D(
                in_channels=before, out_channels=after, temb_channels=config.embedding, groups=16, groups_out=16,
                time_embedding_norm="scale_shift",
            )  # fmt: skip

        def attention() -> nn.Module:
            return Attention(
                coarse, heads=max(1, coarse // 28), dim_head=28, norm_num_groups=16, residual_connection=True, bias=True,
                out_bias=True,
            )  # fmt: skip

        self.basis = PatchBasis(config.patch, config.components)
        self.refiner = Refiner(config.components, config.refiner, config.patch) if config.refiner else None
        self.register_buffer("condition_mean", torch.zeros(config.embed_dim))
        self.register_buffer("condition_scale", torch.tensor(config.embed_dim**0.5))
        self.waves = Timesteps(64, flip_sin_to_cos=True, downscale_freq_shift=0)
        self.time = TimestepEmbedding(64, config.embedding)
        self.condition = nn.Sequential(
            nn.Linear(config.embed_dim + 1, config.embedding), nn.SiLU(), nn.Linear(config.embedding, config.embedding)
        )
        self.nothing = nn.Parameter(torch.zeros(config.embedding))  # stands for no condition
        self.first = nn.Conv2d(config.components, fine, 3, 1, 1)
        self.down_block = block(fine, fine)
        self.down = Downsample2D(fine, use_conv=True, out_channels=coarse, name="op")  # "conv" would register it twice
        self.position = nn.Parameter(torch.randn(1, coarse, config.grid // 2, config.grid // 2) * 0.02)
        self.blocks = nn.ModuleList(block(coarse, coarse) for _ in range(config.blocks))
        self.attentions = nn.ModuleList(attention() for _ in range(config.blocks - 1))
        self.up = Upsample2D(coarse, use_conv=True, out_channels=fine)
        self.up_blocks = nn.ModuleList([block(2 * fine, fine), block(fine, fine)])
        self.norm = nn.GroupNorm(16, fine)
        self.last = nn.Conv2d(fine, config.components, 3, 1, 1)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)  # type: ignore[arg-type]  # typed as optional

    def embed_condition(self, condition: Tensor, estimated: Tensor, dropped: Tensor | None = None) -> Tensor:
        """What the blocks are told of a condition.

        Args:
            condition: ``[B, D]`` image embeddings, or estimates of such.
            estimated: ``[B]`` 1 for an estimate, 0 for an embedding.
            dropped: bool ``[B]``: rows that are told nothing.

        Returns:
            ``[B, E]``.
        """
        centred = (condition - self.condition_mean) * self.condition_scale
        told = self.condition(torch.cat([centred, estimated[:, None].to(centred)], 1))
        return told if dropped is None else torch.where(dropped[:, None], self.nothing.to(told), told)

    def forward(self, latents: Tensor, times: Tensor, told: Tensor) -> Tensor:
        """Velocity at ``latents [B, C, G, G]`` and ``times [B]`` in 0..1, given ``told [B, E]`` of :meth:`embed_condition`.

        The network gives what is left of the velocity when the best linear guess from each number alone is taken away, in units of
        its deviation (Karras et al., "Elucidating the design space of diffusion-based generative models", NeurIPS 2022, for a
        straight flow and numbers of different variance): it need not learn to copy the noise.
        """
        t, variance = times.view(-1, 1, 1, 1), self.basis.deviation.square().view(1, -1, 1, 1)
        total = t.square() * variance + (1 - t).square()  # variance of the latents
        guess = (t * variance - (1 - t)) / total * latents
        return guess + (variance / total).sqrt() * self._network(latents * total.rsqrt(), times, told)

    def _network(self, latents: Tensor, times: Tensor, told: Tensor) -> Tensor:
        embedding = self.time(self.waves(1000 * times).to(told.dtype)) + told
        x = kept = self.down_block(self.first(latents), embedding)
        x = self.down(x) + self.position
        for number, block in enumerate(self.blocks):
            x = block(x, embedding)
            if number < len(self.attentions):
                x = self.attentions[number](x)
        x = torch.cat([self.up(x), kept], 1)
        for block in self.up_blocks:
            x = block(x, embedding)
        return self.last(F.silu(self.norm(x)))

    def pixels(self, latents: Tensor) -> Tensor:
        """``[B, C, G, G]`` to ``[B, 3, S, S]`` pixels, about -1..1."""
        plain = self.basis.decode(latents)
        return plain if self.refiner is None else plain + self.refiner(latents)
