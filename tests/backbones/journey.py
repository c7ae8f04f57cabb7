"""The way every backbone must go: features, a fit of one step, the patch saved, read and put on the backbone loaded anew."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from clipmend.backbones.base import DualEncoder
from clipmend.data import Caption, NegationData, Question
from clipmend.negation import PeakPatch, PeakPatchConfig
from clipmend.negation.training import fit

KINDS = ("cat", "dog", "cup", "tree", "car", "hat")
TEXTS = ["a cat", "no cat", "a street without cars", "a dog but no hat", "."]


def pictures(count: int, size: int) -> list[Image.Image]:
    generator = torch.Generator().manual_seed(3)
    noise = torch.randint(0, 256, (count, 8, 8, 3), generator=generator, dtype=torch.uint8)
    return [Image.fromarray(pixels.numpy()).resize((size, size)) for pixels in noise]


def data(count: int) -> NegationData:
    """``count`` images, each with one thing in it and captions of every form."""
    captions, questions = [], []
    for image in range(count):
        here, gone = KINDS[image % len(KINDS)], KINDS[(image + 1) % len(KINDS)]
        first = len(captions)
        captions += [
            Caption(f"a photo of a {here}", image, "affirmative", (here,)),
            Caption(f"a {here} but no {gone}", image, "hybrid", (here,), (gone,), "no"),
            Caption(f"no {gone}", image, "negative", (), (gone,), "no"),
            Caption(f"no {here}", -1, "negative", (), (here,), "no"),
            Caption(f"a {gone} and no {here}", -1, "hybrid", (gone,), (here,), "no"),
            Caption(f"a {gone}", -1, "affirmative", (gone,)),
        ]
        questions.append(Question(image, (first + 3, first + 1, first + 4, first + 5), 1, "hybrid"))
    facts = [frozenset({KINDS[image % len(KINDS)]}) for image in range(count)]
    return NegationData([f"{k}.png" for k in range(count)], facts, captions, questions, vocabulary=frozenset(KINDS), name="journey")


def travel(
    encoder: DualEncoder, again: Callable[[], DualEncoder], folder: Path, *, size: int, count: int = 12, **config: Any
) -> PeakPatch:
    """Go all the way, and check at each stop.

    Args:
        encoder: the backbone.
        again: loads the same backbone anew.
        folder: for the patch.
        size: images are of this many pixels a side.
        count: images.
        config: fields of the config.
    """
    images = encoder.encode_images(pictures(count, size))
    assert images.shape == (count, encoder.embed_dim)
    assert images.isfinite().all()
    assert (images[0] - images[1]).abs().max() > 1e-4
    settings = {"hidden": 32, "context": 8, "heads": 4, "steps": 1, "eval_every": 1, "batch_size": 6, "question_batch": 6,
                "warmup_steps": 0, "validation_fraction": 0.3, "text_only_weight": 0.0, **config}  # fmt: skip
    patch = fit(encoder, data(count), PeakPatchConfig(**settings), image_embeddings=images)
    assert patch.config.text_width == encoder.text_width
    assert patch.config.embed_dim == encoder.embed_dim
    assert patch.config.scn_layers is not None
    assert patch.config.scn_layers[-1] == encoder.num_text_layers
    mended = patch.apply(encoder)
    queries = mended.encode_texts(TEXTS)
    plain = encoder.encode_texts(TEXTS)
    assert queries.isfinite().all()
    assert (queries - plain).abs().max() > 0
    assert torch.equal(patch.apply(encoder, strength=0).encode_texts(TEXTS), plain)
    scores = mended.score(images, TEXTS)
    assert scores.shape == (count, len(TEXTS))
    saved = patch.save_pretrained(folder / "patch")
    other = PeakPatch.from_pretrained(saved).apply(again())
    assert torch.equal(other.encode_texts(TEXTS), queries)
    assert torch.equal(other.score(images, TEXTS), scores)
    return patch
