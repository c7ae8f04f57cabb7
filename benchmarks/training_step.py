"""A whole training step with the adaptive-margin loss against the same step with InfoNCE.

Two transformers of CLIP ViT-B/16's size with random weights, a batch of 32, forward, loss, backward and AdamW; InfoNCE is written
as open_clip writes it. Steps are taken in turn, the order changing, and the ratio is the median over neighbouring steps with a 95 %
interval by resampling; a ratio of InfoNCE with itself stands beside, for the noise of the machine.

    python benchmarks/training_step.py

``--json FILE`` writes the figures. Aim: at most 1.03 times.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import CLIPConfig, CLIPModel

from clipmend.losses import HardNegativeLoss

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def info_nce(images: Tensor, texts: Tensor, scale: Tensor) -> Tensor:
    logits = scale * images @ texts.T
    target = torch.arange(len(images))
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2


def step(model: CLIPModel, optimizer: torch.optim.Optimizer, batch: dict[str, Tensor], loss: Loss) -> float:
    """Seconds of one step."""
    begin = time.perf_counter()
    optimizer.zero_grad(set_to_none=True)
    out = model(**batch)
    loss(out.image_embeds, out.text_embeds, model.logit_scale.exp()).backward()
    optimizer.step()
    return time.perf_counter() - begin


def median_ratio(one: list[float], other: list[float]) -> dict[str, float]:
    ratios = np.array(other) / np.array(one)
    drawn = np.median(np.random.default_rng(0).choice(ratios, (2000, len(ratios))), axis=1)
    low, high = np.quantile(drawn, (0.025, 0.975))
    return {"median": round(float(np.median(ratios)), 4), "low": round(float(low), 4), "high": round(float(high), 4)}


def measure(batch: int, tokens: int, repeats: int, patch: int, small: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    config = CLIPConfig(
        text_config={"max_position_embeddings": tokens, **({"num_hidden_layers": 1} if small else {})},
        vision_config={"patch_size": patch, **({"num_hidden_layers": 1} if small else {})},
        projection_dim=512,
    )
    model = CLIPModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-6)
    data = {
        "input_ids": torch.randint(3, 49400, (batch, tokens)),
        "pixel_values": torch.randn(batch, 3, config.vision_config.image_size, config.vision_config.image_size),
    }
    data["input_ids"][:, -1] = config.text_config.eos_token_id
    losses: dict[str, Loss] = {"info_nce": info_nce, "hard_negative": HardNegativeLoss(0.5), "info_nce again": info_nce}
    step(model, optimizer, data, info_nce)
    seconds: dict[str, list[float]] = {name: [] for name in losses}
    for turn in range(repeats):
        order = list(losses) if turn % 2 == 0 else list(losses)[::-1]
        for name in order:
            seconds[name].append(step(model, optimizer, data, losses[name]))
    return {
        "batch": batch,
        "tokens": tokens,
        "threads": torch.get_num_threads(),
        "repeats": repeats,
        "seconds": {name: round(float(np.median(taken)), 3) for name, taken in seconds.items()},
        "ratio": median_ratio(seconds["info_nce"], seconds["hard_negative"]),
        "noise": median_ratio(seconds["info_nce"], seconds["info_nce again"]),
        "aim": 1.03,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=77)
    parser.add_argument("--patch", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--small", action="store_true", help="one block a tower, to see that it runs")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    result = measure(arguments.batch, arguments.tokens, arguments.repeats, arguments.patch, arguments.small)
    print(json.dumps(result, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
