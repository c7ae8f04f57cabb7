"""Frozen margins: captions embedded once by another encoder, kept by caption id."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["FrozenMargins"]


class FrozenMargins:
    """Embeddings of captions for ``HardNegativeLoss(margin="frozen")``, each computed once and kept.

    Args:
        encode: texts to ``[N, M]``, such as ``encoder.encode_texts`` of any :class:`~clipmend.backbones.base.DualEncoder` or
            ``SentenceTransformer.encode``.

    Example::

        margins = FrozenMargins(clipmend.load("minilm").encode_texts)
        loss(image_features, text_features, scale, margin_features=margins(captions, caption_ids))
    """

    def __init__(self, encode: Callable[[list[str]], Tensor]) -> None:
        self.encode = encode
        self._kept: dict[Hashable, Tensor] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def __call__(self, captions: Sequence[str], caption_ids: Sequence[Hashable] | None = None) -> Tensor:
        """``[B, M]`` unit rows, on the CPU.

        Args:
            captions: the texts.
            caption_ids: what they are kept under; the texts themselves where not given. One id must always name one text.

        Raises:
            ValueError: not one id a caption, or embeddings that are no ``[N, M]``.
        """
        ids = list(captions) if caption_ids is None else [i.item() if isinstance(i, Tensor) else i for i in caption_ids]
        if len(ids) != len(captions):
            raise ValueError(f"{len(ids)} caption ids for {len(captions)} captions")
        new = {key: text for key, text in zip(ids, captions, strict=True) if key not in self._kept}
        if new:
            with torch.no_grad():
                found = torch.as_tensor(self.encode(list(new.values()))).float().cpu()
            if found.ndim != 2 or len(found) != len(new):
                raise ValueError(f"encode gave {list(found.shape)} for {len(new)} captions; one row a caption is needed")
            self._kept.update(zip(new, F.normalize(found, dim=-1), strict=True))
        return torch.stack([self._kept[key] for key in ids])
