"""LangChain: ``Embeddings`` for its vector stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clipmend.backbones.base import DualEncoder
from clipmend.integrations.vectors import Documents, Vectors

try:
    from langchain_core.embeddings import Embeddings
except ImportError as error:
    raise ImportError(f"langchain-core is missing ({error}); install it with: pip install 'clipmend[langchain]'") from error

__all__ = ["ClipmendEmbeddings"]


class ClipmendEmbeddings(Embeddings):
    """An encoder as LangChain's ``Embeddings``: pass it wherever a vector store takes ``embedding=``.

    Args:
        encoder: from :func:`clipmend.load`, or mended by :meth:`PeakPatch.apply`: then queries are mended.
        documents: how text documents are embedded: ``"plain"`` (by the backbone, so that a filled store stays as it is) or
            ``"mended"``.
        batch_size: texts or images a forward pass.

    Example:
        >>> mended = clipmend.PeakPatch.from_pretrained("scenes").apply(clipmend.load("scenes"))
        >>> store = InMemoryVectorStore(ClipmendEmbeddings(mended))
    """

    def __init__(self, encoder: DualEncoder, *, documents: Documents = "plain", batch_size: int = 64) -> None:
        self.vectors = Vectors(encoder, documents, batch_size)

    def embed_query(self, text: str) -> list[float]:
        """``D`` numbers, of length one."""
        return self.vectors.queries([text])[0]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """``N`` vectors of ``D`` numbers."""
        return self.vectors.documents(texts)

    def embed_image(self, uris: Sequence[Any]) -> list[list[float]]:
        """``N`` vectors of ``D`` numbers: what stores that take images (Chroma's ``add_images``) call."""
        return self.vectors.images(uris)
