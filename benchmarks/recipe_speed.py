"""A training step of each recipe against one of ``hn-clip``: the towers' two passes, the loss and AdamW.

Drawn scenes with paragraphs of 60 to 150 words, a part and a sentence for each cell of a 2 x 2 grid, 248 positions, batch 16
(HN-CLIP's micro-batch). Batches are prepared before, as threads do beside a training on a GPU; what that costs is given apart. All
recipes take a step in turn, the order changing; a ratio is the median over the turns, with a 95 % interval by resampling.

    python benchmarks/recipe_speed.py            # narrow towers with as many patches as a B/16: a few minutes on one core
    python benchmarks/recipe_speed.py --full     # towers of ViT-B/16's size, 224 pixels

Published, of whole trainings of ViT-L/14 on DCI on a GPU (arXiv 2608.18521): goal 41 and structxlip 92 minutes where hn-clip takes
17 and plain fine-tuning 16. ``--processor`` counts processor seconds of all threads in place of time by the clock, for a machine
with other programs beside; ``--json FILE`` writes the figures.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dense_model import tokenizer_of
from training_step import median_ratio
from transformers import CLIPConfig, CLIPModel
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

import clipmend
from clipmend.data.dense.collection import Segment
from clipmend.data.scenes import make_scenes, render
from clipmend.data.scenes.dense import dense_captions
from clipmend.data.sentences import split_sentences
from clipmend.dense import RECIPES, make_recipe
from clipmend.dense.batches import Batch, Batches, Preparer
from clipmend.dense.finetuned import refreshed
from clipmend.dense.joining import join
from clipmend.dense.pairs import Pairs
from clipmend.dense.positions import stretch
from clipmend.dense.recipes import Moment, Recipe
from clipmend.dense.towers import Towers

BASE = "hn-clip"
PUBLISHED = {"plain": 16 / 17, "goal": 41 / 17, "structxlip": 92 / 17}
ADAPTERS = ("lora", "dora")  # they change the model, so that each has one of its own


def pairs_of(count: int, pixels: int) -> Pairs:
    """Drawn scenes with their paragraphs, and as parts the cells of a grid with a sentence each."""
    scenes = make_scenes(count, seed=70_000, split="train")
    captions = [dense.caption for dense in dense_captions(scenes, 70_000)]
    half = pixels // 2
    cells = [(left, top, left + half, top + half) for top in (0, half) for left in (0, half)]
    parts = [
        tuple(Segment("", said, box, 0.5) for said, box in zip(split_sentences(text), cells, strict=False)) for text in captions
    ]
    names = [str(k) for k in range(count)]
    return Pairs("drawn scenes", [render(scene, pixels) for scene in scenes], captions, np.arange(count), names, segments=parts)


def write_model(folder: Path, captions: Sequence[str], full: bool) -> int:
    """A CLIP with random weights, its tokenizer and preprocessing; the pixels of an image's side."""
    tokenizer = tokenizer_of(captions, 1_500)
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    text: dict[str, Any] = {"max_position_embeddings": 77, "vocab_size": 49_408 if full else len(tokenizer)}
    vision: dict[str, Any] = {"patch_size": 16}
    pixels, joint = 224, 512
    if not full:
        pixels, joint = 112, 128
        text |= {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4}
        vision |= {"hidden_size": 192, "intermediate_size": 768, "num_hidden_layers": 4, "num_attention_heads": 6}
        vision |= {"image_size": pixels, "patch_size": 8}  # 196 patches, as many as a B/16 has
    torch.manual_seed(0)
    size = {"height": pixels, "width": pixels}
    for part in (
        CLIPModel(CLIPConfig(text_config=text | ids, vision_config=vision, projection_dim=joint)),
        tokenizer,
        CLIPImageProcessorPil(size={"shortest_edge": pixels}, crop_size=size),
    ):
        part.save_pretrained(folder)
    return pixels


@dataclass
class Run:
    """What a step of one recipe needs."""

    recipe: Recipe
    towers: Towers
    optimizer: torch.optim.Optimizer
    batch: Batch
    prepared: float  # seconds a pair

    def step(self, pairs: Pairs, clock: Callable[[], float]) -> float:
        """Seconds of one step."""
        rows = torch.from_numpy(self.batch.rows)
        images, captions = torch.from_numpy(pairs.image_of)[rows], torch.from_numpy(pairs.caption_ids)[rows]
        self.towers.train()
        begin = clock()
        self.optimizer.zero_grad(set_to_none=True)
        outputs = self.towers(self.batch.micro[0])
        terms = self.recipe.losses(join(outputs, self.batch, images, captions), Moment(0, 10, 0.0))
        torch.stack([term.float() for term in terms.values()]).sum().backward()
        self.optimizer.step()
        self.towers.clamp_scale()
        return clock() - begin

    def embedded(self) -> dict[str, float]:
        """Images and text positions that go through the towers for a pair."""
        images = texts = 0
        for name, value in self.batch.micro[0].items():
            if name == "pixels" or name.startswith("image/"):
                images += value[..., 0, 0, 0].numel()
            elif name == "ids" or name.startswith("text/"):
                texts += value.numel()
        count = len(self.batch.rows)
        return {"images": images / count, "text_positions": round(texts / count, 1)}


def runs_of(names: Sequence[str], folder: str, pairs: Pairs, batch: int) -> dict[str, Run]:
    """The recipes, ready for a step; those that train all weights share a model and its optimiser."""

    def fresh() -> Any:
        encoder: Any = clipmend.load(folder, device="cpu")
        stretch(encoder.model, 248)
        return refreshed(encoder)

    shared: Any = None
    optimizer: torch.optim.AdamW | None = None
    found = {}
    for name in names:
        recipe = make_recipe(name)
        encoder = fresh() if name in ADAPTERS or shared is None else shared
        torch.manual_seed(1)
        towers = Towers(encoder, tokens=recipe.tokens())
        recipe.prepare(towers.model, towers.sides())
        towers.heads = recipe.heads(towers)
        if name in ADAPTERS:
            own = torch.optim.AdamW(towers.trained().values(), lr=1e-6)
        else:
            if optimizer is None:
                shared, optimizer = encoder, torch.optim.AdamW(encoder.model.parameters(), lr=1e-6)
            if towers.heads is not None:
                optimizer.add_param_group({"params": list(towers.heads.parameters())})
            own = optimizer
        preparer = Preparer(encoder, pairs, recipe, whole_length=towers.whole_length, seed=0)
        batches = Batches(preparer, np.arange(len(pairs)), batch_size=batch, accumulate=1, micro_batches=1, seed=0, rank=0, world=1)
        begin = time.perf_counter()
        for row in batches.rows_of(0):  # in one thread
            preparer.example(0, int(row))
        prepared = (time.perf_counter() - begin) / batch
        found[name] = Run(recipe, towers, own, next(batches(0, 1, workers=1))[0], prepared)
    return found


def measure(names: Sequence[str], batch: int, repeats: int, full: bool, processor: bool) -> dict[str, Any]:
    clock = time.process_time if processor else time.perf_counter
    names = [BASE, *sorted((name for name in names if name != BASE), key=lambda name: (name != "plain", name))]
    with tempfile.TemporaryDirectory() as folder:
        captions = [dense.caption for dense in dense_captions(make_scenes(500, seed=71_000, split="train"), 71_000)]
        pixels = write_model(Path(folder), captions, full)
        pairs = pairs_of(batch, 2 * pixels)
        runs = runs_of(names, folder, pairs, batch)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        runs[name].step(pairs, clock)
    for turn in range(repeats):
        for name in names if turn % 2 == 0 else names[::-1]:
            seconds[name].append(runs[name].step(pairs, clock))
    recipes = {}
    for name in names:
        published = {"published": round(PUBLISHED[name], 2)} if name in PUBLISHED else {}
        recipes[name] = {
            "seconds": round(float(np.median(seconds[name])), 3),
            "ratio": median_ratio(seconds[BASE], seconds[name]),
            **({"to_plain": median_ratio(seconds["plain"], seconds[name])} if "plain" in names else {}),
            **published,
            **runs[name].embedded(),
            "prepare_ms": round(1000 * runs[name].prepared, 1),
        }
    size = "ViT-B/16" if full else "narrow"
    about = {"towers": size, "batch": batch, "repeats": repeats, "threads": torch.get_num_threads(), "processor_seconds": processor}
    return about | {"recipes": recipes}


def show(result: dict[str, Any]) -> None:
    print("| recipe | seconds | to hn-clip | published | to plain | images a pair | text positions a pair | preparing, ms a pair |")
    print("|---|---|---|---|---|---|---|---|")
    for name, one in result["recipes"].items():
        published = f"{one['published']:.2f}" if "published" in one else ""
        cells = [name, f"{one['seconds']:.2f}", _ratio(one["ratio"]), published, _ratio(one.get("to_plain"))]
        cells += [f"{one['images']:g}", f"{one['text_positions']:.0f}", f"{one['prepare_ms']:.0f}"]
        print(f"| {' | '.join(cells)} |")


def _ratio(found: dict[str, float] | None) -> str:
    if found is None:
        return ""
    return "1" if found["low"] == found["high"] == 1 else f"{found['median']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", choices=sorted(RECIPES), default=list(RECIPES), metavar="RECIPE")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--full", action="store_true", help="towers of ViT-B/16's size, 224 pixels")
    parser.add_argument("--processor", action="store_true", help="processor seconds in place of the clock's")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    result = measure(given.recipes, given.batch, given.repeats, given.full, given.processor)
    show(result)
    print(json.dumps(result, indent=1))
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
