"""What a patch adds to ``encode_texts``: a mended encoder against its backbone, in one process on one text tower.

The backbone is a live transformers CLIP of ViT-B/32's size with random weights, which cost the same as trained ones; the patch has
its full size (a correction network of 5.8 million parameters). 64 texts a batch: at full length (77 tokens), and at the length
captions have, where the backbone is quicker and the patch weighs more.

    python benchmarks/ecn_overhead.py

Prints milliseconds of processor time, in which other programs do not count (medians of runs in turn), and the median overhead
in per cent of neighbouring runs, beside the same of the backbone against itself, which says how far the number can be trusted on a
busy machine; ``--json FILE`` writes them. Aim: at most 5 per cent.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from transformers import CLIPConfig, CLIPModel, CLIPTokenizer

import clipmend
from clipmend.backbones import DualEncoder


def vit_b32() -> DualEncoder:
    """CLIP ViT-B/32 with random weights and a tokenizer of single letters (a text of ``n`` letters has ``n + 2`` tokens)."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*letters, *(letter + "</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    tokenizer = CLIPTokenizer(vocab={word: k for k, word in enumerate(words)}, merges=[], model_max_length=77)
    torch.manual_seed(0)
    config = CLIPConfig(
        text_config={
            "vocab_size": 49408,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        },
        vision_config={"num_hidden_layers": 1},  # no image is encoded here
    )
    return clipmend.load(CLIPModel(config), tokenizer=tokenizer, processor=_no_processor())


def _no_processor() -> Any:
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    return CLIPImageProcessorPil()


def overhead(encoder: DualEncoder, mended: DualEncoder, texts: list[str], repeats: int) -> dict[str, float]:
    """Median milliseconds of both and the median overhead of neighbouring runs."""
    taken = []
    for _ in range(repeats + 1):
        marks = [time.process_time()]
        for side in (encoder, mended, encoder):
            side.encode_texts(texts, batch_size=64)
            marks.append(time.process_time())
        taken.append([1000 * (after - before) for before, after in pairwise(marks)])
    taken = taken[1:]  # the first warms up
    return {
        "backbone_ms": round(statistics.median(plain for plain, _, _ in taken), 1),
        "mended_ms": round(statistics.median(patched for _, patched, _ in taken), 1),
        # Against the runs before and after, so that a machine that slows down does not count.
        "overhead_percent": round(100 * statistics.median(2 * patched / (plain + again) - 1 for plain, patched, again in taken), 2),
        "itself_percent": round(100 * statistics.median(abs(again / plain - 1) for plain, _, again in taken), 2),
    }


def measure(repeats: int, lengths: list[int]) -> dict[str, Any]:
    encoder = vit_b32()
    patch = clipmend.PeakPatch.untrained(encoder)
    mended = patch.apply(encoder)
    result: dict[str, Any] = {"batch": 64, "threads": torch.get_num_threads(), "parameters": patch.num_parameters, "aim_percent": 5}
    for tokens in lengths:
        texts = [chr(97 + k % 26) * (tokens - 2) for k in range(64)]
        assert not torch.equal(mended.encode_texts(texts[:2]), encoder.encode_texts(texts[:2]))
        result[f"{tokens}_tokens"] = overhead(encoder, mended, texts, repeats)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--lengths", type=int, nargs="+", default=[77, 16], help="tokens a text")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    result = measure(arguments.repeats, arguments.lengths)
    print(json.dumps(result, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
