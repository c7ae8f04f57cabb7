"""A patch on live models in the corners where it once went wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import clipmend
from backbones import tiny
from negation.attaching import NEAR, TEXTS, hooks, patch_for
from negation.test_attach import clip, features, siglip

pytestmark = pytest.mark.filterwarnings("ignore::clipmend.backbones.base.LongTextsWarning")


@pytest.mark.parametrize("kind", [clip, siglip])
def test_attached_in_inference_mode_it_still_serves_a_model_that_learns(kind: Any) -> None:
    c = kind()
    patch = patch_for(c.encoder, use_direct=True)
    c.model.requires_grad_(True)
    with torch.inference_mode():
        patch.attach(c.model, **c.options)
        features(c)
    c.model.get_text_features(**c.ids(TEXTS)).pooler_output.sum().backward()
    assert c.model.text_model.embeddings.token_embedding.weight.grad.abs().max() > 0


@pytest.mark.parametrize("kind", [clip, siglip])
@pytest.mark.parametrize("flag", ["output_hidden_states", "output_attentions"])
def test_a_config_that_asks_for_hidden_states(kind: Any, flag: str) -> None:
    name = flag.removeprefix("output_")
    plain, c = kind(), kind()
    for case in (plain, c):
        case.model.set_attn_implementation("eager")
        setattr(case.model.config.text_config, flag, True)
    patch = patch_for(c.encoder)
    with torch.no_grad():
        expected = plain.model.get_text_features(**plain.ids(TEXTS))[name]
        with patch.attached(c.model, **c.options):
            for _ in range(3):
                actual = c.model.get_text_features(**c.ids(TEXTS))[name]
                assert len(actual) == len(expected)
    assert hooks(c.model) == hooks(plain.model), "transformers' own recorders, once"


def sentence_model(folder: Path) -> Any:
    pytest.importorskip("sentence_transformers", reason="needs the extra sentence-transformers")
    from negation.test_attach_sentence import sentence_model as make

    tokenizer = tiny.bert_tokenizer()
    return make(tiny.saved(folder, tiny.bert_model(len(tokenizer)), tokenizer))


def test_a_config_of_sentence_transformers_that_asks_for_hidden_states(tmp_path: Path) -> None:
    plain, model = sentence_model(tmp_path / "a"), sentence_model(tmp_path / "b")
    patch = patch_for(clipmend.load(model))
    for each in (plain, model):
        each[0].model.config.output_hidden_states = True
    expected = plain.encode(TEXTS, output_value=None)[0]["all_layer_embeddings"]
    with patch.attached(model):
        for _ in range(3):
            actual = model.encode(TEXTS, output_value=None)[0]["all_layer_embeddings"]
            assert len(actual) == len(expected)
    assert hooks(model) == hooks(plain)


@pytest.mark.parametrize("part", ["inner", pytest.param("first", marks=pytest.mark.slow)])
def test_parts_of_sentence_transformers_that_are_compiled(tmp_path: Path, part: str) -> None:
    torch._dynamo.reset()
    model = sentence_model(tmp_path)
    patch = patch_for(clipmend.load(model))
    with patch.attached(model):
        expected = model.encode(TEXTS, convert_to_tensor=True)
    if part == "inner":
        model[0].model = torch.compile(model[0].model, backend="aot_eager")
    else:
        model[0] = torch.compile(model[0], backend="aot_eager")
    with patch.attached(model):
        assert_close(model.encode(TEXTS, convert_to_tensor=True), expected, **NEAR)
    torch._dynamo.reset()


def test_training_with_checkpointing(tmp_path: Path) -> None:
    c = clip()
    c.model.requires_grad_(True)
    patch = patch_for(c.encoder, use_direct=True)
    grads = []
    with patch.attached(c.model, **c.options):
        for on in (False, True):
            c.model.train()
            if on:
                c.model.gradient_checkpointing_enable()
            c.model.get_text_features(**c.ids(TEXTS)).pooler_output.sum().backward()
            grads.append(c.model.text_model.embeddings.token_embedding.weight.grad.clone())
            c.model.zero_grad()
    assert_close(grads[1], grads[0], atol=1e-4, rtol=1e-4)
