"""Small models and pairs for the tests of the trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from PIL import Image

import clipmend
from backbones import tiny
from clipmend.data.dense.collection import Segment
from clipmend.dense import FinetuneConfig, Pairs, make_recipe
from clipmend.dense.pairs import as_pairs

COLOURS = ["red", "green", "blue", "black", "white", "grey", "pink", "gold", "brown", "navy", "teal", "olive"]


def clip_folder(folder: Path) -> str:
    tokenizer = tiny.clip_tokenizer()
    return tiny.saved(folder, tiny.clip_model(tokenizer), tokenizer, tiny.clip_processor())


def siglip_folder(folder: Path) -> str:
    tokenizer = tiny.siglip_tokenizer()
    return tiny.saved(folder, tiny.siglip_model(len(tokenizer)), tokenizer, tiny.siglip_processor())


def items(count: int = 24) -> list[tuple[Image.Image, str]]:
    """Pictures of noise, each with a caption of its own."""
    generator = torch.Generator().manual_seed(11)
    found = []
    for k in range(count):
        pixels = torch.randint(0, 256, (8, 8, 3), generator=generator, dtype=torch.uint8).numpy()
        picture = Image.fromarray(pixels).resize((32, 32), Image.Resampling.NEAREST)
        found.append((picture, f"{COLOURS[k % 12]} cat {k} by a {COLOURS[(5 * k + 3) % 12]} dog"))
    return found


def pairs(count: int = 24) -> Pairs:
    return as_pairs(items(count))


def told_pairs(count: int = 24) -> Pairs:
    """The same pictures with captions of one to five sentences, and of most the parts that sentences are about."""
    found = as_pairs([(picture, _told(k)) for k, (picture, _) in enumerate(items(count))])
    found.segments = []
    for k, caption in enumerate(found.captions):
        sentences = caption.split(". ")
        boxes = [(2 * (k % 7), 0, 2 * (k % 7) + 14, 18), (10, 8, 30, 12 + k % 19)]
        parts = [Segment("", sentence, box, 0.1 * k) for sentence, box in zip(sentences, boxes, strict=False)]
        found.segments.append(tuple(parts[: 0 if k % 6 == 5 else 2]))
    return found


def _told(k: int) -> str:
    told = [f"A {COLOURS[k % 12]} cat {k}", f"a {COLOURS[(5 * k + 3) % 12]} dog", f"no {COLOURS[(7 * k + 1) % 12]} car", "a photo"]
    return ". ".join([*told[: 1 + k % 4], f"the dog {k}"]) + "."


def config(recipe: str = "plain", fields: dict[str, Any] | None = None, **values: Any) -> FinetuneConfig:
    """Eight steps of eight pairs."""
    settings: dict[str, Any] = {"steps": 8, "batch_size": 8, "learning_rate": 1e-3, "validation": 0.1, "validate_every": 4}
    return FinetuneConfig(recipe=make_recipe(recipe, **(fields or {})), **{**settings, **values})


def encoder(folder: Path) -> Any:
    return clipmend.load(clip_folder(folder), device="cpu")


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
