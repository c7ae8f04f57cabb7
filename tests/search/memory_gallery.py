"""The plainest gallery there could be: lists in memory and full sorts. What the searcher is tested against."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clipmend.search.conditions import check_conditions, fulfils
from clipmend.search.gallery import BASE_FIELDS, Condition, FieldType, Gallery, GalleryError, Item, Nearest


class MemoryGallery(Gallery):
    """Of items and vectors; ``found`` limits approximate searches to so many results, as a bad index would."""

    def __init__(
        self,
        items: Sequence[Item],
        vectors: Any,
        *,
        fields: Mapping[str, FieldType] = BASE_FIELDS,
        image_digest: str = "image-side",
        root: Path | None = None,
        approximate: int | None = None,
    ) -> None:
        self.name, self.backbone, self.image_digest, self.fields = "memory", "fake", image_digest, fields
        table = np.asarray(vectors, np.float32)
        self.embed_dim = table.shape[1]
        order = np.argsort([item.id for item in items])
        self._items = {items[i].id: items[i] for i in order}
        self._vectors = {items[i].id: table[i] / np.linalg.norm(table[i]) for i in order}
        self.root, self.approximate = root, approximate
        self.asked: list[int] = []

    def __len__(self) -> int:
        return len(self._items)

    def _which(self, where: Sequence[Condition]) -> list[int]:
        check_conditions(where, self.fields, self.name)
        return [id for id, item in self._items.items() if fulfils(item.fields, where)]

    def count(self, where: Sequence[Condition] = ()) -> int:
        return len(self._which(where))

    def nearest(self, queries: Any, k: int, *, where: Sequence[Condition] = (), exact: bool | None = None) -> Nearest:
        if k < 1:
            raise ValueError("k")
        self.asked.append(k)
        ids = np.array(self._which(where), np.int64)
        table = np.atleast_2d(np.asarray(queries, np.float32))
        scores = table @ self.vectors(ids).T
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        is_exact = self.approximate is None or exact is True
        if not is_exact:
            order = order[:, : self.approximate]
        return Nearest(np.take_along_axis(scores, order, 1), ids[order], is_exact)

    def vectors(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        try:
            rows = [self._vectors[int(id)] for id in ids]
        except KeyError as error:
            raise GalleryError(f"no image {error}") from None
        return np.stack(rows) if rows else np.empty((0, self.embed_dim), np.float32)

    def items(self, ids: Sequence[int] | np.ndarray) -> list[Item]:
        try:
            return [self._items[int(id)] for id in ids]
        except KeyError as error:
            raise GalleryError(f"no image {error}") from None

    def ids(self, where: Sequence[Condition] = (), *, block: int = 4096) -> Iterator[np.ndarray]:
        ids = np.array(self._which(where), np.int64)
        for start in range(0, len(ids), block):
            yield ids[start : start + block]

    def file(self, item: Item) -> Path | None:
        return None if self.root is None else self.root / item.path

    def find(self, path: str) -> int | None:
        return next((item.id for item in self._items.values() if item.path == path), None)

    def values(self, name: str, limit: int = 100) -> list[tuple[str, int]]:
        if self.fields.get(name) not in ("text", "folder"):
            raise GalleryError(f"no text field {name}")
        counts = Counter(str(item.fields[name]) for item in self._items.values() if name in item.fields)
        return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:limit]
