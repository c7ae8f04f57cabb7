"""Features of photographs and of short captions, against the loops that the libraries' own pages show, side by side in one process.

Both sides run the same model: the size of CLIP ViT-B/32, random weights, which cost the same as trained ones. Photographs are
JPEGs of 4,000 x 3,000 pixels; our side reads, hashes, embeds and writes them as `clipmend features` does, the other keeps a tensor.
Captions have 6 to 14 words; transformers is measured padding to the context length, as its training example does and open_clip
always does, and padding to the batch's longest, as its model card does.

    python benchmarks/features_scale.py --photos 48 --captions 384

open_clip is measured where it is installed. Prints seconds and ratios; ``--json FILE`` writes them. Aims: 1.5 on photographs, 4 on
captions padded to the context length.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPTokenizer

import clipmend
from clipmend.backbones.base import DualEncoder
from clipmend.negation.features import extract_image_features

SIZE = (4000, 3000)
WORDS = "a the photo of street with no red cars and two people near old shop without any sign in rain dog cat park".split()  # noqa: SIM905


def photographs(folder: Path, count: int) -> list[Path]:
    """JPEGs with smooth shapes and some grain, of a photograph's size and weight (about 4 MB); six different, repeated."""
    rng = np.random.default_rng(0)
    paths = [folder / f"{k:04d}.jpg" for k in range(count)]
    for k, path in enumerate(paths[:6]):
        shapes = Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)).resize(SIZE, Image.Resampling.BICUBIC)
        grain = Image.fromarray(rng.normal(0, 9 + k, (SIZE[1], SIZE[0])).astype(np.int8).view(np.uint8))
        pixels = np.asarray(shapes, np.int16) + np.asarray(grain).view(np.int8)[..., None]
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=90)
    for k, path in enumerate(paths[6:]):
        path.write_bytes(paths[k % 6].read_bytes())
    return paths


def tokenizer() -> CLIPTokenizer:
    """CLIP's tokenizer with one token for each word of ours."""
    from tokenizers import pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = [*letters, *(f"{letter}</w>" for letter in letters)]
    merges: list[tuple[str, str]] = []
    for word in WORDS:
        pieces = [*word[:-1], f"{word[-1]}</w>"]
        for k in range(1, len(pieces)):
            pair = ("".join(pieces[:k]), pieces[k])
            if pair not in merges:
                merges.append(pair)
    vocabulary = list(dict.fromkeys([*vocabulary, *map("".join, merges), "<|startoftext|>", "<|endoftext|>"]))
    return CLIPTokenizer(vocab={word: k for k, word in enumerate(vocabulary)}, merges=merges, model_max_length=77)


def transformers_side(batch: int) -> tuple[DualEncoder, dict[str, Callable[[Any], Tensor]]]:
    """Our encoder, and the loops of transformers' pages, over one random model."""
    words = tokenizer()
    torch.manual_seed(0)
    ids = {"eos_token_id": words.eos_token_id, "bos_token_id": words.bos_token_id, "pad_token_id": words.pad_token_id}
    model = CLIPModel(CLIPConfig(text_config=ids)).eval()
    processor = CLIPImageProcessor()

    def images(paths: list[Path]) -> Tensor:
        rows = []
        for k in range(0, len(paths), batch):
            inputs = processor(images=[Image.open(path) for path in paths[k : k + batch]], return_tensors="pt")
            with torch.inference_mode():
                rows.append(model.get_image_features(**inputs).pooler_output)
        return F.normalize(torch.cat(rows), dim=-1)

    def texts(padding: Any) -> Callable[[list[str]], Tensor]:
        def loop(captions: list[str]) -> Tensor:
            rows = []
            for k in range(0, len(captions), batch):
                inputs = words(captions[k : k + batch], padding=padding, max_length=77, truncation=True, return_tensors="pt")
                with torch.inference_mode():
                    rows.append(model.get_text_features(**inputs).pooler_output)
            return F.normalize(torch.cat(rows), dim=-1)

        return loop

    loops = {"images": images, "texts, padded to 77": texts("max_length"), "texts, padded to the batch": texts(True)}
    return clipmend.load(model, tokenizer=words, processor=processor), loops


def open_clip_side(batch: int) -> tuple[DualEncoder, dict[str, Callable[[Any], Tensor]]]:
    """Our encoder, and the loop of open_clip's page, over one random model of open_clip."""
    import open_clip

    torch.manual_seed(0)
    model, _, preprocess = open_clip.create_model_and_transforms("ViT-B-32")
    model.eval()
    words = open_clip.get_tokenizer("ViT-B-32")

    def images(paths: list[Path]) -> Tensor:
        rows = []
        for k in range(0, len(paths), batch):
            pixels = torch.stack([preprocess(Image.open(path)) for path in paths[k : k + batch]])
            with torch.inference_mode():
                rows.append(model.encode_image(pixels))
        return F.normalize(torch.cat(rows), dim=-1)

    def texts(captions: list[str]) -> Tensor:
        rows = []
        for k in range(0, len(captions), batch):
            with torch.inference_mode():
                rows.append(model.encode_text(words(captions[k : k + batch])))
        return F.normalize(torch.cat(rows), dim=-1)

    encoder = clipmend.load(model, tokenizer=words, preprocess=preprocess)
    return encoder, {"images": images, "texts, padded to 77": texts}


def timed(work: Callable[[], Tensor], best: dict[str, tuple[float, float]], name: str) -> Tensor:
    """Run, and keep the shortest seconds of all runs under this name, and the processor's seconds of that run."""
    start, busy = time.perf_counter(), time.process_time()
    result = work()
    best[name] = min(best.get(name, (float("inf"), 0.0)), (time.perf_counter() - start, time.process_time() - busy))
    return result


def compare(encoder: DualEncoder, loops: dict[str, Any], paths: list[Path], captions: list[str], batch: int, repeats: int) -> Any:
    """Seconds, ratios and the largest difference between the two sides' numbers."""

    def ours(draft: bool) -> Tensor:
        with tempfile.TemporaryDirectory() as folder:
            rows = extract_image_features(encoder, paths, folder, batch_size=batch, shard_size=512, draft=draft)
        return torch.from_numpy(rows)

    with torch.inference_mode():  # warm up
        encoder.encode_texts(captions[:batch])
        encoder.encode_images(paths[:2])
    best: dict[str, tuple[float, float]] = {}
    difference: dict[str, float] = {}
    drafted = 1.0
    for _ in range(repeats):  # in turn, so that a busy machine is busy for both
        full = timed(lambda: ours(False), best, "our images")
        draft = timed(lambda: ours(True), best, "our images, draft")
        drafted = float((full * draft).sum(1).min())
        plain = timed(lambda: encoder.encode_texts(captions, batch_size=batch), best, "our texts")
        for name, loop in loops.items():
            theirs = timed(lambda loop=loop, name=name: loop(paths if name == "images" else captions), best, name)  # type: ignore[misc]
            difference[name] = float((theirs - (full if name == "images" else plain)).abs().max())
    own = {name: "our images" if name == "images" else "our texts" for name in loops}
    pairs = {**{name: (name, ours) for name, ours in own.items()}, "images, draft": ("images", "our images, draft")}
    ratios = [{name: round(best[a][k] / best[b][k], 2) for name, (a, b) in pairs.items()} for k in (0, 1)]
    return {
        "ratio": ratios[0],
        "ratio_of_processor_seconds": ratios[1],  # what is left of it on a machine whose other core is busy
        "seconds": {name: round(seconds, 2) for name, (seconds, _) in best.items()},
        "processor_seconds": {name: round(busy, 2) for name, (_, busy) in best.items()},
        "images_a_second": round(len(paths) / best["our images"][0], 1),
        "captions_a_second": round(len(captions) / best["our texts"][0], 1),
        "largest_difference": {name: float(f"{value:.1e}") for name, value in difference.items()},
        "least_cosine_of_draft": round(drafted, 5),
    }


def measure(photos: int, captions: int, batch: int, repeats: int, sides: list[str]) -> dict[str, Any]:
    rng = random.Random(0)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(6, 14))) for _ in range(captions)]
    result: dict[str, Any] = {
        "photos": photos, "captions": captions, "batch": batch, "threads": torch.get_num_threads(),
        "aim": {"images": 1.5, "texts, padded to 77": 4},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        paths = photographs(Path(folder), photos)
        result["megabytes_a_photo"] = round(sum(path.stat().st_size for path in paths) / len(paths) / 1e6, 1)
        if "transformers" in sides:
            result["transformers"] = compare(*transformers_side(batch), paths, texts, batch, repeats)
        if "open_clip" in sides and find_spec("open_clip"):
            result["open_clip"] = compare(*open_clip_side(batch), paths, texts, batch, repeats)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=48)
    parser.add_argument("--captions", type=int, default=384)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--sides", nargs="+", choices=["transformers", "open_clip"], default=["transformers", "open_clip"])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    result = measure(arguments.photos, arguments.captions, arguments.batch, arguments.repeats, arguments.sides)
    print(json.dumps(result, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
