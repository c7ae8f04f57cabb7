"""``QdrantGallery``: a collection of Qdrant, on a server, a cluster, or in a folder of this machine (extra ``qdrant``).

Everything goes through Qdrant's own client. A point is an image: its id, its vector, and a payload of ``path``, ``sha256`` and the
fields, each under its own name, so that other programs read and filter them too. What is ours alone lies under ``clipmend``:
the folders above each folder (a filter on a folder and all inside it is then a match of one keyword), and the exact bytes of
names that are no UTF-8. Which encoder made the vectors stands in the collection's metadata.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any
from uuid import UUID

import numpy as np

from clipmend.search.arrays import file_within, known_path, unit_queries, unit_rows
from clipmend.search.conditions import check_conditions
from clipmend.search.gallery import Condition, FieldType, GalleryError, Item, Nearest, WritableGallery, int64_ids
from clipmend.search.qdrant_filters import OWN, TooManyValues, filter_of, spelt, written
from clipmend.search.qdrant_points import PREFIX, asking, connect, exactly, is_local, models, payload_of, vector_of

__all__ = ["QdrantGallery"]

FORMAT = 1
BATCH = 512
"""Points of a request: about 6 MB at 1024 dimensions, below the 32 MB that a server takes by default."""
EXACT_BELOW = 50_000
PATH_KEYS = ("path", "image_path", "filepath", "file_path", "filename", "file_name", "file", "image", "url", "uri", "key", "name")
_SCHEMA: Mapping[FieldType, str] = {"text": "keyword", "folder": "keyword", "number": "float", "size": "float", "time": "float"}
_KINDS: Mapping[str, FieldType] = {"keyword": "text", "integer": "number", "float": "number"}
_TIES = 4096
"""Most points with the very score of the last one wanted that are looked at to order equal scores by id."""


class QdrantGallery(WritableGallery):
    """Images in a collection of Qdrant; one that another program filled serves too.

    Of a collection that clipmend did not make, the encoder is unknown unless told, fields are the payload keys that are indexed
    (keyword, integer, float), and the path is the first of ``path``, ``image_path``, ``url`` and the like. Points numbered by
    UUIDs have the UUID's first 63 bits for an id. Distances must be cosine, or dot of vectors of length 1.

    Use :meth:`open` or :meth:`create`.

    Attributes:
        collection: its name in Qdrant.
        local: whether it lies in a folder of this machine (always searched exactly, by one process at a time).
    """

    def __init__(
        self,
        client: Any,
        collection: str,
        *,
        name: str = "",
        vector: str | None = None,
        path_key: str | None = None,
        backbone: str = "",
        image_digest: str = "",
        fields: Mapping[str, FieldType] | None = None,
        images: str | os.PathLike[str] | None = None,
        hnsw_ef: int | None = None,
        exact: bool | None = None,
    ) -> None:
        self.collection, self.name = collection, name or f"{PREFIX}{collection}"
        self.images = None if images is None else Path(images)
        self._client, self._hnsw_ef, self._exact = client, hnsw_ef, exact
        self.local = is_local(client)
        self._lock = Lock()  # the local mode is plain Python over SQLite
        with self._asking():
            if not client.collection_exists(collection):
                raise GalleryError(f"{self.name}: there is no collection {collection!r}")
            info = client.get_collection(collection)
        self._vector, parameters = vector_of(self.name, info.config.params.vectors, vector)
        self.embed_dim = int(parameters.size)
        about = (getattr(info.config, "metadata", None) or {}).get(OWN)
        self._ours = isinstance(about, dict) and about.get("format") == FORMAT
        if isinstance(about, dict) and about.get("format", FORMAT) != FORMAT:
            raise GalleryError(f"{self.name} was made by another version of clipmend (format {about['format']}); update clipmend")
        if self._ours:
            assert isinstance(about, dict)
            self.backbone, self.image_digest = str(about["backbone"]), str(about["image_digest"])
            self.fields = dict(about["fields"])
        else:
            self.backbone, self.image_digest = backbone, image_digest
            kinds = {key: _KINDS.get(str(index.data_type)) for key, index in (info.payload_schema or {}).items()}
            self.fields = dict(fields) if fields is not None else {key: kind for key, kind in kinds.items() if kind}
        self._size = self.count()  # as it was last counted: enough to choose a way of searching by
        first = self._scroll(1, None, payload=True)[0]
        self._uuids = bool(first) and isinstance(first[0].id, str)
        self._path_key = path_key or self._find_path_key(first[0].payload if first else None)
        if not self._ours and self._path_key in self.fields:
            self.fields = {key: kind for key, kind in self.fields.items() if key != self._path_key}
        if str(parameters.distance) != "Cosine":
            self._check_lengths(str(parameters.distance))

    @classmethod
    def open(cls, spec: str, *, timeout: int = 60, client: Mapping[str, Any] | None = None, **options: Any) -> QdrantGallery:
        """Open a collection.

        Args:
            spec: ``qdrant:http://HOST:6333/COLLECTION``, or ``qdrant:FOLDER/COLLECTION`` for the client's local mode. Local mode
                stores Python's pickles: open no folder that comes from others. A key is read from ``QDRANT_API_KEY``.
            timeout: seconds a request may take.
            client: further arguments of ``qdrant_client.QdrantClient`` (``prefer_grpc=True``).
            options: ``vector`` (which of several named ones), ``path_key`` (payload key of the path), ``fields`` (payload keys to
                search by, with their types, where clipmend did not make the collection), ``backbone`` and ``image_digest`` (where
                it does not say), ``images`` (folder of the images), ``hnsw_ef`` (candidates of an approximate search), ``exact``
                (default for searches that do not say).

        Raises:
            GalleryError: no answer, no such collection, or one that cannot be searched by cosines.
            ImportError: without the extra ``qdrant``.
        """
        connection, collection, name = connect(spec, timeout, client, make=False)
        try:
            return cls(connection, collection, name=name, **options)
        except BaseException:
            connection.close()
            raise

    @classmethod
    def create(
        cls,
        spec: str,
        *,
        embed_dim: int,
        backbone: str = "",
        image_digest: str = "",
        fields: Mapping[str, FieldType] | None = None,
        timeout: int = 60,
        client: Mapping[str, Any] | None = None,
        images: str | os.PathLike[str] | None = None,
        **collection_options: Any,
    ) -> QdrantGallery:
        """Make a collection, with indexes of the payload for every field.

        Args:
            spec: as for :meth:`open`; the folder of local mode is made.
            embed_dim: width of the vectors.
            backbone: the encoder's name.
            image_digest: digest of its image side.
            fields: the fields that can be searched by.
            timeout: seconds a request may take.
            client: further arguments of the client.
            images: folder of the images.
            collection_options: further arguments of ``QdrantClient.create_collection``, passed on as they are: ``shard_number``,
                ``replication_factor``, ``write_consistency_factor``, ``on_disk_payload``, ``hnsw_config``,
                ``quantization_config``. Not tested: tests run without a server.

        Raises:
            GalleryError: no answer, a collection that is there, a field whose name cannot be kept.
            ImportError: without the extra ``qdrant``.
        """
        fields = dict(fields or {})
        taken = [field for field in fields if field in (OWN, "path", "sha256") or '"' in field or not field]
        if taken:
            raise GalleryError(f"{spec}: a field cannot be called {taken[0]!r} there; rename the column")
        connection, collection, name = connect(spec, timeout, client, make=True)
        about = {"format": FORMAT, "backbone": backbone, "image_digest": image_digest, "fields": fields}
        try:
            with asking(name):
                if connection.collection_exists(collection):
                    raise GalleryError(f"{name}: there is a collection {collection!r} already; open it, or choose another name")
                connection.create_collection(
                    collection,
                    vectors_config=models.VectorParams(size=embed_dim, distance=models.Distance.COSINE),
                    metadata={OWN: about},
                    **collection_options,
                )
                if not is_local(connection):
                    keys = {"path": "keyword", **{spelt(field): _SCHEMA[type_] for field, type_ in fields.items()}}
                    folders = [field for field, type_ in fields.items() if type_ == "folder"]
                    keys |= {f"{OWN}.under.{spelt(field)}": "keyword" for field in folders}
                    for key, kind in keys.items():
                        connection.create_payload_index(collection, key, models.PayloadSchemaType(kind), wait=True)
            gallery = cls(connection, collection, name=name, images=images)
        except BaseException:
            connection.close()
            raise
        if not gallery._ours:  # a server of before Qdrant 1.16 drops the metadata without a word
            gallery._ours, gallery.fields = True, fields
            gallery.backbone, gallery.image_digest = backbone, image_digest
            warnings.warn(
                f"{name}: this Qdrant keeps no metadata of collections (it needs 1.16), so later it will not be known there that "
                f"{backbone or 'some encoder'} made the vectors",
                stacklevel=2,
            )
        return gallery

    def __len__(self) -> int:
        return self.count()

    def count(self, where: Sequence[Condition] = ()) -> int:
        chosen = self._filter(where)
        with self._asking():
            found = int(self._client.count(self.collection, count_filter=chosen, exact=True).count)
        if not where:
            self._size = found
        return found

    def nearest(self, queries: Any, k: int, *, where: Sequence[Condition] = (), exact: bool | None = None) -> Nearest:
        if k < 1:
            raise ValueError(f"k must be at least 1 (got {k})")
        asked = unit_queries(queries, self.embed_dim)
        chosen = self._filter(where)
        exact = self._exact if exact is None else exact
        exact = self.local or (self._size < EXACT_BELOW if exact is None else exact)
        rows = [self._one(query, k, chosen, exact) for query in asked]
        width = min((len(scores) for scores, _ in rows), default=0)  # an approximate search may find fewer than are there
        scores = np.stack([row[:width] for row, _ in rows]) if rows else np.empty((0, 0), np.float32)
        ids = np.stack([found[:width] for _, found in rows]) if rows else np.empty((0, 0), np.int64)
        return Nearest(scores, ids, exact)

    def _one(self, query: np.ndarray, k: int, chosen: Any, exact: bool) -> tuple[np.ndarray, np.ndarray]:
        """Scores and ids of the best; of equal scores those of the lowest ids, which takes a look past the last one."""
        wanted = k + 1
        while True:
            with self._asking():
                found = self._client.query_points(
                    self.collection,
                    query=query.tolist(),
                    using=self._vector,
                    query_filter=chosen,
                    limit=wanted,
                    search_params=None if self.local else models.SearchParams(exact=exact, hnsw_ef=self._hnsw_ef),
                    with_payload=False,
                    with_vectors=False,
                ).points
            scores = np.asarray([point.score for point in found], np.float32)
            if len(found) < wanted or scores[-1] < scores[k - 1] or wanted >= k + _TIES:
                break
            wanted = min(wanted * 2, k + _TIES)
        ids = np.asarray([self._id(point.id) for point in found], np.int64)
        order = np.lexsort((ids, -scores))[:k]
        return scores[order], ids[order]

    def vectors(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        points = self._retrieve(ids, vectors=True)
        vectors = np.asarray([self._vector_of(point) for point in points], np.float32).reshape(len(points), self.embed_dim)
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)

    def items(self, ids: Sequence[int] | np.ndarray) -> list[Item]:
        return [self._item(point) for point in self._retrieve(ids, payload=True)]

    def ids(self, where: Sequence[Condition] = (), *, block: int = 4096) -> Iterator[np.ndarray]:
        chosen, offset = self._filter(where), None
        while True:
            points, offset = self._scroll(block, offset, chosen)
            if points:
                yield np.asarray([self._id(point.id) for point in points], np.int64)
            if offset is None:
                return

    def file(self, item: Item) -> Path | None:
        return file_within(self.images, item.path)

    def find(self, path: str) -> int | None:
        if self._path_key is None:
            return None
        for wanted in known_path(self.images, path):
            match = models.FieldCondition(key=spelt(self._path_key), match=models.MatchValue(value=written(wanted)))
            points, _ = self._scroll(1, None, models.Filter(must=[match]))
            if points:
                return self._id(points[0].id)
        return None

    def values(self, name: str, limit: int = 100) -> list[tuple[str, int]]:
        if self.fields.get(name) not in ("text", "folder"):
            known = ", ".join(field for field, kind in self.fields.items() if kind in ("text", "folder")) or "none"
            raise GalleryError(f"{self.name} has no text or folder field {name!r}; those it has: {known}")
        return self._facet(name, limit)

    def add(self, items: Sequence[Item], vectors: np.ndarray) -> None:
        if self._uuids:
            raise GalleryError(f"{self.name} numbers its points by UUIDs, which clipmend does not make; choose another collection")
        units = unit_rows(items, vectors, self.embed_dim)
        points = [
            models.PointStruct(
                id=int(item.id),
                vector=unit.tolist() if self._vector is None else {self._vector: unit.tolist()},
                payload=payload_of(item, self.fields),
            )
            for item, unit in zip(items, units, strict=True)
        ]
        for first in range(0, len(points), BATCH):
            with self._asking():
                self._client.upsert(self.collection, points=points[first : first + BATCH], wait=True)
        self._size += len(points)
        if points and self._path_key is None:
            self._path_key = "path"

    def remove(self, ids: Sequence[int] | np.ndarray) -> int:
        wanted = sorted({int(id_) for id_ in ids if 0 <= id_ < 1 << 63})
        removed = 0
        for first in range(0, len(wanted), BATCH):
            there = self._points([self._point_id(id_) for id_ in wanted[first : first + BATCH]])
            if there:
                with self._asking():
                    chosen = models.PointIdsList(points=[point.id for point in there])
                    self._client.delete(self.collection, points_selector=chosen, wait=True)
            removed += len(there)
        return removed

    def close(self) -> None:
        self._client.close()

    @contextmanager
    def _asking(self) -> Iterator[None]:
        if self.local:
            with self._lock, asking(self.name):
                yield
        else:
            with asking(self.name):
                yield

    def _filter(self, where: Sequence[Condition]) -> Any:
        if not where:
            return None
        check_conditions(where, self.fields, self.name)
        try:
            return filter_of(where, self.fields, self._facet, ours=self._ours)
        except TooManyValues as error:
            raise GalleryError(f"{self.name}: {error}") from error

    def _facet(self, name: str, limit: int) -> list[tuple[str, int]]:
        if self.local:  # whose own count takes any text that could be read as a UUID (an MD5, say) for another spelling of it
            points, _ = self._scroll(max(1, self.count()), None, payload=True)
            counts: Counter[str] = Counter()
            for point in points:
                value = (point.payload or {}).get(name)  # a list has each of its values, once
                counts.update({text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)})
            return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:limit]
        with self._asking():
            hits = self._client.facet(self.collection, key=spelt(name), limit=limit, exact=True).hits
        return sorted(((str(hit.value), int(hit.count)) for hit in hits), key=lambda pair: (-pair[1], pair[0]))

    def _scroll(self, limit: int, offset: Any, chosen: Any = None, *, payload: bool = False, vectors: bool = False) -> Any:
        with self._asking():
            return self._client.scroll(
                self.collection, scroll_filter=chosen, limit=limit, offset=offset, with_payload=payload, with_vectors=vectors
            )

    def _points(self, ids: Sequence[Any], *, payload: bool = False, vectors: bool = False) -> list[Any]:
        named = vectors if self._vector is None or not vectors else [self._vector]
        with self._asking():
            return list(self._client.retrieve(self.collection, ids=ids, with_payload=payload, with_vectors=named))

    def _retrieve(self, ids: Sequence[int] | np.ndarray, **what: bool) -> list[Any]:
        """Points in the order of ids.

        Raises:
            GalleryError: one is not there.
        """
        wanted = int64_ids(ids, self.name).tolist()
        if any(id_ < 0 for id_ in wanted):
            raise GalleryError(f"{self.name} has no image of the id {min(wanted)}")
        found: dict[int, Any] = {}
        for first in range(0, len(wanted), BATCH):
            asked = [self._point_id(id_) for id_ in wanted[first : first + BATCH]]
            found |= {self._id(point.id): point for point in self._points(asked, **what)}
        missing = [id_ for id_ in wanted if id_ not in found]
        if missing:
            raise GalleryError(f"{self.name} has no image of the id {missing[0]}")
        return [found[id_] for id_ in wanted]

    def _id(self, point: int | str) -> int:
        if isinstance(point, str) != self._uuids:
            raise GalleryError(f"{self.name} numbers some points by integers, others by UUIDs: clipmend reads one kind ({point})")
        if isinstance(point, str):
            return UUID(point).int >> 65
        if point >= 1 << 63:
            raise GalleryError(f"{self.name}: the id {point} is beyond 2^63, which clipmend's ids do not reach")
        return int(point)

    def _point_id(self, id_: int) -> int | str:
        """The point of an id: for UUIDs, points lie in their order, so that the first at or after its bits is the one."""
        if not self._uuids:
            return id_
        points, after = self._scroll(1, str(UUID(int=id_ << 65)))
        if not points or self._id(points[0].id) != id_:
            return str(UUID(int=id_ << 65))  # not there
        if after is not None and isinstance(after, str) and self._id(after) == id_:
            raise GalleryError(f"{self.name}: the points {points[0].id} and {after} share their first 63 bits, and so one id here")
        return str(points[0].id)

    def _vector_of(self, point: Any) -> Any:
        vector = point.vector if self._vector is None else (point.vector or {}).get(self._vector)
        if vector is None:
            raise GalleryError(f"{self.name}: point {point.id} has no vector{f' {self._vector!r}' if self._vector else ''}")
        return vector

    def _item(self, point: Any) -> Item:
        payload = dict(point.payload or {})
        own = payload.get(OWN)
        exact = own.get("bytes", {}) if isinstance(own, dict) else {}
        values: dict[str, str | float] = {}
        for name, type_ in self.fields.items():
            value = payload.get(name)
            if type_ in ("text", "folder"):
                if isinstance(value, str):
                    values[name] = exactly(exact, name, value)
            elif isinstance(value, int | float) and not isinstance(value, bool):
                values[name] = float(value)
        path = payload.get(self._path_key) if self._path_key else None
        digest = payload.get("sha256")
        return Item(
            self._id(point.id),
            exactly(exact, "path", path) if isinstance(path, str) else str(point.id),
            values,
            digest if isinstance(digest, str) else "",
        )

    def _find_path_key(self, payload: Mapping[str, Any] | None) -> str | None:
        if self._ours or payload is None:
            return "path" if self._ours else None
        return next((key for key in PATH_KEYS if isinstance(payload.get(key), str)), None)

    def _check_lengths(self, distance: str) -> None:
        if distance != "Dot":
            raise GalleryError(f"{self.name} compares by {distance} distance; it must be Cosine (or Dot of vectors of length 1)")
        points, _ = self._scroll(256, None, vectors=True)
        lengths = np.asarray([np.linalg.norm(self._vector_of(point)) for point in points])
        if len(lengths) and np.abs(lengths - 1).max() > 1e-2:
            raise GalleryError(
                f"{self.name} compares by Dot, and its vectors are not of length 1 ({lengths.min():.3g} to {lengths.max():.3g} "
                f"among the first {len(lengths)}): the order would be another than by cosine. Make one with distance Cosine"
            )
