"""Add and remove images of an index one by one, and its further fields."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from clipmend.search.database import Database, raw
from clipmend.search.database import read_fields as _read_fields
from clipmend.search.gallery import BASE_FIELDS, FieldType, Item
from clipmend.search.store import ImageIndexError, Manifest
from clipmend.search.writer import Content, Writer, join_small

__all__ = ["add_items", "declare", "remove_items"]

_TYPES = ("text", "number", "size", "time", "folder")
_TEXTS = ("text", "folder")
MOST_FIELDS = 500


def declare(database: Database, name: str, type_: FieldType) -> str:
    """Make a field, in the caller's transaction; gives its column in ``extra``. One that is there must be of that type.

    Raises:
        ValueError: no name, no such type, one field too many.
        ImageIndexError: the field is there with another type.
    """
    if not name.strip() or "\0" in name:
        raise ValueError(f"{name!r} is no name for a field")
    if type_ not in _TYPES:
        raise ValueError(f"{type_!r} is no type of a field; the types: {', '.join(_TYPES)}")
    fields = _read_fields(database.connection)
    if name in fields:
        there, place = fields[name]
        if there != type_:
            raise ImageIndexError(f"the field {name!r} is a {there} field already, not a {type_} one; rename the column")
        return place.removeprefix("extra.")
    number = len(fields) - len(BASE_FIELDS)
    if number >= MOST_FIELDS:
        raise ValueError(f"an index holds at most {MOST_FIELDS} fields of its own")
    place = f"c{number}"
    database.execute(f"ALTER TABLE extra ADD COLUMN {place} {'TEXT' if type_ in _TEXTS else 'REAL'}")
    database.execute("INSERT INTO fields VALUES(CAST(? AS TEXT), ?, ?)", (raw(name), type_, place))
    return place


def set_values(database: Database, place: str, type_: FieldType, values: Iterable[tuple[int, str | float]]) -> None:
    """Set one field of images, by id, in the caller's transaction."""
    # An upsert would need SQLite 3.24; two statements do without.
    kept = list(values)
    cast = "CAST(? AS TEXT)" if type_ in _TEXTS else "?"
    database.many("INSERT OR IGNORE INTO extra(id) VALUES(?)", [(id_,) for id_, _ in kept])
    database.many(
        f"UPDATE extra SET {place} = {cast} WHERE id = ?",
        [(raw(value) if isinstance(value, str) else float(value), id_) for id_, value in kept],
    )


def add_items(database: Database, manifest: Manifest, items: Sequence[Item], vectors: np.ndarray) -> None:
    """See :meth:`clipmend.search.gallery.WritableGallery.add`."""
    unit = _checked(manifest, items, vectors)
    types = {name: type_ for name, (type_, _) in _read_fields(database.connection).items()}
    extra = _extra(items, types)
    contents = [Content(bytes.fromhex(item.sha256) or None, _whole(item, "width"), _whole(item, "height"), None) for item in items]
    writer = Writer(database, manifest)
    with database.transaction():
        first = writer.insert(unit, contents)
        database.many(
            "INSERT OR REPLACE INTO images(id, path, root, folder, name, size, mtime_ns, date, row, width, height, gone)"
            " VALUES(?, CAST(? AS TEXT), NULL, CAST(? AS TEXT), CAST(? AS TEXT), ?, NULL, ?, ?, ?, ?, 0)",
            [
                (
                    item.id,
                    raw(item.path),
                    _text(item, "folder"),
                    _text(item, "name"),
                    _whole(item, "size"),
                    item.fields.get("date"),
                    first + i,
                    content.width,
                    content.height,
                )
                for i, (item, content) in enumerate(zip(items, contents, strict=True))
            ],
        )
        database.many("DELETE FROM extra WHERE id = ?", [(item.id,) for item in items])
        for name, (type_, values) in extra.items():
            set_values(database, declare(database, name, type_), type_, values)
        next_id = max(int(database.meta("next_id")), 1 + max(item.id for item in items))
        database.set_meta(next_id=next_id, committed=writer.rows)
    join_small(database, manifest)


def _checked(manifest: Manifest, items: Sequence[Item], vectors: np.ndarray) -> np.ndarray:
    """Unit vectors, once everything is known to be fit to be stored."""
    table = np.asarray(vectors, np.float32)
    if table.shape != (len(items), manifest.embed_dim):
        raise ValueError(f"vectors must be [{len(items)}, {manifest.embed_dim}], one an image (got {table.shape})")
    norms = np.linalg.norm(table.astype(np.float64), axis=1, keepdims=True)
    wrong = np.flatnonzero(~np.isfinite(norms[:, 0]) | (norms[:, 0] == 0))
    if len(wrong):
        item = items[wrong[0]]
        raise ValueError(f"the vector of {item.path!r} (id {item.id}) is zero or not finite (NaN or infinity)")
    ids = [item.id for item in items]
    if len(set(ids)) != len(ids):
        raise ValueError("an id stands twice among the images to add")
    for item in items:
        if not 0 <= item.id < 2**63 - 1:
            raise ValueError(f"an id must be 0 or more, and below 2^63 - 1 (got {item.id} of {item.path!r})")
        try:
            raw(item.path)
            bytes.fromhex(item.sha256)
        except ValueError as error:
            raise ValueError(f"the path or the digest of image {item.id} cannot be stored ({error})") from None
    return (table / norms).astype(np.float32)


def _extra(items: Sequence[Item], types: dict[str, FieldType]) -> dict[str, tuple[FieldType, list[tuple[int, str | float]]]]:
    """Type and values of the fields beyond the usual ones."""
    found: dict[str, tuple[FieldType, list[tuple[int, str | float]]]] = {}
    for item in items:
        for name, value in item.fields.items():
            text = isinstance(value, str)
            type_: FieldType = types.get(name) or (found[name][0] if name in found else "text" if text else "number")
            if text != (type_ in _TEXTS) or (not text and not math.isfinite(value)):  # type: ignore[arg-type]
                raise ValueError(f"the field {name!r} of {item.path!r} is a {type_} field, and {value!r} is no value of it")
            if name not in BASE_FIELDS:
                found.setdefault(name, (type_, []))[1].append((item.id, value))
    return found


def _text(item: Item, name: str) -> bytes | None:
    value = item.fields.get(name)
    return None if value is None else raw(str(value))


def _whole(item: Item, name: str) -> Any:
    value = item.fields.get(name)
    if value is None:
        return None
    number = float(value)  # SQLite keeps what is no whole number, or too large for one, as it is
    return int(number) if number.is_integer() and abs(number) < 1 << 63 else number


def remove_items(database: Database, ids: Sequence[int]) -> int:
    """See :meth:`clipmend.search.gallery.WritableGallery.remove`."""
    generation = int(database.meta("generation")) + 1
    removed = 0
    there = [id_ for id_ in dict.fromkeys(ids) if database.one("SELECT 1 FROM images WHERE id = ? AND gone = 0", (id_,))]
    if there:
        with database.transaction():
            database.many("UPDATE images SET gone = ? WHERE id = ?", [(generation, id_) for id_ in there])
            removed = len(there)
    return removed
