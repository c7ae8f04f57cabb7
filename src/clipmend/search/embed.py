"""Image files to vectors, in batches that fit in memory: read ahead in threads, embed, report what cannot be read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from PIL import Image

from clipmend.data.ahead import read_ahead
from clipmend.data.images import DEFAULT_MAX_PIXELS, ImageError, open_image

if TYPE_CHECKING:
    from clipmend.backbones.base import DualEncoder

__all__ = ["EmbeddedFiles", "embed_files", "embed_stream", "progress_bar", "read_ahead"]

K = TypeVar("K", bound=Hashable)

BATCH_PIXELS = 64_000_000
"""A batch ends early once its images hold this many pixels (192 MB as RGB), so that a folder of large photos fits in memory."""


@dataclass(frozen=True)
class EmbeddedFiles:
    """Vectors of the files that could be read.

    Attributes:
        vectors: float32 ``[n, D]``.
        kept: positions of the ``n`` files within those given, ascending.
        skipped: position and reason of each of the others.
    """

    vectors: np.ndarray
    kept: list[int]
    skipped: list[tuple[int, str]]


def embed_files(
    encoder: DualEncoder,
    files: Sequence[str | Path],
    *,
    batch_size: int = 32,
    max_pixels: int | None = DEFAULT_MAX_PIXELS,
    normalize: bool = True,
    workers: int | None = None,
    progress: bool = False,
) -> EmbeddedFiles:
    """Embed image files, leaving out, with a reason, those that cannot be read.

    Args:
        encoder: any encoder with an image side.
        files: paths.
        batch_size: most images a forward pass.
        max_pixels: see :func:`clipmend.data.images.open_image`.
        normalize: L2-normalise the vectors.
        workers: threads that read and decode (default: one a core, at most 8).
        progress: show a bar with the rate on a terminal.
    """

    def read(position: int) -> tuple[int, Image.Image | ImageError]:
        try:
            return position, open_image(files[position], max_pixels=max_pixels)
        except ImageError as error:
            return position, error

    vectors = np.zeros((len(files), encoder.embed_dim), np.float32)
    kept: list[int] = []
    skipped: list[tuple[int, str]] = []
    with progress_bar("Embedding images", len(files), progress) as advance:

        def readable() -> Iterator[tuple[int, Image.Image]]:
            for position, image in read_ahead(read, range(len(files)), workers):
                advance()
                if isinstance(image, ImageError):
                    skipped.append((position, image.reason))
                else:
                    yield position, image

        for position, _, vector in embed_stream(encoder, readable(), batch_size, normalize=normalize):
            if isinstance(vector, str):
                skipped.append((position, vector))
            else:
                vectors[len(kept)] = vector
                kept.append(position)
    return EmbeddedFiles(vectors[: len(kept)], kept, sorted(skipped))


def embed_stream(
    encoder: DualEncoder, images: Iterable[tuple[K, Image.Image]], batch_size: int, *, normalize: bool = True
) -> Iterator[tuple[K, tuple[int, int], np.ndarray | str]]:
    """Embed a stream of keyed images, batch by batch.

    Yields:
        For each image, in order: its key, its size, and its float32 vector ``[D]``, or in words why it has none.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1 (got {batch_size})")
    batch: list[tuple[K, Image.Image]] = []
    pixels = 0
    for key, image in images:
        batch.append((key, image))
        pixels += image.width * image.height
        if len(batch) == batch_size or pixels >= BATCH_PIXELS:
            yield from _embed_batch(encoder, batch, batch_size, normalize)
            batch, pixels = [], 0
    if batch:
        yield from _embed_batch(encoder, batch, batch_size, normalize)


def _embed_batch(
    encoder: DualEncoder, batch: list[tuple[K, Image.Image]], batch_size: int, normalize: bool
) -> list[tuple[K, tuple[int, int], np.ndarray | str]]:
    results: list[np.ndarray | str]
    try:
        vectors = encoder.encode_images([image for _, image in batch], batch_size=batch_size, normalize=normalize)
    except TypeError:  # the wrong kind of encoder, also where that is a ValueError too
        raise
    except (ValueError, OSError) as error:  # what an encoder raises over one odd image; all else is not the image's fault
        if len(batch) > 1:
            return [result for item in batch for result in _embed_batch(encoder, [item], batch_size, normalize)]
        results = [f"the encoder refused it ({error})"]
    else:
        table = np.asarray(vectors, np.float32)
        if table.shape != (len(batch), encoder.embed_dim):
            raise RuntimeError(
                f"{encoder.name} gave vectors {table.shape} for {len(batch)} images of {encoder.embed_dim} dimensions"
            )
        results = [_checked(vector) for vector in table]
    return [(key, image.size, result) for (key, image), result in zip(batch, results, strict=True)]


def _checked(vector: np.ndarray) -> np.ndarray | str:
    if not np.isfinite(vector).all():
        return "its embedding is not finite (NaN or infinity); try a wider dtype"
    if not vector.any():
        return "its embedding is zero"
    return vector


@contextmanager
def progress_bar(description: str, total: int | None, show: bool) -> Iterator[Callable[[], None]]:
    """A bar with count, rate and time left on standard error, if ``show`` and it is a terminal; yields its step function.

    Without a ``total`` it counts.
    """
    if not show or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text(f"{speed:.0f}/s" if speed else "", style="progress.data.speed")

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda: bar.advance(task)
