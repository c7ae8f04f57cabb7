"""A tiny CLIP and a small data set, as folders, and a way to compare two folders byte for byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from backbones import tiny

POISONED = {"07.png": "truncated", "19.jpg": "not an image", "23.png": "empty"}
SIZES = {"image_batch": 4, "image_unit": 8, "text_batch": 8, "text_unit": 16}
LAYERS = {"peak": 2, "anchor": 1}


def model(folder: Path) -> str:
    """A CLIP of three text blocks with random weights, saved."""
    tokenizer = tiny.clip_tokenizer()
    return tiny.saved(folder, tiny.clip_model(tokenizer), tokenizer, tiny.clip_processor())


def pictures(folder: Path, count: int = 40, poisoned: bool = True) -> Path:
    """Pictures with two captions beside each; three of them cannot be read."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for k in range(count):
        path = folder / (f"{k:02d}.jpg" if k % 4 == 3 else f"{k:02d}.png")
        Image.fromarray(rng.integers(0, 256, (30 + k, 80 - k, 3), dtype=np.uint8)).save(path)
        path.with_suffix(".txt").write_text(f"a dog of the number{' x' * (k % 11)}\nno cat {k % 7}\n")
    if poisoned:
        (folder / "07.jpg").rename(folder / "07.png")  # a JPEG under another name is no fault ...
        (folder / "07.png").write_bytes((folder / "07.png").read_bytes()[:200])  # ... half of one is
        (folder / "19.jpg").write_text("<html>404</html>")
        (folder / "23.jpg").rename(folder / "23.png")
        (folder / "23.png").write_bytes(b"")
    return folder


def tree(folder: Path) -> dict[str, bytes]:
    """Every file under a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def units(folder: Path) -> int:
    """Finished units in a folder of features."""
    return sum(1 for path in folder.glob("features/*/unit-*") if ".tmp-" not in path.name)
