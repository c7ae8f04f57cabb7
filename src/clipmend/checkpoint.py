"""The state of an unfinished training on disk: written beside and renamed, read back only for the training that wrote it."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

__all__ = ["CHECKPOINT", "exclusive", "load_checkpoint", "save_checkpoint", "writing"]

CHECKPOINT = "checkpoint.pt"
"""Name of the file in a working folder."""


@contextmanager
def exclusive(directory: Path | None) -> Iterator[None]:
    """Hold a working folder (made if it is not there) for this process: two trainings in one would overwrite each other's states.

    The lock goes with the process, however it ends, and so does a folder in which nothing was written. ``None`` holds nothing.

    Raises:
        ValueError: another process holds it.
        OSError: the folder cannot be made or written to.
    """
    if directory is None:
        yield
        return
    from filelock import FileLock, Timeout

    made = [folder for folder in (directory, *directory.parents) if not folder.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    lock = FileLock(directory / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise ValueError(f"{directory} is in use by another training; wait for it, or choose another folder") from None
    try:
        yield
    finally:
        lock.release()
        (directory / ".lock").unlink(missing_ok=True)
        with suppress(OSError):  # what holds something stays
            for folder in made:
                folder.rmdir()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Around what writes weights to ``path``: a full disk is an ``OSError`` that names it, whatever the library makes of it."""
    from safetensors import SafetensorError

    try:
        yield
    except (RuntimeError, SafetensorError) as error:
        raise OSError(f"{path} cannot be written; is the disk full? ({error})") from error


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write ``state``, which holds the ``identity`` of its training; a failed write leaves the one before.

    Raises:
        OSError: it cannot be written.
    """
    part = path.with_suffix(".part")
    try:
        with writing(path):
            torch.save(state, part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def load_checkpoint(path: Path, identity: str, keys: Collection[str], device: torch.device, *, what: str = "fit") -> dict[str, Any]:
    """What :func:`save_checkpoint` wrote, without the identity.

    Args:
        path: the file.
        identity: of the training that asks: a JSON object of its configuration and the digests of its data and model, so that a
            refusal can say what differs.
        keys: what the state must hold.
        device: where to put the tensors.
        what: kind of training, for messages.

    Raises:
        ValueError: the file is damaged, is no checkpoint, or belongs to another training.
    """
    try:
        saved = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:
        raise ValueError(f"{path} cannot be read ({error}); delete it to start the training again") from error
    if not isinstance(saved, dict) or not {"identity", *keys} <= set(saved):
        raise ValueError(f"{path} is no checkpoint of a {what}; delete it or choose another folder")
    other = saved.pop("identity")
    if other != identity:
        told = "; ".join(_differences(other, identity))
        raise ValueError(
            f"{path} belongs to a {what} of another model, with another configuration or other data{told and f' ({told})'}; delete "
            "the folder, or choose another one"
        )
    return saved


def _differences(saved: Any, asked: str, most: int = 4) -> list[str]:
    """What differs between two identities that are JSON objects: ``"learning_rate: 1e-05 there, 0.001 now"``."""
    try:
        one, two = (dict(_leaves(json.loads(text))) for text in (saved, asked))
    except (TypeError, ValueError):  # an identity of an earlier version is a digest
        return []
    found = []
    for name in sorted({*one, *two}):
        there, now = one.get(name), two.get(name)
        if there != now:
            digests = any(isinstance(value, str) and len(value) >= 32 for value in (there, now))
            found.append(f"other {name}" if digests else f"{name}: {there!r} there, {now!r} now")
    return found[:most] + (["..."] if len(found) > most else [])


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        yield name, value
        return
    for key, inner in value.items():
        yield from _leaves(inner, f"{name}.{key}" if name else str(key))
