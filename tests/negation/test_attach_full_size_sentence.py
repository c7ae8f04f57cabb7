"""Attaching to sentence-transformers at ViT-B/32's size, with random weights: a text encoder, and a CLIP."""

from __future__ import annotations

import pickle
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import BertConfig, BertModel, CLIPConfig, CLIPModel, CLIPProcessor

import clipmend
from backbones import tiny
from clipmend.negation.attach import attachment_of
from negation.attaching import NEAR, insides, patch_for

sentence_transformers = pytest.importorskip("sentence_transformers", reason="needs the extra sentence-transformers")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::clipmend.backbones.base.LongTextsWarning")]
TEXTS = ["a street with no cars", "a dog", "no dog on a sofa", "not a cat"]


def text_encoder(folder: Path) -> Any:
    """12 blocks of width 512, mean pooling, and a layer to 512."""
    from sentence_transformers.sentence_transformer import modules

    tokenizer = tiny.bert_tokenizer()
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=512, num_attention_heads=8, intermediate_size=2048, max_position_embeddings=77
    )
    first = modules.Transformer(tiny.saved(folder, BertModel(config).eval(), tokenizer))
    return sentence_transformers.SentenceTransformer(
        modules=[first, modules.Pooling(512), modules.Dense(512, 512)], device="cpu"
    ).eval()


def clip(folder: Path) -> Any:
    from sentence_transformers.sentence_transformer import modules

    tokenizer = tiny.clip_tokenizer()
    torch.manual_seed(0)
    text = {"vocab_size": 49408, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": tokenizer.bos_token_id}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config={"patch_size": 32}, projection_dim=512)).eval()
    where = tiny.saved(folder, model, tokenizer, tiny.clip_processor())
    CLIPProcessor(image_processor=tiny.clip_processor(), tokenizer=tokenizer).save_pretrained(where)
    return sentence_transformers.SentenceTransformer(modules=[modules.Transformer(where)], device="cpu").eval()


@pytest.fixture(scope="module", params=["text encoder", "clip"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("model")
    model = text_encoder(folder) if request.param == "text encoder" else clip(folder)
    encoder = clipmend.load(model) if request.param == "text encoder" else clipmend.load(str(folder), device="cpu")
    assert (encoder.text_width, encoder.num_text_layers, encoder.embed_dim) == (512, 12, 512)
    return SimpleNamespace(kind=request.param, model=model, encoder=encoder, patch=patch_for(encoder, hidden=1024, heads=8))


def encode(model: Any, texts: list[str] = TEXTS) -> Tensor:
    return model.encode(texts, convert_to_tensor=True, show_progress_bar=False)


def features_of(model: Any, texts: list[str]) -> Any:
    return getattr(model, "preprocess", model.tokenize)(texts)  # its name before sentence-transformers 6


def forward(model: Any, features: dict[str, Any]) -> Tensor:
    """Without the tokenizer, which two threads may not use at once."""
    with torch.no_grad():
        return model.forward(dict(features))["sentence_embedding"].clone()


def worker(model: Any, features: dict[str, Any]) -> Tensor:
    torch.set_num_threads(1)
    return forward(model, features)


def blocks(case: Any) -> Any:
    inner = case.model[0].model
    return inner.text_model.encoder.layers if case.kind == "clip" else inner.encoder.layer


def test_equals_apply_keeps_norms_and_leaves_no_trace(case: SimpleNamespace) -> None:
    plain, before = encode(case.model), insides(case.model)
    state = {name: tensor.clone() for name, tensor in case.model.state_dict().items()}
    with case.patch.attached(case.model):
        actual = encode(case.model)
        assert_close(F.normalize(actual, dim=-1), case.patch.apply(case.encoder).encode_texts(TEXTS), **NEAR)
        assert_close(actual.norm(dim=-1), plain.norm(dim=-1))
        assert (F.cosine_similarity(actual, plain) < 0.99).all()
    assert insides(case.model) == before
    for name, tensor in case.model.state_dict().items():
        assert tensor.numpy().tobytes() == state[name].numpy().tobytes(), name
    assert encode(case.model).numpy().tobytes() == plain.numpy().tobytes()


def test_two_threads_and_an_exception(case: SimpleNamespace) -> None:
    sets = [TEXTS, ["no cars"], TEXTS[::-1]]
    inputs = [features_of(case.model, texts) for texts in sets]
    with case.patch.attached(case.model):
        expected = [forward(case.model, own) for own in inputs]
        assert_close(F.normalize(expected[0], dim=-1), case.patch.apply(case.encoder).encode_texts(TEXTS), **NEAR)
        with ThreadPoolExecutor(2) as pool:
            for k, actual in enumerate(pool.map(lambda k: forward(case.model, inputs[k % 3]), range(9))):
                assert_close(actual, expected[k % 3], **NEAR)

        def fail(*_: Any) -> None:
            raise RuntimeError("in the middle")

        handle = blocks(case)[10].register_forward_hook(fail)
        with pytest.raises(RuntimeError, match="in the middle"):
            forward(case.model, inputs[0])
        handle.remove()
        assert torch.equal(forward(case.model, inputs[0]), expected[0])
    assert attachment_of(case.model) is None


def test_autocast(case: SimpleNamespace) -> None:
    with case.patch.attached(case.model):
        expected = encode(case.model)
        with torch.autocast("cpu", torch.bfloat16):
            half = encode(case.model)
    assert (F.cosine_similarity(half.float(), expected) > 0.99).all()


def test_pickled_into_worker_processes(case: SimpleNamespace) -> None:
    inputs = dict(features_of(case.model, TEXTS))
    with case.patch.attached(case.model):
        expected = forward(case.model, inputs)
        assert torch.equal(forward(pickle.loads(pickle.dumps(case.model)), inputs), expected)
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            assert_close(pool.submit(worker, case.model, inputs).result(timeout=600), expected, **NEAR)


def test_compiled_by_the_default_compiler(case: SimpleNamespace) -> None:
    torch._dynamo.reset()
    inputs = features_of(case.model, TEXTS)
    plain = forward(case.model, inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with case.patch.attached(case.model):
            expected = forward(case.model, inputs)
            compiled = torch.compile(case.model)
            with torch.no_grad():
                actual = compiled(dict(inputs))["sentence_embedding"]
        assert_close(actual, expected, atol=1e-4, rtol=1e-4)
        assert not torch.allclose(expected, plain, atol=1e-2)
    torch._dynamo.reset()
