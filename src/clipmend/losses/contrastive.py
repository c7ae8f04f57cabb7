"""What every image-text loss here shares: its call, ids, precision, and features of other processes."""

from __future__ import annotations

import hashlib
import operator
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clipmend.losses.gathering import gather, gather_counts, world_of

__all__ = ["ContrastiveLoss", "Features", "Ids", "as_ids"]

Ids = Tensor | Sequence[int] | Sequence[str]
_EMPTY = "the batch is empty: no pair, no loss"


def as_ids(ids: Ids | None, count: int, device: torch.device, what: str) -> Tensor | None:
    """``[count]`` int64; strings by a hash of their bytes, the same on every process and machine."""
    if ids is None:
        return None
    if not isinstance(ids, Tensor):
        ids = torch.tensor([_whole(value, what) for value in ids], dtype=torch.int64)
    if ids.shape != (count,):
        raise ValueError(f"{what}: {tuple(ids.shape)} for {count} pairs; one id a pair")
    if ids.is_floating_point():
        raise ValueError(f"{what} must be whole numbers or strings, not {ids.dtype}")
    return ids.to(device=device, dtype=torch.int64)


def _whole(value: Any, what: str) -> int:
    if isinstance(value, str):  # a file's name may hold bytes that are no text
        digest = hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest, "big", signed=True)
    try:
        number = operator.index(value.item() if isinstance(value, Tensor) else value)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(f"{what} must be whole numbers or strings, not {value!r:.60}") from None
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{what}: {number} takes more than 64 bits; give it as a string")
    return number


def _scalar(value: Tensor | float, like: Tensor, what: str) -> Tensor:
    found = torch.as_tensor(value, dtype=like.dtype, device=like.device)
    if found.numel() != 1:
        raise ValueError(f"{what} is one number, not {list(found.shape)}")
    return found.reshape(())


@dataclass
class Features:
    """One call's features, in float32 or float64.

    ``images`` and ``texts`` are the rows whose loss this process works out, ``all_images`` and ``all_texts`` the rows they are
    contrasted with; the partner of row ``i`` is row ``first + i`` of those. They are the same where one process does all.
    """

    images: Tensor  # [B, D]
    texts: Tensor  # [B, D]
    all_images: Tensor  # [N, D]
    all_texts: Tensor  # [N, D]
    margins: Tensor | None  # [B, M]
    all_margins: Tensor | None  # [N, M]
    ids: tuple[Tensor, ...]  # [B] each
    all_ids: tuple[Tensor, ...]  # [N] each
    first: int
    scale: Tensor
    bias: Tensor | None

    @property
    def square(self) -> bool:
        """Whether every row of the contrast is worked out here."""
        return len(self.images) == len(self.all_images)

    def left_out(self) -> Tensor | None:
        """``[B, N]`` bool: pairs that share an image or a caption, but for a row and its own partner."""
        if not self.ids:
            return None
        out = torch.zeros(len(self.images), len(self.all_images), dtype=torch.bool, device=self.images.device)
        for of_rows, of_columns in zip(self.ids, self.all_ids, strict=True):
            out |= of_rows[:, None] == of_columns
        rows = torch.arange(len(self.images), device=out.device)
        out[rows, self.first + rows] = False
        return out


class ContrastiveLoss(nn.Module):
    """Base of the image-text losses, called as open_clip calls its ``ClipLoss``.

    One row a pair. With ``gather`` the pairs of all processes are one batch. Under DistributedDataParallel, which averages
    gradients over processes, loss and gradients then equal those of one process holding the joined batch:

    - by default every process works out the whole loss, and its value is that of the joined batch on each;
    - with ``local_loss`` each works out its own rows against everyone's (memory ``B x N`` in place of ``N x N``), weighted by
      ``processes x own rows / all rows``, so that uneven batches count by their rows; the *mean* over processes of the value is
      that of the joined batch.

    A process without a row takes part with ``gather``.

    Args:
        gather: exchange features between the processes of ``group``, with gradient. One process alone needs no other.
        local_loss: with ``gather``: work out this process's rows only.
        group: process group of torch.distributed; ``None`` for all.
    """

    def __init__(self, *, gather: bool = False, local_loss: bool = False, group: Any = None) -> None:
        super().__init__()
        if local_loss and not gather:
            raise ValueError("local_loss=True is about what is gathered: say gather=True too")
        self.gather, self.local_loss, self.group = gather, local_loss, group

    def forward(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor | float,
        logit_bias: Tensor | float | None = None,
        output_dict: bool = False,
        *,
        margin_features: Tensor | None = None,
        image_ids: Ids | None = None,
        caption_ids: Ids | None = None,
    ) -> Tensor | dict[str, Tensor]:
        """The loss of a batch of pairs.

        Args:
            image_features: ``[B, D]``, L2-normalised.
            text_features: ``[B, D]``, L2-normalised; row ``i`` describes image ``i``.
            logit_scale: scalar, the inverse temperature itself (``model.logit_scale.exp()``).
            logit_bias: scalar, of sigmoid losses; a softmax does not feel it.
            output_dict: give ``{"contrastive_loss": loss}``, as open_clip's training loop asks for.
            margin_features: ``[B, M]`` embeddings of the captions by another encoder, for losses with a frozen margin.
            image_ids: ``[B]`` whole numbers or strings. Pairs of the same image are no negatives of each other.
            caption_ids: ``[B]``; the same of captions.

        Returns:
            a scalar, float32 at least (float64 for float64 features).

        Raises:
            ValueError: shapes that do not agree, an empty batch, features this loss needs or does not know.
        """
        _check(image_features, text_features)
        if not len(image_features) and not (self.gather and world_of(self.group)[1] > 1):
            raise ValueError(_EMPTY)
        if margin_features is not None and (margin_features.ndim != 2 or len(margin_features) != len(text_features)):
            raise ValueError(f"margin_features: {list(margin_features.shape)} for {len(text_features)} captions; one row a caption")
        self._check_margins(margin_features)
        with torch.autocast(image_features.device.type, enabled=False):
            features = self._features(
                image_features, text_features, logit_scale, logit_bias, margin_features, image_ids, caption_ids
            )
            if len(features.images):
                loss = self._loss(features)
            else:  # on this process alone; whoever exchanges gradients waits for all that is behind its rows
                others = {"images": features.all_images, "texts": features.all_texts}
                used = [features.images, features.texts, *(others[name] for name in self._others)]
                loss = torch.stack([0.0 * rows.sum() for rows in used]).sum()
            if self.local_loss:
                _, processes = world_of(self.group)
                # The loss is a mean over own rows; a process with fewer of them counts for less.
                loss = loss * (processes * len(features.images) / len(features.all_images))
        return {"contrastive_loss": loss} if output_dict else loss

    def _check_margins(self, margin_features: Tensor | None) -> None:
        if margin_features is not None:
            raise ValueError(f"{type(self).__name__} has no frozen margin: leave margin_features out")

    _others: tuple[str, ...] = ("images", "texts")
    """Which rows of other processes the loss looks at: a process without a row must be there when their gradients are exchanged."""

    @abstractmethod
    def _loss(self, features: Features) -> Tensor:
        """Mean over ``features.images`` of what each pair costs."""

    def _features(
        self,
        images: Tensor,
        texts: Tensor,
        scale: Tensor | float,
        bias: Tensor | float | None,
        margins: Tensor | None,
        image_ids: Ids | None,
        caption_ids: Ids | None,
    ) -> Features:
        dtype = torch.promote_types(torch.promote_types(images.dtype, texts.dtype), torch.float32)
        device = images.device
        images, texts = images.to(dtype), texts.to(dtype)
        if margins is not None:
            margins = F.normalize(margins.detach().to(device=device, dtype=dtype), dim=-1)
        given = [as_ids(image_ids, len(images), device, "image_ids"), as_ids(caption_ids, len(images), device, "caption_ids")]
        ids = tuple(found for found in given if found is not None)
        if not self.gather and all(found.unique().numel() == len(found) for found in ids):
            ids = ()  # nothing repeated: no mask to build
        one = Features(
            images, texts, images, texts, margins, margins, ids, ids, 0,
            _scalar(scale, images, "logit_scale"), None if bias is None else _scalar(bias, images, "logit_bias"),
        )  # fmt: skip
        return self._gathered(one) if self.gather and world_of(self.group)[1] > 1 else one

    def _gathered(self, own: Features) -> Features:
        rank, _ = world_of(self.group)
        counts = gather_counts(len(own.images), own.images.device, self.group)
        if not sum(counts):
            raise ValueError(_EMPTY)  # on every process
        images, texts = gather(own.images, counts, self.group), gather(own.texts, counts, self.group)
        margins = None if own.margins is None else gather(own.margins, counts, self.group)
        ids = tuple(gather(found, counts, self.group) for found in own.ids)
        if not self.local_loss:
            return Features(images, texts, images, texts, margins, margins, ids, ids, 0, own.scale, own.bias)
        first = sum(counts[:rank])
        return Features(own.images, own.texts, images, texts, own.margins, margins, own.ids, ids, first, own.scale, own.bias)


def _check(images: Tensor, texts: Tensor) -> None:
    if images.ndim != 2 or texts.ndim != 2 or images.shape != texts.shape:
        raise ValueError(
            f"image_features {list(images.shape)}, text_features {list(texts.shape)}: both must be [pairs, width], one row a pair"
        )
