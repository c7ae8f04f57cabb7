"""``ImageIndex``: the images of a folder as vectors on disk, searched exactly."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clipmend.data.images import display_path
from clipmend.search import store
from clipmend.search.build import UpdateReport, build_index, check_same_encoder
from clipmend.search.store import Entry, ImageIndexError, Manifest

if TYPE_CHECKING:
    from clipmend.backbones.base import DualEncoder

__all__ = ["ImageIndex"]


class ImageIndex:
    """An index opened for searching; see :mod:`clipmend.search.store` for its files.

    Search is exact: the cosine of the query with every vector, in chunks over memory-mapped files, so that an index larger than
    memory works. Equal scores are ordered by path. An opened index is a snapshot: an update by someone else is seen by opening
    it again.

    Attributes:
        directory: where it is.
        entries: the images, sorted by path; a *position* is an index into this.
        root: the folder the paths are relative to.

    Example::

        index = ImageIndex.build(encoder, "photos/", "photos.index", progress=True)
        scores, positions = index.search(encoder.encode_texts(["a red bus"])[0], k=5)
        [index.path(i) for i in positions]
    """

    def __init__(self, directory: Path, manifest: Manifest, entries: tuple[Entry, ...]) -> None:
        self.directory = directory
        self.entries = entries
        self.root = _find_root(directory, manifest)
        self._manifest = manifest
        self._shards = [store.open_vectors(directory, shard, manifest.embed_dim, manifest.dtype) for shard in manifest.shards]
        self._starts = np.cumsum([0, *(len(vectors) for vectors in self._shards)])
        self._rows = np.array([entry.row for entry in entries], np.int64)

    @classmethod
    def build(
        cls, encoder: DualEncoder, folder: str | os.PathLike[str], directory: str | os.PathLike[str], **options: Any
    ) -> ImageIndex:
        """Make the index, or update it if it exists, and open it; arguments of :func:`clipmend.search.build_index`."""
        build_index(encoder, folder, directory, **options)
        return cls.open(directory)

    @classmethod
    def open(cls, directory: str | os.PathLike[str], *, verify: bool = False) -> ImageIndex:
        """Open an index and check it: manifest, table (by digest), and shape and type of every shard.

        Args:
            directory: the index.
            verify: also read every shard and compare its digest.

        Raises:
            ImageIndexError: no index, one never finished, or one that is damaged.
        """
        directory = Path(directory)
        while True:
            manifest = store.read_manifest(directory)
            if not manifest.complete:
                raise ImageIndexError(
                    f"the index {display_path(directory)} was never finished; run the same 'clipmend index' again, it resumes"
                )
            try:
                index = cls(directory, manifest, store.read_table(directory, manifest))
                if verify:
                    index.verify()
            except ImageIndexError:
                if store.read_manifest(directory).generation != manifest.generation:
                    continue  # updated while we looked: the files of the old manifest are gone, the new ones are there
                raise
            return index

    def update(self, encoder: DualEncoder, folder: str | os.PathLike[str] | None = None, **options: Any) -> UpdateReport:
        """Bring the index up to date with its folder (or another one) and reopen it in place.

        Args:
            encoder: the encoder that made it, or a mended one over the same backbone.
            folder: the images; default the folder it was made of.
            options: further arguments of :func:`clipmend.search.build_index`.
        """
        report = build_index(encoder, folder if folder is not None else self.root, self.directory, **options)
        self.__dict__.update(ImageIndex.open(self.directory).__dict__)
        return report

    def verify(self) -> None:
        """Read every shard and compare its digest.

        Raises:
            ImageIndexError: a file is not what was written.
        """
        for shard in self._manifest.shards:
            if store.file_digest(self.directory / shard.file) != shard.sha256:
                raise store.damaged(self.directory, f"{shard.file} is not what was written (its digest differs)")

    def check(self, encoder: DualEncoder) -> None:
        """Refuse an encoder whose image side did not make this index; a patch over the same backbone is welcome.

        Raises:
            ImageIndexError: the digests of the image sides differ.
        """
        check_same_encoder(self.directory, self._manifest, encoder)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def backbone(self) -> str:
        """Name of the encoder that made the index, fit for :func:`clipmend.load`."""
        return self._manifest.backbone["name"]

    @property
    def embed_dim(self) -> int:
        return self._manifest.embed_dim

    @property
    def dtype(self) -> str:
        return self._manifest.dtype

    @property
    def paths(self) -> list[Path]:
        """Paths of all images, by position."""
        return [self.root / entry.path for entry in self.entries]

    def path(self, position: int) -> Path:
        """Path of the image at ``position``."""
        return self.root / self.entries[position].path

    @property
    def skipped(self) -> dict[str, str]:
        """Relative path and reason of every file that could not be indexed."""
        import json

        try:
            return {row["path"]: row["reason"] for row in json.loads((self.directory / store.SKIPPED).read_bytes())}
        except FileNotFoundError:
            return {}

    def embeddings(self, positions: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
        """float32 ``[n, D]``: the L2-normalised vectors of the images at ``positions`` (default: all)."""
        rows = self._rows if positions is None else self._rows[np.asarray(positions, np.int64)]
        vectors = np.empty((len(rows), self.embed_dim), np.float32)
        shard_of = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(shard_of):
            chosen = shard_of == number
            vectors[chosen] = self._shards[number][rows[chosen] - self._starts[number]]
        return self._unit(vectors)

    def mean_embedding(self) -> np.ndarray:
        """float32 ``[D]``: the mean vector of the images (not normalised), where the image side of the space has its centre."""
        if not self.entries:
            raise ImageIndexError(f"the index {display_path(self.directory)} is empty")
        total = np.zeros(self.embed_dim, np.float64)
        for _, which, vectors in self._chunks(65_536):
            total += np.bincount(which, minlength=len(vectors)) @ vectors.astype(np.float64)
        return (total / len(self)).astype(np.float32)

    def scores(self, query: Any, *, chunk: int = 65_536) -> np.ndarray:
        """Cosine of a query with every image.

        Args:
            query: ``[D]`` or ``[Q, D]`` array or CPU tensor; normalised here.
            chunk: rows of the index at a time.

        Returns:
            float32 ``[N]`` or ``[Q, N]``, by position.

        Raises:
            ValueError: another width than the index's, a NaN or infinity, or a zero vector.
        """
        queries = self._queries(query)
        found = np.empty((len(queries), len(self)), np.float32)
        for positions, which, vectors in self._chunks(chunk):
            found[:, positions] = self._cosines(queries, vectors)[:, which]
        return found[0] if np.ndim(query) == 1 else found

    def search(self, query: Any, k: int, *, chunk: int = 65_536) -> tuple[np.ndarray, np.ndarray]:
        """The ``k`` images nearest to a query by cosine, best first.

        Args:
            query: ``[D]`` or ``[Q, D]`` array or CPU tensor; normalised here.
            k: how many; more than the index holds gives all of it.
            chunk: rows of the index at a time; memory is about ``chunk * (D + Q) * 4`` bytes.

        Returns:
            float32 scores and int64 positions, each ``[min(k, N)]`` or ``[Q, min(k, N)]``. Equal scores go by path.

        Raises:
            ValueError: as :meth:`scores`, or ``k`` below 1.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1 (got {k})")
        queries = self._queries(query)
        k = min(k, len(self))
        best = np.empty((len(queries), 0), np.float32)
        where = np.empty((len(queries), 0), np.int64)
        for positions, which, vectors in self._chunks(chunk):
            best = np.concatenate([best, self._cosines(queries, vectors)[:, which]], axis=1)
            where = np.concatenate([where, np.broadcast_to(positions, (len(queries), len(positions)))], axis=1)
            keep = np.stack([top_k(scores, ties, k) for scores, ties in zip(best, where, strict=True)])
            best, where = np.take_along_axis(best, keep, 1), np.take_along_axis(where, keep, 1)
        return (best[0], where[0]) if np.ndim(query) == 1 else (best, where)

    def _cosines(self, queries: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        cosines = queries @ vectors.T
        if not np.isfinite(cosines).all():  # the queries were checked, so it is the index; a NaN would upset the order
            raise store.damaged(self.directory, "a vector holds NaN or infinity")
        return cosines

    def _queries(self, query: Any) -> np.ndarray:
        queries = np.atleast_2d(np.asarray(query, np.float32))
        if queries.ndim != 2 or queries.shape[1] != self.embed_dim:
            raise ValueError(f"a query must have {self.embed_dim} dimensions like the index (got shape {np.shape(query)})")
        if not np.isfinite(queries).all():
            raise ValueError("a query embedding holds NaN or infinity")
        norms = np.linalg.norm(queries, axis=1, keepdims=True)
        if not norms.all():
            raise ValueError("a query embedding is zero: it has no direction to search in")
        return queries / norms

    def _chunks(self, size: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """All images in the order their vectors lie on disk, at most ``size`` vectors at a time.

        Yields:
            Positions ``[c]``, for each the index of its vector, and unit float32 vectors ``[v, D]``, ``v <= c``. Copies of one
            content share a vector, which comes once: their scores are equal to the last bit.
        """
        order = np.argsort(self._rows, kind="stable")
        rows, firsts = np.unique(self._rows[order], return_index=True)
        firsts = np.append(firsts, len(order))
        for number, vectors in enumerate(self._shards):
            start = self._starts[number]
            begin, end = np.searchsorted(rows, [start, self._starts[number + 1]])
            for low in range(begin, end, size):
                high = min(low + size, end)
                chosen = rows[low:high] - start
                gapless = chosen[-1] - chosen[0] == len(chosen) - 1
                part = vectors[chosen[0] : chosen[-1] + 1] if gapless else vectors[chosen]  # the former is a view, not a copy
                which = np.repeat(np.arange(high - low), np.diff(firsts[low : high + 1]))
                yield order[firsts[low] : firsts[high]], which, self._unit(np.asarray(part, np.float32))

    def _unit(self, vectors: np.ndarray) -> np.ndarray:
        """Undo what float16 storage did to the norm; float32 vectors are unit as they are."""
        if self.dtype == "float32":
            return vectors
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def top_k(scores: np.ndarray, ties: np.ndarray, k: int) -> np.ndarray:
    """Indices of the ``k`` highest of ``scores``, highest first; equal scores by ascending ``ties``."""
    k = min(k, len(scores))
    if k < 1:
        return np.empty(0, np.int64)
    threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
    candidates = np.flatnonzero(scores >= threshold)  # k of them, and all that tie with the last
    return candidates[np.lexsort((ties[candidates], -scores[candidates]))[:k]]


def _find_root(directory: Path, manifest: Manifest) -> Path:
    """The image folder, also after index and images moved together."""
    root = Path(manifest.root)
    if not root.is_dir() and manifest.relative_root:
        beside = Path(os.path.normpath(directory.resolve() / manifest.relative_root))
        if beside.is_dir():
            return beside
    return root
