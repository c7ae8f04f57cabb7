"""The folders that an index is of: their names, where they are, and how they spell the paths of images."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clipmend.data.images import display_path
from clipmend.search import store
from clipmend.search.database import raw

__all__ = ["Root", "match_roots", "read_roots", "root_rows"]


@dataclass(frozen=True)
class Root:
    """One folder of images.

    Attributes:
        id: kept while the folder stays in the index.
        name: its own name, made unique among several.
        prefix: what its images' paths start with: ``"NAME/"`` where there are several folders, else nothing.
        path: where it is; absolute.
        trusted: whether sizes and times that are known were read under this very path.
    """

    id: int
    name: str
    prefix: str
    path: Path
    trusted: bool = True


def read_roots(connection: sqlite3.Connection, directory: Path) -> list[Root]:
    """The folders by their id, found also after index and images moved together."""
    roots = []
    for id_, name, prefix, path, relative in connection.execute("SELECT id, name, prefix, path, relative FROM roots ORDER BY id"):
        if not isinstance(name, str) or not isinstance(prefix, str):
            raise TypeError(f"the folder {name!r}, whose paths start with {prefix!r}")
        place = Path(path)
        if not place.is_dir() and relative:
            beside = Path(os.path.normpath(directory.resolve() / relative))
            place = beside if beside.is_dir() else place
        roots.append(Root(id_, name, prefix, place, str(place) == path))
    return roots


def root_rows(roots: Sequence[Root], directory: Path) -> list[tuple[int, bytes, bytes, bytes, bytes]]:
    """The rows of the table ``roots``."""
    return [
        (
            root.id,
            raw(root.name),
            raw(root.prefix),
            raw(str(root.path)),
            raw(store.relative_root(root.path, directory)),
        )
        for root in roots
    ]


def match_roots(known: Sequence[Root], folders: Sequence[str | os.PathLike[str]], directory: Path) -> list[Root]:
    """The folders an index is to be of, each with the id of the known one that it is.

    A single folder given for an index of a single other one is that one at a new place: contents decide what changed.

    Raises:
        ValueError: no folder at all, or one that lies inside another, whose images would be there twice.
        FileNotFoundError, NotADirectoryError: one that is missing or no folder.
    """
    places: list[Path] = []
    for folder in folders:
        if not os.path.exists(folder):
            raise FileNotFoundError(f"no such folder: {display_path(folder)}")
        if not os.path.isdir(folder):
            raise NotADirectoryError(f"not a folder: {display_path(folder)}")
        place = Path(folder).resolve()
        if place not in places:
            places.append(place)
    if not places:
        raise ValueError("no folder of images was given")
    for place in places:
        for other in places:
            if other in place.parents:
                raise ValueError(
                    f"{display_path(place)} lies inside {display_path(other)}, which is indexed with all that is in it"
                )
    by_path = {root.path: root for root in known}
    if len(places) == len(known) == 1:
        by_path = {places[0]: known[0]}
    next_id = 1 + max((root.id for root in known), default=0)
    names: set[str] = {by_path[place].name for place in places if place in by_path and len(places) > 1}
    roots = []
    for place in places:
        old = by_path.get(place)
        if old is not None and len(places) > 1:
            name = old.name
        else:
            base = name = place.name or "root"
            number = 2
            while name in names:
                name, number = f"{base} {number}", number + 1
        names.add(name)
        prefix = f"{name}/" if len(places) > 1 else ""
        if old is None:
            roots.append(Root(next_id, name, prefix, place, False))
            next_id += 1
        else:
            roots.append(Root(old.id, name, prefix, place, old.trusted and old.path == place))
    return roots
