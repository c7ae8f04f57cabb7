"""Small models with the shape of each family's real ones, from their folder to a patch and back; full-size ones are slow."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CLIPConfig, CLIPModel, SiglipConfig, SiglipModel
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

import clipmend
from backbones import tiny
from backbones.journey import travel

# Depth, activation, patch, text positions and the ratio of the widths are the real ones; the widths themselves are small.
# text width, heads, text layers, joint size, vision width, heads, patch, image, activation, positions
SMALL = {
    "ViT-B/16": (32, 4, 12, 32, 48, 6, 16, 64, "quick_gelu", 77),
    "ViT-H/14": (64, 16, 24, 64, 80, 16, 14, 56, "gelu", 77),
    "MetaCLIP-like": (32, 4, 12, 48, 64, 8, 16, 64, "quick_gelu", 77),
    "248 tokens": (48, 6, 12, 48, 64, 8, 14, 56, "quick_gelu", 248),
}
FULL = {
    "ViT-B/32": (512, 8, 12, 512, 768, 12, 32, 224, "quick_gelu", 77),
    "ViT-L/14": (768, 12, 12, 768, 1024, 16, 14, 224, "quick_gelu", 77),
}


def clip(name: str, folder: Path) -> str:
    full = name in FULL
    width, heads, layers, embed_dim, vision, vision_heads, patch, image, act, positions = (FULL if full else SMALL)[name]
    tokenizer = tiny.clip_tokenizer()
    torch.manual_seed(0)
    text = {
        "vocab_size": 49408 if full else len(tokenizer),
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": positions,
        "hidden_act": act,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    sizes = {
        "hidden_size": vision,
        "intermediate_size": 4 * vision,
        "num_hidden_layers": (24 if vision == 1024 else 12) if full else 2,
        "num_attention_heads": vision_heads,
        "patch_size": patch,
        "image_size": image,
        "hidden_act": act,
    }
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=sizes, projection_dim=embed_dim)).eval()
    processor = CLIPImageProcessorPil(size={"shortest_edge": image}, crop_size={"height": image, "width": image})
    return tiny.saved(folder, model if full else tiny._varied(model), tokenizer, processor)


def siglip(tokenizer: Any, folder: Path, *, positions: int = 64, full: bool = False) -> str:
    torch.manual_seed(0)
    width = 768 if full else 48
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_attention_heads": 12, "num_hidden_layers": 12}
    specials = {
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": tokenizer.eos_token_id,
    }
    text = {
        **sizes,
        **specials,
        "vocab_size": 32000 if full else len(tokenizer),
        "max_position_embeddings": positions,
        "projection_size": width,
    }
    image = 224 if full else 64
    vision = {**sizes, "patch_size": 16, "image_size": image} | ({} if full else {"num_hidden_layers": 2})
    model = SiglipModel(SiglipConfig(text_config=text, vision_config=vision)).eval()
    processor = SiglipImageProcessorPil(size={"height": image, "width": image})
    return tiny.saved(folder, model if full else tiny._varied(model), tokenizer, processor)


@pytest.mark.parametrize("name", list(SMALL))
def test_small_clips(name: str, tmp_path: Path) -> None:
    folder = clip(name, tmp_path / "model")
    encoder = clipmend.load(folder, device="cpu")
    assert encoder.context_length == SMALL[name][-1]
    patch = travel(encoder, lambda: clipmend.load(folder, device="cpu"), tmp_path, size=SMALL[name][-3])
    assert patch.config.anchor is not None
    assert patch.config.peak is not None
    assert patch.config.anchor <= patch.config.peak < encoder.num_text_layers


@pytest.mark.parametrize("side", ["right", "left"])
def test_small_siglip_2(side: str, tmp_path: Path) -> None:
    folder = siglip(tiny.gemma_tokenizer(side), tmp_path / "model")
    encoder = clipmend.load(folder, device="cpu")
    assert (encoder.context_length, encoder.text_pooling) == (64, "last")
    travel(encoder, lambda: clipmend.load(folder, device="cpu"), tmp_path, size=64)


def test_248_tokens_are_read_to_the_end(tmp_path: Path) -> None:
    encoder = clipmend.load(clip("248 tokens", tmp_path), device="cpu")
    long = "a b c d e f g h i j " * 24  # 240 letters, each a token
    embeddings = encoder.encode_texts([long + "x y", long + "no z", long], on_long="error")
    assert (embeddings[0] - embeddings[1]).abs().max() > 1e-4
    assert (embeddings[0] - embeddings[2]).abs().max() > 1e-4
    states = encoder.text_states([long, "a"], [8])
    assert states.mask.sum(1).tolist() == [242, 3]
    with pytest.raises(ValueError, match="exceed 248 tokens"):
        encoder.encode_texts([long * 2], on_long="error")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FULL, "SigLIP B/16"])
def test_full_size(name: str, tmp_path: Path) -> None:
    where = tmp_path / "model"
    folder = siglip(tiny.siglip_tokenizer(), where, full=True) if name.startswith("SigLIP") else clip(name, where)
    try:
        encoder = clipmend.load(folder, device="cpu")
        patch = travel(
            encoder,
            lambda: clipmend.load(folder, device="cpu"),
            tmp_path,
            size=224,
            count=8,
            peak=8,
            anchor=6,
            scn_layers=(8, 12),
            heads=8,
            hidden=1024,
            context=128,
        )
        assert patch.num_parameters > 4e6
    finally:
        shutil.rmtree(where, ignore_errors=True)
