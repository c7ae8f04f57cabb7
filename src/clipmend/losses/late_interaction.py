"""Late interaction: each word with its best patch, each patch with its best word."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from clipmend.losses.contrastive import Ids, as_ids

__all__ = ["LateInteractionLoss", "late_interaction"]

_ENTRIES = 2**25
"""Token-token cosines held at once where no block is asked for: 128 MB in float32."""


class LateInteractionLoss(nn.Module):
    r"""Contrast by token-wise best matches, in the manner of FILIP: the L_tok of HN-CLIP.

    With cosines ``c`` between patch ``p`` of image ``i`` and word ``w`` of caption ``j``,

    .. math:: I_{ij} = \mathrm{mean}_p \max_w c, \qquad T_{ij} = \mathrm{mean}_w \max_p c

    and, averaged, ``S = (I + T) / 2``, the loss is ``1/2 [ CE(s S, i) + CE(s S^T, i) ]`` over in-batch negatives. With
    ``average=False`` each direction keeps its own similarity, ``1/2 [ CE(s I, i) + CE(s T^T, i) ]``, as in FILIP.

    What is masked: words (and patches) outside their mask take part in neither the maximum nor the mean. Which tokens are words
    is the caller's to say: give ``text_mask`` without padding, and without the start and end tokens unless they are meant to be
    matched; leave an image's class token out of ``image_tokens``. HN-CLIP publishes neither its masking nor its temperature.

    Source: FILIP (Yao et al., ICLR 2022, arXiv 2111.07783); HN-CLIP (arXiv 2608.18521).

    ==========================  =================  ======================================
    input                       shape              what
    ==========================  =================  ======================================
    image_tokens                ``[B, P, D]``      L2-normalised patches
    text_tokens                 ``[B, W, D]``      L2-normalised words
    logit_scale                 scalar             exponentiated
    text_mask, image_mask       ``[B, W | P]``     bool, optional; at least one True a row
    image_ids, caption_ids      ``[B]``            optional; repeated ones are no negatives
    ==========================  =================  ======================================

    Args:
        average: one similarity for both directions, or FILIP's own for each.
        block: images at a time (the cosines of a block are formed again for the gradient); ``None``: by size.

    Example::

        LateInteractionLoss()(patches, words, model.logit_scale.exp(), text_mask=mask).backward()
    """

    def __init__(self, *, average: bool = True, block: int | None = None) -> None:
        super().__init__()
        if block is not None and block < 1:
            raise ValueError(f"block={block}: at least one image at a time")
        self.average, self.block = average, block

    def forward(
        self,
        image_tokens: Tensor,
        text_tokens: Tensor,
        logit_scale: Tensor | float,
        *,
        text_mask: Tensor | None = None,
        image_mask: Tensor | None = None,
        image_ids: Ids | None = None,
        caption_ids: Ids | None = None,
    ) -> Tensor:
        """The loss of a batch; shapes above.

        Raises:
            ValueError: shapes that do not agree, a row whose mask is all False.
        """
        with torch.autocast(image_tokens.device.type, enabled=False):
            by_patch, by_word = late_interaction(image_tokens, text_tokens, text_mask, image_mask, self.block)
            if len(by_patch) != by_patch.shape[1]:
                raise ValueError(f"{len(by_patch)} images and {by_patch.shape[1]} captions: one row a pair")
            if self.average:
                by_patch = by_word = (by_patch + by_word) / 2
            given = [as_ids(ids, len(by_patch), by_patch.device, "ids") for ids in (image_ids, caption_ids)]
            forth, back = logit_scale * by_patch, logit_scale * by_word.T
            own = forth.diagonal() + back.diagonal()
            for ids in given:
                if ids is not None:
                    same = (ids[:, None] == ids).fill_diagonal_(False)
                    forth, back = forth.masked_fill(same, -torch.inf), back.masked_fill(same, -torch.inf)
            return 0.5 * (forth.logsumexp(1) + back.logsumexp(1) - own).mean()


def late_interaction(
    image_tokens: Tensor,
    text_tokens: Tensor,
    text_mask: Tensor | None = None,
    image_mask: Tensor | None = None,
    block: int | None = None,
) -> tuple[Tensor, Tensor]:
    """``I`` and ``T`` above: the mean over patches of the best word, and over words of the best patch.

    Args:
        image_tokens: ``[N, P, D]``, L2-normalised.
        text_tokens: ``[M, W, D]``, L2-normalised.
        text_mask: ``[M, W]`` bool: the words.
        image_mask: ``[N, P]`` bool: the patches.
        block: images at a time.

    Returns:
        two ``[N, M]``, float32 at least.
    """
    dtype = torch.promote_types(torch.promote_types(image_tokens.dtype, text_tokens.dtype), torch.float32)
    images, texts = image_tokens.to(dtype), text_tokens.to(dtype)
    if images.ndim != 3 or texts.ndim != 3 or images.shape[2] != texts.shape[2]:
        raise ValueError(f"tokens {list(images.shape)} and {list(texts.shape)}: both must be [rows, tokens, width]")
    if not (len(images) and len(texts)):
        raise ValueError("the batch is empty: no pair, no loss")
    words = _mask(text_mask, texts, "text_mask")
    patches = _mask(image_mask, images, "image_mask")
    if block is None:
        block = max(1, _ENTRIES // max(1, images.shape[1] * texts.shape[0] * texts.shape[1]))
    parts = []
    for begin in range(0, len(images), block):
        here = images[begin : begin + block], texts, words, patches[begin : begin + block]
        if block < len(images) and torch.is_grad_enabled():
            parts.append(checkpoint(_best_matches, *here, use_reentrant=False))
        else:
            parts.append(_best_matches(*here))
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def _best_matches(images: Tensor, texts: Tensor, words: Tensor, patches: Tensor) -> tuple[Tensor, Tensor]:
    cosines = torch.einsum("npd,mwd->nmpw", images, texts)
    # A cosine is at least -1: what is masked can never be the best.
    best_word = cosines.masked_fill(~words[None, :, None, :], -torch.inf).amax(3)  # [n, M, P]
    best_patch = cosines.masked_fill(~patches[:, None, :, None], -torch.inf).amax(2)  # [n, M, W]
    by_patch = (best_word * patches[:, None]).sum(2) / patches.sum(1)[:, None]
    by_word = (best_patch * words[None]).sum(2) / words.sum(1)
    return by_patch, by_word


def _mask(mask: Tensor | None, tokens: Tensor, what: str) -> Tensor:
    if not tokens.shape[1]:
        raise ValueError(f"tokens {list(tokens.shape)}: there is no token to match")
    if mask is None:
        return torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
    if mask.shape != tokens.shape[:2]:
        raise ValueError(f"{what} {list(mask.shape)} for tokens {list(tokens.shape)}")
    mask = mask.to(device=tokens.device, dtype=torch.bool)
    if not mask.any(1).all():
        raise ValueError(f"{what}: row {int((~mask.any(1)).nonzero()[0])} has no token left to match")
    return mask
