"""How far generated images are from drawn ones, in the embedding space of an encoder: Frechet and kernel distance."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["KernelDistance", "frechet_distance", "kernel_distance"]

Floats = NDArray[np.float64]


def frechet_distance(real: ArrayLike, generated: ArrayLike) -> float:
    """Frechet distance of two sets of embeddings, each taken as normal (Heusel et al., "GANs trained by a two time-scale update
    rule", NeurIPS 2017).

    ``|mean - mean'|^2 + trace(C + C' - 2 (C C')^(1/2))``. It falls as sets grow: compare sets of one size alone.

    Args:
        real, generated: ``[N, D]`` and ``[M, D]``.

    Raises:
        ValueError: fewer than two embeddings, other sizes, or one that is not finite.
    """
    a, b = _checked(real, generated)
    one, two = np.cov(a, rowvar=False).reshape(a.shape[1], -1), np.cov(b, rowvar=False).reshape(a.shape[1], -1)
    # The trace of the root of C C' is that of the root of the symmetric C^(1/2) C' C^(1/2), which needs no complex numbers.
    values, vectors = np.linalg.eigh(one)
    root = (vectors * np.sqrt(values.clip(min=0))) @ vectors.T
    shared = np.sqrt(np.linalg.eigvalsh(root @ two @ root).clip(min=0)).sum()
    return float(max(0.0, np.square(a.mean(0) - b.mean(0)).sum() + np.trace(one) + np.trace(two) - 2 * shared))


@dataclass(frozen=True)
class KernelDistance:
    """Mean over blocks, and its standard error, ``None`` of a single block; an unbiased estimate, so that it may fall below 0."""

    value: float
    error: float | None


def kernel_distance(real: ArrayLike, generated: ArrayLike, *, size: int = 200, seed: int = 0) -> KernelDistance:
    """Squared maximum mean discrepancy with the kernel ``(x y / D + 1)^3`` of embeddings of norm ``sqrt(D)`` (Binkowski et al.,
    "Demystifying MMD GANs", ICLR 2018), unbiased: sets of any size compare.

    Either set is shuffled and cut into blocks that share no embedding, so that what the blocks differ by is the error of their
    mean.

    Args:
        real, generated: ``[N, D]`` and ``[M, D]``; each embedding is scaled to norm ``sqrt(D)``.
        size: embeddings of each set in a block; fewer where that would leave less than two blocks of two.
        seed: shuffles them.

    Raises:
        ValueError: fewer than two embeddings, a size below 2, embeddings of other sizes, or one that is not finite.
    """
    if size < 2:
        raise ValueError(f"size must be at least 2, not {size}")
    a, b = (x / np.linalg.norm(x, axis=1, keepdims=True).clip(min=1e-12) for x in _checked(real, generated))
    fewest = min(len(a), len(b))
    size = min(size, max(2, fewest // 2))
    rng = np.random.default_rng(seed)
    a, b = a[rng.permutation(len(a))], b[rng.permutation(len(b))]
    found = []
    for start in range(0, fewest - size + 1, size):
        x, y = a[start : start + size], b[start : start + size]
        within = [_kernel(z, z) for z in (x, y)]
        apart = sum((k.sum() - np.trace(k)) / (size * (size - 1)) for k in within)
        found.append(apart - 2 * _kernel(x, y).mean())
    error = float(np.std(found, ddof=1) / math.sqrt(len(found))) if len(found) > 1 else None
    return KernelDistance(float(np.mean(found)), error)


def _kernel(x: Floats, y: Floats) -> Floats:
    return (x @ y.T + 1) ** 3


def _checked(real: ArrayLike, generated: ArrayLike) -> tuple[Floats, Floats]:
    a, b = np.asarray(real, np.float64), np.asarray(generated, np.float64)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1] or min(len(a), len(b)) < 2:
        raise ValueError(f"expected two sets of at least two embeddings of one size, not {a.shape} and {b.shape}")
    for name, x in (("drawn", a), ("generated", b)):
        if not np.isfinite(x).all():
            raise ValueError(f"the embedding of {name} image {int(np.flatnonzero(~np.isfinite(x).all(1))[0])} is not finite")
    return a, b
