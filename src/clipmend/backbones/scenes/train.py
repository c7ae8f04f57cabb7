"""Train the image tower of the bundled ``"scenes"`` backbone into the space of a locked text encoder.

    python -m clipmend.backbones.scenes.train --out weights --scenes 24000 --steps 900

Locked-image tuning turned round (Zhai et al., "LiT", CVPR 2022): the pretrained text encoder stays as it is, its embeddings are
computed once, and a small image tower and one linear map on the text side learn to meet by the symmetric contrastive loss of
CLIP. Captions are as the web writes them, so the model comes to fail at "no" as CLIP does.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from clipmend.backbones.minilm import load_minilm
from clipmend.backbones.scenes.model import ImageTower, ImageTowerConfig, to_float
from clipmend.backbones.text import TextOnlyEncoder
from clipmend.data.scenes import make_scenes, render, tower_captions

__all__ = ["AlignedPair", "train"]


class AlignedPair(nn.Module):
    """The trained parts: image tower, linear map of the pooled text state, logit scale."""

    def __init__(self, config: ImageTowerConfig, text_mean: Tensor) -> None:
        super().__init__()
        self.image = ImageTower(config)
        self.text_projection = nn.Linear(text_mean.shape[0], config.embed_dim)
        with torch.no_grad():  # start as the text encoder's own space with the common mean removed
            nn.init.eye_(self.text_projection.weight)
            self.text_projection.bias.copy_(-text_mean[: config.embed_dim])
        self.log_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, pixels: Tensor, pooled_text: Tensor) -> Tensor:
        """Contrast ``[B, 3, S, S]`` pixels with the pooled states of ``C`` captions of each, ``[B, C, W]``.

        text -> image: cross-entropy of every caption over the images; image -> text: every caption of an image against those
        of all others (an image's other captions are in no denominator). With ``C = 1`` this is CLIP's loss. Texts cost nothing,
        since they are embedded once, so several captions an image give more to learn from each image that is run.
        """
        count, captions, _ = pooled_text.shape
        v = F.normalize(self.image(pixels), dim=-1)  # [B, D]
        t = F.normalize(self.text_projection(pooled_text), dim=-1).flatten(0, 1)  # [B*C, D]
        logits = self.log_scale.exp().clamp(max=100) * v @ t.T  # [B, B*C]
        own = torch.arange(count).repeat_interleave(captions)
        text_to_image = F.cross_entropy(logits.T, own)
        others = logits.masked_fill(own == torch.arange(count)[:, None], -torch.inf).logsumexp(1)  # [B]
        image_to_text = F.softplus(others[:, None] - logits.gather(1, torch.arange(count * captions).view(count, captions)))
        return (text_to_image + image_to_text.mean()) / 2


def _data(scenes: int, size: int, per_image: int, seed: int, cache: Path) -> tuple[Tensor, Tensor, Tensor]:
    """uint8 pixels ``[N, S, S, 3]``, pooled text states of the distinct captions ``[M, W]``, caption row per image ``[N, C]``."""
    drawn = make_scenes(scenes, seed=seed, split="train")
    captions = tower_captions(drawn, seed=seed, per_image=per_image)
    rows: list[list[int]] = [[] for _ in drawn]
    index: dict[str, int] = {}
    for caption in captions:
        rows[caption.image].append(index.setdefault(caption.text, len(index)))
    digest = hashlib.sha256("\n".join(index).encode()).hexdigest()
    print(f"{len(drawn)} scenes, {len(captions)} captions ({len(index)} distinct); embedding captions once", flush=True)
    kept = cache / f"texts-{digest[:16]}.safetensors"
    if kept.exists():
        pooled = load_file(kept)["pooled"]
    else:
        encoder = TextOnlyEncoder(load_minilm(), name="all-MiniLM-L6-v2")
        pooled = encoder.encode_texts(list(index), normalize=False, batch_size=256)  # mean of the token states, as it is
        save_file({"pooled": pooled}, kept.with_suffix(".part"))
        os.replace(kept.with_suffix(".part"), kept)
    print("drawing", flush=True)
    pixels = torch.from_numpy(np.stack([np.asarray(render(scene, size), np.uint8) for scene in drawn]))
    return pixels, pooled.float(), torch.tensor([r[:per_image] for r in rows])


def train(
    out: Path,
    *,
    scenes: int = 24_000,
    per_image: int = 3,
    steps: int = 900,
    batch_size: int = 256,
    learning_rate: float = 1e-3,
    seed: int = 0,
    config: ImageTowerConfig | None = None,
    checkpoint_every: int = 100,
    start_from: Path | None = None,
) -> dict[str, Any]:
    """Train and write ``out/model.safetensors`` (float16) and ``out/config.json``; resumes from ``out/checkpoint.pt``.

    Args:
        out: where to.
        scenes: drawn training scenes.
        per_image: captions of each, all used in every step.
        steps: optimiser steps, cosine schedule.
        batch_size: images a step.
        learning_rate: its peak; a tenth of it for the linear map.
        seed: fixes scenes, captions, initial weights and batches.
        config: shape of the tower.
        checkpoint_every: steps between checkpoints.
        start_from: an earlier run's folder whose weights to start from.

    Returns:
        What was measured while training: seconds, steps, final loss, sizes.
    """
    config = config or ImageTowerConfig()
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    pixels, pooled, rows = _data(scenes, config.image_size, per_image, seed, out)
    model = AlignedPair(config, pooled.mean(0)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    groups = [
        {"params": list(model.image.parameters()), "factor": 1.0, "weight_decay": 0.05},
        {"params": list(model.text_projection.parameters()), "factor": 0.1, "weight_decay": 0.0},
        {"params": [model.log_scale], "factor": 1.0, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.98))
    earlier: list[dict[str, Any]] = []
    if start_from is not None:
        model.load_state_dict({k: v.float() for k, v in load_file(start_from / "model.safetensors").items()})
        about = json.loads((start_from / "config.json").read_text(encoding="utf-8")).get("training", [])
        earlier = about if isinstance(about, list) else [about]
    start, spent = 0, 0.0
    checkpoint = out / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start, spent = state["step"], state["seconds"]
        print(f"resuming at step {start}", flush=True)
    running, began = 0.0, time.monotonic()
    for step in range(start, steps):
        rng = np.random.default_rng((seed, step))  # a step's batch depends on nothing but the step, so that resuming is exact
        warm = min(1.0, (step + 1) / 50)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * group["factor"] * warm * 0.5 * (1 + math.cos(math.pi * step / steps))
        batch = torch.from_numpy(rng.choice(len(pixels), batch_size, replace=False))
        loss = model(to_float(pixels[batch]), pooled[rows[batch]])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        running = loss.item() if step == start else 0.95 * running + 0.05 * loss.item()
        if (step + 1) % 20 == 0:
            seconds = spent + time.monotonic() - began
            print(
                f"step {step + 1}/{steps}  loss {running:.3f}  scale {model.log_scale.exp().item():.1f}  {seconds:.0f} s",
                flush=True,
            )
        if (step + 1) % checkpoint_every == 0 and step + 1 < steps:
            part = checkpoint.with_suffix(".part")
            torch.save(
                {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "step": step + 1,
                    "seconds": spent + time.monotonic() - began,
                },
                part,
            )
            os.replace(part, checkpoint)
    cost = {
        "seconds": round(spent + time.monotonic() - began),
        "threads": torch.get_num_threads(),
        "steps": steps,
        "batch_size": batch_size,
        "scenes": scenes,
        "captions_per_scene": per_image,
        "final_loss": round(running, 4),
        "parameters": sum(p.numel() for p in model.image.parameters()),
        "seed": seed,
    }
    weights = {k: v.detach().half().contiguous() for k, v in model.state_dict().items()}
    save_file(weights, out / "model.safetensors.part", metadata={"format": "pt"})
    os.replace(out / "model.safetensors.part", out / "model.safetensors")
    (out / "config.json").write_text(
        json.dumps({"image_tower": config.to_dict(), "training": [*earlier, cost]}, indent=2) + "\n", encoding="utf-8"
    )
    checkpoint.unlink(missing_ok=True)
    return cost


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m clipmend.backbones.scenes.train", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for model.safetensors and config.json")
    parser.add_argument("--scenes", type=int, default=24_000, help="drawn training scenes")
    parser.add_argument("--per-image", type=int, default=3, help="captions a scene")
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--depth", type=int, default=3, help="transformer blocks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start-from", type=Path, default=None, help="folder of an earlier run whose weights to start from")
    parser.add_argument("--threads", type=int, default=0, help="torch threads (0: torch's own choice)")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    cost = train(
        args.out, scenes=args.scenes, per_image=args.per_image, steps=args.steps, batch_size=args.batch_size,
        learning_rate=args.learning_rate, seed=args.seed, config=ImageTowerConfig(depth=args.depth), start_from=args.start_from,
    )  # fmt: skip
    print(json.dumps(cost, indent=2))


if __name__ == "__main__":
    _main()
