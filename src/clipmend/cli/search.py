"""``clipmend search``: ask an image index in words, with or without a patch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from clipmend.cli.encoders import PATCH_HELP, check_corrects_scores, load_encoder, refuse_without_patch

if TYPE_CHECKING:
    from rich.table import Table

    from clipmend.search import Change, Hit, ImageIndex

__all__ = ["register"]

EPILOG = """Example:

clipmend search pictures.index "a street with no car"

clipmend search pictures.index "a street with no car" --patch photos --sheet found.png

clipmend search pictures.index "a red bus" -k 100 --json
"""

SHEET_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(name="search", epilog=EPILOG)(search)


def search(
    index: Path = typer.Argument(..., metavar="INDEX", help="The index that 'clipmend index' made."),
    query: str = typer.Argument(..., help="What to look for, in words."),
    patch: str | None = typer.Option(None, "--patch", help=PATCH_HELP + " Ranks without it are shown beside."),
    strength: float = typer.Option(1.0, "--strength", min=0, help="How strongly the patch corrects; 0 is not at all."),
    gate: bool | None = typer.Option(
        None, "--gate/--no-gate", help="Leave queries without a negation cue exactly as they are; default: as the patch says."
    ),
    k: int = typer.Option(12, "-k", min=1, help="How many images to show."),
    rerank: int = typer.Option(0, "--rerank", min=0, help="With --patch: order the best N again by its score correction."),
    sheet: Path | None = typer.Option(None, "--sheet", metavar="FILE", help="Also draw the images found: .png, .jpg or .webp."),
    columns: int | None = typer.Option(None, "--columns", min=1, help="Images a row of the sheet (default: 4)."),
    model: str | None = typer.Option(None, "--model", help="Where to load the index's encoder from, if not by the name it keeps."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
    device: str | None = typer.Option(None, "--device", help="cpu, cuda, mps; default: the best that is there."),
) -> None:
    """Find the images that fit a query best: exact cosine over the index, which stays as it is, patch or no patch."""
    if sheet is not None and sheet.suffix.lower() not in SHEET_SUFFIXES:
        raise ValueError(f"--sheet writes {', '.join(SHEET_SUFFIXES)} (got {sheet.name!r})")
    if sheet is None and columns is not None:
        raise ValueError("--columns belongs to --sheet FILE")
    if not query.strip():  # before a model is loaded
        raise ValueError("the query is empty; say what to look for")
    refuse_without_patch(patch, strength=strength != 1, gate=gate is not None, rerank=rerank > 0)
    from rich.console import Console

    from clipmend.search import ImageIndex, compare, negation_hint
    from clipmend.search import search as find

    opened = ImageIndex.open(index)
    plain, encoder = load_encoder(model or opened.backbone, device, patch, strength, gate, index=index)
    if rerank:
        check_corrects_scores(encoder, "--rerank")
    hits: list[Hit] | list[Change]
    left: list[Change] = []
    if patch is None:
        hits = find(opened, encoder, query, k, rerank=rerank)
    else:
        comparison = compare(opened, plain, encoder, query, k, rerank=rerank)
        hits, left = comparison.found, comparison.left
    hint = negation_hint(query, patched=patch is not None, model=plain.name)
    if sheet is not None:
        _write_sheet(sheet, hits, query if patch is None else f"{query}  ·  patch {patch}", columns or 4)
    if as_json:
        answer = {
            "query": query,
            "model": model or opened.backbone,
            "patch": patch,
            "strength": strength if patch else None,
            "count": len(opened),
            "hits": [_row(hit) for hit in hits],
            "left": [_row(change) for change in left],
            "hint": hint,
        }
        typer.echo(json.dumps(answer, indent=2))
        return
    console = Console(highlight=False)
    console.print(_table(hits, left, opened, k))
    if sheet is not None:
        console.print(f"sheet: {sheet}", markup=False)
    if hint:
        Console(stderr=True, highlight=False).print(f"hint: {hint}", style="yellow", markup=False)


def _row(hit: Hit | Change) -> dict[str, object]:
    from clipmend.search import Hit

    row: dict[str, object] = {"path": str(hit.path)}
    if isinstance(hit, Hit):
        return {"rank": hit.rank, "score": hit.score, **row}
    return {
        "rank": hit.rank_after,
        "score": hit.score_after,
        "rank_before": hit.rank_before,
        "score_before": hit.score_before,
        **row,
    }


def _table(hits: list[Hit] | list[Change], left: list[Change], index: ImageIndex, k: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    from clipmend.data.images import display_path

    table = Table(title=Text(f"{len(hits)} of {len(index):,} images under {display_path(index.root)}"), title_justify="left")
    table.add_column("rank", justify="right")
    compared = any("rank_before" in _row(hit) for hit in hits)
    if compared:
        table.add_column("rank without patch", justify="right")
    table.add_column("score", justify="right")
    table.add_column("path", overflow="fold")

    def add(hit: Hit | Change, style: str | None = None) -> None:
        row = _row(hit)
        before = [f"{row['rank_before']:,}"] if compared else []
        table.add_row(
            f"{row['rank']:,}", *before, f"{row['score']:.4f}", Text(display_path(hit.path.relative_to(index.root))), style=style
        )

    for hit in hits:
        add(hit)
    if left:
        table.add_section()
        for change in left:
            add(change, style="dim")
        table.caption = f"dim: among the first {k} without the patch, no longer with it"
    return table


def _write_sheet(path: Path, hits: list[Hit] | list[Change], title: str, columns: int) -> None:
    from clipmend.data.sheets import contact_sheet

    if not hits:
        raise ValueError("nothing was found, so there is nothing to draw")
    captions = []
    for hit in hits:
        row = _row(hit)
        before = f" (was {row['rank_before']})" if "rank_before" in row else ""
        captions.append(f"{row['rank']}{before}  {row['score']:.3f}  {hit.path.name}")
    sheet = contact_sheet([hit.path for hit in hits], captions, columns=columns, title=title)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.stem}.tmp{path.suffix}")
    try:
        sheet.save(beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
