"""A patch on open_clip's models. Run in an environment with open_clip."""

from __future__ import annotations

import pickle
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from multiprocessing import get_context
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

import clipmend
from clipmend.integrations.clip_benchmark import loader_tuple
from clipmend.negation import PeakPatch
from clipmend.negation.attach import attachment_of
from negation.attaching import NEAR, hooks, insides, patch_for

open_clip = pytest.importorskip("open_clip", reason="needs open_clip and torchvision")

from openclip.test_open_clip import VARIANTS, build, images, transform  # noqa: E402
from openclip.test_open_clip import tokenizer as make_tokenizer  # noqa: E402

pytestmark = [pytest.mark.open_clip, pytest.mark.filterwarnings("ignore::clipmend.backbones.base.LongTextsWarning")]

tokenizer = lru_cache(make_tokenizer)  # it reads its vocabulary anew each time
TEXTS = ["a dog", "no cat", "a street with no cars", "two dogs, and no cat!", ".", "word " * 50]


def text_features(model: Any, texts: list[str] = TEXTS, **how: Any) -> Tensor:
    with torch.no_grad():
        return model.encode_text(tokenizer()(texts), **how)


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_equals_apply(variant: str) -> None:
    model = build(variant)
    encoder = clipmend.load(model, preprocess=transform())
    patch = patch_for(encoder, use_direct=True)
    mended = patch.apply(encoder)
    plain = text_features(model)
    before, hooked = insides(model), hooks(model)
    pixels = torch.stack([transform()(image) for image in images()])
    with torch.no_grad():
        seen = model.encode_image(pixels)
    # The tiny model carries no preprocessing, so that its image side is not known and is not compared.
    with patch.attached(model):
        assert set(vars(model)) - set(before[0][1]) == {"encode_text"}
        unit, raw = text_features(model, normalize=True), text_features(model)
        with torch.no_grad():
            positional = model.encode_text(tokenizer()(TEXTS), True)
            image_features, features, scale = model(pixels, tokenizer()(TEXTS))[:3]
            logits = model.get_logits(pixels, tokenizer()(TEXTS))[0]
            assert torch.equal(model.encode_image(pixels), seen)
    expected = mended.encode_texts(TEXTS)
    assert_close(unit, expected, **NEAR)
    assert torch.equal(positional, unit)
    assert_close(F.normalize(raw, dim=-1), expected, **NEAR)
    assert_close(raw.norm(dim=-1), plain.norm(dim=-1))
    assert (F.cosine_similarity(raw, plain) < 0.99).all(), "the correction must be seen in this test"
    assert torch.equal(image_features, F.normalize(seen, dim=-1))
    assert_close(features, expected, **NEAR)
    assert_close(logits, scale * image_features @ expected.T, atol=1e-4, rtol=1e-4)
    assert insides(model) == before
    assert hooks(model) == hooked
    assert torch.equal(text_features(model), plain)


def test_a_padding_mask() -> None:
    model = build("custom-eos")
    model.text.attn_mask, model.text.use_pad_mask = None, True  # as TextTransformer(no_causal_mask=True, use_pad_mask=True)
    model.text.pad_id = 0
    encoder = clipmend.load(model, preprocess=transform())
    patch = patch_for(encoder)
    with patch.attached(model):
        assert_close(text_features(model, normalize=True), patch.apply(encoder).encode_texts(TEXTS), **NEAR)


def test_gate() -> None:
    model = build("clip")
    encoder = clipmend.load(model, preprocess=transform())
    patch = patch_for(encoder, gate=True)
    texts = ["a dog", "no cat", "it isn't a dog", "locker no. 5", "a sugar-free drink", "Two DOGS"]
    plain = text_features(model, texts)
    with patch.attached(model):
        actual = text_features(model, texts)
    assert (actual != plain).any(-1).tolist() == [False, True, True, False, True, False]
    assert_close(F.normalize(actual, dim=-1), patch.apply(encoder).encode_texts(texts), **NEAR)


def test_fingerprint() -> None:
    model = build("clip")
    patch = patch_for(clipmend.load(model, preprocess=transform()))
    other = PeakPatch(patch.config, patch.ecn, backbone="another", fingerprint=replace(patch.fingerprint, text="0" * 64))
    with pytest.raises(ValueError, match="its text weights differ"):
        other.attach(model)
    with pytest.warns(UserWarning, match="its text weights differ"):
        other.attach(model, allow_mismatch=True)
    with pytest.raises(ValueError, match="carries a patch already"):
        patch.attach(model)


def worker(model: Any, ids: Tensor) -> Tensor:
    torch.set_num_threads(1)
    with torch.no_grad():
        return model.encode_text(ids).clone()


@pytest.mark.parametrize("variant", ["clip", "siglip"])
def test_pickle_threads_and_processes(variant: str) -> None:
    model = build(variant)
    plain = text_features(model)
    patch = patch_for(clipmend.load(model, preprocess=transform()))
    patch.attach(model)
    expected = text_features(model)
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(text_features(again), expected)
    patch.detach(again)
    assert torch.equal(text_features(again), plain)
    sets = [TEXTS, TEXTS[::-1], ["no dog"]]
    each = [text_features(model, texts) for texts in sets]
    with ThreadPoolExecutor(3) as pool:
        for k, actual in enumerate(pool.map(lambda k: text_features(model, sets[k % 3]), range(30))):
            assert_close(actual, each[k % 3], **NEAR)
    if variant == "clip":
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as processes:
            actual = processes.submit(worker, model, tokenizer()(TEXTS)).result(timeout=300)
        assert_close(actual, expected, **NEAR)


def test_an_exception_in_the_middle() -> None:
    model = build("clip")
    patch = patch_for(clipmend.load(model, preprocess=transform()))

    def fail(*_: Any) -> None:
        raise RuntimeError("in the middle")

    with patch.attached(model):
        expected = text_features(model)
        handle = model.transformer.resblocks[2].register_forward_hook(fail)
        with pytest.raises(RuntimeError, match="in the middle"):
            text_features(model)
        handle.remove()
        assert torch.equal(text_features(model), expected)
    assert attachment_of(model) is None


def test_compiled() -> None:
    torch._dynamo.reset()
    model = build("clip")
    patch = patch_for(clipmend.load(model, preprocess=transform()))
    pixels, ids = torch.stack([transform()(image) for image in images()]), tokenizer()(TEXTS)
    with torch.no_grad():
        plain = model(pixels, ids)[1]
        with patch.attached(model):
            expected = model(pixels, ids)[1]
        compiled = torch.compile(model, backend="aot_eager")
        assert_close(compiled(pixels, ids)[1], plain, **NEAR)
        with patch.attached(model):
            assert_close(compiled(pixels, ids)[1], expected, **NEAR)
        assert_close(compiled(pixels, ids)[1], plain, **NEAR)
    torch._dynamo.reset()


def zero_shot_weights(model: Any, tokenize: Any, classes: list[str], templates: list[str]) -> Tensor:
    """The classifier that benchmarks make of a loader's ``(model, transform, tokenizer)``: templates averaged per class."""
    rows = []
    with torch.no_grad():
        for name in classes:
            embedded = F.normalize(model.encode_text(tokenize([template.format(c=name) for template in templates])), dim=-1)
            rows.append(F.normalize(embedded.mean(0), dim=0))
    return torch.stack(rows, dim=1)  # [D, classes]


def test_the_loader_tuple_of_clip_benchmark() -> None:
    """Its runners get ``(model, transform, tokenizer)`` of a loader and know of nothing else."""

    def loader() -> tuple[Any, Any, Any]:
        return build("clip"), transform(), tokenizer()

    model, preprocess, tokenize = loader()
    encoder = clipmend.load(model, tokenizer=tokenize, preprocess=preprocess)
    patch = patch_for(encoder)
    classes, templates = ["dog", "cat"], ["a photo of a {c}", "a street with no {c}"]
    plain = zero_shot_weights(model, tokenize, classes, templates)
    patch.attach(model, tokenizer=tokenize)
    actual = zero_shot_weights(model, tokenize, classes, templates)
    mended = patch.apply(encoder)
    for k, name in enumerate(classes):
        expected = F.normalize(mended.encode_texts([template.format(c=name) for template in templates]).mean(0), dim=0)
        assert_close(actual[:, k], expected, **NEAR)
    assert (actual - plain).abs().max() > 0.05
    pixels = torch.stack([preprocess(image) for image in images()])
    with torch.no_grad():
        logits = 100 * F.normalize(model.encode_image(pixels), dim=-1) @ actual
    assert_close(logits / 100, encoder.encode_images(images()) @ actual, **NEAR)


def test_clip_benchmarks_own_classifier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is installed: a loader registered with it, and its own code on what the loader returns."""
    models = pytest.importorskip("clip_benchmark.models", reason="needs clip-benchmark")
    from clip_benchmark.metrics.zeroshot_classification import zero_shot_classifier

    model = build("clip")
    patch = patch_for(clipmend.load(model, preprocess=transform()))

    def load_mended(**_: Any) -> tuple[Any, Any, Any]:
        return patch.attach(model), transform(), tokenizer()

    monkeypatch.setitem(models.TYPE2FUNC, "mended", load_mended)
    monkeypatch.setattr(models, "MODEL_TYPES", ["mended"])
    loaded, _, tokenize = models.load_clip("mended", "tiny", "", "", "cpu")
    actual = zero_shot_classifier(loaded, tokenize, ["dog", "cat"], ["a photo of no {c}"], "cpu", amp=False)
    expected = patch.apply(clipmend.load(build("clip"), preprocess=transform())).encode_texts(
        ["a photo of no dog", "a photo of no cat"]
    )
    assert_close(actual.T, expected, **NEAR)


def loader_of(case: str) -> tuple[Any, Any, tuple[Any, Any, Any]]:
    """A mended encoder, the plain loader tuple, and the mended one: attached, or as the integration makes it."""
    encoder = clipmend.load(build("clip"), preprocess=transform())
    patch = patch_for(encoder)
    plain = (build("clip"), transform(), tokenizer())
    if case == "attached":
        return patch.apply(encoder), plain, (patch.attach(build("clip")), transform(), tokenizer())
    return patch.apply(encoder), plain, loader_tuple(patch.apply(encoder), "cpu")


@pytest.mark.parametrize("case", ["attached", "integration"])
def test_clip_benchmarks_own_zero_shot_evaluation(case: str) -> None:
    evaluation = pytest.importorskip("clip_benchmark.metrics.zeroshot_classification", reason="needs clip-benchmark")
    mended, plain, loaded = loader_of(case)
    classes, templates = ["dog", "cat", "car", "street", "boat", "chair"], ["a photo of no {c}", "a {c}"]
    weights = [F.normalize(mended.encode_texts([t.format(c=name) for t in templates]).mean(0), dim=0) for name in classes]
    logits = mended.encode_images(images()) @ torch.stack(weights, 1)
    truth = logits.argmax(1).tolist()  # the mended encoder's own opinion: all of it right with the patch, and not without

    class Pictures(torch.utils.data.Dataset[tuple[Tensor, int]]):
        def __init__(self, preprocess: Any) -> None:
            self.preprocess, self.classes = preprocess, classes

        def __len__(self) -> int:
            return len(truth)

        def __getitem__(self, row: int) -> tuple[Tensor, int]:
            return self.preprocess(images()[row].convert("RGB")), truth[row]

    accuracies = {}
    for name, (model, preprocess, tokenize) in {"plain": plain, "mended": loaded}.items():
        batches = torch.utils.data.DataLoader(Pictures(preprocess), batch_size=2)
        # What its evaluate() calls; the rest of that fails on any model with NumPy from 2.4 on (float() of an array of one number).
        classifier = evaluation.zero_shot_classifier(model, tokenize, classes, templates, "cpu", amp=False)
        scores, target = evaluation.run_classification(model, classifier, batches, "cpu", amp=False)
        accuracies[name] = (scores.argmax(1) == target).float().mean().item()
    assert accuracies["mended"] == 1.0
    assert accuracies["plain"] < 1.0


@pytest.mark.parametrize("case", ["attached", "integration"])
def test_clip_benchmarks_own_retrieval_evaluation(case: str) -> None:
    evaluation = pytest.importorskip("clip_benchmark.metrics.zeroshot_retrieval", reason="needs clip-benchmark")
    mended, plain, loaded = loader_of(case)
    texts = ["a dog", "no cat", "a street with no cars", "no dog at all", "two cats", "not a car", "a street", "nobody"]
    scores = mended.encode_images(images()) @ mended.encode_texts(texts).T  # [images, texts]
    own = torch.arange(len(texts)) % len(images())
    captions = [[text for text, image in zip(texts, own.tolist(), strict=True) if image == k] for k in range(len(images()))]
    expected = {}
    for k in (1, 2, 3):
        top = scores.topk(k, dim=1).indices  # [images, k]: is one of them the image's own?
        expected[f"text_retrieval_recall@{k}"] = (own[top] == torch.arange(len(images()))[:, None]).any(1).float().mean().item()
        top = scores.T.topk(min(k, len(images())), dim=1).indices
        expected[f"image_retrieval_recall@{k}"] = (top == own[:, None]).any(1).float().mean().item()
    seen = {}
    for name, (model, preprocess, tokenize) in {"plain": plain, "mended": loaded}.items():
        pixels = torch.stack([preprocess(image.convert("RGB")) for image in images()])
        found = evaluation.evaluate(model, [(pixels, captions)], tokenize, "cpu", amp=False, recall_k_list=[1, 2, 3])
        seen[name] = F.normalize(model.encode_text(tokenize(texts)).detach(), dim=-1)
    assert found == pytest.approx(expected)
    assert_close(seen["mended"], mended.encode_texts(texts), **NEAR)
    assert (F.cosine_similarity(seen["plain"], seen["mended"]) < 0.99).all(), "the correction must be seen in this test"


@pytest.mark.slow
def test_full_size() -> None:
    model, _, preprocess = open_clip.create_model_and_transforms("ViT-B-32", pretrained=None)
    model.eval()
    tokenize = open_clip.get_tokenizer("ViT-B-32")
    encoder = clipmend.load(model, tokenizer=tokenize, preprocess=preprocess)
    patch = patch_for(encoder, hidden=256, heads=8)
    with pytest.raises(ValueError, match="its image side differs"):
        patch.attach(model)  # it was loaded with a transform, and the model carries another description of the same
    with patch.attached(model, processor=preprocess), torch.no_grad(), ThreadPoolExecutor(2) as pool:
        sets = [["a street with no cars", "a dog"], ["no dog at all"]]
        for texts, actual in zip(sets, pool.map(lambda t: text_features_of(model, tokenize, t), sets), strict=True):
            assert_close(actual, patch.apply(encoder).encode_texts(texts), **NEAR)


def text_features_of(model: Any, tokenize: Any, texts: list[str]) -> Tensor:
    with torch.no_grad():
        return model.encode_text(tokenize(texts), normalize=True)
