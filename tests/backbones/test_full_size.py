"""Text towers of real size with random weights, and the time a fingerprint takes."""

from __future__ import annotations

import time

import pytest
import torch
from torch.testing import assert_close
from transformers import CLIPConfig, CLIPModel

from backbones import tiny
from clipmend.backbones.transformers_clip import TransformersEncoder

pytestmark = pytest.mark.slow
SIZES = {"ViT-B/32": (512, 12, 8, 512, 32), "ViT-L/14": (768, 12, 12, 768, 14)}


def full_size(name: str) -> tuple[CLIPModel, TransformersEncoder]:
    width, layers, heads, embed_dim, patch = SIZES[name]
    large = name == "ViT-L/14"
    tokenizer = tiny.clip_tokenizer()
    torch.manual_seed(0)
    text = {
        "vocab_size": 49408,
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "eos_token_id": tokenizer.eos_token_id,
    }
    vision = {
        "hidden_size": 1024 if large else 768,
        "intermediate_size": 4096 if large else 3072,
        "num_hidden_layers": 24 if large else 12,
        "num_attention_heads": 16 if large else 12,
        "patch_size": patch,
    }
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=embed_dim)).eval()
    return model, TransformersEncoder(model, tokenizer, tiny.clip_processor(), name=name)


@pytest.mark.parametrize("name", list(SIZES))
def test_full_size_text_towers(name: str) -> None:
    model, encoder = full_size(name)
    tokenizer = encoder.tower.tokens.tokenizer  # type: ignore[attr-defined]
    texts = ["a street with no cars", "a dog", "", "a very long walk " * 4]
    inputs = tokenizer(texts, padding=True, truncation=True, max_length=77, return_tensors="pt")
    with torch.no_grad():
        expected = model.get_text_features(**inputs).pooler_output
    states = encoder.text_states(texts, [6, 8, 12], token_layers=[6, 8])
    assert_close(states.embedding, expected, atol=1e-5, rtol=0)
    assert states.tokens.shape[1:2] + states.tokens.shape[3:] == (2, SIZES[name][0])
    assert encoder.context_length == 77


def test_fingerprint_of_150_million_parameters_takes_under_a_second() -> None:
    model, encoder = full_size("ViT-B/32")
    assert sum(p.numel() for p in model.parameters()) > 150e6
    times = []
    for _ in range(3):
        encoder._fingerprint = encoder.tower._digest = None
        start = time.perf_counter()
        assert encoder.fingerprint.text
        times.append(time.perf_counter() - start)
    assert min(times) < 1.0, f"{min(times):.2f} s"
