"""transformers' CLIP and SigLIP: the same numbers as the library's own features, at every layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import clipmend
from backbones import tiny
from clipmend.backbones.transformers_clip import TransformersEncoder

NEAR = {"atol": 1e-5, "rtol": 0.0}
Case = tuple[str, Any, Any, Any, TransformersEncoder]
FAMILIES = ["clip", "clip-legacy", "clip-gelu", "clip-own-pad", "siglip", "siglip2", "siglip2-left"]


def build(family: str, folder: Path) -> tuple[Any, Any, Any, TransformersEncoder]:
    """Model, tokenizer, image processor, and the encoder loaded from their folder."""
    if family.startswith("clip"):
        tokenizer: Any = tiny.clip_tokenizer("<pad>" if family == "clip-own-pad" else "<|endoftext|>")
        model: Any = tiny.clip_model(
            tokenizer, legacy=family == "clip-legacy", act="gelu" if family == "clip-gelu" else "quick_gelu"
        )
        processor: Any = tiny.clip_processor()
    else:
        tokenizer = tiny.siglip_tokenizer() if family == "siglip" else tiny.gemma_tokenizer("left" if "left" in family else "right")
        model, processor = tiny.siglip_model(len(tokenizer)), tiny.siglip_processor()
    encoder = clipmend.load(tiny.saved(folder, model, tokenizer, processor), device="cpu")
    assert isinstance(encoder, TransformersEncoder)
    return model, tokenizer, processor, encoder


@pytest.fixture(scope="module", params=FAMILIES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return request.param, *build(request.param, tmp_path_factory.mktemp("models"))


def library_inputs(family: str, tokenizer: Any, texts: list[str]) -> dict[str, torch.Tensor]:
    """What the library's documentation tells a user to give the model."""
    if family.startswith("clip"):
        return dict(tokenizer(texts, padding=True, truncation=True, max_length=40, return_tensors="pt"))
    texts = [text.lower() for text in texts]
    ids = tokenizer(texts, padding="max_length", truncation=True, max_length=20, return_tensors="pt")["input_ids"]
    return {"input_ids": ids}


@pytest.mark.filterwarnings("ignore::clipmend.backbones.base.LongTextsWarning")
def test_embeddings_equal_the_library(case: Case) -> None:
    family, model, tokenizer, processor, encoder = case
    with torch.no_grad():
        expected = model.get_text_features(**library_inputs(family, tokenizer, tiny.TEXTS)).pooler_output
        pixels = processor(images=tiny.images(), return_tensors="pt")["pixel_values"]
        expected_images = model.get_image_features(pixel_values=pixels).pooler_output
    found = encoder.encode_texts(tiny.TEXTS, normalize=False)
    assert_close(found, expected, **NEAR)
    assert_close(encoder.encode_texts(tiny.TEXTS, normalize=False, batch_size=1), expected, **NEAR)
    assert_close(encoder.encode_texts(tiny.TEXTS), torch.nn.functional.normalize(expected, dim=-1), **NEAR)
    assert_close(encoder.encode_images(tiny.images(), normalize=False), expected_images, **NEAR)
    assert found.dtype == torch.float32
    assert found.shape == (len(tiny.TEXTS), encoder.embed_dim)
    assert expected[:1].ne(expected[2:3]).any()  # the comparison would be empty if every text looked alike
    assert encoder.logit_scale == pytest.approx(float(model.logit_scale.detach().exp()))


@pytest.mark.filterwarnings("ignore::clipmend.backbones.base.LongTextsWarning")
def test_states_equal_hidden_states_through_the_final_norm(case: Case) -> None:
    family, model, tokenizer, _, encoder = case
    texts = [*tiny.TEXTS, *tiny.BLANK]
    inputs = library_inputs(family, tokenizer, texts)
    with torch.no_grad():
        # Under causal attention an attention mask on the padding changes nothing for the tokens that count.
        out = model.text_model(**inputs, output_hidden_states=True)
        normed = [model.text_model.final_layer_norm(states) for states in out.hidden_states]
        projection = model.text_projection if family.startswith("clip") else model.text_model.head
        projected = [projection(states) for states in normed]
    layers = [3, 1, 2]
    states = encoder.text_states(texts, layers)
    assert states.layers == tuple(layers)
    left = family.endswith("left")
    for layer in layers:
        for row in range(len(texts)):
            count = int(states.mask[row].sum())
            reference = normed[layer][row, -count:] if left else normed[layer][row, :count]
            found = states.tokens_at(layer)[row]
            if count > 1 or family.startswith("clip"):
                assert_close(found[:count], reference, **NEAR)
            assert not found[count:].any()
            where = count - 1 if family.startswith("clip") else inputs["input_ids"].shape[1] - 1
            assert_close(states.eos_at(layer)[row], normed[layer][row, where], **NEAR)
            assert_close(encoder.project(states.pooled_at(layer))[row], projected[layer][row, where], **NEAR)
    assert_close(states.pooled, states.eos)
    assert_close(encoder.project(states.pooled_at(3)), states.embedding, **NEAR)
    assert_close(encoder.project(states), encoder.project(states.pooled), **NEAR)


def test_last_hidden_state_is_the_last_layer_not_normed_twice(tmp_path: Path) -> None:
    model, tokenizer, _, encoder = build("clip", tmp_path)
    ids = tokenizer(["a dog"], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        last = model.text_model(input_ids=ids).last_hidden_state
    assert_close(encoder.text_states(["a dog"], [3]).tokens_at(3)[0], last[0], **NEAR)


def test_mask_of_clip_ends_at_the_first_eos(tmp_path: Path) -> None:
    _, tokenizer, _, encoder = build("clip", tmp_path)
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    texts = ["a dog", "", "a dog <|endoftext|> and a cat"]
    mask = encoder.text_states(texts, [1]).mask
    ids = [tokenizer(text)["input_ids"] for text in texts]
    assert mask.sum(1).tolist() == [ids_.index(tokenizer.eos_token_id) + 1 for ids_ in ids]
    assert_close(encoder.encode_texts(texts[2:]), encoder.encode_texts(["a dog"]), **NEAR)


def test_empty_masks_are_impossible(tmp_path: Path) -> None:
    _, tokenizer, _, encoder = build("siglip2", tmp_path)
    assert tokenizer("")["input_ids"] == []
    states = encoder.text_states(["", "a dog", "   "], [1, 3])
    assert states.mask.any(1).all()
    for tensor in (states.tokens, states.pooled, states.eos, states.embedding):
        assert torch.isfinite(tensor).all()


def test_siglip_lower_cases(tmp_path: Path) -> None:
    for family in ("siglip", "siglip2"):
        encoder = build(family, tmp_path / family)[-1]
        assert_close(encoder.encode_texts(["A Red CAT"]), encoder.encode_texts(["a red cat"]))


def test_siglip_pools_a_padding_position(tmp_path: Path) -> None:
    _, _, _, encoder = build("siglip", tmp_path)
    states = encoder.text_states(["a dog"], [3])
    assert encoder.text_pooling == "last"
    assert not torch.isclose(states.pooled_at(3)[0], states.tokens_at(3)[0], atol=1e-4).all(-1).any()


def test_widths(tmp_path: Path) -> None:
    encoder = build("clip", tmp_path)[-1]
    assert (encoder.text_width, encoder.embed_dim, encoder.num_text_layers, encoder.context_length) == (32, 24, 3, 40)
    assert encoder.text_pooling == "eos"


def test_quick_gelu_is_the_checkpoints_own(tmp_path: Path) -> None:
    quick, exact = build("clip", tmp_path / "quick")[-1], build("clip-gelu", tmp_path / "exact")[-1]
    assert not torch.allclose(quick.encode_texts(["a dog"]), exact.encode_texts(["a dog"]), atol=1e-4)
    assert quick.fingerprint.text != exact.fingerprint.text  # the same weights, but not the same encoder


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    model, _, processor, _ = build("clip", tmp_path)
    model.text_model.config.eos_token_id = 5
    encoder = TransformersEncoder(model, tiny.clip_tokenizer(), processor, name="wrong")
    with pytest.raises(ValueError, match=r"EOS token \(id 5\)"):
        encoder.encode_texts(["dog"])
