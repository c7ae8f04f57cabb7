"""The state of an unfinished training on disk: written beside and renamed, read back only by the training that wrote it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

__all__ = ["CHECKPOINT", "drop_other_bests", "load_best", "load_state", "save_best", "save_state"]

CHECKPOINT = "checkpoint.pt"
_KEYS = {"identity", "step", "best_step", "best_score", "history", "weights", "optimizer", "scaler"}


def save_state(folder: Path, state: dict[str, Any]) -> None:
    """Write ``state``; a write that fails leaves the one before."""
    part = folder / f"{CHECKPOINT}.part"
    try:
        torch.save(state, part)
        os.replace(part, folder / CHECKPOINT)
    finally:
        part.unlink(missing_ok=True)


def load_state(folder: Path, identity: str) -> dict[str, Any] | None:
    """What :func:`save_state` wrote, on the CPU; ``None`` where there is none.

    Args:
        folder: the working folder.
        identity: of the training that asks: digest of its configuration, data and model.

    Raises:
        ValueError: the file is damaged, is no checkpoint, or belongs to another training.
    """
    path = folder / CHECKPOINT
    if not path.exists():
        return None
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(f"{path} cannot be read ({error}); delete it to start the training again") from error
    if not isinstance(saved, dict) or not saved.keys() >= _KEYS:
        raise ValueError(f"{path} is no checkpoint of a fine-tuning; delete it or choose another working folder")
    if saved["identity"] != identity:
        raise ValueError(
            f"{path} belongs to a fine-tuning of another model, with another configuration or on other data; delete it or choose "
            "another working folder"
        )
    return saved


def save_best(folder: Path, weights: dict[str, Tensor], step: int) -> None:
    """Write the weights of ``step``, which are the best so far, beside those that an earlier checkpoint speaks of."""
    path = _best(folder, step)
    part = path.with_suffix(".part")
    try:
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
