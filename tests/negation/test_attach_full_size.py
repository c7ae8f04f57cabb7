"""Attaching at ViT-B/32's size, with random weights: all that the small models are tested for, once each."""

from __future__ import annotations

import pickle
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import CLIPConfig, CLIPModel

from backbones import tiny
from clipmend.backbones.transformers_clip import TransformersEncoder
from clipmend.negation.attach import attachment_of
from negation.attaching import NEAR, insides, patch_for

pytestmark = pytest.mark.slow
TEXTS = ["a street with no cars", "a dog", "no dog on a sofa", "a very long walk " * 3]


@pytest.fixture(scope="module")
def vit() -> SimpleNamespace:
    tokenizer = tiny.clip_tokenizer()
    torch.manual_seed(0)
    text = {"vocab_size": 49408, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": tokenizer.bos_token_id}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config={"patch_size": 32}, projection_dim=512)).eval()
    encoder = TransformersEncoder(model, tokenizer, tiny.clip_processor(), name="ViT-B/32")
    patch = patch_for(encoder, hidden=1024, heads=8)
    assert (encoder.text_width, encoder.num_text_layers, encoder.embed_dim) == (512, 12, 512)
    return SimpleNamespace(
        model=model, encoder=encoder, patch=patch, options={"tokenizer": tokenizer, "processor": tiny.clip_processor()}
    )


def features(vit: Any, texts: list[str] = TEXTS, model: Any = None, **how: Any) -> Tensor:
    inputs = vit.options["tokenizer"](texts, return_tensors="pt", **{"padding": True, "truncation": True, "max_length": 77, **how})
    with torch.no_grad():
        return (model or vit.model).get_text_features(**inputs).pooler_output


def test_equals_apply_and_leaves_no_trace(vit: SimpleNamespace) -> None:
    expected = vit.patch.apply(vit.encoder).encode_texts(TEXTS)
    plain, before = features(vit), insides(vit.model)
    with vit.patch.attached(vit.model, **vit.options):
        actual = features(vit)
        assert_close(F.normalize(actual, dim=-1), expected, **NEAR)
        assert_close(actual.norm(dim=-1), plain.norm(dim=-1))
        assert_close(F.normalize(features(vit, padding="max_length"), dim=-1), expected, **NEAR)
        assert (F.cosine_similarity(actual, plain) < 0.99).all()
    assert insides(vit.model) == before
    assert features(vit).numpy().tobytes() == plain.numpy().tobytes()


def test_two_threads_and_an_exception(vit: SimpleNamespace) -> None:
    with vit.patch.attached(vit.model, **vit.options):
        sets = [TEXTS, ["no cars"], TEXTS[::-1]]
        expected = [features(vit, texts) for texts in sets]
        with ThreadPoolExecutor(2) as pool:
            for k, actual in enumerate(pool.map(lambda k: features(vit, sets[k % 3]), range(9))):
                assert_close(actual, expected[k % 3], **NEAR)

        def fail(*_: Any) -> None:
            raise RuntimeError("in the middle")

        handle = vit.model.text_model.encoder.layers[10].register_forward_hook(fail)
        with pytest.raises(RuntimeError, match="in the middle"):
            features(vit)
        handle.remove()
        assert torch.equal(features(vit), expected[0])
    assert attachment_of(vit.model) is None


def test_autocast_and_pickle(vit: SimpleNamespace) -> None:
    with vit.patch.attached(vit.model, **vit.options):
        expected = features(vit)
        with torch.autocast("cpu", torch.bfloat16):
            half = features(vit)
        again = pickle.loads(pickle.dumps(vit.model))
    assert half.dtype == torch.bfloat16
    assert (F.cosine_similarity(half.float(), expected) > 0.99).all()
    assert torch.equal(features(vit, model=again), expected)


def worker(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    torch.set_num_threads(1)
    with torch.no_grad():
        return model.get_text_features(**inputs).pooler_output.clone()


def test_pickled_into_worker_processes(vit: SimpleNamespace) -> None:
    sets = [TEXTS, ["no cars", "a dog"]]
    inputs = [dict(vit.options["tokenizer"](texts, return_tensors="pt", padding=True)) for texts in sets]
    plain = features(vit)
    with vit.patch.attached(vit.model, **vit.options):
        expected = [features(vit, texts) for texts in sets]
        with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
            found = [pool.submit(worker, vit.model, own) for own in inputs]
            for actual, wanted in zip(found, expected, strict=True):
                assert_close(actual.result(timeout=600), wanted, **NEAR)
    assert features(vit).numpy().tobytes() == plain.numpy().tobytes()


def test_compiled_by_the_default_compiler(vit: SimpleNamespace) -> None:
    torch._dynamo.reset()
    inputs = vit.options["tokenizer"](TEXTS, return_tensors="pt", padding=True)
    pixels = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), warnings.catch_warnings(), vit.patch.attached(vit.model, **vit.options):
        warnings.simplefilter("ignore")
        expected = vit.model(**inputs, pixel_values=pixels)
        actual = torch.compile(vit.model)(**inputs, pixel_values=pixels)
    assert_close(actual.text_embeds, expected.text_embeds, **NEAR)
    assert_close(actual.image_embeds, expected.image_embeds, atol=1e-4, rtol=0)
    assert_close(actual.logits_per_image, expected.logits_per_image, atol=1e-3, rtol=0)
    torch._dynamo.reset()
