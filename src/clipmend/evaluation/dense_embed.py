"""Embeddings of dense data: images that are there, each once; captions, equal ones once, and how many were cut."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clipmend.backbones.base import DualEncoder, LongTextsWarning
from clipmend.data.dense.collection import DenseData
from clipmend.evaluation.embed import OnMissing, distinct

__all__ = ["CaptionVectors", "embed_captions", "embed_images", "present"]


def present(data: DenseData, on_missing: OnMissing) -> tuple[DenseData, list[int]]:
    """The data whose images have files, with a note of how many have none, and the positions of the images kept.

    Raises:
        FileNotFoundError: images missing, unless they are skipped.
        ValueError: no image with a caption is left.
    """
    if on_missing not in ("error", "skip"):
        raise ValueError(f"on_missing is 'error' or 'skip', not {on_missing!r}")
    missing = data.missing()
    keep = sorted(set(range(len(data.images))) - set(missing))
    if missing and on_missing == "error":
        raise data.missing_error(missing)
    if missing:
        note = f"{len(missing):,} of {len(data.images):,} images have no file: left out with their captions"
        data = data.without(missing)
        data.notes.append(note)
    if not data.captions:
        raise ValueError(f"{data.name}: no image with a caption is left")
    return data, keep


def embed_images(encoder: DualEncoder, data: DenseData, *, batch_size: int = 32, progress: bool = False) -> Tensor:
    """``[N, D]`` of the images; one that is not finite is an error that names its file."""
    vectors = encoder.encode_images(data.images, batch_size=batch_size, progress=progress)
    _finite(vectors, "image", [str(path) for path in data.images])
    return vectors


@dataclass(frozen=True)
class CaptionVectors:
    """``vectors`` ``[M, D]`` of captions; how many of the ``distinct`` ones the encoder cut (``truncated``)."""

    vectors: Tensor
    truncated: int
    distinct: int


def embed_captions(
    encoder: DualEncoder, captions: Sequence[str], where: Sequence[str], *, batch_size: int = 64, progress: bool = False
) -> CaptionVectors:
    """Embed captions, equal ones once; one whose embedding is not finite is an error that names its row (``where``)."""
    unique, text_of = distinct(captions)
    embedded, truncated = _counting(lambda: encoder.encode_texts(unique, batch_size=batch_size, progress=progress))
    rows = {int(text): row for row, text in reversed(list(enumerate(text_of.tolist())))}
    _finite(embedded, "caption of", [where[rows[text]] for text in range(len(unique))])
    return CaptionVectors(embedded[torch.from_numpy(text_of)], truncated, len(unique))


def _counting(encode: Callable[[], Tensor]) -> tuple[Tensor, int]:
    """What ``encode`` gives, and how many texts it cut; its other warnings are passed on."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        embedded = encode()
    count = 0
    for entry in caught:
        if isinstance(entry.message, LongTextsWarning):
            count += entry.message.count
        else:
            warnings.warn_explicit(entry.message, entry.category, entry.filename, entry.lineno)
    return embedded, count


def _finite(vectors: Tensor, what: str, names: Sequence[str]) -> None:
    bad = (~torch.isfinite(vectors).all(-1)).nonzero().flatten().tolist()
    if bad:
        raise ValueError(f"the embedding of the {what} {names[bad[0]]} is not finite ({len(bad)} of {len(names)} are not)")
