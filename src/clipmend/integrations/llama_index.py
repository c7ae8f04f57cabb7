"""LlamaIndex: a ``MultiModalEmbedding``."""

from __future__ import annotations

import asyncio
from typing import Any

from clipmend.backbones.base import DualEncoder
from clipmend.integrations.vectors import Documents, Vectors

try:
    from llama_index.core.bridge.pydantic import PrivateAttr
    from llama_index.core.embeddings.multi_modal_base import MultiModalEmbedding
except ImportError as error:
    raise ImportError(f"llama-index-core is missing ({error}); install it with: pip install 'clipmend[llama-index]'") from error

__all__ = ["ClipmendEmbedding"]


class ClipmendEmbedding(MultiModalEmbedding):
    """An encoder as LlamaIndex's embedding model, of texts and images: pass it as ``embed_model=`` or ``image_embed_model=``.

    Args:
        encoder: from :func:`clipmend.load`, or mended by :meth:`PeakPatch.apply`: then queries are mended.
        documents: how text documents are embedded: ``"plain"`` (by the backbone, so that a filled index stays as it is) or
            ``"mended"``.
        batch_size: texts or images a forward pass (LlamaIndex's ``embed_batch_size``).
        options: LlamaIndex's own fields, such as ``callback_manager``.

    Raises:
        ValueError: an ``embeddings_cache`` for mended queries beside plain documents, which that cache would mix up.

    Example:
        >>> mended = clipmend.PeakPatch.from_pretrained("scenes").apply(clipmend.load("scenes"))
        >>> Settings.embed_model = ClipmendEmbedding(mended)
    """

    _vectors: Vectors = PrivateAttr()

    def __init__(self, encoder: DualEncoder, *, documents: Documents = "plain", batch_size: int = 64, **options: Any) -> None:
        vectors = Vectors(encoder, documents, batch_size)
        if options.get("embeddings_cache") is not None and vectors.for_documents is not vectors.encoder:
            raise ValueError(
                "LlamaIndex's cache does not tell queries from documents, and here their embeddings differ; leave "
                'embeddings_cache out, or pass documents="mended"'
            )
        super().__init__(model_name=encoder.name, embed_batch_size=batch_size, **options)
        self._vectors = vectors

    @classmethod
    def class_name(cls) -> str:
        """The name under which LlamaIndex writes it down."""
        return "ClipmendEmbedding"

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._vectors.queries([query])[0]

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._vectors.documents([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._vectors.documents(texts)

    def _get_image_embedding(self, img_file_path: Any) -> list[float]:
        return self._vectors.images([img_file_path])[0]

    def _get_image_embeddings(self, img_file_paths: list[Any]) -> list[list[float]]:
        return self._vectors.images(img_file_paths)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)

    async def _aget_image_embedding(self, img_file_path: Any) -> list[float]:
        return await asyncio.to_thread(self._get_image_embedding, img_file_path)
