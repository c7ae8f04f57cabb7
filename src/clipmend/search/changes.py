"""What an update found, in temporary tables beside the index's own, and the one transaction that makes it true.

A million files are rows here, not Python objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from clipmend.search.database import Database, raw
from clipmend.search.roots import Root, root_rows

__all__ = ["ADD", "BAD", "FOUND", "READ", "SAME", "TODO", "Counts"]

TODO, SAME, READ, BAD = 0, 1, 2, 3
ADD = (
    "INSERT INTO temp.seen(path, root, folder, name, size, mtime_ns, state, error)"
    " VALUES(CAST(? AS TEXT), ?, CAST(? AS TEXT), CAST(? AS TEXT), ?, ?, ?, ?)"
)
FOUND = "UPDATE temp.seen SET size = ?, mtime_ns = ?, sha256 = ?, state = ?, error = ? WHERE n = ?"


@dataclass(frozen=True)
class Counts:
    """What changed, in images; see :class:`clipmend.search.report.UpdateReport`."""

    count: int
    added: int
    changed: int
    moved: int
    removed: int
    unchanged: int


def begin(database: Database) -> None:
    """Empty temporary tables."""
    for name in ("seen", "refused", "gone", "fresh"):
        database.execute(f"DROP TABLE IF EXISTS temp.{name}")
    database.execute(
        "CREATE TEMP TABLE seen(n INTEGER PRIMARY KEY, path TEXT, root INTEGER, folder TEXT, name TEXT, size INTEGER,"
        " mtime_ns INTEGER, state INTEGER, error TEXT, sha256 BLOB, id INTEGER, row INTEGER)"
    )
    database.execute("CREATE TEMP TABLE refused(sha256 BLOB PRIMARY KEY, reason TEXT)")


def compare(database: Database, trusted: Sequence[int]) -> None:
    """Tell apart the files that are as they were: of the same size and time, under a folder that is where it was."""
    with database.scratch():
        database.execute("CREATE INDEX temp.seen_path ON seen(path)")
        marks = ", ".join("?" for _ in trusted)
        database.execute(
            f"UPDATE temp.seen SET state = {SAME} WHERE state = {TODO} AND root IN ({marks}) AND EXISTS(SELECT 1 FROM images"
            " WHERE images.gone = 0 AND images.path = seen.path AND images.root = seen.root AND images.size = seen.size"
            " AND images.mtime_ns = seen.mtime_ns)",
            tuple(trusted),
        )
        database.execute("CREATE INDEX temp.seen_state ON seen(state, n)")


def todo(database: Database) -> Iterator[tuple[int, int, str]]:
    """Number, folder and path of the files to read, in the order they were come upon; rows may change meanwhile."""
    last = 0
    while True:
        rows = database.execute(
            f"SELECT n, root, path FROM temp.seen WHERE state = {TODO} AND n > ? ORDER BY n LIMIT 1024", (last,)
        ).fetchall()
        if not rows:
            return
        yield from rows
        last = rows[-1][0]


def count(database: Database, state: int) -> int:
    return int(database.one("SELECT count(*) FROM temp.seen WHERE state = ?", (state,)))


def refuse(database: Database) -> None:
    """Files whose content the encoder refused."""
    with database.scratch():
        database.execute(
            f"UPDATE temp.seen SET state = {BAD},"
            " error = (SELECT CAST(reason AS TEXT) FROM temp.refused WHERE sha256 = seen.sha256)"
            f" WHERE state = {READ} AND sha256 IN (SELECT sha256 FROM temp.refused)"
        )


def skipped(database: Database) -> dict[str, str]:
    return dict(database.execute(f"SELECT path, error FROM temp.seen WHERE state = {BAD} ORDER BY path").fetchall())


def commit(database: Database, roots: Sequence[Root], skipped: int, rows: int) -> Counts:
    """Make the index be of what was seen; nothing is written where it is already."""
    with database.scratch():
        _prepare(database)
    one = database.one
    moved = int(one("SELECT count(*) FROM temp.fresh WHERE old IS NULL AND sha256 IN (SELECT sha256 FROM temp.gone)"))
    added = int(one("SELECT count(*) FROM temp.fresh WHERE old IS NULL")) - moved
    removed = int(
        one(
            "SELECT count(*) FROM temp.gone WHERE sha256 NOT IN (SELECT sha256 FROM temp.fresh WHERE old IS NULL)"
            f" AND path NOT IN (SELECT path FROM temp.seen WHERE state = {BAD})"
        )
    )
    changed = int(one("SELECT count(*) FROM temp.fresh WHERE old IS NOT NULL AND sha256 IS NOT old_sha256"))
    kept = int(one("SELECT count(*) FROM temp.fresh WHERE old IS NOT NULL"))
    same = count(database, SAME)
    told = root_rows(roots, database.directory)
    known = database.execute("SELECT id, name, prefix, path, relative FROM roots ORDER BY id").fetchall()
    differs = (
        int(one("SELECT count(*) FROM temp.fresh WHERE NOT as_it_was"))
        + int(one("SELECT count(*) FROM temp.gone"))
        + ([(i, *map(raw, rest)) for i, *rest in known] != told)
        + (database.meta("skipped") != skipped)
        + (database.meta("complete") != 1)
        + (database.meta("committed") != rows)
    )
    if differs:
        with database.transaction():
            _write(database, told, skipped, rows)
    total = int(one("SELECT count(*) FROM images WHERE gone = 0"))
    return Counts(total, added, changed, moved, removed, same + kept - changed)


def _prepare(database: Database) -> None:
    """``fresh``: what was read, with the row of its content, and the image it was (``old``) and will be (``id``). ``gone``."""
    run = database.execute
    run(
        "CREATE TEMP TABLE fresh AS SELECT seen.n, seen.path, seen.root, seen.folder, seen.name, seen.size, seen.mtime_ns,"
        " seen.sha256, (SELECT min(row) FROM contents WHERE contents.sha256 = seen.sha256) AS row,"
        " images.id AS old, images.id AS id, (SELECT sha256 FROM contents WHERE contents.row = images.row) AS old_sha256,"
        " (images.id IS NOT NULL AND images.root IS seen.root AND images.size IS seen.size AND images.mtime_ns IS seen.mtime_ns"
        "  AND (SELECT sha256 FROM contents WHERE contents.row = images.row) IS seen.sha256) AS as_it_was"
        " FROM temp.seen LEFT JOIN images ON images.id = (SELECT id FROM images WHERE gone = 0 AND path = seen.path"
        "  ORDER BY root IS NULL, id LIMIT 1)"  # one: images that were added may be called like a file, and like each other
        f" WHERE seen.state = {READ}"
    )
    run("CREATE INDEX temp.fresh_sha256 ON fresh(sha256)")
    run(
        "CREATE TEMP TABLE gone AS SELECT images.id, images.path, images.row, contents.sha256 FROM images"
        " LEFT JOIN contents ON contents.row = images.row WHERE images.gone = 0 AND images.root IS NOT NULL"
        f" AND NOT EXISTS(SELECT 1 FROM temp.seen WHERE seen.path = images.path AND seen.state IN ({SAME}, {READ}))"
    )
    run("CREATE INDEX temp.gone_sha256 ON gone(sha256)")
    # A moved file keeps its id: the images of one content that went, and those that came, are paired in the order of their paths.
    run(
        "CREATE TEMP TABLE pairs AS SELECT a.n AS n, b.id AS id FROM"
        " (SELECT n, sha256, row_number() OVER (PARTITION BY sha256 ORDER BY path) AS k FROM temp.fresh WHERE old IS NULL) AS a"
        " JOIN (SELECT id, sha256, row_number() OVER (PARTITION BY sha256 ORDER BY path) AS k FROM temp.gone) AS b"
        " ON a.sha256 = b.sha256 AND a.k = b.k"
    )
    run("CREATE INDEX temp.pairs_n ON pairs(n)")
    run("UPDATE temp.fresh SET id = (SELECT id FROM temp.pairs WHERE pairs.n = fresh.n) WHERE id IS NULL")
    # One that was gone and is back, with the same content, is the same image.
    run(
        "UPDATE temp.fresh SET id = (SELECT max(images.id) FROM images WHERE images.gone > 0 AND images.path = fresh.path"
        " AND images.row = fresh.row) WHERE id IS NULL"
    )
    run("DROP TABLE temp.pairs")


def _write(database: Database, roots: Sequence[tuple[object, ...]], skipped: int, rows: int) -> None:
    run = database.execute
    generation = int(database.meta("generation")) + 1
    next_id = int(database.meta("next_id"))
    run("UPDATE images SET gone = ? WHERE id IN (SELECT id FROM temp.gone)", (generation,))
    columns = (
        "INSERT OR REPLACE INTO images(id, path, root, folder, name, size, mtime_ns, date, row, width, height, gone)"
        " SELECT {id}, f.path, f.root, f.folder, f.name, f.size, f.mtime_ns, coalesce(c.taken, f.mtime_ns / 1e9), f.row,"
        " c.width, c.height, 0 FROM temp.fresh AS f JOIN contents AS c ON c.row = f.row WHERE {which}"
    )
    new = f"{next_id} - 1 + row_number() OVER (ORDER BY f.path)"
    run(columns.format(id="f.id", which="f.id IS NOT NULL AND NOT f.as_it_was"))
    run(columns.format(id=new, which="f.id IS NULL"))
    next_id += int(database.one("SELECT count(*) FROM temp.fresh WHERE id IS NULL"))
    run("DELETE FROM roots")
    database.many("INSERT INTO roots VALUES(?, CAST(? AS TEXT), CAST(? AS TEXT), CAST(? AS TEXT), CAST(? AS TEXT))", roots)
    database.set_meta(next_id=next_id, committed=rows, skipped=skipped, complete=1)
