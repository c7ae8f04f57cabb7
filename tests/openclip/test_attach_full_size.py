"""Attaching to open_clip's ViT-B/32, with random weights: all that the small models are tested for, once each."""

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

import clipmend
from clipmend.integrations.clip_benchmark import loader_tuple
from clipmend.negation.attach import attachment_of
from negation.attaching import NEAR, hooks, insides, patch_for

open_clip = pytest.importorskip("open_clip", reason="needs open_clip and torchvision")

pytestmark = [pytest.mark.open_clip, pytest.mark.slow]
TEXTS = ["a street with no cars", "a dog", "no dog on a sofa", "a very long walk " * 3]


@pytest.fixture(scope="module")
def vit() -> SimpleNamespace:
    torch.manual_seed(0)
    model, _, preprocess = open_clip.create_model_and_transforms("ViT-B-32", pretrained=None)
    model.eval()
    tokenize = open_clip.get_tokenizer("ViT-B-32")
    encoder = clipmend.load(model, tokenizer=tokenize)
    assert (encoder.text_width, encoder.num_text_layers, encoder.embed_dim) == (512, 12, 512)
    patch = patch_for(encoder, hidden=1024, heads=8)
    return SimpleNamespace(model=model, encoder=encoder, patch=patch, tokenize=tokenize, preprocess=preprocess)


def features(vit: Any, texts: list[str] = TEXTS, model: Any = None, **how: Any) -> Tensor:
    with torch.no_grad():
        return (model or vit.model).encode_text(vit.tokenize(texts), **how)


def test_equals_apply_keeps_norms_and_leaves_no_trace(vit: SimpleNamespace) -> None:
    expected = vit.patch.apply(vit.encoder).encode_texts(TEXTS)
    plain, before, hooked = features(vit), insides(vit.model), hooks(vit.model)
    state = {name: tensor.clone() for name, tensor in vit.model.state_dict().items()}
    with vit.patch.attached(vit.model):
        raw = features(vit)
        assert_close(features(vit, normalize=True), expected, **NEAR)
        assert_close(F.normalize(raw, dim=-1), expected, **NEAR)
        assert_close(raw.norm(dim=-1), plain.norm(dim=-1))
        assert (F.cosine_similarity(raw, plain) < 0.99).all()
    assert insides(vit.model) == before
    assert hooks(vit.model) == hooked
    for name, tensor in vit.model.state_dict().items():
        assert tensor.numpy().tobytes() == state[name].numpy().tobytes(), name
    assert features(vit).numpy().tobytes() == plain.numpy().tobytes()


def test_two_threads_and_an_exception(vit: SimpleNamespace) -> None:
    sets = [TEXTS, ["no cars"], TEXTS[::-1]]
    with vit.patch.attached(vit.model):
        expected = [features(vit, texts) for texts in sets]
        with ThreadPoolExecutor(2) as pool:
            for k, actual in enumerate(pool.map(lambda k: features(vit, sets[k % 3]), range(9))):
                assert_close(actual, expected[k % 3], **NEAR)

        def fail(*_: Any) -> None:
            raise RuntimeError("in the middle")

        handle = vit.model.transformer.resblocks[10].register_forward_hook(fail)
        with pytest.raises(RuntimeError, match="in the middle"):
            features(vit)
        handle.remove()
        assert torch.equal(features(vit), expected[0])
    assert attachment_of(vit.model) is None


def worker(model: Any, ids: Tensor) -> Tensor:
    torch.set_num_threads(1)
    with torch.no_grad():
        return model.encode_text(ids).clone()


def test_autocast_pickle_and_worker_processes(vit: SimpleNamespace) -> None:
    with vit.patch.attached(vit.model):
        expected = features(vit)
        with torch.autocast("cpu", torch.bfloat16):
            half = features(vit)
        again = pickle.loads(pickle.dumps(vit.model))
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            elsewhere = pool.submit(worker, vit.model, vit.tokenize(TEXTS)).result(timeout=600)
    assert (F.cosine_similarity(half.float(), expected) > 0.99).all()
    assert torch.equal(features(vit, model=again), expected)
    assert_close(elsewhere, expected, **NEAR)


def test_compiled_by_the_default_compiler(vit: SimpleNamespace) -> None:
    torch._dynamo.reset()
    pixels, ids = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0)), vit.tokenize(TEXTS)
    with torch.no_grad(), warnings.catch_warnings(), vit.patch.attached(vit.model):
        warnings.simplefilter("ignore")
        expected = vit.model(pixels, ids)
        actual = torch.compile(vit.model)(pixels, ids)
    assert_close(actual[1], expected[1], **NEAR)
    assert_close(actual[0], expected[0], atol=1e-4, rtol=0)
    torch._dynamo.reset()


def test_the_loader_tuple_of_clip_benchmark(vit: SimpleNamespace) -> None:
    expected = vit.patch.apply(vit.encoder).encode_texts(TEXTS)
    model, preprocess, tokenize = loader_tuple(vit.patch.apply(vit.encoder))
    assert_close(model.encode_text(tokenize(TEXTS)), expected, **NEAR)
    from PIL import Image

    picture = Image.effect_noise((300, 240), 60).convert("RGB")
    with torch.no_grad(), vit.patch.attached(vit.model) as mended:
        assert_close(F.normalize(mended.encode_text(vit.tokenize(TEXTS)), dim=-1), expected, **NEAR)
        own = F.normalize(mended.encode_image(vit.preprocess(picture)[None]), dim=-1)
    assert_close(model.encode_image(preprocess(picture)[None]), own, **NEAR)
