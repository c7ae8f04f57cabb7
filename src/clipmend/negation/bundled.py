"""Make the patch that comes with the ``"photos"`` backbone: ``python -m clipmend.negation.bundled -o FOLDER``.

No image is used: image embeddings are made from random sets of class names (:mod:`clipmend.backbones.photos.data`), and what the
sample photographs show is kept out of them. (The patch of ``"scenes"`` is made with ``clipmend fit``; its card says how.)
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import torch

from clipmend.backbones.photos import load_photos
from clipmend.backbones.photos.data import class_name_data
from clipmend.backbones.photos.measure import measure_photos
from clipmend.negation.config import PeakPatchConfig
from clipmend.negation.patch import PeakPatch
from clipmend.negation.training import fit

__all__ = ["PHOTOS_CONFIG", "fit_photos"]

PHOTOS_CONFIG = PeakPatchConfig(
    peak=4, anchor=2, scn_layers=(4, 6), hidden=768, use_scn=False, steps=1500, ecn_learning_rate=1e-3, batch_size=96,
    # Class names are a rough stand-in for photographs: the arithmetic of the true parse leads to the end.
    guidance_weight=10.0, guidance_strength=0.5, guidance_until=None, contrast_weight=0.05, preservation_weight=5.0,
    logit_scale=30.0, text_only_weight=0.0,
)  # fmt: skip


def fit_photos(sets: int = 1920, seed: int = 0, config: PeakPatchConfig = PHOTOS_CONFIG, progress: bool = False) -> PeakPatch:
    """Fit the photographs' patch from class names alone.

    Args:
        sets: sets of things that stand for photographs.
        seed: fixes sets and training.
        config: hyper-parameters.
        progress: show progress bars with live losses.
    """
    encoder = load_photos()
    data, images, groups = class_name_data(encoder, sets, seed)
    grouped = replace(data, groups=groups.tolist())
    return fit(encoder, grouped, replace(config, seed=seed), image_embeddings=images, progress=progress)


def main() -> None:
    """Fit, measure on the sample photographs, save."""
    parser = argparse.ArgumentParser(prog="python -m clipmend.negation.bundled", description=__doc__.split("\n")[0])
    parser.add_argument("--out", "-o", type=Path, required=True, help="folder for the patch")
    parser.add_argument("--sets", type=int, default=1920)
    parser.add_argument("--steps", type=int, default=PHOTOS_CONFIG.steps)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    patch = fit_photos(args.sets, args.seed, replace(PHOTOS_CONFIG, steps=args.steps), progress=True)
    report = measure_photos(patch.apply(load_photos()))
    patch.metrics["photographs"] = {kind: f"{right} of {asked}" for kind, (right, asked) in report.counts().items()}
    patch.command = f"python -m clipmend.negation.bundled -o patch --sets {args.sets} --steps {args.steps} --seed {args.seed}"
    patch.save_pretrained(args.out, dtype=torch.float16)
    print(json.dumps(patch.metrics["photographs"], indent=2))
    for rank in report.failed():
        print(f"not understood: {rank}")


if __name__ == "__main__":
    main()
