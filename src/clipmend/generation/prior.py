"""The prior: a linear map from text embeddings to estimates of image embeddings, in closed form.

It is fitted on affirmative captions alone and then frozen, so that what differs between an embedding and a mended one is the
embedding. Linear on purpose: a mended embedding lies where no affirmative caption does (away from what is denied), and a linear map
carries such a difference over as it carries any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["PENALTIES", "EstimateChannel", "FittedPrior", "LinearPrior", "estimate_channel", "fit_prior"]

PENALTIES = (1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
"""Ridge penalties to choose from, in units of the mean variance of a dimension of the texts times the number of captions."""


class LinearPrior(nn.Module):
    """``estimate = weight @ text + bias``.

    Args:
        text_dim, image_dim: sizes of the embeddings.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, text_dim: int, image_dim: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(image_dim, text_dim))
        self.register_buffer("bias", torch.zeros(image_dim))

    def forward(self, texts: Tensor) -> Tensor:
        """``[N, T]`` text embeddings, normalised here, to ``[N, D]``: the mean of the unit image embeddings that go with each."""
        return F.linear(F.normalize(texts.float(), dim=-1), self.weight.float(), self.bias.float())


@dataclass(frozen=True)
class FittedPrior:
    """A prior, the ``penalty`` that held-out captions chose, and the share of the variance of held-out image embeddings that it
    explains, ``r2``."""

    prior: LinearPrior
    penalty: float
    r2: float


def fit_prior(
    texts: Tensor, images: Tensor, groups: Tensor | None = None, *, penalties: Sequence[float] = PENALTIES, held_out: float = 0.1
) -> FittedPrior:
    """Ridge regression of image embeddings on text embeddings.

    Args:
        texts: ``[N, T]`` embeddings of captions.
        images: ``[N, D]`` embeddings of their images.
        groups: ``[N]`` which image each caption is of: an image is held out with all its captions. Default: each its own.
        penalties: to choose from, by held-out error; the prior is fitted on everything at the best one.
        held_out: share of the images that chooses.

    Raises:
        ValueError: lengths that differ, too few captions, embeddings that are not finite, no penalties.
    """
    if len(texts) != len(images) or len(texts) < 4 or not penalties:
        raise ValueError(f"a prior needs at least 4 pairs and a penalty, got {len(texts)} texts and {len(images)} images")
    t, v = F.normalize(texts.double(), dim=-1), F.normalize(images.double(), dim=-1)
    if not (t.isfinite().all() and v.isfinite().all()):
        raise ValueError("some embeddings are not finite")
    labels = torch.arange(len(t)) if groups is None else torch.unique(groups, return_inverse=True)[1]
    every = max(2, round(1 / held_out))
    asked = labels % every == 0
    errors = {}
    for penalty in penalties:
        weight, bias = _ridge(t[~asked], v[~asked], penalty)
        errors[penalty] = float((v[asked] - t[asked] @ weight.T - bias).square().sum())
    best = min(errors, key=lambda penalty: errors[penalty])
    spread = float((v[asked] - v[~asked].mean(0)).square().sum())
    weight, bias = _ridge(t, v, best)
    prior = LinearPrior(t.shape[1], v.shape[1])
    prior.weight.copy_(weight)
    prior.bias.copy_(bias)
    return FittedPrior(prior, best, 1 - errors[best] / spread if spread else 0.0)


def _ridge(t: Tensor, v: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    t_mean, v_mean = t.mean(0), v.mean(0)
    a, b = t - t_mean, v - v_mean
    gram = a.T @ a
    gram += penalty * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    weight = torch.linalg.solve(gram, a.T @ b).T
    return weight, v_mean - weight @ t_mean


@dataclass(frozen=True)
class EstimateChannel:
    """What a prior says of an image, as if a caption of it had been read: ``mean + shrink (image - image_mean) + root * noise``.

    A decoder that is to draw from estimates must be trained on estimates. Taken from captions, they would tell of things that are
    there and never of things that are not, which is what a mended embedding tells; through this channel either is told alike.

    Args:
        mean: ``[D]`` of the estimates.
        image_mean: ``[D]`` of the image embeddings.
        shrink: ``[D, D]``.
        root: ``[D, D]`` square root of the covariance of what the image does not determine.
    """

    mean: Tensor
    image_mean: Tensor
    shrink: Tensor
    root: Tensor

    def __call__(self, images: Tensor, noise: Tensor) -> Tensor:
        """Estimates ``[N, D]`` for unit image embeddings ``[N, D]`` and standard normal ``noise [N, D]``."""
        return self.mean + (images - self.image_mean) @ self.shrink.T + noise @ self.root.T


def estimate_channel(estimates: Tensor, images: Tensor, penalty: float = 1e-4) -> EstimateChannel:
    """Fit the channel on pairs of an estimate and the image embedding it is of, ``[N, D]`` each.

    Linear regression of the estimates on the images, with the covariance of the residuals.

    Raises:
        ValueError: lengths that differ, or fewer than two pairs.
    """
    if len(estimates) != len(images) or len(images) < 2:
        raise ValueError(f"the channel needs pairs, at least two, not {len(estimates)} estimates and {len(images)} images")
    m, z = estimates.double(), F.normalize(images.double(), dim=-1)
    shrink, bias = _ridge(z, m, penalty)
    left = m - z @ shrink.T - bias
    values, vectors = torch.linalg.eigh(left.T @ left / len(left))
    root = vectors * values.clamp(min=0).sqrt()
    return EstimateChannel(m.mean(0).float(), z.mean(0).float(), shrink.float(), root.float())
