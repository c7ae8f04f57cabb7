"""What the correction networks are trained for: the ``truthful`` and the ``released`` reading of a negated caption.

An absent object's negation is *true* of the image. The published objective treats it as wrong all the same (``released``); ours
asks the annotation (``truthful``).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from clipmend.data.records import FALSE

__all__ = ["pair_loss", "preservation_loss", "question_loss", "released_loss", "truthful_loss"]

# A finite stand-in for minus infinity: a row without any competitor then has loss 0 and gradient 0 instead of NaN.
_NEVER = -1e9


def truthful_loss(images: Tensor, captions: Tensor, truth: Tensor, own: Tensor, scale: float) -> Tensor:
    """Contrast every caption with what it is false of, and every image with what is false of it.

    text -> image: a caption's image competes only with the images of which the caption is false; image -> text: an image's
    caption competes only with the captions that are false of the image. Pairs that are true or unknown are in no denominator.

    Args:
        images: ``[B, D]`` unit image embeddings.
        captions: ``[M, D]`` unit corrected text embeddings.
        truth: ``[B, M]`` int8, 1 true, 0 unknown, -1 false.
        own: ``[M]`` the image of each caption (a row of ``images``), or -1 for captions that only serve as competitors.
        scale: multiplier of the cosine.

    Returns:
        The mean of the two directions over the captions with an image; 0 where there is none.
    """
    logits = scale * images @ captions.T  # [B, M]
    competing = logits.masked_fill(truth != FALSE, _NEVER)
    column = (own >= 0).nonzero().squeeze(1)  # [P] captions with an image
    row = own[column]
    right = logits[row, column]  # [P]
    text_to_image = F.softplus(competing.logsumexp(0)[column] - right)  # -log softmax of the right one
    image_to_text = F.softplus(competing.logsumexp(1)[row] - right)
    return (text_to_image.sum() + image_to_text.sum()) / (2 * max(len(column), 1))


def released_loss(images: Tensor, originals: Tensor, negated: Tensor, scale: float) -> Tensor:
    """The published ECN objective on triples (image, original caption, negated caption).

    image -> text: each image against all originals *and* all negated captions, its original being right; text -> image: each
    original against the images. Source: PeakPatch (arXiv 2607.23271), joint objective.

    Args:
        images, originals, negated: ``[B, D]`` unit embeddings, the texts corrected.
        scale: multiplier of the cosine (100 in the published recipe).
    """
    target = torch.arange(len(images), device=images.device)
    image_to_text = F.cross_entropy(scale * images @ torch.cat([originals, negated]).T, target)  # [B, 2B]
    text_to_image = F.cross_entropy(scale * originals @ images.T, target)  # [B, B]
    return (image_to_text + text_to_image) / 2


def question_loss(
    scores: Tensor, answers: Tensor, corrections: Tensor, temperature: float = 0.07, correction_penalty: float = 0.1
) -> Tensor:
    """The SCN's objective: cross-entropy of the options' scores, plus a penalty that keeps the correction small.

    Args:
        scores: ``[Q, O]`` score of every option.
        answers: ``[Q]`` position of the right one.
        corrections: ``[Q, O]`` what the SCN added to each.
        temperature: divides the scores.
        correction_penalty: weight of the mean squared correction.
    """
    return F.cross_entropy(scores / temperature, answers) + correction_penalty * corrections.square().mean()


def preservation_loss(corrected: Tensor, original: Tensor) -> Tensor:
    """Mean ``1 - cos`` between corrected and original embeddings ``[B, D]`` of captions without negation; 0 for none."""
    if len(corrected) == 0:
        return corrected.sum()
    return (1 - F.cosine_similarity(corrected, original, dim=-1)).mean()


def pair_loss(anchors: Tensor, true: Tensor, false: Tensor, scale: float = 12.0) -> Tensor:
    """``softplus(scale (cos(v, false) - cos(v, true)))``, averaged over rows: ``[B, D]`` unit vectors each."""
    return F.softplus(scale * ((anchors * false).sum(-1) - (anchors * true).sum(-1))).mean()
