"""``clipmend info``: what an image index holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from clipmend.search.info import GraphInfo, IndexInfo

__all__ = ["register"]

EPILOG = """Example:

clipmend info pictures.index

clipmend info pictures.index --json

clipmend info pictures.index --verify
"""

_LABEL = 12


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(name="info", epilog=EPILOG)(info)


def info(
    index: str = typer.Argument(..., metavar="INDEX", help="An index that 'clipmend index' or 'clipmend copy' made."),
    most: int = typer.Option(10, "--most", min=0, help="So many folders, columns and unreadable files are named; 0 for all."),
    verify: bool = typer.Option(False, "--verify", help="Also read everything and compare it with its digests."),
    as_json: bool = typer.Option(False, "--json", help="Everything as JSON on standard output."),
) -> None:
    """Tell what an index holds: its encoder, images by folder, columns, unreadable files, and what it takes on the disk.

    No model is loaded. An index that is damaged or was never finished is an error that says so.
    """
    import json

    from rich.console import Console

    from clipmend.search.info import index_info
    from clipmend.search.store import ImageIndexError

    if index.startswith("qdrant:"):
        raise ImageIndexError(f"{index} is a collection of Qdrant; 'clipmend info' tells of indexes, which are folders")
    told = index_info(Path(index), verify=verify)
    if as_json:
        typer.echo(json.dumps(told.as_json(), indent=2, ensure_ascii=False))
        return
    console = Console(highlight=False, soft_wrap=True, emoji=False)
    for line in _lines(told, most):
        console.print(line, markup=False)


def _lines(told: IndexInfo, most: int) -> list[str]:
    from clipmend.data.images import display_path

    lines: list[str] = [display_path(told.directory)]

    def add(label: str, *values: str) -> None:
        lines.extend(f"  {label if not number else '':<{_LABEL}} {value}" for number, value in enumerate(values))

    def some(values: list[str]) -> list[str]:
        shown = values[:most] if most else values
        return shown + ([f"... and {len(values) - len(shown):,} more"] if len(shown) < len(values) else [])

    digest = f"image side {told.image_digest[:12]}" if told.image_digest else "image side unknown"
    add("encoder", f"{told.backbone or 'unknown'} ({digest}); {told.embed_dim} dimensions, {told.dtype}")
    copies = f" of {told.contents:,} different contents" if told.contents != told.images else ""
    add("images", f"{told.images:,}{copies}")
    add("of folders", *(_root(root.name, display_path(root.path), root.there, root.images) for root in told.roots))
    if told.elsewhere:
        add("" if told.roots else "of folders", f"none: {_many(told.elsewhere, 'image')} added without a file")
    add("by folder", *some([f"{count:,} {display_path(name) or '(top)'}" for name, count in told.folders.items()]))
    add(
        "columns",
        *(some([f"{display_path(c.name)}: {c.type}, {_many(c.images, 'image')}" for c in told.columns]) or ["none imported"]),
    )
    unreadable = [f"{display_path(path)}: {reason}" for path, reason in told.skipped.items()]
    add("unreadable", _many(len(unreadable), "file") if unreadable else "none", *some(unreadable))
    add("vectors", _vectors(told))
    add("graph", _graph(told.graph))
    parts = ", ".join(f"{name} {_size(count)}" for name, count in told.bytes.items() if name != "total" and count)
    add("on the disk", f"{_size(told.bytes['total'])} ({parts})")
    by = f" by clipmend {told.written_by}" if told.written_by else ""
    add("written", f"{told.written:%Y-%m-%d %H:%M:%S %z}{by}; format {told.version}, edition {told.edition}")
    if told.verified:
        add("verified", "everything is as it was written")
    return lines


def _root(name: str, path: str, there: bool, images: int) -> str:
    return f"{images:,} {path}" + ("" if there else " (not there)")


def _vectors(told: IndexInfo) -> str:
    said = f"{told.rows:,} in {_many(told.shards, 'file')}"
    if told.dead:
        said += f"; {told.dead:,} are of no image any more"
    if told.resumable:
        said += f"; {told.resumable:,} are of a run that was cut short: 'clipmend index' goes on with them"
    return said


def _graph(graph: GraphInfo) -> str:
    if graph.state == "none":
        return "none: search is exact"
    if graph.state == "unusable":
        return f"not used, so search is exact ({graph.problem}); the next 'clipmend index' makes it again"
    found = f"{graph.recall:.1%} of the first ten found"
    if graph.state == "current":
        return f"current: {graph.rows:,} vectors, {found}"
    return f"{graph.missing:,} vectors behind, which are compared one by one; it holds {graph.rows:,}, {found}"


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def _size(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
