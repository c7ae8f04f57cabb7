"""The state of an unfinished fit on disk: written beside and renamed, read back only for the fit that wrote it."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

__all__ = ["CHECKPOINT", "load_checkpoint", "save_checkpoint"]

CHECKPOINT = "checkpoint.pt"
"""Name of the file in a fit's working folder."""


def save_checkpoint(path: Path, identity: str, state: dict[str, Any], weights: dict[str, Any], optimizer: dict[str, Any]) -> None:
    """Write ``state`` with weights and optimiser; a failed write leaves nothing behind."""
    part = path.with_suffix(".part")
    try:
        torch.save({**state, "weights": weights, "optimizer": optimizer, "identity": identity}, part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def load_checkpoint(path: Path, identity: str, keys: Collection[str], device: torch.device) -> dict[str, Any]:
    """What :func:`save_checkpoint` wrote, without the identity.

    Args:
        path: the file.
        identity: of the fit that asks: digest of its configuration and data.
        keys: what the state must hold.
        device: where to put the tensors.

    Raises:
        ValueError: the file is damaged, is no checkpoint, or belongs to another fit.
    """
    try:
        saved = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:
        raise ValueError(f"{path} cannot be read ({error}); delete it to start the training again") from error
    if not isinstance(saved, dict) or not {"identity", "weights", "optimizer", *keys} <= set(saved):
        raise ValueError(f"{path} is no checkpoint of a fit; delete it or choose another directory")
    if saved.pop("identity") != identity:
        raise ValueError(f"{path} belongs to a fit with another configuration or other data; delete it or choose another directory")
    return saved
