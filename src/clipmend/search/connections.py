"""Connections for reading an index's database, one a thread, all to what was there first."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from clipmend.data.images import display_path
from clipmend.search import store
from clipmend.search.database import connect, copied, guard, integers, translated
from clipmend.search.store import ImageIndexError

__all__ = ["Connections"]


Result = TypeVar("Result")
_PATIENCE, _PAUSE = 10.0, 0.005
"""Seconds to wait for a moment in which the other index's writer is between two transactions, and between looks."""


class Connections:
    """Connections for reading, one a thread.

    Should another file take the database's place (an index that was deleted and made again, or renamed over), what was opened is
    copied out of the file that the first connection holds, and all threads share the copy: ids of one index are never looked up
    in another. Without a copy, SQLite would take the journal beside the new file for one of the old.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._local = threading.local()
        self._all: list[tuple[threading.Thread, sqlite3.Connection]] = []
        self._lock, self._beginning, self._sharing = threading.Lock(), threading.Lock(), threading.RLock()
        self._first: sqlite3.Connection | None = None
        self._copy: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._closed = False

    @contextmanager
    def using(self) -> Iterator[sqlite3.Connection]:
        """This thread's connection, or the shared one for as long as nobody else may have it."""
        own = self._own()
        if own is not None:
            yield own
            return
        with self._sharing:
            yield self._shared()

    def _own(self) -> sqlite3.Connection | None:
        """This thread's connection; ``None`` where another file is in the database's place."""
        if self._closed:
            raise self._was_closed()
        if self.replaced():
            return None
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is not None:
            return connection
        with self._beginning:
            if self._first is None:
                self._first, self._file = self._open_one()
        connection, file = self._open_one()
        if file != self._file:
            connection.close()
            return None
        self._local.connection = connection
        with self._lock:
            if self._closed:
                connection.close()
                raise self._was_closed()
            for thread, left in self._all:  # a service's threads come and go; files must not stay open for each
                if not thread.is_alive():
                    left.close()
            self._all = [pair for pair in self._all if pair[0].is_alive()]
            self._all.append((threading.current_thread(), connection))
        return connection

    def _shared(self) -> sqlite3.Connection:
        until = time.monotonic() + _PATIENCE
        while self._copy is None:
            if self._closed or self._first is None:
                raise self._was_closed()
            try:
                self._copy = copied(self._first)
            except sqlite3.OperationalError:
                if time.monotonic() > until:
                    raise
                time.sleep(_PAUSE)
        return self._copy

    def replaced(self) -> bool:
        """Whether another file, or none, is where the first connection found the database."""
        return self._file is not None and self._there() != self._file

    def _was_closed(self) -> ImageIndexError:
        return ImageIndexError(f"the index {display_path(self.directory)} was closed")

    def _there(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self.directory / store.DATABASE)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _open_one(self) -> tuple[sqlite3.Connection, tuple[int, int] | None]:
        """A connection, and which file it is to."""
        while True:
            before = self._there()
            connection = self._open()
            if self._there() == before:
                return connection, before
            connection.close()  # it was replaced just then, and might be either

    def _open(self) -> sqlite3.Connection:
        if not (self.directory / store.DATABASE).is_file():
            raise store.damaged(self.directory, f"{store.DATABASE} is missing")
        with translated(self.directory, opening=True):
            connection = connect(self.directory, "ro")
            try:
                connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
            except sqlite3.OperationalError:
                connection.close()
                # A writer that was killed left half a transaction: whoever may write takes it back, as SQLite does on opening.
                recovering = connect(self.directory, "rw")
                recovering.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
                recovering.close()
                connection = connect(self.directory, "ro")
            connection.execute("PRAGMA query_only = ON")
            return connection

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query; for few."""
        return self._read(lambda connection: connection.execute(sql, values).fetchall())

    def integers(self, sql: str, values: Sequence[Any] = ()) -> np.ndarray:
        """int64 ``[n]`` of a query for integers; a million need no more memory than the array."""
        return self._read(lambda connection: integers(connection.execute(sql, values), 1)[:, 0])

    def _read(self, ask: Callable[[sqlite3.Connection], Result]) -> Result:
        while True:
            there = not self.replaced()
            try:
                with guard.shared(), translated(self.directory), self.using() as connection:
                    return ask(connection)
            except (ImageIndexError, OSError):
                if not there or not self.replaced() or self._closed:
                    raise  # else it was replaced just then

    def close(self) -> None:
        with self._lock, self._sharing:
            self._closed = True
            for _, connection in self._all:
                connection.close()
            for shared in (self._first, self._copy):
                if shared is not None:
                    shared.close()
            self._all, self._copy = [], None
