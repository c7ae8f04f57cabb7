"""The small CLIP that the experiment on dense captions starts from: made here, of drawn scenes with short captions.

    python benchmarks/dense_model.py --out small-clip --work small-clip.work

An ordinary ``CLIPModel`` of transformers, some 2 million weights, 77 positions, its own byte-pair tokenizer. As with CLIP itself
the captions it learns from are short, so that the later positions are hardly trained and details are mentioned now and then. It is
trained by ``clipmend finetune``'s own trainer with InfoNCE; a run that was killed goes on where it stopped. Scenes and captions
have seeds of their own: none of the experiment's.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import CLIPConfig, CLIPModel, CLIPTokenizer
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from clipmend.data.scenes import Scene, make_scenes, render, tower_captions
from clipmend.data.scenes.captions import affirmative
from clipmend.data.scenes.dense import dense_captions
from clipmend.data.scenes.facts import text_rng
from clipmend.dense import FinetuneConfig, finetune, make_recipe
from clipmend.dense.pairs import Pairs

SEED = 40_000  # of the scenes it learns from
PIXELS = 60  # a side of an image
END = "</w>"


def tokenizer_of(texts: Iterable[str], size: int) -> CLIPTokenizer:
    """CLIP's kind of tokenizer (lower case, bytes, ends of words marked) learned from texts."""
    learned = Tokenizer(models.BPE(end_of_word_suffix=END))
    learned.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    learned.train_from_iterator(
        (text.lower() for text in texts),
        trainers.BpeTrainer(vocab_size=size, end_of_word_suffix=END, initial_alphabet=letters, show_progress=False),
    )
    state = json.loads(learned.to_str())["model"]
    merges: Any = [tuple(pair) if not isinstance(pair, str) else tuple(pair.split(" ")) for pair in state["merges"]]
    # As in CLIP: every byte, every byte that ends a word, what the merges make, and the end of a text has the highest id.
    words = [*letters, *(letter + END for letter in letters), *("".join(pair) for pair in merges)]
    words = [*dict.fromkeys(words), "<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(
        vocab={word: k for k, word in enumerate(words)}, merges=merges, pad_token="<|endoftext|>", model_max_length=77
    )


def small_clip(tokenizer: CLIPTokenizer, width: int, image_blocks: int, text_blocks: int, patch: int) -> CLIPModel:
    """A CLIP with random weights for images of :data:`PIXELS`."""
    shared = {"hidden_size": width, "intermediate_size": 4 * width, "num_attention_heads": width // 32}
    text = {
        "num_hidden_layers": text_blocks,
        "vocab_size": len(tokenizer), "max_position_embeddings": 77, "projection_dim": width,
        "bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id,
    }  # fmt: skip
    vision = {"num_hidden_layers": image_blocks, "image_size": PIXELS, "patch_size": patch, "projection_dim": width}
    torch.manual_seed(SEED)
    return CLIPModel(CLIPConfig(text_config=shared | text, vision_config=shared | vision, projection_dim=width))


def training_pairs(scenes: Sequence[Scene]) -> Pairs:
    """Drawn images in memory with three short captions each: one as the web writes them, two that name up to four things."""
    web = tower_captions(scenes, SEED, per_image=1)
    captions, image_of = [], []
    for image, scene in enumerate(scenes):
        rng = text_rng(SEED, "named", image)
        named = [affirmative(scene, rng, image, 4, colours=0.8, sizes=0.3, place=0.8).text for _ in range(2)]
        captions += [web[image].text, *named]
        image_of += [image] * 3
    return Pairs(
        name="drawn scenes with short captions",
        images=[render(scene, PIXELS) for scene in scenes],
        captions=captions,
        image_of=np.array(image_of),
        image_ids=[str(k) for k in range(len(scenes))],
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=Path, help="folder of the model")
    parser.add_argument("--work", required=True, type=Path, help="folder of checkpoints")
    parser.add_argument("--scenes", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=2_400)
    parser.add_argument("--batch-size", type=int, default=192)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--image-blocks", type=int, default=4)
    parser.add_argument("--text-blocks", type=int, default=3)
    parser.add_argument("--patch", type=int, default=12)
    parser.add_argument("--vocabulary", type=int, default=1_500, help="merges and bytes of the tokenizer")
    given = parser.parse_args(arguments)

    begin = time.monotonic()
    scenes = make_scenes(given.scenes, seed=SEED, split="train")
    pairs = training_pairs(scenes)
    # Long captions too, so that words of theirs are whole tokens; as with CLIP, whose vocabulary has seen all sorts of text.
    long = [dense.caption for dense in dense_captions(scenes[:1000], SEED)]
    tokenizer = tokenizer_of([*pairs.captions[:30_000], *long], given.vocabulary)
    model = small_clip(tokenizer, given.width, given.image_blocks, given.text_blocks, given.patch)
    processor = CLIPImageProcessorPil(
        size={"shortest_edge": PIXELS}, crop_size={"height": PIXELS, "width": PIXELS}, image_mean=[0.5] * 3, image_std=[0.25] * 3
    )
    config = FinetuneConfig(
        recipe=make_recipe("plain", learning_rate=given.rate, weight_decay=0.05), steps=given.steps, batch_size=given.batch_size,
        warmup=200, validation=0.05, validation_limit=500, validate_every=max(1, given.steps // 6), choose="last", seed=SEED,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as fresh:
        for part in (model, tokenizer, processor):
            part.save_pretrained(fresh)
        done = finetune(fresh, pairs, config, directory=given.work, on_start=_say, on_validation=_told)
    done.save(given.out, overwrite=True)
    _say([f"{given.out}: {sum(p.numel() for p in model.parameters()):,} weights, {time.monotonic() - begin:.0f} s in all"])


def _say(lines: list[str]) -> None:
    for line in lines:
        print(line, flush=True)


def _told(step: int, found: dict[str, Any]) -> None:
    print(step, {name: round(value, 1) for name, value in found.items()}, flush=True)


if __name__ == "__main__":
    main()
