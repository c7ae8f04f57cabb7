"""Images for a diagnosis: whatever way they come, one embedding for each pair."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clipmend.backbones.base import DualEncoder
from clipmend.negation.pairs import Pair

__all__ = ["cosines", "image_embeddings"]


def image_embeddings(
    encoder: DualEncoder, images: Any, pairs: Sequence[Pair], used: Sequence[int], notes: list[str], *, progress: bool = False
) -> np.ndarray | None:
    """One embedding for each pair; each distinct image is embedded once.

    Args:
        encoder: embeds images that are not embedded yet.
        images: ``None``; ``[N, D]`` embeddings or a list of images, one for each of ``pairs``; or a folder with the files that
            ``pairs`` name.
        pairs: all ``N`` pairs as the user gave them.
        used: the rows that will be measured; no other image is read.
        notes: a remark is added where pairs name no image.

    Returns:
        float64 ``[N, D]``, NaN for pairs without an image; ``None`` without ``images``.

    Raises:
        ValueError: numbers that do not fit, NaN, no pair names an image, or a text-only encoder given images.
        OSError: a file is not there.
    """
    if images is None:
        return None
    if isinstance(images, torch.Tensor | np.ndarray):
        return _given(encoder, images, len(pairs))
    sources: dict[int, Any] = {}
    if isinstance(images, str | Path):
        folder = Path(images)
        if not folder.is_dir():
            raise NotADirectoryError(f"{folder}: not a folder; give the folder that holds the images which the pairs name")
        sources = {row: _find(folder, pairs[row].image) for row in used if pairs[row].image}
        if not sources:
            raise ValueError("images were given, but no pair names one: the table of pairs needs a column image")
        if len(sources) < len(used):
            notes.append(f"{len(used) - len(sources)} of {len(used)} pairs name no image; alignment leaves them out")
    else:
        listed = list(images)
        if len(listed) != len(pairs):
            raise ValueError(f"{len(listed)} images for {len(pairs)} pairs; give one image for each pair, in the same order")
        sources = {row: listed[row] for row in used}
    place: dict[Any, int] = {}
    distinct: list[Any] = []
    rows = []
    for source in sources.values():
        key = str(source) if isinstance(source, str | Path) else id(source)
        if key not in place:
            place[key] = len(distinct)
            distinct.append(source)
        rows.append(place[key])
    try:
        embedded = encoder.encode_images(distinct, progress=progress).double().cpu().numpy()
    except TypeError as error:  # a text-only encoder says so by TypeError
        raise ValueError(f"alignment with images is not possible: {error}") from error
    result = np.full((len(pairs), embedded.shape[1]), np.nan)
    result[list(sources)] = embedded[rows]
    return result


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Cosine of two ``[N, D]``, row by row, float64; 0 where a row is zero."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    length = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    return np.divide((a * b).sum(-1), length, out=np.zeros(len(a)), where=length > 0)


def _given(encoder: DualEncoder, images: torch.Tensor | np.ndarray, count: int) -> np.ndarray:
    array = images.detach().double().cpu().numpy() if isinstance(images, torch.Tensor) else np.asarray(images, np.float64)
    if array.shape != (count, encoder.embed_dim):
        raise ValueError(
            f"image embeddings of shape {list(array.shape)}; [{count}, {encoder.embed_dim}] was expected: one row for each pair, "
            f"in the joint space of {encoder.name}"
        )
    bad = np.flatnonzero(~np.isfinite(array).all(1))
    if len(bad):
        raise ValueError(f"image embedding {bad[0]} is not finite (NaN or infinite), and {len(bad) - 1} others")
    return array


def _find(folder: Path, name: str) -> Path:
    """The file under the folder; where a table says ``images/1.png`` and the folder is that ``images``, by its bare name."""
    for path in (folder / name, folder / Path(name).name):
        if path.is_file():
            return path
    raise FileNotFoundError(f"{folder / name}: no such image; the pairs name {name!r}")
