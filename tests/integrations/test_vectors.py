"""What the embedding classes of other libraries give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from clipmend.integrations.vectors import Vectors
from helpers import RandomDualEncoder
from negation.attaching import patch_for

TEXTS = ["a dog", "no dog", "a street with no cars"]


@pytest.fixture
def encoder() -> RandomDualEncoder:
    return RandomDualEncoder()


@pytest.fixture
def mended(encoder: RandomDualEncoder) -> Any:
    return patch_for(encoder).apply(encoder)


@pytest.fixture
def pictures(tmp_path: Path) -> list[str]:
    from backbones import tiny

    paths = [tmp_path / f"{k}.png" for k in range(3)]
    for path, image in zip(paths, tiny.images(), strict=True):
        image.save(path)
    return [str(path) for path in paths]


def test_queries_are_mended_and_documents_are_not(encoder: RandomDualEncoder, mended: Any, pictures: list[str]) -> None:
    vectors = Vectors(mended)
    assert_close(torch.tensor(vectors.queries(TEXTS)), mended.encode_texts(TEXTS))
    assert_close(torch.tensor(vectors.documents(TEXTS)), encoder.encode_texts(TEXTS))
    assert_close(torch.tensor(Vectors(mended, "mended").documents(TEXTS)), mended.encode_texts(TEXTS))
    assert_close(torch.tensor(vectors.images(pictures)), encoder.encode_images(pictures))
    assert Vectors(encoder).queries(TEXTS) == Vectors(encoder).documents(TEXTS)


def test_bad_arguments(mended: Any) -> None:
    with pytest.raises(ValueError, match="'plain' or 'mended'"):
        Vectors(mended, "both")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected an encoder"):
        Vectors("scenes")  # type: ignore[arg-type]


def test_langchain(encoder: RandomDualEncoder, mended: Any, pictures: list[str]) -> None:
    pytest.importorskip("langchain_core", reason="needs the extra langchain")
    from langchain_core.embeddings import Embeddings
    from langchain_core.vectorstores import InMemoryVectorStore

    from clipmend.integrations.langchain import ClipmendEmbeddings

    embeddings = ClipmendEmbeddings(mended)
    assert isinstance(embeddings, Embeddings)
    assert_close(torch.tensor(embeddings.embed_query("no dog")), mended.encode_texts(["no dog"])[0])
    assert_close(torch.tensor(embeddings.embed_documents(TEXTS)), encoder.encode_texts(TEXTS))
    assert_close(torch.tensor(embeddings.embed_image(pictures)), encoder.encode_images(pictures))
    store = InMemoryVectorStore(embeddings)
    store.add_texts(TEXTS)
    found = store.similarity_search_with_score("no dog", k=3)
    expected = (encoder.encode_texts(TEXTS) @ mended.encode_texts(["no dog"])[0]).sort(descending=True)
    assert [document.page_content for document, _ in found] == [TEXTS[k] for k in expected.indices]
    assert_close(torch.tensor([score for _, score in found]).float(), expected.values)


def test_llama_index(encoder: RandomDualEncoder, mended: Any, pictures: list[str]) -> None:
    pytest.importorskip("llama_index.core", reason="needs the extra llama-index")
    import asyncio

    from clipmend.integrations.llama_index import ClipmendEmbedding

    model = ClipmendEmbedding(mended, batch_size=2)
    assert (model.model_name, model.embed_batch_size, model.class_name()) == ("random + patch", 2, "ClipmendEmbedding")
    assert_close(torch.tensor(model.get_query_embedding("no dog")), mended.encode_texts(["no dog"])[0])
    assert_close(torch.tensor(model.get_text_embedding_batch(TEXTS)), encoder.encode_texts(TEXTS))
    assert_close(torch.tensor(model.get_text_embedding("no dog")), encoder.encode_texts(["no dog"])[0])
    assert_close(torch.tensor(model.get_image_embedding_batch(pictures)), encoder.encode_images(pictures))
    assert_close(torch.tensor(model.get_image_embedding(pictures[0])), encoder.encode_images(pictures)[0])
    assert_close(torch.tensor(asyncio.run(model.aget_query_embedding("no dog"))), mended.encode_texts(["no dog"])[0])
    assert_close(torch.tensor(asyncio.run(model.aget_image_embedding(pictures[0]))), encoder.encode_images(pictures)[0])
    from llama_index.core.storage.kvstore import SimpleKVStore

    with pytest.raises(ValueError, match="does not tell queries from documents"):
        ClipmendEmbedding(mended, embeddings_cache=SimpleKVStore())
    cached = ClipmendEmbedding(mended, documents="mended", embeddings_cache=SimpleKVStore())
    assert cached.get_query_embedding("no dog") == cached.get_text_embedding("no dog")


@pytest.mark.parametrize(
    ("module", "missing", "extra"), [("langchain", "langchain_core", "langchain"), ("llama_index", "llama_index", "llama-index")]
)
def test_a_missing_library_names_its_extra(module: str, missing: str, extra: str) -> None:
    import subprocess
    import sys

    program = f"import sys; sys.modules[{missing!r}] = None\nimport clipmend.integrations.{module}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert f"pip install 'clipmend[{extra}]'" in done.stderr, done.stderr
