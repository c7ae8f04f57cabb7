"""The database of an image index (SQLite): its tables, connections to it, and conditions as SQL.

The journal is SQLite's own rollback journal, not a write-ahead log: at rest the index is then one plain file, which can be copied,
compared and read from a read-only disk, where a log would need two more files and a writable folder even to read. What that costs,
readers that wait while a transaction is written out, is little here: there is one writer, and its transactions are few.

Texts are stored as the bytes they are, also where a file name is not UTF-8; Python sees them with surrogate escapes.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

import numpy as np

from clipmend.data.images import display_path
from clipmend.search import store
from clipmend.search.conditions import _pattern, check_conditions
from clipmend.search.gallery import BASE_FIELDS, Condition, FieldType, GalleryError
from clipmend.search.store import ImageIndexError, Manifest, Shard

__all__ = ["Database", "escaped", "raw"]

SCHEMA = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value);
CREATE TABLE roots(id INTEGER PRIMARY KEY, name TEXT, prefix TEXT, path TEXT, relative TEXT);
CREATE TABLE shards(number INTEGER PRIMARY KEY, first INTEGER, rows INTEGER, sha256 TEXT);
CREATE TABLE contents(row INTEGER PRIMARY KEY, sha256 BLOB, width INTEGER, height INTEGER, taken REAL);
CREATE INDEX contents_sha256 ON contents(sha256) WHERE sha256 IS NOT NULL;
CREATE TABLE images(
    id INTEGER PRIMARY KEY, path TEXT NOT NULL, root INTEGER, folder TEXT, name TEXT, size INTEGER, mtime_ns INTEGER, date REAL,
    row INTEGER NOT NULL, width INTEGER, height INTEGER, gone INTEGER NOT NULL DEFAULT 0);
CREATE INDEX images_path ON images(path, row) WHERE gone = 0;
CREATE INDEX images_gone ON images(path, row) WHERE gone > 0;
CREATE INDEX images_row ON images(row);
CREATE INDEX images_folder ON images(folder) WHERE gone = 0;
CREATE INDEX images_date ON images(date) WHERE gone = 0;
CREATE TABLE fields(name TEXT PRIMARY KEY, type TEXT, place TEXT);
CREATE TABLE extra(id INTEGER PRIMARY KEY);
"""
"""
``meta``: id of the index, ``generation`` (rises with every transaction), ``changed`` (the generation when last something changed
that a reader sees; missing where only an older release wrote), ``complete``, ``epoch`` (rises when rows are numbered
anew), ``next_id``, ``next_shard``, ``committed`` (rows when the images last changed: later ones are of a run that was killed),
``skipped``.
``contents``: what each row embeds. ``images``: ``gone`` is the generation in which an image went, 0 for one that is there.
``extra``: one column for each imported field, named in ``fields``.
"""

_NUMBERS = ("generation", "epoch", "complete", "next_id", "next_shard", "committed", "skipped")
TIMEOUT = 60.0
"""Seconds to wait for another process's transaction."""
SYNCHRONOUS = "FULL"
CHECKED_BYTES = 64 << 20
"""A database of at most so many bytes is compared with its digest whenever it is opened; a larger one by ``verify`` only."""


def raw(text: str) -> bytes:
    """The bytes that a text is stored as."""
    return text.encode("utf-8", "surrogateescape")


def escaped(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


class _Guard:
    """Keeps raw reads of a database's file and SQLite's locks in this process apart.

    POSIX drops all locks that a process has on a file as soon as it closes any handle to it. So whoever reads the file as bytes,
    for its digest, does so while no other thread is inside SQLite.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._inside = 0
        self._alone = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        with self._condition:
            self._condition.wait_for(lambda: not self._alone)
            self._inside += 1
        try:
            yield
        finally:
            with self._condition:
                self._inside -= 1
                self._condition.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self._condition:
            self._condition.wait_for(lambda: not self._alone and not self._inside)
            self._alone = True
        try:
            yield
        finally:
            with self._condition:
                self._alone = False
                self._condition.notify_all()


guard = _Guard()


def connect(directory: Path, mode: str) -> sqlite3.Connection:
    """Open the database: mode ``"ro"`` to read, ``"rw"`` to write, ``"rwc"`` to make it."""
    path = quote(os.fsencode(os.path.abspath(directory / store.DATABASE)))
    return _prepared(
        sqlite3.connect(f"file:{path}?mode={mode}", uri=True, timeout=TIMEOUT, isolation_level=None, check_same_thread=False)
    )


def copied(connection: sqlite3.Connection) -> sqlite3.Connection:
    """A copy of a database for this process alone, in a temporary file that SQLite deletes with it."""
    copy = _prepared(sqlite3.connect("", isolation_level=None, check_same_thread=False))
    try:
        connection.backup(copy)
    except BaseException:
        copy.close()
        raise
    return copy


def _prepared(connection: sqlite3.Connection) -> sqlite3.Connection:
    connection.text_factory = escaped
    connection.create_function("fits", 2, _fits, deterministic=True)
    return connection


def _fits(pattern: bytes | None, value: bytes | None) -> bool:
    return value is not None and pattern is not None and _pattern(escaped(pattern)).fullmatch(escaped(value).casefold()) is not None


@contextmanager
def translated(directory: Path, *, opening: bool = False) -> Iterator[None]:
    """SQLite's errors in this library's words; also those that Python cannot read, of a schema whose damage they quote."""
    try:
        yield
    except UnicodeDecodeError as error:
        if not opening:
            raise
        raise store.damaged(directory, f"{store.DATABASE} cannot be used ({error})") from error
    except sqlite3.Error as error:
        text = str(error)
        if "full" in text and isinstance(error, sqlite3.OperationalError):
            place = directory / store.DATABASE
            raise OSError(
                errno.ENOSPC, f"no space is left to write the index or its temporary tables ({text})", str(place)
            ) from error
        if "locked" in text or "busy" in text:
            raise ImageIndexError(
                f"the index {display_path(directory)} is being written by another process; wait for it"
            ) from error
        if isinstance(error, sqlite3.OperationalError) and ("readonly" in text or "disk I/O" in text):
            raise OSError(errno.EIO, f"the database cannot be written ({text})", str(directory / store.DATABASE)) from error
        raise store.damaged(directory, f"{store.DATABASE} cannot be used ({text})") from error


class Database:
    """One connection for writing; the caller holds the index's lock."""

    def __init__(self, directory: Path, manifest: Manifest, *, create: bool = False) -> None:
        """Open it, or make it for the index of that manifest.

        Raises:
            ImageIndexError: it is missing, damaged, or of another index.
        """
        self.directory = directory
        if not create and not (directory / store.DATABASE).is_file():
            raise store.damaged(directory, f"{store.DATABASE} is missing")
        with translated(directory, opening=True):
            self.connection = connect(directory, "rwc" if create else "rw")
            self.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
            self.execute("PRAGMA temp_store = FILE")  # tables of a million files must not be held in memory
            if create:
                with self.transaction():
                    for statement in SCHEMA.split(";"):
                        self.execute(statement)
                    rows = [("id", manifest.id), *((name, 0) for name in _NUMBERS)]
                    self.many("INSERT INTO meta VALUES(?, ?)", rows)

            else:
                with guard.alone():
                    check_identity(self.connection, directory, manifest)
                    check_bytes(self.connection, directory, manifest)

    def execute(self, sql: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> sqlite3.Cursor:
        return self.connection.execute(sql, values)

    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        self.connection.executemany(sql, rows)

    def one(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """The first value of the first row, or ``None``."""
        row = self.connection.execute(sql, values).fetchone()
        return None if row is None else row[0]

    def meta(self, key: str) -> Any:
        return self.one("SELECT value FROM meta WHERE key = ?", (key,))

    def set_meta(self, **values: Any) -> None:
        self.many("UPDATE meta SET value = ? WHERE key = ?", [(value, key) for key, value in values.items()])

    @contextmanager
    def transaction(self, *, seen: bool = True) -> Iterator[None]:
        """All or nothing, on the disk once it is left; raises the generation.

        Args:
            seen: whether readers find something else afterwards, and should open the index again.
        """
        with guard.shared(), translated(self.directory):
            self.execute("BEGIN IMMEDIATE")
            try:
                yield
                if self.one("SELECT 1 FROM sqlite_master WHERE name = 'meta'"):
                    self.execute("UPDATE meta SET value = value + 1 WHERE key = 'generation'")
                    if seen:
                        self.execute("INSERT OR REPLACE INTO meta SELECT 'changed', value FROM meta WHERE key = 'generation'")
                commit(self.connection)
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.rollback()
                raise

    @contextmanager
    def scratch(self) -> Iterator[None]:
        """Many writes to temporary tables as one."""
        with translated(self.directory):
            self.execute("BEGIN")
            try:
                yield
            except BaseException:
                self.connection.rollback()
                raise
            self.connection.commit()

    def shards(self) -> list[Shard]:
        return read_shards(self.connection)

    def close(self) -> None:
        self.connection.close()


def commit(connection: sqlite3.Connection) -> None:
    """The one place where a transaction becomes true."""
    connection.commit()


def check_identity(connection: sqlite3.Connection, directory: Path, manifest: Manifest) -> dict[str, Any]:
    """Refuse a database that is not the manifest's; gives what ``meta`` says."""
    meta = dict(connection.execute("SELECT key, value FROM meta").fetchall())
    meta.setdefault("changed", meta.get("generation"))
    if not isinstance(meta.get("id"), str) or not all(isinstance(meta.get(name), int) for name in (*_NUMBERS, "changed")):
        raise store.damaged(directory, f"{store.DATABASE} lacks what it must say")
    if meta["id"] != manifest.id:
        raise store.damaged(directory, f"{store.DATABASE} is of another index than {store.MANIFEST}")
    if meta["generation"] < manifest.generation:
        raise store.damaged(directory, f"{store.DATABASE} is older than {store.MANIFEST} says")
    return meta


def check_bytes(connection: sqlite3.Connection, directory: Path, manifest: Manifest, *, verify: bool = False) -> None:
    """Compare the file with the digest in the manifest, if it is of this very generation; the caller is :data:`guard` ``.alone()``.

    Last of all that is read in a transaction: closing the file after its digest is taken gives up the lock on it.
    """
    path = directory / store.DATABASE
    generation = connection.execute("SELECT value FROM meta WHERE key = 'generation'").fetchone()[0]
    if verify and connection.execute("PRAGMA integrity_check(1)").fetchall() != [("ok",)]:
        raise store.damaged(directory, f"{store.DATABASE} does not pass SQLite's own check")
    wanted = manifest.database and generation == manifest.generation and (verify or path.stat().st_size <= CHECKED_BYTES)
    if wanted and store.file_digest(path) != manifest.database:
        raise store.damaged(directory, f"{store.DATABASE} is not what was written (its digest differs)")


def read_shards(connection: sqlite3.Connection) -> list[Shard]:
    return [Shard(*row) for row in connection.execute("SELECT number, first, rows, sha256 FROM shards ORDER BY first")]


def read_fields(connection: sqlite3.Connection) -> dict[str, tuple[FieldType, str]]:
    """Type and place of every field; a place is an SQL expression over ``images`` and ``extra``."""
    fields: dict[str, tuple[FieldType, str]] = {name: (type_, f"images.{name}") for name, type_ in BASE_FIELDS.items()}
    for name, type_, place in connection.execute("SELECT name, type, place FROM fields ORDER BY rowid"):
        if not (isinstance(name, str) and isinstance(place, str) and type_ in get_args(FieldType)):
            raise TypeError(f"the field {name!r} of type {type_!r}")
        fields[name] = (type_, f"extra.{place}")
    return fields


def integers(cursor: sqlite3.Cursor, columns: int) -> np.ndarray:
    """int64 ``[n, columns]``."""
    parts = []
    while block := cursor.fetchmany(65_536):
        parts.append(np.array(block, np.int64))
    return np.concatenate(parts) if parts else np.empty((0, columns), np.int64)


def where_sql(
    where: Sequence[Condition], fields: Mapping[str, tuple[FieldType, str]], name: str
) -> tuple[str, str, list[str | float | bytes]]:
    """Conditions as SQL over ``images``.

    Returns:
        what to join, the expression (``1`` for no condition), and its values.

    Raises:
        ImageIndexError: a field that is not there, an operator or value that does not fit its type.
    """
    try:
        check_conditions(where, {field: type_ for field, (type_, _) in fields.items()}, name)
    except GalleryError as error:
        raise ImageIndexError(str(error)) from None
    parts, values = [], list[str | float | bytes]()
    join = ""
    for condition in where:
        _, place = fields[condition.field]
        if place.startswith("extra."):
            join = " LEFT JOIN extra ON extra.id = images.id"
        if not isinstance(condition.value, str):
            parts.append(f"{place} {condition.op} ?")
            values.append(float(condition.value))
            continue
        try:
            text = raw(condition.value)
        except UnicodeEncodeError:  # half of a surrogate pair: no text that is stored, so nothing equals it
            text = condition.value.encode("utf-8", "surrogatepass")
        if condition.op == "like":
            parts.append(f"fits(?, CAST({place} AS BLOB))")
            values.append(text)
        elif condition.op == "under":
            if not condition.value:
                parts.append(f"{place} IS NOT NULL")
                continue
            # From "folder/" up to, but without, "folder0": 0 is the character after the slash.
            parts.append(f"({place} = CAST(? AS TEXT) OR ({place} >= CAST(? AS TEXT) AND {place} < CAST(? AS TEXT)))")
            values += [text, text + b"/", text + b"0"]
        else:
            parts.append(f"{place} {condition.op} CAST(? AS TEXT)")
            values.append(text)
    return join, " AND ".join(f"({part})" for part in parts) or "1", values
