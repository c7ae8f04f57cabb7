"""Lists of numbers, as vector stores take them, of an encoder's texts and images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from clipmend.backbones.base import DualEncoder
from clipmend.backbones.kinds import kind_of
from clipmend.negation.mended import Mended

__all__ = ["Documents", "Vectors"]

Documents = Literal["plain", "mended"]


class Vectors:
    """Unit vectors of queries, documents and images.

    Args:
        encoder: the encoder; mended: its queries are.
        documents: ``"plain"``: documents go in as by the backbone, so that a store that is filled already stays as it is and can
            be added to; ``"mended"``: as queries do, for a store made anew.
        batch_size: texts or images a forward pass.

    Raises:
        TypeError: not an encoder.
        ValueError: ``documents`` is neither.
    """

    def __init__(self, encoder: DualEncoder, documents: Documents = "plain", batch_size: int = 64) -> None:
        if not isinstance(encoder, DualEncoder):
            raise TypeError(f"expected an encoder, from clipmend.load or patch.apply, not {kind_of(encoder)}")
        if documents not in ("plain", "mended"):
            raise ValueError(f"documents is {documents!r}; it must be 'plain' or 'mended'")
        self.encoder, self.batch_size = encoder, batch_size
        self.for_documents = encoder.encoder if documents == "plain" and isinstance(encoder, Mended) else encoder

    def queries(self, texts: Sequence[str]) -> list[list[float]]:
        """``N`` vectors of ``D`` numbers."""
        return self.encoder.encode_texts(texts, batch_size=self.batch_size).tolist()

    def documents(self, texts: Sequence[str]) -> list[list[float]]:
        """``N`` vectors of ``D`` numbers."""
        return self.for_documents.encode_texts(texts, batch_size=self.batch_size).tolist()

    def images(self, images: Sequence[Any]) -> list[list[float]]:
        """``N`` vectors of ``D`` numbers, of paths, binary files or PIL images."""
        return self.encoder.encode_images(images, batch_size=self.batch_size).tolist()
