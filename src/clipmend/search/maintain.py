"""Keep an index small and quick after it changed: drop dead rows, join small shards, renew the graph, say so in the manifest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from clipmend.search import store, writer
from clipmend.search.database import Database, guard, integers, translated
from clipmend.search.exact import Shards
from clipmend.search.nearest import keep_graph
from clipmend.search.store import Manifest, Shard

__all__ = ["maintain"]

LEAST_DEAD = 256
"""Rows are numbered anew when more of them are dead than alive, and more than this."""


def maintain(
    directory: Path,
    manifest: Manifest,
    database: Database,
    *,
    approximate: bool | None = None,
    progress: bool = False,
    workers: int | None = None,
) -> None:
    """See the module. The caller holds the index's lock.

    Args:
        directory, manifest, database: the index.
        approximate, progress, workers: see :func:`clipmend.search.build_index`.
    """
    with translated(directory):
        rows = sum(shard.rows for shard in database.shards())
        live = int(database.one("SELECT count(DISTINCT row) FROM images WHERE gone = 0"))
        if rows - live > max(live, LEAST_DEAD):
            _compact(directory, manifest, database)
        else:
            writer.join_small(database, manifest)
        kept = keep_graph(directory, manifest, database, approximate=approximate, progress=progress, workers=workers)
        store.remove_leftovers(directory, {shard.file for shard in database.shards()} | kept)
        seal(directory, manifest, database)


def seal(directory: Path, manifest: Manifest, database: Database) -> None:
    """Write the manifest with the digest of the database as it is now; untouched if it says so already."""
    generation = int(database.meta("generation"))
    before = store.read_manifest(directory)
    if before.generation == generation and before.database:
        return
    count = int(database.one("SELECT count(*) FROM images WHERE gone = 0"))
    with guard.alone():
        digest = store.file_digest(directory / store.DATABASE)
    store.write_manifest(directory, replace(manifest, count=count, generation=generation, database=digest))


def _compact(directory: Path, manifest: Manifest, database: Database) -> None:
    """Copy the rows in use into few new shards, number them anew and forget images that are gone."""
    shards = Shards(directory, database.shards(), manifest.embed_dim, manifest.dtype)
    used = integers(database.execute("SELECT DISTINCT row FROM images WHERE gone = 0 ORDER BY row"), 1)[:, 0]
    number = max(int(database.meta("next_shard")), store.highest_shard(directory) + 1)
    new = list[Shard]()
    for first in range(0, len(used), writer.SHARD_ROWS):
        part = used[first : first + writer.SHARD_ROWS]
        new.append(store.write_shard(directory, number + len(new), first, shards.gather(part, raw=True)))
    run = database.execute
    with database.transaction():
        run("CREATE TEMP TABLE renumbered(old INTEGER PRIMARY KEY, new INTEGER)")
        database.many("INSERT INTO temp.renumbered VALUES(?, ?)", ((int(old), new) for new, old in enumerate(used)))
        run("DELETE FROM images WHERE gone > 0")
        run("DELETE FROM extra WHERE id NOT IN (SELECT id FROM images)")
        run(
            "CREATE TEMP TABLE kept AS SELECT renumbered.new AS row, sha256, width, height, taken FROM contents"
            " JOIN temp.renumbered ON renumbered.old = contents.row"
        )
        run("DELETE FROM contents")
        run("INSERT INTO contents SELECT * FROM temp.kept ORDER BY row")
        run("UPDATE images SET row = (SELECT new FROM temp.renumbered WHERE old = images.row)")
        writer.replace_shards(database, database.shards(), new)
        database.set_meta(committed=len(used), next_shard=number + len(new), epoch=int(database.meta("epoch")) + 1)
        run("DROP TABLE temp.renumbered")
        run("DROP TABLE temp.kept")
    if int(database.one("PRAGMA freelist_count")) > int(database.one("PRAGMA page_count")) // 2:
        with guard.shared():
            run("VACUUM")
