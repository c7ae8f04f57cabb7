"""FineLIP: words and patches gathered into fewer, and a late interaction of what was gathered, trained by a hinge."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from clipmend.dense.recipes.base import Joined, Moment, Recipe, register
from clipmend.dense.saving import library_of
from clipmend.dense.tower_sides import OpenClipSides, Sides, TransformersSides

if TYPE_CHECKING:
    from clipmend.dense.towers import Towers

__all__ = ["FineLipRecipe", "TokenAggregator", "TokenAggregators", "finelip_scores", "relevance", "relevance_hinge"]

_ENTRIES = 2**25
"""Cosines held at once where no block is asked for: 128 MB in float32."""


class TokenAggregator(nn.Module):
    """``T`` tokens to ``count`` weighted sums of them: the weights of each sum are a softmax over the tokens.

    Layer norm, a linear layer to a fifth of the width, GELU, and a linear layer to one weight a sum.

    Args:
        width: of the tokens, ``D``.
        count: of the sums, ``K``.
    """

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        hidden = max(1, width // 5)
        self.weigh = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, count))

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """``[B, T, D]``, and ``[B, T]`` bool (at least one True a row), to ``[B, K, D]``, L2-normalised."""
        weights = self.weigh(tokens).to(tokens.dtype)  # [B, T, K]
        if mask is not None:
            weights = weights.masked_fill(~mask[:, :, None], -torch.inf)
        with torch.autocast(tokens.device.type, enabled=False):
            return F.normalize(weights.softmax(1).transpose(1, 2) @ tokens, dim=-1)


class TokenAggregators(nn.Module):
    """One for patches, one for words: what ``finelip`` trains beside the model.

    Args:
        width: of the joint space.
        patches, words: how many are made of either.
    """

    def __init__(self, width: int, patches: int, words: int) -> None:
        super().__init__()
        self.image, self.text = TokenAggregator(width, patches), TokenAggregator(width, words)

    def forward(self, outputs: dict[str, Tensor], numbers: dict[str, Tensor], masks: dict[str, Tensor]) -> dict[str, Tensor]:
        """``image_parts`` and ``text_parts``, ``[b, K, D]``, of a micro-batch."""
        return {
            "image_parts": self.image(outputs["image_tokens"]),
            "text_parts": self.text(outputs["text_tokens"], masks["text_words"]),
        }

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> TokenAggregators:
        """Those of a training, from its working folder (``--work``; ``directory=`` in Python) or a ``best-*.safetensors`` in it.

        Raises:
            FileNotFoundError: no such file. ValueError: damaged, or of a training with another recipe.
        """
        from safetensors.torch import load_file

        place = Path(path)
        found = sorted(place.glob("best-*.safetensors"), key=lambda p: p.stat().st_mtime) if place.is_dir() else [place]
        if not found or not found[-1].is_file():
            raise FileNotFoundError(
                f"{place}: no best-*.safetensors of a training; finelip writes it to its working folder (--work)"
            )
        try:
            weights = load_file(found[-1])
        except Exception as error:
            raise ValueError(f"{found[-1]} cannot be read ({error})") from error
        own = {name[len("heads.") :]: value for name, value in weights.items() if name.startswith("heads.")}
        last = [own.get(f"{side}.weigh.3.weight") for side in ("image", "text")]
        if last[0] is None or last[1] is None:
            raise ValueError(f"{found[-1]} holds no token aggregators: it is not of a training with the recipe finelip")
        made = cls(len(own["image.weigh.0.weight"]), len(last[0]), len(last[1]))
        made.load_state_dict(own)
        return made.eval().requires_grad_(False)


def relevance(image_parts: Tensor, text_parts: Tensor, *, slope: float = 0.1, block: int | None = None) -> Tensor:
    r"""Late interaction of every image with every text.

    With cosines ``c`` between part ``p`` of the image and part ``w`` of the text, and a LeakyReLU over them:

    .. math:: R_{ij} = \mathrm{mean}_p \max_w \phi(c) + \mathrm{mean}_w \max_p \phi(c)

    Args:
        image_parts: ``[N, P, D]``, L2-normalised.
        text_parts: ``[M, W, D]``, likewise.
        slope: of the LeakyReLU below zero.
        block: images at a time (the cosines are formed again for the gradient); ``None``: by size.

    Returns:
        ``[N, M]``, up to 2.
    """
    if block is None:
        block = max(1, _ENTRIES // max(1, image_parts.shape[1] * text_parts.shape[0] * text_parts.shape[1]))
    if block >= len(image_parts):
        return _relevance(image_parts, text_parts, slope)
    parts = []
    for here in image_parts.split(block):
        if torch.is_grad_enabled():
            parts.append(checkpoint(_relevance, here, text_parts, slope, use_reentrant=False))
        else:
            parts.append(_relevance(here, text_parts, slope))
    return torch.cat(parts)


def _relevance(images: Tensor, texts: Tensor, slope: float) -> Tensor:
    cosines = torch.einsum("npd,mwd->nmpw", images, texts)
    # The LeakyReLU rises throughout, so that it may follow the maximum.
    by_image, by_text = (F.leaky_relu(cosines.amax(dim), slope).mean(2) for dim in (3, 2))
    return by_image + by_text


def relevance_hinge(scores: Tensor, hinge: float, image_ids: Tensor, caption_ids: Tensor) -> Tensor:
    r"""``mean_i sum_j [h + R_ij - R_ii]_+ + [h + R_ji - R_ii]_+`` over negatives ``j``: pairs of another image *and* caption.

    Args:
        scores: ``[N, N]``, images by texts.
        hinge: ``h``.
        image_ids, caption_ids: int64 ``[N]``.
    """
    own = scores.diagonal()
    same = (image_ids[:, None] == image_ids) | (caption_ids[:, None] == caption_ids)  # a row and itself too
    cost = torch.relu(hinge + scores - own[:, None]) + torch.relu(hinge + scores.T - own[:, None])
    return cost.masked_fill(same, 0.0).sum(1).mean()


@register
@dataclass(frozen=True, kw_only=True)
class FineLipRecipe(Recipe):
    r"""``global_weight * L(image, caption) + relevance_weight * L_hinge``.

    Patches and words, through each tower's own projection, are gathered into a fifth as many by two token aggregators
    (:class:`TokenAggregator`), trained at a rate of their own. :func:`relevance` compares what was gathered, and a hinge in both
    directions, summed over the negatives (:func:`relevance_hinge`), trains it.

    *At test time* the published score is ``.8 cos + .2 relevance``. The relevance needs the aggregators, which are no part of an
    ordinary model: the folder written at the end opens in plain transformers or open_clip and ranks by its cosine alone. The
    aggregators are in the working folder of the training; :meth:`TokenAggregators.read` and :func:`finelip_scores` give the
    published score. Validation, by which a state is chosen, is by the cosine.

    What is decided here:

    - *masking*: the class token is no patch; start, end and padding are no words, and weigh nothing in a sum.
    - *size*: the hinge is averaged over the pairs of a batch, so that its weight beside the global term does not grow with them.
    - *repeated ids*: pairs of one image, or of one caption, are no negatives of each other.
    - The number of sums is a share of the patches and of the text *positions* that the model has, so that it does not depend on the
      caption: 50 at 248.
    - A word's or patch's best match is averaged over the words and over the patches, and the two are added.

    FineLIP trains at 248 positions (``length=248``). HN-CLIP's "FineLIP + L_HN" is ``gamma=.5``: the margin goes into the global
    term.

    Source: FineLIP (Asokan et al., CVPR 2025, arXiv 2504.01916).

    Args:
        global_weight: weight of the global term.
        relevance_weight: weight of the hinge; 0 leaves it, and the aggregators, out.
        hinge: .2, in units of the relevance.
        share: of the patches and of the text positions, how many sums are made; .2.
        slope: of the LeakyReLU, .1.
        learning_rate: 1e-6.
        head_learning_rate: of the aggregators, 2e-4.
        gamma, margin, label_smoothing, global_loss, weight_decay, fixed_positions: see
            :class:`~clipmend.dense.recipes.base.Recipe`.
    """

    name: ClassVar[str] = "finelip"
    about: ClassVar[str] = "InfoNCE, and a hinge on gathered patches and words (FineLIP)"

    global_weight: float = 1.0
    relevance_weight: float = 1.0
    hinge: float = 0.2
    share: float = 0.2
    slope: float = 0.1
    learning_rate: float = 1e-6
    head_learning_rate: float = 2e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("global_weight", "relevance_weight", "hinge"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0 or more")
        if not (self.global_weight or self.relevance_weight):
            raise ValueError("global_weight and relevance_weight are both 0: nothing is left to minimise")
        if not 0 < self.share <= 1:
            raise ValueError(f"share is {self.share}; it must be above 0, and 1 at most")
        if not 0 <= self.slope <= 1:
            raise ValueError(f"slope is {self.slope}; it must be from 0 to 1")

    def tokens(self) -> frozenset[str]:
        return frozenset({"image", "text"}) if self.relevance_weight else frozenset()

    def heads(self, towers: Towers) -> nn.Module | None:
        if not self.relevance_weight:
            return None
        device = next(towers.model.parameters()).device
        height, width = _image_size(towers.model)
        with torch.no_grad():  # what the image side gives says how many patches there are, whatever its architecture
            _, patches = towers._sides.image(torch.zeros(1, 3, height, width, device=device), True)
        assert patches is not None
        counts = [max(1, round(self.share * count)) for count in (patches.shape[1], _text_length(towers.model))]
        return TokenAggregators(patches.shape[2], *counts).to(device)

    def losses(self, batch: Joined, at: Moment) -> dict[str, Tensor]:
        terms = {}
        if self.global_weight:
            terms["global"] = self.global_weight * self.global_term(batch)
        if self.relevance_weight:
            scores = relevance(batch.outputs["image_parts"], batch.outputs["text_parts"], slope=self.slope)
            terms["relevance"] = self.relevance_weight * relevance_hinge(scores, self.hinge, **batch.ids())
        return terms


def _image_size(model: Any) -> tuple[int, int]:
    size = model.visual.image_size if hasattr(model, "visual") else model.config.vision_config.image_size
    return (int(size), int(size)) if isinstance(size, int) else (int(size[0]), int(size[1]))


def _text_length(model: Any) -> int:
    if hasattr(model, "text_model"):
        return int(model.text_model.config.max_position_embeddings)
    return int(getattr(model, "text", model).context_length)


@torch.no_grad()
def finelip_scores(
    encoder: Any,
    aggregators: TokenAggregators,
    images: Sequence[Any],
    texts: Sequence[str],
    *,
    weight: float = 0.2,
    slope: float = 0.1,
    batch_size: int = 32,
) -> Tensor:
    """FineLIP's score of every image with every text: ``(1 - weight) * cosine + weight * relevance``.

    Args:
        encoder: the trained model, of :func:`clipmend.load`, of transformers or open_clip.
        aggregators: of the same training (:meth:`TokenAggregators.read`).
        images: paths or PIL images.
        texts: captions, cut at the model's length.
        weight: of the relevance; 0 is the ordinary cosine.
        slope: of the LeakyReLU, as in the training.
        batch_size: images, and texts, at a time.

    Returns:
        float32 ``[images, texts]``, on the CPU.

    Raises:
        ValueError: an encoder of another kind, or of another width than the aggregators'. OSError: an image cannot be read.

    Example::

        scores = finelip_scores(clipmend.load("out"), TokenAggregators.read("work"), ["a.jpg"], ["A dog. It runs.", "A cat."])
    """
    from clipmend.data.images import open_image
    from clipmend.dense.batches import Preparer
    from clipmend.dense.recipes.plain import PlainRecipe

    if not 0 <= weight <= 1:
        raise ValueError(f"weight is {weight}; it must be from 0 to 1")
    sides: Sides = (TransformersSides if library_of(encoder) == "transformers" else OpenClipSides)(encoder.model)
    nothing: Any = None  # no pairs: only texts and pixels are prepared with it
    preparer = Preparer(encoder, nothing, PlainRecipe(), whole_length=sides.whole_length, seed=0)
    parameter = next(encoder.model.parameters())
    device = parameter.device
    aggregators = aggregators.to(device)
    width = len(aggregators.image.weigh[0].weight)  # type: ignore[arg-type]
    if encoder.embed_dim != width:
        raise ValueError(f"the aggregators are for a joint space of {width}, and {encoder.name} has {encoder.embed_dim}")
    found: dict[str, list[Tensor]] = {"image": [], "image_parts": [], "text": [], "text_parts": []}
    for begin in range(0, len(images), batch_size):
        pixels = torch.stack([encoder.prepare_image(open_image(image)) for image in images[begin : begin + batch_size]])
        pooled, tokens = sides.image(pixels.to(device, parameter.dtype), True)
        assert tokens is not None
        found["image"].append(F.normalize(pooled.float(), dim=-1))
        found["image_parts"].append(aggregators.image(F.normalize(tokens.float(), dim=-1)))
    for begin in range(0, len(texts), batch_size):
        examples = [{"text": preparer.ids_of(text)} for text in texts[begin : begin + batch_size]]
        inputs, masks, _ = preparer.collate(examples)
        pooled, tokens = sides.text(inputs["ids"].to(device), True)
        assert tokens is not None
        found["text"].append(F.normalize(pooled.float(), dim=-1))
        found["text_parts"].append(aggregators.text(F.normalize(tokens.float(), dim=-1), masks["text_words"].to(device)))
    if not len(images) or not len(texts):
        return torch.zeros(len(images), len(texts))
    joined = {name: torch.cat(parts) for name, parts in found.items()}
    scores = (1 - weight) * joined["image"] @ joined["text"].T
    return (scores + weight * relevance(joined["image_parts"], joined["text_parts"], slope=slope)).cpu()
