"""Copy a gallery into another store: ids stay, a copy that was cut short goes on, and what arrived is compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from clipmend.search.gallery import Gallery, GalleryError, Item, WritableGallery

__all__ = ["CopyReport", "copy_gallery"]

SAME = 1e-3
"""How far a copied vector's cosine with its source may be from 1: stores of half precision lose about 0.0005."""


@dataclass(frozen=True)
class CopyReport:
    """What a copy did.

    Attributes:
        total: images of the source.
        copied: images written by this run.
        there: images that were there already, unchanged.
        others: images of the target that the source does not have; they stay.
        compared: vectors read back and compared at the end.
        seconds: time taken.
    """

    total: int
    copied: int
    there: int
    others: int
    compared: int
    seconds: float

    def __str__(self) -> str:
        parts = [f"{self.copied:,} of {self.total:,} images copied"]
        if self.there:
            parts.append(f"{self.there:,} were there already")
        if self.others:
            parts.append(f"{self.others:,} of the target are of another source, and stay")
        return f"{', '.join(parts)}; {self.compared:,} vectors compared; {self.seconds:.1f} s"


def copy_gallery(
    source: Gallery,
    target: WritableGallery,
    *,
    id_offset: int = 0,
    replace: bool = False,
    batch: int = 4096,
    sample: int = 1000,
    seed: int = 0,
    progress: bool = False,
) -> CopyReport:
    """Copy all images of a gallery into another, with their ids.

    An image that the target has under the same id, with the same path, fields and digest, is passed over, where a digest is unknown
    only if its vector is the same too; one that changed (by content or fields) or moved is replaced. So a copy that was cut short
    goes on, and a copy of a source that grew adds what is new. Images that the target has and the source has not stay. At the end
    every id of the source must be in the target, and a sample of vectors must have arrived.

    Args:
        source: what is copied.
        target: where it goes; made by the same encoder, as far as both know theirs.
        id_offset: added to every id, for sources whose ids are rows that all begin at 0.
        replace: let images of the source take the place of others that happen to have their ids.
        batch: images at a time.
        sample: vectors that are read back and compared, chosen at random.
        seed: of that choice.
        progress: show a bar on a terminal.

    Raises:
        GalleryError: another encoder or width, another image of the same id (of another path and another digest), or something that
            did not arrive.
        ValueError: ``batch`` below 1, ``sample`` below 0, source and target are one, an id past 2^63 with ``id_offset``.
    """
    import time

    from clipmend.search.embed import progress_bar
    from clipmend.search.index import ImageIndex

    if batch < 1 or sample < 0:
        raise ValueError(f"batch must be at least 1 and sample at least 0 (got {batch} and {sample})")
    if source is target:
        raise ValueError("source and target are the same gallery")
    _check_same_encoder(source, target)
    started = time.perf_counter()
    copied = there = others = 0
    total = len(source)
    types = {name: type_ for name, type_ in target.fields.items() if name in source.fields}
    with progress_bar("Copying", total, progress) as advance:
        for ids, known, strangers in _side_by_side(source, target, batch, id_offset):
            others += strangers
            items, vectors = _shifted(source.items(ids), id_offset), source.vectors(ids)
            changed = _changed(target, known, items, vectors, types, replace)
            if changed.any():
                target.add([item for item, new in zip(items, changed, strict=True) if new], vectors[changed])
            copied += int(changed.sum())
            there += int((~changed).sum())
            for _ in ids:
                advance()
    if copied and isinstance(target, ImageIndex):
        target.optimise(progress=progress)
    compared = _compare(source, target, batch, sample, seed, id_offset)
    return CopyReport(total, copied, there, others, compared, time.perf_counter() - started)


def _check_same_encoder(source: Gallery, target: Gallery) -> None:
    if source.embed_dim != target.embed_dim:
        raise GalleryError(
            f"{source.name} holds vectors of {source.embed_dim} dimensions, {target.name} of {target.embed_dim}: they cannot be "
            "one gallery"
        )
    if source.image_digest and target.image_digest and source.image_digest != target.image_digest:
        raise GalleryError(
            f"{source.name} was made by {source.backbone!r} (image side {source.image_digest[:12]}), {target.name} by "
            f"{target.backbone!r} ({target.image_digest[:12]}): their vectors cannot be compared"
        )
    known = source.image_digest and target.image_digest
    if not known and source.backbone and target.backbone and source.backbone != target.backbone:
        raise GalleryError(
            f"{source.name} was made by {source.backbone!r}, {target.name} by {target.backbone!r}: their vectors cannot be compared"
        )


def _shifted(items: list[Item], offset: int) -> list[Item]:
    """The items with their ids in the target."""
    if not offset:
        return items
    return [dataclasses.replace(item, id=item.id + offset) for item in items]


def _side_by_side(source: Gallery, target: Gallery, batch: int, offset: int) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """Ids of the source a batch at a time, which of them the target has, and how many it has between that the source has not.

    Both are read in ascending order, so that neither need fit in memory. What the target gains meanwhile lies behind.
    """
    theirs = _Ascending(target, batch)
    for ids in source.ids(block=batch):
        if not 0 <= int(ids[0]) + offset <= int(ids[-1]) + offset < (1 << 63) - 1:
            raise ValueError(f"the ids {ids[0]} to {ids[-1]} with {offset} added are not all within 0 and 2^63")
        found, strangers = theirs.up_to(ids + offset)
        yield ids, found, strangers
    rest = theirs.rest()
    if rest:
        yield np.empty(0, np.int64), np.empty(0, bool), rest


class _Ascending:
    """The ids of a gallery, read as far as they are needed."""

    def __init__(self, gallery: Gallery, batch: int) -> None:
        self._blocks = gallery.ids(block=max(batch, 4096))
        self._held = np.empty(0, np.int64)
        self._done = False

    def up_to(self, ids: np.ndarray) -> tuple[np.ndarray, int]:
        """Which of ``ids`` are there, and how many others there are up to the last of them."""
        while not self._done and (not len(self._held) or self._held[-1] < ids[-1]):
            block = next(self._blocks, None)
            if block is None:
                self._done = True
            else:
                self._held = np.concatenate([self._held, block])
        cut = int(np.searchsorted(self._held, ids[-1], side="right"))
        passed, self._held = self._held[:cut], self._held[cut:]
        found = np.isin(ids, passed)
        return found, len(passed) - int(found.sum())

    def rest(self) -> int:
        return len(self._held) + sum(len(block) for block in self._blocks)


def _changed(
    target: Gallery, known: np.ndarray, items: list[Item], vectors: np.ndarray, types: Mapping[str, object], replace: bool
) -> np.ndarray:
    """bool ``[n]``: the images that the target has not, or has otherwise.

    Raises:
        GalleryError: it has quite another one of the same id.
    """
    changed = ~known
    if not known.any():
        return changed
    rows = np.flatnonzero(known).tolist()
    unsure = []
    for row, there in zip(rows, target.items([items[row].id for row in rows]), strict=True):
        here = items[row]
        moved = here.path != there.path
        if moved and not replace and not (here.sha256 and here.sha256 == there.sha256):
            raise GalleryError(
                f"{target.name} has another image of the id {here.id} ({there.path}, not {here.path}); if both are wanted, "
                "copy with an id_offset (--id-offset) past the ids that are there, and to replace those, with replace (--replace)"
            )
        if moved or there.sha256 != here.sha256 or any(here.fields.get(name) != there.fields.get(name) for name in types):
            changed[row] = True
        elif not here.sha256:
            unsure.append(row)
    if unsure:
        cosines = np.einsum("nd,nd->n", target.vectors([items[row].id for row in unsure]), vectors[unsure])
        changed[np.asarray(unsure)[cosines < 1 - SAME]] = True
    return changed


def _compare(source: Gallery, target: Gallery, batch: int, sample: int, seed: int, offset: int) -> int:
    """Every id must have arrived, and a random sample of the vectors and paths must be the same.

    Raises:
        GalleryError: something is missing or other than it was.
    """
    rng = np.random.default_rng(seed)
    chosen: list[int] = []
    seen = missing = 0
    for ids, found, _ in _side_by_side(source, target, batch, offset):
        missing += int((~found).sum())
        for id_ in ids.tolist():  # every image has the same chance, however many there are
            seen += 1
            if len(chosen) < sample:
                chosen.append(id_)
            elif (place := int(rng.integers(seen))) < sample:
                chosen[place] = id_
    if missing:
        raise GalleryError(f"{missing:,} of {seen:,} images of {source.name} did not arrive in {target.name}; copy again")
    chosen.sort()
    for first in range(0, len(chosen), batch):
        part = chosen[first : first + batch]
        arrived = [id_ + offset for id_ in part]
        cosines = np.einsum("nd,nd->n", source.vectors(part), target.vectors(arrived))
        for id_, cosine, here, there in zip(part, cosines, source.items(part), target.items(arrived), strict=True):
            if cosine < 1 - SAME or here.path != there.path:
                raise GalleryError(
                    f"{target.name}: the image {id_} ({here.path}) is not what was copied (cosine {cosine:.4f}, "
                    f"path {there.path!r})"
                )
    return len(chosen)
