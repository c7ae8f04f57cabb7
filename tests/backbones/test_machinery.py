"""What all encoders share: batches, threads, early stop, truncation, frozen weights."""

from __future__ import annotations

import copy
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

import clipmend
from backbones import tiny
from clipmend.backbones import DualEncoder
from clipmend.backbones.base import LongTextsWarning
from clipmend.backbones.taps import TappedModel
from clipmend.backbones.tokens import HFTokens

NEAR = {"atol": 1e-5, "rtol": 0.0}


def make(family: str, folder: Path) -> DualEncoder:
    if family == "clip":
        tokenizer: Any = tiny.clip_tokenizer()
        return clipmend.load(tiny.saved(folder, tiny.clip_model(tokenizer), tokenizer, tiny.clip_processor()), device="cpu")
    if family == "siglip":
        tokenizer = tiny.siglip_tokenizer()
        model = tiny.siglip_model(len(tokenizer))
        return clipmend.load(tiny.saved(folder, model, tokenizer, tiny.siglip_processor()), device="cpu")
    tokenizer = tiny.bert_tokenizer()
    return clipmend.load(tiny.saved(folder, tiny.bert_model(len(tokenizer)), tokenizer), device="cpu")


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DualEncoder]:
    return {family: make(family, tmp_path_factory.mktemp(family)) for family in ("clip", "siglip", "bert")}


@pytest.fixture(params=["clip", "siglip", "bert"])
def encoder(request: pytest.FixtureRequest, encoders: dict[str, DualEncoder]) -> Any:
    return encoders[request.param]


@pytest.mark.filterwarnings("ignore::clipmend.backbones.base.LongTextsWarning")
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.text(alphabet="abc dog\U0001f436é\n", max_size=30), min_size=1, max_size=7), batch_size=st.integers(1, 8))
def test_batch_size_and_padding_change_nothing(encoder: Any, texts: list[str], batch_size: int) -> None:
    together = encoder.text_states(texts, [1, 3], batch_size=batch_size)
    assert torch.isfinite(together.pooled).all()
    for row, text in enumerate(texts):
        alone = encoder.text_states([text], [1, 3])
        assert_close(together.embedding[row], alone.embedding[0], **NEAR)
        assert_close(together.pooled[row], alone.pooled[0], **NEAR)
        count = int(together.mask[row].sum())
        assert count == alone.mask.sum()
        assert_close(together.tokens[row, :, :count], alone.tokens[0], **NEAR)
        assert not together.tokens[row, :, count:].any()


def test_images_batch_size(encoders: dict[str, DualEncoder], tmp_path: Path) -> None:
    encoder, pictures = encoders["clip"], tiny.images()
    paths = [tmp_path / f"image {k} é.png" for k in range(len(pictures))]
    for picture, path in zip(pictures, paths, strict=True):
        picture.save(path)
    whole = encoder.encode_images(pictures)
    assert_close(encoder.encode_images(paths, batch_size=2), whole, **NEAR)
    assert_close(encoder.encode_images([str(path) for path in paths], batch_size=1, progress=True), whole, **NEAR)
    assert_close(whole.norm(dim=-1), torch.ones(len(paths)))
    assert encoder.encode_images([]).shape == (0, encoder.embed_dim)


def test_unreadable_image_is_named(encoders: dict[str, DualEncoder], tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"not an image")
    good = tmp_path / "good.png"
    tiny.images()[0].save(good)
    with pytest.raises(ValueError, match=r"broken\.png"):
        encoders["clip"].encode_images([good, good, tmp_path / "broken.png"], batch_size=1)


def test_no_texts(encoder: Any) -> None:
    states = encoder.text_states([], [1, 2])
    assert states.pooled.shape == (0, 2, encoder.text_width)
    assert encoder.encode_texts([]).shape == (0, encoder.embed_dim)


def test_results_can_be_trained_on(encoder: Any) -> None:
    states = encoder.text_states(["a dog", "a cat"], [1, 2])
    layer = nn.Linear(encoder.text_width, 1)
    (layer(states.pooled).sum() + layer(states.tokens).sum()).backward()
    assert layer.weight.grad is not None
    head = nn.Linear(encoder.embed_dim, 1)
    head(encoder.project(states) + states.embedding.unsqueeze(1)).sum().backward()
    head(encoder.encode_texts(["a dog"])).sum().backward()


def test_truncation_is_counted_and_reported_once(encoder: Any) -> None:
    texts = ["a dog", "a very long walk " * 10, "no cat", "another very long text " * 9]
    with pytest.warns(
        LongTextsWarning, match=rf"2 of 4 texts exceed {encoder.context_length} tokens; the first is text 1"
    ) as caught:
        encoder.encode_texts(texts, batch_size=1)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with pytest.raises(ValueError, match=r"2 of 4 texts exceed .* the first is text 1 \('a very long walk"):
        encoder.text_states(texts, [1], on_long="error")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        states = encoder.text_states(texts, [1], on_long="truncate")
        encoder.encode_texts(["a dog"])
    assert states.mask.sum(1)[1] == encoder.context_length
    with pytest.raises(ValueError, match="on_long is 'ignore'"):
        encoder.encode_texts(texts, on_long="ignore")


def test_truncated_clip_texts_keep_their_eos(encoders: dict[str, DualEncoder]) -> None:
    tower = encoders["clip"].tower  # type: ignore[attr-defined]
    ids = tower.tokenise(["a very long walk " * 10]).ids[0]
    assert len(ids) == 40
    assert ids[-1] == tower.tokens.tokenizer.eos_token_id


def test_two_threads(encoder: Any) -> None:
    texts = {"one": ["a dog", "no cat", "a tree"], "two": ["the sea at night", "x", "a red cup on a desk"]}
    layers = {"one": [1, 3], "two": [2]}
    expected = {name: encoder.text_states(texts[name], layers[name]) for name in texts}
    barrier = threading.Barrier(2)

    def work(name: str) -> None:
        barrier.wait()
        for _ in range(15):
            states = encoder.text_states(texts[name], layers[name], batch_size=2)
            for part in ("tokens", "pooled", "eos", "embedding"):
                assert_close(getattr(states, part), getattr(expected[name], part), **NEAR)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(work, name) for name in texts]:
            done.result()


def test_one_thread_at_a_time_in_a_tokenizer() -> None:
    class Tokenizer:
        """Notices a second caller while it works: the tokenizers library then fails, but rarely enough to slip through a test."""

        pad_token_id = 0
        busy = False

        def __call__(self, texts: list[str], **_: Any) -> dict[str, list[list[int]]]:
            assert not self.busy
            self.busy = True
            time.sleep(0.002)
            self.busy = False
            return {"input_ids": [[len(text)] for text in texts]}

    tokens = HFTokens(Tokenizer(), 8)
    with ThreadPoolExecutor(4) as pool:
        assert all(tokenised.ids == [[5]] for tokenised in pool.map(tokens, [["a dog"]] * 40))


def test_stops_at_the_last_layer_needed(encoder: Any) -> None:
    tower = encoder.tower
    blocks = tower.model.get_submodule(tower._tapped.path)
    calls = [0] * len(blocks)

    def count(k: int) -> Any:
        def hook(*_: Any) -> None:
            calls[k] += 1

        return hook

    handles = [block.register_forward_hook(count(k)) for k, block in enumerate(blocks)]
    try:
        encoder.text_states(["a dog"], [2, 1], embedding=False)
        assert calls == [1, 1] + [0] * (len(blocks) - 2)
        encoder.text_states(["a dog"], [1], token_layers=[], embedding=False)
        assert calls == [2, 1] + [0] * (len(blocks) - 2)
        encoder.text_states(["a dog"], [1])
        assert calls == [3, 2] + [1] * (len(blocks) - 2)
    finally:
        for handle in handles:
            handle.remove()


def test_layers_outside_are_refused(encoder: Any) -> None:
    for layers in ([0], [encoder.num_text_layers + 1], [-1]):
        with pytest.raises(ValueError, match=rf"layer {layers[0]} is outside 1\.\.{encoder.num_text_layers}"):
            encoder.text_states(["a dog"], layers)
    with pytest.raises(ValueError, match="nothing asked for"):
        encoder.text_states(["a dog"], [], embedding=False)


def test_wrong_inputs(encoders: dict[str, DualEncoder]) -> None:
    encoder = encoders["clip"]
    with pytest.raises(TypeError, match="list of texts"):
        encoder.encode_texts("a dog")
    with pytest.raises(TypeError, match="text 1 is float"):
        encoder.encode_texts(["a dog", float("nan")])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="list of images"):
        encoder.encode_images("image.png")
    with pytest.raises(ValueError, match="batch_size is 0"):
        encoder.encode_texts(["a dog"], batch_size=0)
    with pytest.raises(ValueError, match="batch_size is 0"):
        encoder.encode_images([], batch_size=0)


def test_frozen_and_unchanged(encoder: Any) -> None:
    model = getattr(encoder, "model", encoder.tower.model)
    before = copy.deepcopy(model.state_dict())
    encoder.text_states(tiny.TEXTS[:5], [1, 2], on_long="truncate")
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_live_model_is_left_clean() -> None:
    tokenizer = tiny.clip_tokenizer()
    model = tiny.clip_model(tokenizer)
    modules = [(name, id(module)) for name, module in model.named_modules()]
    hooks = {name: (len(module._forward_hooks), len(module._forward_pre_hooks)) for name, module in model.named_modules()}
    encoder = clipmend.load(model, tokenizer=tokenizer, processor=tiny.clip_processor())
    encoder.text_states(["a dog"], [1, 2])
    encoder.encode_images(tiny.images())
    assert [(name, id(module)) for name, module in model.named_modules()] == modules
    assert {name: (len(m._forward_hooks), len(m._forward_pre_hooks)) for name, m in model.named_modules()} == hooks
    with torch.no_grad():  # the weights are shared: the encoder follows its live model
        model.text_projection.weight.mul_(2)
    assert_close(
        encoder.encode_texts(["a dog"], normalize=False),
        model.get_text_features(**tokenizer(["a dog"], return_tensors="pt")).pooler_output,
        **NEAR,
    )
    model.train()
    with pytest.raises(ValueError, match=r"training mode; call \.eval\(\)"):
        encoder.encode_texts(["a dog"])


def test_a_model_that_bypasses_its_blocks_is_noticed() -> None:
    class Bypass(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(2, 2)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    with pytest.raises(RuntimeError, match="gave no output"):
        TappedModel(Bypass(), "layers").states([1], torch.zeros(1, 2))


def test_score(encoders: dict[str, DualEncoder]) -> None:
    encoder = encoders["clip"]
    vectors, texts = encoder.encode_images(tiny.images()), ["a dog", "no dog"]
    expected = vectors @ encoder.encode_texts(texts).T
    assert_close(encoder.score(tiny.images(), texts), expected, **NEAR)
    pairs = torch.tensor([[0, 1], [2, 0]])
    assert_close(encoder.score(vectors, encoder.prepare_texts(texts), pairs=pairs), expected[[0, 2], [1, 0]], **NEAR)
