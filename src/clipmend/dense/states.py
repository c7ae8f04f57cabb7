"""The best weights of an unfinished training on disk, beside its checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from clipmend.checkpoint import writing

__all__ = ["drop_other_bests", "load_best", "save_best"]


def save_best(folder: Path, weights: dict[str, Tensor], step: int) -> None:
    """Write the weights of ``step``, which are the best so far, beside those that an earlier checkpoint speaks of."""
    path = _best(folder, step)
    part = path.with_suffix(".part")
    try:
        with writing(path):
            save_file({name: tensor.contiguous() for name, tensor in weights.items()}, part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def load_best(folder: Path, step: int) -> dict[str, Tensor]:
    """What :func:`save_best` wrote at ``step``.

    Raises:
        ValueError: it is not there, or damaged.
    """
    try:
        return load_file(_best(folder, step))
    except Exception as error:
        raise ValueError(
            f"{_best(folder, step)} cannot be read ({error}), and the checkpoint beside it needs it; delete {folder} to start again"
        ) from error


def drop_other_bests(folder: Path, step: int) -> None:
    """Delete what no checkpoint speaks of any more."""
    for path in folder.glob("best-*.safetensors"):
        if path != _best(folder, step):
            path.unlink(missing_ok=True)


def _best(folder: Path, step: int) -> Path:
    return folder / f"best-{step}.safetensors"
