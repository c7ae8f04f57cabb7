"""Begin an index: a folder with a manifest and an empty database, or the one that is there, checked against the encoder."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from clipmend.data.images import display_path
from clipmend.search import migrate, store
from clipmend.search.database import Database
from clipmend.search.gallery import check_image_side
from clipmend.search.store import ImageIndexError, Manifest

if TYPE_CHECKING:
    from clipmend.backbones.base import DualEncoder

__all__ = ["check_same_encoder", "create", "start"]


def start(directory: Path, ready: Callable[[], DualEncoder], dtype: str | None) -> Manifest:
    """The manifest of the index in ``directory``; a first, empty one is made where there is none, which takes the encoder."""
    if store.exists(directory):
        manifest = migrate.current(directory)
        if dtype not in (None, "float32", "float16"):
            raise ValueError(f"dtype must be 'float32' or 'float16' (got {dtype!r})")
        if dtype not in (None, manifest.dtype):
            raise ImageIndexError(
                f"the index {display_path(directory)} stores {manifest.dtype}, not {dtype}; make a new one for that"
            )
        return manifest
    from clipmend.negation.mended import Mended

    encoder = ready()
    backbone = encoder.encoder if isinstance(encoder, Mended) else encoder  # the index is the backbone's: its name is what to load
    return create(directory, str(backbone.name), encoder.fingerprint.image, encoder.embed_dim, dtype or "float32")


def create(directory: Path, backbone: str, image_digest: str, embed_dim: int, dtype: str) -> Manifest:
    """A first, empty index; one that another process is just making is taken as it is.

    Raises:
        ImageIndexError: the folder holds something else.
        ValueError: another type than float32 and float16, or a width below 1.
    """
    if dtype not in ("float32", "float16"):
        raise ValueError(f"dtype must be 'float32' or 'float16' (got {dtype!r})")
    if embed_dim < 1:
        raise ValueError(f"embed_dim must be at least 1 (got {embed_dim})")
    directory.mkdir(parents=True, exist_ok=True)
    # What a run that was killed before its manifest was written may have left.
    fresh = (store.LOCK, f"{store.MANIFEST}.tmp", store.DATABASE, f"{store.DATABASE}-journal")
    strangers = [path.name for path in directory.iterdir() if path.name not in fresh]
    if strangers:
        raise ImageIndexError(
            f"{display_path(directory)} is not an image index and not empty (it holds {display_path(strangers[0])}); "
            "give a new folder for the index"
        )
    manifest = Manifest(secrets.token_hex(16), {"name": backbone, "image": image_digest}, embed_dim, dtype)
    with store.locked(directory):
        if not store.exists(directory):
            for name in (store.DATABASE, f"{store.DATABASE}-journal"):
                (directory / name).unlink(missing_ok=True)
            Database(directory, manifest, create=True).close()
            store.write_manifest(directory, manifest)
    return manifest


def check_same_encoder(directory: Path, manifest: Manifest, encoder: DualEncoder) -> None:
    """Refuse an encoder whose image side is not the one that made the index.

    Raises:
        ImageIndexError: the digests of the image sides differ.
    """
    name = f"the index {display_path(directory)}"
    check_image_side(name, manifest.backbone["name"], manifest.backbone["image"], encoder, ImageIndexError)
