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
from collections.abc import Sequence
from dataclasses import dataclass
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
from clipmend.data.records import Caption
from clipmend.data.scenes import Scene, make_scenes, render, scene_facts, tower_captions

__all__ = ["AlignedPair", "train"]

_NEVER = -1e9  # a finite minus infinity: a row without competitors has loss 0 and gradient 0


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

    def forward(self, pixels: Tensor, pooled_text: Tensor, truth: Tensor | None = None) -> Tensor:
        """Contrast ``[B, 3, S, S]`` pixels with the pooled states of ``C`` captions of each, ``[B, C, W]``.

        text -> image: cross-entropy of every caption over the images; image -> text: every caption of an image against those
        of all others (an image's other captions are in no denominator). With ``C = 1`` this is CLIP's loss. Texts cost nothing,
        since they are embedded once, so several captions an image give more to learn from each image that is run.

        ``truth``, bool ``[B, B*C]``: pairs known to match besides an image's own captions. "A photo of a cat" is a caption of
        every cat in the batch; such pairs are in no denominator.
        """
        count, captions, _ = pooled_text.shape
        v = F.normalize(self.image(pixels), dim=-1)  # [B, D]
        t = F.normalize(self.text_projection(pooled_text), dim=-1).flatten(0, 1)  # [B*C, D]
        logits = self.log_scale.exp().clamp(max=100) * v @ t.T  # [B, B*C]
        own = torch.arange(count).repeat_interleave(captions)
        right = logits[own, torch.arange(count * captions)]  # [B*C]
        matching = own == torch.arange(count)[:, None]  # [B, B*C]
        wrong = logits.masked_fill(matching if truth is None else matching | truth, _NEVER)
        text_to_image = F.softplus(wrong.logsumexp(0) - right)  # -log softmax of the caption's image
        image_to_text = F.softplus(wrong.logsumexp(1)[own] - right)
        return (text_to_image.mean() + image_to_text.mean()) / 2


@dataclass
class _Data:
    """Drawn scenes with their captions, ready to be sampled."""

    pixels: Tensor  # uint8 [N, S, S, 3]
    pooled: Tensor  # [M, W] pooled text states of the distinct captions
    rows: Tensor  # [N, C] caption of each image
    facts: Tensor  # bool [N, A] what is true of each image
    asserts: Tensor  # bool [N, C, A] what each caption says
    affirmative: Tensor  # bool [N, C] captions whose truth their atoms tell

    def matches(self, batch: Tensor) -> Tensor:
        """bool ``[B, B*C]``: whether a caption of one image of the batch is true of another."""
        says = self.asserts[batch].flatten(0, 1).float()  # [B*C, A]
        told = (self.facts[batch].float() @ says.T) >= says.sum(1)  # [B, B*C]
        return told & self.affirmative[batch].flatten()


def _data(scenes: int, size: int, per_image: int, seeds: Sequence[int], cache: Path) -> _Data:
    parts = [_captioned(scenes, per_image, seed, cache) for seed in seeds]
    drawn = [scene for part in parts for scene in part[0]]
    captions = [caption for part in parts for caption in part[1]]
    offsets = np.cumsum([0, *(len(part[2]) for part in parts)])
    rows = torch.cat([part[3] + int(offset) for part, offset in zip(parts, offsets, strict=False)])
    facts = [scene_facts(scene) for scene in drawn]
    atoms = {atom: k for k, atom in enumerate(sorted({a for found in facts for a in found}))}
    known = torch.zeros(len(drawn), len(atoms), dtype=torch.bool)
    for row, found in enumerate(facts):
        known[row, [atoms[atom] for atom in found]] = True
    asserts = torch.zeros(len(captions), len(atoms), dtype=torch.bool)
    for row, caption in enumerate(captions):
        asserts[row, [atoms[atom] for atom in caption.asserts]] = True
    affirmative = torch.tensor([caption.form == "affirmative" for caption in captions])
    print("drawing", flush=True)
    pixels = torch.from_numpy(np.stack([np.asarray(render(scene, size), np.uint8) for scene in drawn]))
    shape = (len(drawn), per_image)
    return _Data(
        pixels, torch.cat([part[2] for part in parts]), rows, known, asserts.view(*shape, -1), affirmative.view(*shape)
    )  # fmt: skip


def _captioned(scenes: int, per_image: int, seed: int, cache: Path) -> tuple[list[Scene], list[Caption], Tensor, Tensor]:
    """Scenes, their captions, pooled text states of the distinct captions ``[M, W]``, caption row per image ``[N, C]``."""
    drawn = make_scenes(scenes, seed=seed, split="train")
    captions = tower_captions(drawn, seed=seed, per_image=per_image)
    rows: list[list[int]] = [[] for _ in drawn]
    index: dict[str, int] = {}
    for caption in captions:
        rows[caption.image].append(index.setdefault(caption.text, len(index)))
    digest = hashlib.sha256("\n".join(index).encode()).hexdigest()
    print(f"seed {seed}: {len(drawn)} scenes, {len(captions)} captions ({len(index)} distinct), embedded once", flush=True)
    kept = cache / f"texts-{digest[:16]}.safetensors"
    if kept.exists():
        pooled = load_file(kept)["pooled"]
    else:
        encoder = TextOnlyEncoder(load_minilm(), name="all-MiniLM-L6-v2")
        pooled = encoder.encode_texts(list(index), normalize=False, batch_size=256)  # mean of the token states, as it is
        save_file({"pooled": pooled}, kept.with_suffix(".part"))
        os.replace(kept.with_suffix(".part"), kept)
    return drawn, captions, pooled.float(), torch.tensor(rows)


def varied(pixels: Tensor, rng: np.random.Generator, shift: int = 2) -> Tensor:
    """uint8 ``[B, S, S, 3]`` images, half of them mirrored, each moved by up to ``shift`` pixels (the edge is repeated)."""
    size = pixels.shape[1]
    mirrored = torch.from_numpy(rng.random(len(pixels)) < 0.5)
    pixels = torch.where(mirrored[:, None, None, None], pixels.flip(2), pixels)
    moves = torch.from_numpy(rng.integers(-shift, shift + 1, (len(pixels), 2)))
    lines = (torch.arange(size) + moves[:, :1]).clamp(0, size - 1)  # [B, S]
    columns = (torch.arange(size) + moves[:, 1:]).clamp(0, size - 1)
    return pixels[torch.arange(len(pixels))[:, None, None], lines[:, :, None], columns[:, None, :]]


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
    data_seeds: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Train and write ``out/model.safetensors`` (float16) and ``out/config.json``; resumes from ``out/checkpoint.pt``.

    Args:
        out: where to.
        scenes: drawn training scenes.
        per_image: captions of each, all used in every step.
        steps: optimiser steps, cosine schedule.
        batch_size: images a step.
        learning_rate: its peak; a tenth of it for the linear map.
        seed: fixes initial weights and batches, and scenes and captions where ``data_seeds`` does not.
        config: shape of the tower.
        checkpoint_every: steps between checkpoints.
        start_from: an earlier run's folder whose weights to start from; it may have fewer residual blocks.
        data_seeds: one set of ``scenes`` scenes for each, all trained on; default: ``seed`` alone.

    Returns:
        What was measured while training: seconds, steps, final loss, sizes.
    """
    config = config or ImageTowerConfig()
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    data_seeds = list(data_seeds or [seed])
    data = _data(scenes, config.image_size, per_image, data_seeds, out)
    model = AlignedPair(config, data.pooled.mean(0)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    groups = [
        {"params": list(model.image.parameters()), "factor": 1.0, "weight_decay": 0.05},
        {"params": list(model.text_projection.parameters()), "factor": 0.1, "weight_decay": 0.0},
        {"params": [model.log_scale], "factor": 1.0, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.98))
    earlier: list[dict[str, Any]] = []
    if start_from is not None:
        saved = {k: v.float() for k, v in load_file(start_from / "model.safetensors").items()}
        grown = {k: v for k, v in model.state_dict().items() if k.startswith("image.residuals.") and k not in saved}
        model.load_state_dict({**saved, **grown})
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
        batch = torch.from_numpy(rng.choice(len(data.pixels), batch_size, replace=False))
        loss = model(to_float(varied(data.pixels[batch], rng)), data.pooled[data.rows[batch]], data.matches(batch))
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
        "scenes": scenes * len(data_seeds),
        "data_seeds": data_seeds,
        "learning_rate": learning_rate,
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
    parser.add_argument("--residual-blocks", type=int, default=2, help="convolution blocks in the stem")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data-seeds", type=int, nargs="+", default=None, help="a set of scenes each (default: the seed)")
    parser.add_argument("--start-from", type=Path, default=None, help="folder of an earlier run whose weights to start from")
    parser.add_argument("--threads", type=int, default=0, help="torch threads (0: torch's own choice)")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    cost = train(
        args.out, scenes=args.scenes, per_image=args.per_image, steps=args.steps, batch_size=args.batch_size,
        learning_rate=args.learning_rate, seed=args.seed,
        config=ImageTowerConfig(depth=args.depth, residual_blocks=args.residual_blocks), start_from=args.start_from,
        data_seeds=args.data_seeds,
    )  # fmt: skip
    print(json.dumps(cost, indent=2))


if __name__ == "__main__":
    _main()
