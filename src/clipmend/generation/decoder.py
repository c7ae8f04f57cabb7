"""The decoder of the drawn world: an image embedding, and noise, to a scene of 64 x 64 pixels.

In the manner of unCLIP (Ramesh et al., "Hierarchical text-conditional image generation with CLIP latents", 2022). Three parts:
:class:`PatchBasis`, a fixed linear map from patches of pixels to a few numbers each and back; the small transformer of
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
        image_size: side of the square image in pixels; a multiple of ``patch``.
        patch: side of a patch in pixels: a power of 2. The transformer works on the grid of patches.
        components: numbers that stand for a patch, of ``3 * patch**2``.
        width: channels; a multiple of 8 and of ``heads``, and of 4 for the positions.
        heads: of attention.
        layers: transformer layers, with a convolution between each two.
        tokens: tokens that tell attention of the condition.
        embedding: size of what carries time and condition to the layers.
        refiner: channels of the refiner; 0 for none.
    """

    embed_dim: int = 384
    image_size: int = 64
    patch: int = 8
    components: int = 32
    width: int = 128
    heads: int = 4
    layers: int = 4
    tokens: int = 4
    embedding: int = 160
    refiner: int = 48

    def __post_init__(self) -> None:
        if self.patch < 2 or self.patch & (self.patch - 1) or self.image_size < self.patch or self.image_size % self.patch:
            raise ValueError(f"patch must be a power of 2 and image_size a multiple of it, not {self.patch} and {self.image_size}")
        if not 1 <= self.components <= 3 * self.patch**2:
            raise ValueError(f"a patch has 1 to {3 * self.patch**2} components, not {self.components}")
        if self.width < 8 or self.width % 8 or self.heads < 1 or self.width % self.heads or min(self.layers, self.tokens) < 1:
            raise ValueError(
                f"width must be a multiple of 8 and of heads, and heads, layers and tokens at least 1, not {self.width}, "
                f"{self.heads}, {self.layers} and {self.tokens}"
            )

    @property
    def grid(self) -> int:
        """Patches a side."""
        return self.image_size // self.patch

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> DecoderConfig:
        return cls(**values)


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
        self.widen = nn.Conv2d(width, fine * (patch // 2) ** 2, 1)
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
    place: Tensor

    def __init__(self, config: DecoderConfig | None = None) -> None:
        super().__init__()
        try:
            from diffusers.models.attention import BasicTransformerBlock
            from diffusers.models.embeddings import TimestepEmbedding, Timesteps, get_2d_sincos_pos_embed
        except ImportError as error:
            raise ImportError(EXTRA) from error
        self.config = config = config or DecoderConfig()
        width = config.width

        def layer() -> nn.Module:
            return BasicTransformerBlock(
                width, config.heads, width // config.heads, norm_type="ada_norm_single", activation_fn="gelu-approximate",
                attention_bias=True, norm_elementwise_affine=False,
            )  # fmt: skip

        def convolution() -> nn.Module:
            last = nn.Conv2d(width, width, 3, 1, 1)
            nn.init.zeros_(last.weight)  # at first it changes nothing
            nn.init.zeros_(last.bias)  # type: ignore[arg-type]  # typed as optional
            return nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), last)

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
        self.first = nn.Conv2d(config.components, width, 3, 1, 1)
        place = get_2d_sincos_pos_embed(width, config.grid, output_type="pt")
        self.register_buffer("place", place.float()[None], persistent=False)
        self.tokens = nn.Linear(config.embedding, config.tokens * width)
        self.modulation = nn.Linear(config.embedding, 6 * width)
        self.layers = nn.ModuleList(layer() for _ in range(config.layers))
        self.convolutions = nn.ModuleList(convolution() for _ in range(config.layers - 1))
        self.last_modulation = nn.Linear(config.embedding, 2 * width)
        self.last = nn.Conv2d(width, config.components, 3, 1, 1)
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
        embedding = F.silu(self.time(self.waves(1000 * times).to(told.dtype)) + told)
        rows, _, height, width = latents.shape
        modulation = self.modulation(embedding)  # one for all layers, each of which adds a table of its own

        def grid(x: Tensor) -> Tensor:
            return x.transpose(1, 2).reshape(rows, -1, height, width)

        x = self.first(latents).flatten(2).transpose(1, 2) + self.place
        extra = self.tokens(embedding).view(rows, self.config.tokens, -1)
        for number, layer in enumerate(self.layers):
            x, extra = layer(torch.cat([x, extra.to(x.dtype)], 1), timestep=modulation).split([height * width, extra.shape[1]], 1)
            if number < len(self.convolutions):
                x = x + self.convolutions[number](grid(x)).flatten(2).transpose(1, 2)
        scale, shift = self.last_modulation(embedding)[:, None].chunk(2, -1)
        return self.last(grid(F.layer_norm(x, x.shape[-1:]) * (1 + scale) + shift))

    def pixels(self, latents: Tensor) -> Tensor:
        """``[B, C, G, G]`` to ``[B, 3, S, S]`` pixels, about -1..1."""
        plain = self.basis.decode(latents)
        return plain if self.refiner is None else plain + self.refiner(latents)
