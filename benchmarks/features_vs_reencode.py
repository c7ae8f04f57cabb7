"""An epoch from stored features against re-encoding the captions at every step, in one process on one text tower.

The tower has the size of CLIP ViT-B/32's (12 blocks, width 512) and random weights, which cost the same as trained ones. Both
sides train the same embedding correction network on the same batches in the same order; the re-encoding side pads to the batch's
longest caption only, so it is given every advantage short of the features themselves.

    python benchmarks/features_vs_reencode.py --captions 1024 --batch 256

Prints the seconds of each and their ratio; ``--json FILE`` writes them. Aim: at least 8 times faster.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModel

from clipmend.backbones.base import DualEncoder
from clipmend.backbones.text import TextOnlyEncoder
from clipmend.backbones.tokens import TextTokens
from clipmend.backbones.tower import TextTower, freeze
from clipmend.negation.features import extract_text_features
from clipmend.negation.networks import EmbeddingCorrectionNetwork

WORDS = "a photo of the street with no red cars and two people walking near an old shop without any sign in rain".split()  # noqa: SIM905
ANCHOR, PEAK = 6, 8


class WordTokens(TextTokens):
    """One id a word: a random tower needs no vocabulary."""

    context_length, pad_id = 77, 0

    def _ids(self, texts: list[str]) -> tuple[list[list[int]], list[int]]:
        return [[1, *(3 + zlib.crc32(word.encode()) % 49000 for word in text.split()), 49407] for text in texts], []

    def describe(self) -> dict[str, Any]:
        return {"kind": "one id a word"}


def tower_of_vit_b32() -> DualEncoder:
    """A text encoder of ViT-B/32's size with random weights."""
    torch.manual_seed(0)
    model = CLIPTextModel(CLIPTextConfig(hidden_size=512, intermediate_size=2048, num_attention_heads=8, num_hidden_layers=12))
    projection = nn.Linear(512, 512, bias=False)
    freeze(model)
    freeze(projection)
    inner = getattr(model, "text_model", model)
    blocks = "text_model.encoder.layers" if inner is not model else "encoder.layers"
    tower = TextTower(
        model,
        WordTokens(),
        blocks=blocks,
        pooling="eos",
        width=512,
        embed_dim=512,
        final_norm=inner.final_layer_norm,
        projection=projection,
    )
    return TextOnlyEncoder(tower, name="random ViT-B/32 text tower")


def epoch(batches: list[list[int]], inputs: Callable[[list[int]], dict[str, Tensor]]) -> tuple[float, float]:
    """Seconds of one epoch of training and, of those, seconds spent on getting the inputs."""
    torch.manual_seed(0)
    ecn = EmbeddingCorrectionNetwork(512, 512)
    optimizer = torch.optim.AdamW(ecn.parameters(), lr=1e-4)
    images = torch.nn.functional.normalize(torch.randn(len(batches[0]), 512), dim=-1)
    fetching = 0.0
    start = time.perf_counter()
    for rows in batches:
        before = time.perf_counter()
        x = inputs(rows)
        fetching += time.perf_counter() - before
        corrected = ecn(x["embedding"], x["peak_tokens"], x["mask"], x["peak_eos"], x["anchor_eos"])
        loss = torch.nn.functional.cross_entropy(100 * corrected @ images.T, torch.arange(len(rows)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return time.perf_counter() - start, fetching


def measure(captions: int, batch: int, repeats: int) -> dict[str, Any]:
    rng = random.Random(0)
    texts = [f"{' '.join(rng.choices(WORDS, k=rng.randint(6, 16)))} {k}" for k in range(captions)]
    encoder = tower_of_vit_b32()

    def encode(rows: list[int]) -> dict[str, Tensor]:
        states = encoder.text_states([texts[row] for row in rows], [ANCHOR, PEAK], token_layers=[PEAK], batch_size=len(rows))
        assert states.embedding is not None
        return {
            "embedding": states.embedding,
            "peak_tokens": states.tokens_at(PEAK),
            "mask": states.mask,
            "peak_eos": states.eos_at(PEAK),
            "anchor_eos": states.eos_at(ANCHOR),
        }

    order = rng.sample(range(captions), captions)
    batches = [order[k : k + batch] for k in range(0, captions - batch + 1, batch)]
    encode(batches[0][:8])  # warm up
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        features = extract_text_features(encoder, texts, anchor=ANCHOR, peak=PEAK, scn_layers=(PEAK, 12), directory=folder)
        extraction = time.perf_counter() - start
        features.batch(batches[0])
        stored, encoded = [], []
        for _ in range(repeats):  # in turn, so that a busy machine is busy for both
            stored.append(epoch(batches, features.batch))
            encoded.append(epoch(batches, encode))
    (from_features, fetching), (re_encoding, encoding) = min(stored), min(encoded)
    return {
        "captions": len(batches) * batch,
        "batch": batch,
        "threads": torch.get_num_threads(),
        "mean_tokens": round(float(features.lengths.mean()), 1),
        "bytes_a_caption": round(features.nbytes / captions),
        "extraction_once_s": round(extraction, 2),
        "epoch_from_features_s": round(from_features, 3),
        "of_which_fetching_s": round(fetching, 3),
        "epoch_re_encoding_s": round(re_encoding, 3),
        "of_which_encoding_s": round(encoding, 3),
        "ratio": round(re_encoding / from_features, 1),
        "ratio_of_inputs_alone": round(encoding / fetching, 1),
        "aim": 8,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--captions", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    result = measure(arguments.captions, arguments.batch, arguments.repeats)
    print(json.dumps(result, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
