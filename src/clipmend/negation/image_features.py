"""Image embeddings once: computed in units of work, kept in a folder, recognised by the content of the images.

Files are read, decoded and prepared in threads while the model works on the batch before. Batches are fixed by the manifest: where
an image of one is left out, that batch is smaller, and the others are as they were.
"""

from __future__ import annotations

import hashlib
import io
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from clipmend.backbones.base import DualEncoder
from clipmend.backbones.progress import track
from clipmend.data.ahead import read_ahead
from clipmend.data.images import DEFAULT_MAX_PIXELS, ImageError, open_image
from clipmend.negation.units import Arrays, UnitFolder, cut, manifest_of, read_manifest, read_units

__all__ = ["SkippedImagesWarning", "content_digest", "extract_image_features", "skipped_images"]

WHAT = "image features"
FORMAT = 1  # raised when the arrays of a unit change their meaning
DRAFT = 2  # with draft, a JPEG is decoded at no less than this many times the encoder's input size

Prepared = Tensor | Image.Image


class SkippedImagesWarning(UserWarning):
    """Images were left out, since they cannot be used."""


def extract_image_features(
    encoder: DualEncoder,
    images: Sequence[Any],
    directory: str | os.PathLike[str] | None = None,
    *,
    batch_size: int = 32,
    shard_size: int = 2048,
    on_error: Literal["raise", "skip"] = "raise",
    digests: Sequence[str] | None = None,
    max_pixels: int | None = DEFAULT_MAX_PIXELS,
    draft: bool = False,
    workers: int | None = None,
    progress: bool = False,
) -> np.ndarray:
    """Embed every image once.

    Args:
        encoder: the backbone.
        images: ``N`` paths, encoded images (``bytes``) or PIL images; any sequence that gives them by number.
        directory: keep the embeddings here and go on from here after a kill; recognised by the content of the images.
        batch_size: images a forward pass (a folder that exists keeps its own).
        shard_size: images a unit of work (likewise).
        on_error: ``"raise"``, or ``"skip"`` images that cannot be decoded or embedded: their rows are NaN, and
            :func:`skipped_images` tells which they are, and why. A file that cannot be read at all is an error in either case.
        digests: SHA-256 of each image's content (:func:`content_digest`), where it is known already.
        max_pixels: larger images count as unusable (see :func:`clipmend.data.images.open_image`).
        draft: decode large JPEGs at 1/2, 1/4 or 1/8 of their size, but no smaller than twice the encoder's input: several times
            faster, for embeddings that differ a little. Kept in the manifest, so that the two kinds are never mixed.
        workers: threads that read and decode (default: one a core, at most 8); no matter for the result.
        progress: show a progress bar on a terminal.

    Returns:
        float32 ``[N, D]``, L2-normalised.

    Raises:
        ValueError: an image that cannot be used (with ``on_error="raise"``, also where an earlier run skipped it), a file that
            changed since its digest was taken, or a ``directory`` of other images or another backbone.

    Warns:
        SkippedImagesWarning: images were skipped; how many, and the first.
    """
    if on_error not in ("raise", "skip"):
        raise ValueError(f"on_error is {on_error!r}; it must be 'raise' or 'skip'")
    if digests is None and directory is not None:
        digests = list(read_ahead(lambda row: content_digest(images[row], row), range(len(images)), workers))
    reading = _Reading(encoder, images, digests, max_pixels, draft, workers)

    def make(first: int, last: int, step: int) -> Arrays:
        return reading.unit(first, last, step, skip=on_error == "skip")

    units = cut(len(images), shard_size)
    if directory is None:
        made = [make(unit["first"], unit["last"], batch_size) for unit in track(units, len(units), WHAT, progress)]
    else:
        assert digests is not None
        identity = {
            "format": FORMAT,
            "kind": WHAT,
            "images": len(images),
            "images_sha256": hashlib.sha256(b"".join(map(bytes.fromhex, digests))).hexdigest(),
            "backbone": {"image": encoder.fingerprint.image},
            "embed_dim": encoder.embed_dim,
        }
        # Only where they change what comes out, so that the ordinary manifest stays as it is.
        identity |= {"draft": DRAFT} if draft else {}
        identity |= {"max_pixels": max_pixels} if max_pixels != DEFAULT_MAX_PIXELS else {}
        manifest = manifest_of(encoder, identity, batch_size, units)
        folder = UnitFolder(directory, manifest, WHAT)
        folder.run(lambda first, last: make(first, last, folder.manifest["batch_size"]), progress=progress)
        units, made = folder.manifest["units"], folder.read()
    skipped = _skipped(units, made)
    if skipped:
        row, reason = skipped[0]
        first = f"image {row} ({_name(images[row])}): {reason}"
        if on_error == "raise":
            raise ValueError(f"{directory} holds {len(images)} images less {len(skipped)} that were skipped: {first}; leave it out")
        warnings.warn(SkippedImagesWarning(f"{len(skipped)} of {len(images)} images skipped; the first: {first}"), stacklevel=2)
    if not made:
        return np.zeros((0, encoder.embed_dim), np.float32)
    return np.concatenate([unit["embedding"] for unit in made])


def skipped_images(directory: str | os.PathLike[str]) -> list[tuple[int, str]]:
    """Row and reason of every image that the finished features in ``directory`` hold no embedding of.

    Raises:
        ValueError: no finished image features there.
    """
    path = Path(directory)
    manifest = read_manifest(path, WHAT)
    if manifest is None:
        raise ValueError(f"{path} holds no {WHAT}")
    return _skipped(manifest["units"], read_units(path, manifest, WHAT))


def content_digest(image: Any, row: int = 0) -> str:
    """SHA-256 of an image's content: a file's bytes, encoded bytes, or the mode, size and pixels of a PIL image.

    Raises:
        ValueError: a file that cannot be read (named, with ``row``), or no image at all.
    """
    return hashlib.sha256(_content(image, row)).hexdigest()


def _content(image: Any, row: int) -> bytes:
    if isinstance(image, bytes):
        return image
    if isinstance(image, str | os.PathLike):
        try:
            return Path(image).read_bytes()
        except OSError as error:
            raise ValueError(f"image {row}, {_name(image)}, cannot be read: {error.strerror or error}") from error
    if isinstance(image, Image.Image):
        return f"{image.mode} {image.size} ".encode() + image.tobytes()
    raise ValueError(f"image {row} is {type(image).__name__}: a path, encoded bytes or a PIL image is needed")


class _Reading:
    """How rows become embeddings; see :func:`extract_image_features`."""

    def __init__(
        self,
        encoder: DualEncoder,
        images: Sequence[Any],
        digests: Sequence[str] | None,
        max_pixels: int | None,
        draft: bool,
        workers: int | None,
    ) -> None:
        self.encoder, self.images, self.digests = encoder, images, digests
        self.max_pixels, self.draft, self.workers = max_pixels, draft, workers

    @cached_property
    def prepare(self) -> Callable[[Image.Image], Tensor] | None:
        """What makes pixels of one image, in any thread; ``None`` for encoders that prepare whole batches only."""
        prepare = getattr(self.encoder, "prepare_image", None)
        return prepare if prepare is not None and prepare(Image.new("RGB", (64, 64))) is not None else None

    @cached_property
    def draft_size(self) -> int | None:
        """Least width and height that a JPEG is decoded at; ``None`` for its own."""
        if not self.draft:
            return None
        if self.prepare is None:
            raise ValueError(f"{self.encoder.name} does not say at what size it takes images, so draft cannot be used with it")
        return DRAFT * max(self.prepare(Image.new("RGB", (64, 64))).shape[-2:])

    def unit(self, first: int, last: int, step: int, *, skip: bool) -> Arrays:
        """Arrays of the rows ``first..last - 1``: ``embedding`` and, only where some were skipped, ``skipped`` and ``reasons``."""
        rows = np.full((last - first, self.encoder.embed_dim), np.nan, np.float32)
        reasons: dict[int, str] = {}
        for batch in self._batches(first, last, step):
            reasons |= {row: prepared for row, prepared in batch if isinstance(prepared, str)}
            for row, vector in self._embed([item for item in batch if not isinstance(item[1], str)], skip):
                if isinstance(vector, str):
                    reasons[row] = vector
                elif not np.isfinite(vector).all():
                    reasons[row] = "its embedding is not finite (NaN or infinity)"
                else:
                    rows[row - first] = vector
            if reasons and not skip:
                row = min(reasons)
                raise ValueError(f"image {row} ({_name(self.images[row])}): {reasons[row]}")
        if not reasons:
            return {"embedding": rows}
        numbers = sorted(reasons)
        skipped = np.array(numbers, np.int64) - first
        return {"embedding": rows, "skipped": skipped, "reasons": np.array([reasons[row] for row in numbers])}

    def _batches(self, first: int, last: int, step: int) -> Iterator[list[tuple[int, Prepared | str]]]:
        """The batches that the manifest fixes, each image of them prepared, or in words why it cannot be."""
        # Prepared pixels are small, whole pictures are not: of those a few are enough to keep the threads busy.
        depth = None if self.prepare is None else 2 * step
        _ = self.draft_size  # found out here, not in several threads at once
        items = ((row, self.images[row]) for row in range(first, last))
        batch: list[tuple[int, Prepared | str]] = []
        for row, prepared in read_ahead(lambda item: self._read(*item), items, self.workers, depth):
            batch.append((row, prepared))
            if len(batch) == step or row == last - 1:
                yield batch
                batch = []

    def _read(self, row: int, image: Any) -> tuple[int, Prepared | str]:
        source = image
        if not isinstance(image, Image.Image):
            content = _content(image, row)
            if self.digests is not None and hashlib.sha256(content).hexdigest() != self.digests[row]:
                raise ValueError(f"image {row}, {_name(image)}, changed while its features were made; run the same command again")
            if not content:
                return row, "is empty (zero bytes); fetch or export it again"
            source = io.BytesIO(content)
        try:
            opened = open_image(source, max_pixels=self.max_pixels, draft_size=self.draft_size)
        except ImageError as error:
            return row, error.reason
        if self.prepare is None:
            return row, opened
        try:
            return row, self.prepare(opened)
        except (ValueError, OSError) as error:
            return row, f"the encoder refused it ({error})"

    def _embed(self, usable: list[tuple[int, Any]], skip: bool) -> Iterator[tuple[int, np.ndarray | str]]:
        if not usable:
            return
        if isinstance(usable[0][1], Tensor):
            pixels = torch.stack([prepared for _, prepared in usable])
            vectors = self.encoder.encode_prepared(pixels)  # type: ignore[attr-defined]
        else:
            try:
                vectors = self.encoder.encode_images([prepared for _, prepared in usable], batch_size=len(usable))
            except TypeError:  # an encoder without an image side
                raise
            except (ValueError, OSError) as error:  # what an encoder raises over one odd image
                if not skip:
                    raise
                if len(usable) > 1:
                    for item in usable:
                        yield from self._embed([item], skip)
                else:
                    yield usable[0][0], f"the encoder refused it ({error})"
                return
        for (row, _), vector in zip(usable, vectors.float().cpu().numpy(), strict=True):
            yield row, vector


def _skipped(units: Sequence[dict[str, Any]], made: Sequence[Arrays]) -> list[tuple[int, str]]:
    return [
        (unit["first"] + int(row), str(reason))
        for unit, arrays in zip(units, made, strict=True)
        for row, reason in zip(arrays.get("skipped", ()), arrays.get("reasons", ()), strict=True)
    ]


def _name(image: Any) -> str:
    return str(image) if isinstance(image, str | os.PathLike) else type(image).__name__
