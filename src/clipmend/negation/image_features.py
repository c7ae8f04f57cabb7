"""Image embeddings once: computed in units of work, kept in a folder, recognised by the content of the images."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clipmend.backbones.base import DualEncoder
from clipmend.backbones.progress import track
from clipmend.negation.units import Arrays, UnitFolder, cut, manifest_of

__all__ = ["extract_image_features"]

WHAT = "image features"
FORMAT = 1  # raised when the arrays of a unit change their meaning


def extract_image_features(
    encoder: DualEncoder,
    images: Sequence[Any],
    directory: str | os.PathLike[str] | None = None,
    *,
    batch_size: int = 32,
    shard_size: int = 2048,
    progress: bool = False,
) -> np.ndarray:
    """Embed every image once.

    Args:
        encoder: the backbone.
        images: ``N`` paths or PIL images.
        directory: keep the embeddings here and go on from here after a kill; recognised by the content of the images.
        batch_size: images a forward pass (a folder that exists keeps its own).
        shard_size: images a unit of work (likewise).
        progress: show a progress bar on a terminal.

    Returns:
        float32 ``[N, D]``, L2-normalised.

    Raises:
        ValueError: an image that cannot be read, an embedding that is not finite, or a ``directory`` of other images or another
            backbone.
    """

    def make(first: int, last: int, step: int) -> Arrays:
        parts = [encoder.encode_images(images[k : min(k + step, last)], batch_size=step) for k in range(first, last, step)]
        rows = torch.cat(parts).float().cpu().numpy()
        bad = np.flatnonzero(~np.isfinite(rows).all(1))
        if len(bad):
            raise ValueError(f"the embedding of image {first + bad[0]} ({_name(images[first + bad[0]])}) is not finite")
        return {"embedding": rows}

    units = cut(len(images), shard_size)
    if directory is None:
        made = [make(unit["first"], unit["last"], batch_size) for unit in track(units, len(units), WHAT, progress)]
    else:
        identity = {
            "format": FORMAT,
            "kind": WHAT,
            "images": len(images),
            "images_sha256": _images_digest(images),
            "backbone": {"image": encoder.fingerprint.image},
            "embed_dim": encoder.embed_dim,
        }
        manifest = manifest_of(encoder, identity, batch_size, units)
        folder = UnitFolder(directory, manifest, WHAT)
        folder.run(lambda first, last: make(first, last, folder.manifest["batch_size"]), progress=progress)
        made = folder.read()
    if not made:
        return np.zeros((0, encoder.embed_dim), np.float32)
    return np.concatenate([unit["embedding"] for unit in made])


def _images_digest(images: Sequence[Any]) -> str:
    """Digest of the images' contents: a file's bytes, or the mode, size and pixels of a PIL image."""
    digest = hashlib.sha256()
    for row, image in enumerate(images):
        if isinstance(image, str | os.PathLike):
            try:
                content = Path(image).read_bytes()
            except OSError as error:
                raise ValueError(f"image {row}, {_name(image)}, cannot be read: {error.strerror or error}") from error
        elif hasattr(image, "tobytes"):
            content = f"{image.mode} {image.size} ".encode() + image.tobytes()
        else:
            raise ValueError(f"image {row} is {type(image).__name__}: a path or a PIL image is needed")
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()


def _name(image: Any) -> str:
    return str(image) if isinstance(image, str | os.PathLike) else type(image).__name__
