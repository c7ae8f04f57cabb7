"""``ImageIndex``: the images of some folders, or any image vectors, in one folder on disk, searched exactly or by a graph."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clipmend.data.images import display_path
from clipmend.search import creating, migrate, store
from clipmend.search.build import Folders, UpdateReport, build_index
from clipmend.search.columns import ImportReport, import_columns
from clipmend.search.database import Database
from clipmend.search.editing import add_items, declare, remove_items
from clipmend.search.exact import top_k
from clipmend.search.gallery import FieldType, Item, WritableGallery
from clipmend.search.maintain import maintain, seal
from clipmend.search.reading import IndexReader
from clipmend.search.snapshot import Snapshot
from clipmend.search.store import ImageIndexError

if TYPE_CHECKING:
    from clipmend.backbones.base import DualEncoder

__all__ = ["ImageIndex", "top_k"]


class ImageIndex(IndexReader, WritableGallery):
    """An index opened for searching; see :mod:`clipmend.search.store` for its files.

    Search compares the query with every vector, in chunks over memory-mapped files, so that an index larger than memory works; or,
    from 50,000 images on and unless told otherwise, with those that a graph leads to (:mod:`clipmend.search.nearest`). Equal scores
    are ordered by path. An opened index is a snapshot: an update by someone else is seen by opening it again.

    Attributes:
        directory: where it is.
        entries: the images, sorted by path; a *position* is an index into this. Read from the disk as they are asked for.
        root: the folder the paths are relative to; of several folders, the one that holds them all.
        roots: the folders, by name.
        images: the folder that the paths start from instead, of an index whose images came from elsewhere or lie elsewhere on this
            machine; ``None``: the folders are where the index says. With several folders it holds them by name.

    Example::

        index = ImageIndex.build(encoder, "photos/", "photos.index", progress=True)
        scores, positions = index.search(encoder.encode_texts(["a red bus"])[0], k=5)
        [index.path(i) for i in positions]
    """

    _edited = False

    def __enter__(self) -> ImageIndex:
        return self

    @classmethod
    def build(
        cls,
        encoder: DualEncoder,
        folder: Folders,
        directory: str | os.PathLike[str],
        **options: Any,
    ) -> ImageIndex:
        """Make the index, or update it if it exists, and open it; arguments of :func:`clipmend.search.build_index`."""
        build_index(encoder, folder, directory, **options)
        return cls.open(directory)

    @classmethod
    def create(
        cls,
        directory: str | os.PathLike[str],
        *,
        backbone: str,
        image_digest: str,
        embed_dim: int,
        dtype: str = "float32",
        fields: Mapping[str, FieldType] | None = None,
    ) -> ImageIndex:
        """An empty index for vectors from elsewhere (:meth:`add`); one that is there is opened if it is of the same encoder.

        Args:
            directory: a new folder, or such an index.
            backbone: name of the encoder that made the vectors; empty if unknown.
            image_digest: the digest of its image side; empty if unknown.
            embed_dim: width of the vectors.
            dtype: how they are stored, ``"float32"`` or ``"float16"``.
            fields: types of fields beyond the usual ones; fields that items bring without are ``text`` or ``number``.

        Raises:
            ImageIndexError: the folder holds something else, or an index of another encoder or width.
        """
        directory = Path(directory)
        if store.exists(directory):
            manifest = migrate.current(directory)
            if (manifest.backbone["image"], manifest.embed_dim) != (image_digest, embed_dim):
                raise ImageIndexError(
                    f"the index {display_path(directory)} is of {manifest.backbone['name']!r} ({manifest.embed_dim} dimensions, "
                    f"image side {manifest.backbone['image'][:12] or 'unknown'}), not of {backbone!r} ({embed_dim}, "
                    f"{image_digest[:12] or 'unknown'}); choose another folder"
                )
        else:
            creating.create(directory, backbone, image_digest, embed_dim, dtype)
        with store.locked(directory):
            database = Database(directory, store.read_manifest(directory))
            try:
                if not database.meta("complete") or fields:
                    with database.transaction():
                        database.set_meta(complete=1)
                        for name, type_ in (fields or {}).items():
                            declare(database, name, type_)
                    seal(directory, store.read_manifest(directory), database)
            finally:
                database.close()
        return cls.open(directory)

    @classmethod
    def open(cls, directory: str | os.PathLike[str], *, verify: bool = False) -> ImageIndex:
        """Open an index and check it: manifest, database (a small one by digest), and shape and type of every shard.

        Args:
            directory: the index. One of an older format is brought to the present one, in place.
            verify: also read the whole database and every shard, and compare their digests.

        Raises:
            ImageIndexError: no index, one never finished, or one that is damaged.
        """
        index = cls(Path(directory), verify=verify)
        if verify:
            try:
                index.verify()
            except ImageIndexError:
                index.close()
                raise
        return index

    def update(self, encoder: DualEncoder, folder: Folders | None = None, **options: Any) -> UpdateReport:
        """Bring the index up to date with its folders (or others) and read it again in place.

        Args:
            encoder: the encoder that made it, or a mended one over the same backbone.
            folder: the images; default the folders it was made of.
            options: further arguments of :func:`clipmend.search.build_index`.
        """
        if folder is None and not self._snapshot.roots:
            raise ImageIndexError(f"{self.name} was not made of a folder; name one")
        report = build_index(encoder, folder if folder is not None else list(self.roots.values()), self.directory, **options)
        self._manifest = store.read_manifest(self.directory)
        self._load()
        return report

    def verify(self) -> None:
        """Read database and shards and compare their digests.

        Raises:
            ImageIndexError: a file is not what was written.
        """
        snapshot = self._snapshot
        for shard in snapshot.shards.shards:
            try:
                found = store.file_digest(self.directory / shard.file)
            except OSError as error:
                raise store.damaged(self.directory, f"{shard.file} cannot be read ({error.strerror})") from None
            if found != shard.sha256:
                raise store.damaged(self.directory, f"{shard.file} is not what was written (its digest differs)")
        Snapshot(self.directory, self._manifest, self._connections, verify=True)

    def close(self) -> None:
        """Let go of the database; after edits, say in the manifest what it holds now."""
        try:
            if self._edited:
                with suppress(ImageIndexError, OSError):  # busy, say: without the digest the index is as whole as with it
                    self._edit(lambda database: seal(self.directory, self._manifest, database))
                self._edited = False
        finally:
            self._connections.close()
            self._loaded = None  # with it go the files that it maps, also those that an update has deleted since

    def _edit(self, change: Callable[[Database], Any]) -> Any:
        with self._lock, store.locked(self.directory):
            database = Database(self.directory, store.read_manifest(self.directory))
            try:
                return change(database)
            finally:
                database.close()
                self._edited = True
                self._loaded = None  # read again when it is asked for

    def add(self, items: Sequence[Item], vectors: np.ndarray) -> None:
        """See :meth:`WritableGallery.add`. No graph is made or renewed by it; :meth:`optimise` does that, and close what was added.

        Raises:
            ImageIndexError: the index is being written by another process.
            ValueError: as said there, a path or field value that cannot be stored, or the id 2^63 - 1; nothing is added then.
        """
        if len(items):
            self._edit(lambda database: add_items(database, self._manifest, items, vectors))

    def remove(self, ids: Sequence[int] | np.ndarray) -> int:
        removed = int(self._edit(lambda database: remove_items(database, [int(i) for i in ids if 0 <= i < 1 << 63])))
        return removed

    def optimise(self, *, approximate: bool | None = None, progress: bool = False, workers: int | None = None) -> None:
        """After additions and removals: join small shards, drop dead rows, make or renew the graph for approximate search.

        Args:
            approximate: True: have a graph; False: have none; ``None``: have one from 50,000 images on.
            progress: show a bar on a terminal.
            workers: threads that make the graph (default: one a core, at most 8).
        """

        def change(database: Database) -> None:
            maintain(self.directory, self._manifest, database, approximate=approximate, progress=progress, workers=workers)

        self._edit(change)
        self._edited = False
        self._manifest = store.read_manifest(self.directory)

    def import_columns(
        self, table: str | os.PathLike[str], key: str = "path", types: Mapping[str, FieldType] | None = None
    ) -> ImportReport:
        """Add fields from a table; see :func:`clipmend.search.columns.import_columns`."""
        _ = self._snapshot  # read before the edit, which looks up images in it
        report: ImportReport = self._edit(lambda database: import_columns(database, self, table, key, types))
        return report
