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
    """Mean over blocks, and its standard error; an unbiased estimate, so that it may fall below 0."""

    value: float
    error: float


def kernel_distance(real: ArrayLike, generated: ArrayLike, *, blocks: int = 20, size: int = 200, seed: int = 0) -> KernelDistance:
    """Squared maximum mean discrepancy with the kernel ``(x y / D + 1)^3`` of embeddings of norm ``sqrt(D)`` (Binkowski et al.,
    "Demystifying MMD GANs", ICLR 2018), unbiased: sets of any size compare.

    Args:
        real, generated: ``[N, D]`` and ``[M, D]``; each embedding is scaled to norm ``sqrt(D)``.
        blocks: random subsets to average over.
        size: embeddings of each set in one, at most all.
        seed: draws them.

    Raises:
        ValueError: fewer than two embeddings or blocks, other sizes, or an embedding that is not finite.
    """
    if blocks < 2 or size < 2:
        raise ValueError(f"blocks and size must be at least 2, not {blocks} and {size}")
    a, b = (x / np.linalg.norm(x, axis=1, keepdims=True).clip(min=1e-12) for x in _checked(real, generated))
    size = min(size, len(a), len(b))
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(blocks):
        x, y = a[rng.choice(len(a), size, replace=False)], b[rng.choice(len(b), size, replace=False)]
        within = [_kernel(z, z) for z in (x, y)]
        apart = sum((k.sum() - np.trace(k)) / (size * (size - 1)) for k in within)
        found.append(apart - 2 * _kernel(x, y).mean())
    return KernelDistance(float(np.mean(found)), float(np.std(found, ddof=1) / math.sqrt(blocks)))


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
