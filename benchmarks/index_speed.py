"""Images a second: `clipmend index` against the loops of transformers' and open_clip's own pages, side by side in one process.

Both sides read the same files and run the same model: the size of CLIP ViT-B/32, random weights, which cost the same as trained
ones. The plain loop opens, prepares and embeds batch by batch and keeps a tensor. Ours also hashes every file, writes vectors and
database to the disk and makes the index durable. Both take a turn after the other, the order changing; a ratio is the median over
the turns, with a 95 % interval by resampling. The second figure is what an update costs that finds nothing new.

    python benchmarks/index_speed.py --photos 96 --repeats 5
    python benchmarks/index_speed.py --size 4000 3000     # as cameras write them

open_clip is measured where it is installed. ``--json FILE`` writes the figures.
"""

from __future__ import annotations

import argparse
import json
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
from training_step import median_ratio

from clipmend.backbones.base import DualEncoder
from clipmend.search import ImageIndex, build_index
from features_scale import open_clip_side, transformers_side


def photographs(folder: Path, count: int, size: tuple[int, int]) -> list[Path]:
    """JPEGs with smooth shapes and some grain, each another."""
    rng = np.random.default_rng(0)
    paths = []
    for k in range(count):
        path = folder / f"{k % 7}" / f"{k:05d}.jpg"
        path.parent.mkdir(exist_ok=True)
        shapes = Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)).resize(size, Image.Resampling.BICUBIC)
        grain = rng.normal(0, 9, (size[1], size[0], 1))
        Image.fromarray((np.asarray(shapes) + grain).clip(0, 255).astype(np.uint8)).save(path, quality=90)
        paths.append(path)
    return paths


def compare(
    encoder: DualEncoder, loop: Callable[[list[Path]], Tensor], folder: Path, paths: list[Path], batch: int, repeats: int
) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {"index": [], "loop": [], "update": []}
    busy: dict[str, list[float]] = {name: [] for name in seconds}
    difference = 0.0

    def timed(name: str, work: Callable[[], Any]) -> Any:
        began, processor = time.perf_counter(), time.process_time()
        result = work()
        seconds[name].append(time.perf_counter() - began)
        busy[name].append(time.process_time() - processor)
        return result

    encoder.encode_images(paths[:2])  # warm up
    loop(paths[:2])
    for turn in range(repeats):
        with tempfile.TemporaryDirectory() as place:
            out = Path(place) / "index"
            if turn % 2:
                theirs = timed("loop", lambda: loop(paths))
            timed("index", lambda out=out: build_index(encoder, folder, out, batch_size=batch))  # type: ignore[misc]
            if not turn % 2:
                theirs = timed("loop", lambda: loop(paths))
            timed("update", lambda out=out: build_index(encoder, folder, out, batch_size=batch))  # type: ignore[misc]
            with ImageIndex.open(out) as index:
                rows = {path: k for k, path in enumerate(paths)}
                order = [rows[folder / entry.path] for entry in index.entries]
                difference = max(difference, float(np.abs(index.embeddings() - theirs.numpy()[order]).max()))
    return {
        "ratio": median_ratio(seconds["index"], seconds["loop"]),
        "ratio_of_processor_seconds": median_ratio(busy["index"], busy["loop"]),
        "images_a_second": {name: round(len(paths) / float(np.median(seconds[name])), 1) for name in ("index", "loop")},
        "seconds_of_an_update_without_changes": round(float(np.median(seconds["update"])), 3),
        "largest_difference": float(f"{difference:.1e}"),
    }


def measure(photos: int, size: tuple[int, int], batch: int, repeats: int, sides: list[str]) -> dict[str, Any]:
    result: dict[str, Any] = {"photos": photos, "size": list(size), "batch": batch, "threads": torch.get_num_threads()}
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(place)
        paths = photographs(folder, photos, size)
        result["megabytes_a_photo"] = round(sum(path.stat().st_size for path in paths) / len(paths) / 1e6, 2)
        for name, side in (("transformers", transformers_side), ("open_clip", open_clip_side)):
            if name in sides and find_spec(name):
                encoder, loops = side(batch)
                result[name] = compare(encoder, loops["images"], folder, paths, batch, repeats)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=96)
    parser.add_argument("--size", type=int, nargs=2, default=(1280, 960), metavar=("WIDTH", "HEIGHT"))
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sides", nargs="+", choices=["transformers", "open_clip"], default=["transformers", "open_clip"])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    result = measure(arguments.photos, tuple(arguments.size), arguments.batch, arguments.repeats, arguments.sides)
    print(json.dumps(result, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
