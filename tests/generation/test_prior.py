"""The prior in closed form, and the channel that says what it would say of an image."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from clipmend.generation.prior import LinearPrior, estimate_channel, fit_prior


def pairs(count: int = 600, noise: float = 0.05) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    texts = F.normalize(torch.randn(count, 6, generator=generator), dim=-1)
    weight = torch.randn(4, 6, generator=generator)
    images = F.normalize(texts @ weight.T + noise * torch.randn(count, 4, generator=generator) + 1.0, dim=-1)
    return texts, images, weight


def test_without_penalty_it_is_least_squares() -> None:
    texts, images, _ = pairs()
    prior = fit_prior(texts, images, penalties=(1e-12,)).prior
    design = torch.cat([texts, torch.ones(len(texts), 1)], 1).double()
    solution = torch.linalg.lstsq(design, images.double()).solution
    assert torch.allclose(prior(texts).double(), design @ solution, atol=1e-5)


def test_the_penalty_is_chosen_on_held_out_images() -> None:
    generator = torch.Generator().manual_seed(3)
    texts, images = torch.randn(40, 30, generator=generator), torch.randn(40, 5, generator=generator)
    fitted = fit_prior(texts, images, penalties=(1e-8, 10.0))
    assert fitted.penalty == 10.0  # there is nothing to find: the mean is the best estimate
    assert fitted.r2 < 0.3
    assert fit_prior(*pairs()[:2]).r2 > 0.8


def test_captions_of_one_image_are_held_out_together() -> None:
    generator = torch.Generator().manual_seed(4)
    images = torch.randn(30, 4, generator=generator).repeat_interleave(8, 0)
    texts = torch.randn(30, 40, generator=generator).repeat_interleave(8, 0)  # equal rows: leaking would explain everything
    texts = texts + 0.01 * torch.randn(texts.shape, generator=generator)
    owners = torch.arange(30).repeat_interleave(8)
    assert fit_prior(texts, images, owners, penalties=(1e-6,)).r2 < 0.2
    assert fit_prior(texts, images, penalties=(1e-6,)).r2 > 0.6


def test_the_length_of_a_text_embedding_says_nothing() -> None:
    texts, images, _ = pairs()
    prior = fit_prior(texts, images).prior
    assert torch.allclose(prior(texts * 7), prior(texts), atol=1e-6)


def test_the_channel_has_the_moments_of_the_estimates() -> None:
    texts, images, _ = pairs(4000, 0.5)
    estimates = fit_prior(texts, images).prior(texts)
    channel = estimate_channel(estimates, images)
    said = channel(images, torch.randn(images.shape, generator=torch.Generator().manual_seed(5)))
    assert torch.allclose(said.mean(0), estimates.mean(0), atol=0.02)
    assert torch.allclose(torch.cov(said.T), torch.cov(estimates.T), atol=0.01)
    joint = [torch.cov(torch.cat([m, images], 1).T)[:4, 4:] for m in (said, estimates)]
    assert torch.allclose(joint[0], joint[1], atol=0.01)


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="4 pairs"):
        fit_prior(torch.randn(3, 2), torch.randn(3, 2))
    with pytest.raises(ValueError, match="not finite"):
        fit_prior(torch.full((9, 2), float("nan")), torch.randn(9, 2))
    with pytest.raises(ValueError, match="at least two"):
        estimate_channel(torch.randn(1, 2), torch.randn(1, 2))
    assert LinearPrior(3, 2)(torch.randn(5, 3)).shape == (5, 2)
