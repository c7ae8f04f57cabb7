"""Embeddings for the evaluators: find the image files, embed each image once, prepare each text once, refuse what is not finite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from clipmend.backbones.base import DualEncoder, PreparedTexts
from clipmend.data.images import find_image, not_found
from clipmend.data.video import FRAMES, encode_videos, is_video

__all__ = ["ImageEmbeddings", "OnMissing", "find_image", "image_vectors", "pair_scores", "prepared_texts"]

ImageEmbeddings = Tensor | np.ndarray | Mapping[str, "Tensor | np.ndarray"]
OnMissing = Literal["error", "skip"]


def image_vectors(
    encoder: DualEncoder,
    names: Sequence[str],
    *,
    image_root: str | Path | None = None,
    image_embeddings: ImageEmbeddings | None = None,
    on_missing: OnMissing = "error",
    batch_size: int = 32,
    frames: int = FRAMES,
    progress: bool = False,
) -> tuple[Tensor, list[int]]:
    """Normalised embeddings of distinct images, or of videos (told by the ending of the file name).

    Args:
        encoder: embeds the images that are not given as vectors.
        names: distinct image names, as the table writes them.
        image_root: folder that the names start from (default: the working directory).
        image_embeddings: ready vectors: ``[len(names), D]`` in the order of ``names``, or a mapping from name to ``[D]``.
        on_missing: ``"error"``, or ``"skip"`` to leave out images without a file (or without a vector in the mapping).
        batch_size: images a forward pass.
        frames: frames a video is averaged over (see :mod:`clipmend.data.video`).
        progress: show a progress bar on a terminal.

    Returns:
        float32 ``[U, D]`` of the images kept, and their positions within ``names``.

    Raises:
        FileNotFoundError: images without a file, unless they are skipped.
        ValueError: no image left, a wrong number of vectors, or a vector that is not finite (the image is named).
    """
    if image_embeddings is None:
        root = Path(image_root) if image_root is not None else Path()
        found = [find_image(name, root) for name in names]
        kept = [i for i, path in enumerate(found) if path is not None]
        _missing(names, kept, on_missing, not_found(root))
        vectors = _encoded(encoder, [path for path in found if path is not None], batch_size, frames, progress)
    elif isinstance(image_embeddings, Mapping):
        kept = [i for i, name in enumerate(names) if name in image_embeddings]
        _missing(names, kept, on_missing, "not found among the image embeddings")
        vectors = torch.stack([torch.as_tensor(image_embeddings[names[i]]) for i in kept])
    else:
        vectors = torch.as_tensor(image_embeddings)
        if vectors.ndim != 2 or len(vectors) != len(names):
            raise ValueError(f"image embeddings of shape {tuple(vectors.shape)} for {len(names)} images: give [{len(names)}, D]")
        kept = list(range(len(names)))
    vectors = vectors.to(torch.float32)
    _finite(vectors, [names[i] for i in kept], "image")
    return torch.nn.functional.normalize(vectors, dim=-1), kept


def _encoded(encoder: DualEncoder, paths: Sequence[Path], batch_size: int, frames: int, progress: bool) -> Tensor:
    """Unit embeddings of files in their order, images and videos."""
    videos = [k for k, path in enumerate(paths) if is_video(path)]
    if not videos:
        return encoder.encode_images(paths, batch_size=batch_size, progress=progress)
    vectors = torch.zeros(len(paths), encoder.embed_dim)
    vectors[videos] = encode_videos(
        encoder, [paths[k] for k in videos], frames=frames, batch_size=batch_size, progress=progress
    ).cpu()
    images = [k for k, path in enumerate(paths) if not is_video(path)]
    if images:
        parts = encoder.encode_images([paths[k] for k in images], batch_size=batch_size, progress=progress)
        vectors[images] = parts.float().cpu()
    return vectors


def prepared_texts(encoder: DualEncoder, texts: Sequence[str], *, batch_size: int = 64, progress: bool = False) -> PreparedTexts:
    """``encoder.prepare_texts`` of distinct texts, refusing an embedding that is not finite (the text is named)."""
    prepared = encoder.prepare_texts(texts, batch_size=batch_size, progress=progress)
    _finite(prepared.embedding, texts, "text")
    return prepared


def pair_scores(
    encoder: DualEncoder,
    images: Tensor,
    texts: PreparedTexts,
    pairs: Tensor,
    *,
    score_correction: bool = True,
    block: int = 16384,
) -> Tensor:
    """Scores ``[P]`` of (image, text) pairs, in blocks.

    Args:
        encoder: its ``score`` is used, so that a mended encoder's correction counts.
        images: ``[N, D]`` normalised.
        texts: ``M`` prepared texts.
        pairs: int64 ``[P, 2]`` of (image, text) positions.
        score_correction: False scores by the cosine of the embeddings alone.
        block: pairs scored at once.
    """
    scores = torch.empty(len(pairs), dtype=torch.float32)
    with torch.inference_mode():
        for start in range(0, len(pairs), block):
            chunk = pairs[start : start + block]
            if score_correction:
                part = encoder.score(images, texts, pairs=chunk)
            else:
                part = (images[chunk[:, 0]] * texts.embedding[chunk[:, 1]].to(images)).sum(-1)
            scores[start : start + len(chunk)] = part.float().cpu()
    return scores


def distinct(values: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """Distinct values in the order of their first appearance, and the position of each value among them."""
    position: dict[str, int] = {}
    index = np.fromiter((position.setdefault(v, len(position)) for v in values), np.int64, len(values))
    return list(position), index


def _missing(names: Sequence[str], kept: Sequence[int], on_missing: OnMissing, where: str) -> None:
    if on_missing not in ("error", "skip"):
        raise ValueError(f"on_missing is 'error' or 'skip', not {on_missing!r}")
    if len(kept) == len(names):
        return
    present = set(kept)
    absent = [name for i, name in enumerate(names) if i not in present]
    named = f"{', '.join(absent[:3])}{', ...' if len(absent) > 3 else ''}"
    message = f"{len(absent)} of {len(names)} images ({named}) {where}"
    if on_missing == "error" or not kept:
        raise FileNotFoundError(message)


def _finite(vectors: Tensor, names: Sequence[str], what: str) -> None:
    bad = (~torch.isfinite(vectors).all(-1)).nonzero().flatten().tolist()
    if bad:
        raise ValueError(f"the embedding of {what} {names[bad[0]]!r} is not finite ({len(bad)} of {len(names)} {what}s are not)")
