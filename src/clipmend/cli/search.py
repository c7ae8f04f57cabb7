"""``clipmend search``: ask an index, or whatever else holds image vectors, with or without a patch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from clipmend.cli.copy import SOURCE_HELP
from clipmend.cli.encoders import PATCH_HELP, check_corrects_scores, load_encoder, refuse_without_patch

if TYPE_CHECKING:
    from rich.table import Table

    from clipmend.search.gallery import Gallery
    from clipmend.search.grammar import Query
    from clipmend.search.searcher import Answer, Found

__all__ = ["register"]

EPILOG = """Example:

clipmend search pictures.index "a street with no car" --patch photos --sheet found.png

clipmend search pictures.index '"a beach" + 0.5 "sunset" - "people" folder:2024/holiday size>1MB'

clipmend search pictures.index --image sketch.jpg -k 100 --json
"""

QUERY_HELP = (
    "What to look for: words as they come, or arithmetic of quoted texts, image:FILE and like:ID; and filters such as folder:2024, "
    "name:*.jpg, date>=2024-05."
)
SHEET_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
MOST_TERM_COLUMNS = 4


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(name="search", epilog=EPILOG)(search)


def search(
    index: str = typer.Argument(..., metavar="INDEX", help=SOURCE_HELP),
    query: str | None = typer.Argument(None, help=QUERY_HELP, show_default=False),
    patch: str | None = typer.Option(None, "--patch", help=PATCH_HELP + " Ranks without it are shown beside."),
    strength: float = typer.Option(1.0, "--strength", min=0, help="How strongly the patch corrects; 0 is not at all."),
    gate: bool | None = typer.Option(
        None, "--gate/--no-gate", help="Leave queries without a negation cue exactly as they are; default: as the patch says."
    ),
    k: int = typer.Option(12, "-k", min=1, help="How many images to show."),
    offset: int = typer.Option(0, "--offset", min=0, help="How many of the best to pass over: the next page is --offset K."),
    rerank: int = typer.Option(0, "--rerank", min=0, help="With --patch: order the best N again by its score correction."),
    collapse: float | None = typer.Option(
        None, "--collapse", min=0.01, max=1, help="Show one of images whose vectors have this cosine or more; 0.97 is a good start."
    ),
    explain: bool = typer.Option(False, "--explain", help="Show where each rank comes from."),
    exact: bool | None = typer.Option(
        None, "--exact/--approximate", help="Compare with every image, or use the index's graph; default: what suits its size."
    ),
    image: list[Path] | None = typer.Option(None, "--image", metavar="FILE", help="Also look for what is like this image."),
    like: list[str] | None = typer.Option(
        None, "--like", metavar="ID", help="Also look for what is like this image of the index, by its id or its path there."
    ),
    sheet: Path | None = typer.Option(None, "--sheet", metavar="FILE", help="Also draw the images found: .png, .jpg or .webp."),
    columns: int | None = typer.Option(None, "--columns", min=1, help="Images a row of the sheet (default: 4)."),
    images: Path | None = typer.Option(None, "--images", metavar="DIR", help="Folder of the images, where INDEX is no index."),
    model: str | None = typer.Option(None, "--model", help="Where to load the index's encoder from, if not by the name it keeps."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
    device: str | None = typer.Option(None, "--device", help="cpu, cuda, mps; default: the best that is there."),
) -> None:
    """Find the images that fit a query best. The index stays as it is, patch or no patch."""
    if sheet is not None and sheet.suffix.lower() not in SHEET_SUFFIXES:
        raise ValueError(f"--sheet writes {', '.join(SHEET_SUFFIXES)} (got {sheet.name!r})")
    if sheet is None and columns is not None:
        raise ValueError("--columns belongs to --sheet FILE")
    if query is None and not (image or like):
        raise typer.BadParameter("say what to look for, in words or by --image FILE or --like ID", param_hint="QUERY")
    query = query or ""
    if not (query.strip() or image or like):  # before a model is loaded
        raise ValueError("the query is empty; say what to look for")
    refuse_without_patch(patch, strength=strength != 1, gate=gate is not None, rerank=rerank > 0)
    from clipmend.search.opening import open_gallery
    from clipmend.search.searcher import Searcher, list_images

    try:
        opened = open_gallery(index) if images is None else open_gallery(index, images=images)
    except TypeError:  # an index, which knows where its images are
        raise ValueError(f"--images belongs to vectors without an index, and {index} is one: leave it out") from None
    with opened as gallery:  # the encoder is compared by its digest, once loaded
        asked = _query(query, image or [], like or [], gallery)
        name = model or gallery.backbone
        if not asked.terms:  # nothing to rank by: a list, for which no encoder need be loaded
            answer = list_images(gallery, asked, k, offset)
        else:
            if not name:
                raise ValueError(f"{gallery.name} does not say which encoder made it: name it with --model")
            plain, encoder = load_encoder(name, device, patch, strength, gate, index=index)
            if rerank:
                check_corrects_scores(encoder, "--rerank")
            answer = Searcher(gallery, plain, None if patch is None else encoder).search(
                asked, k, offset, rerank=rerank, collapse=collapse, compare=patch is not None, explain=explain, exact=exact
            )
        if sheet is not None:
            shown = str(asked) if query.strip() != asked.text.strip() else query.strip()
            _write_sheet(sheet, answer.hits, shown if patch is None else f"{shown}  ·  patch {patch}", columns or 4)
        if as_json:
            about = {"query": str(asked), "model": name, "patch": patch, "strength": strength if patch else None}
            typer.echo(json.dumps({**about, **_as_json(answer, gallery, explain)}, indent=2))
            return
        _print(answer, gallery, sheet, explain)


def _query(text: str, image: list[Path], like: list[str], gallery: Gallery) -> Query:
    """The query with the images that options name added to it."""
    from clipmend.search.grammar import Query, Term, parse_query

    read = parse_query(text, gallery.fields) if text.strip() else Query((), (), "", gallery.fields)
    more = [Term(1.0, "image", str(path)) for path in image] + [Term(1.0, "like", value) for value in like]
    return Query((*read.terms, *more), read.where, read.text, gallery.fields) if more else read


def _left(answer: Answer) -> list[Found]:
    """Images of the page without the patch that are no longer on it."""
    found = {hit.id for hit in answer.hits}
    return [hit for hit in answer.before if hit.id not in found]


def _path(hit: Found) -> str:
    return str(hit.file or hit.item.path)


def _as_json(answer: Answer, gallery: Gallery, explain: bool) -> dict[str, object]:
    def row(hit: Found) -> dict[str, object]:
        made: dict[str, object] = {"rank": hit.rank, "score": hit.score}
        if answer.depth:
            made |= {"rank_before": hit.rank_before, "score_before": hit.score_before}
        made |= {"path": _path(hit), "id": hit.id}
        if hit.copies:
            made["copies"] = [{"id": item.id, "path": str(gallery.file(item) or item.path)} for item in gallery.items(hit.copies)]
        return made | ({"explain": hit.explain()} if explain else {})

    return {
        "count": answer.total,
        "offset": answer.offset,
        "exact": answer.exact,
        "hits": [row(hit) for hit in answer.hits],
        "left": [row(hit) for hit in _left(answer)],
        "hint": answer.hint,
    }


def _print(answer: Answer, gallery: Gallery, sheet: Path | None, explain: bool) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    console.print(_title(answer, gallery), markup=False, soft_wrap=True)
    if answer.hits:
        console.print(_table(answer, explain))
    if sheet is not None:
        console.print(f"sheet: {sheet}", markup=False)
    if answer.hint:
        Console(stderr=True, highlight=False).print(f"hint: {answer.hint}", style="yellow", markup=False)


def _table(answer: Answer, explain: bool) -> Table:
    from rich.table import Table
    from rich.text import Text

    from clipmend.data.images import display_path

    ranked, compared = bool(answer.query.terms), bool(answer.depth)
    table = Table()
    names = ["rank", *(["rank without patch"] if compared and ranked else []), *(["score"] if ranked else ["id"])]
    by_term: list[int] = []
    if explain and ranked:
        names += ["cosine", "cosine without patch", "correction"]
        by_term = list(range(len(answer.query.terms))) if 1 < len(answer.query.terms) <= MOST_TERM_COLUMNS else []
    for name in [*names, *(str(answer.query.terms[i]) for i in by_term)]:
        table.add_column(Text(name), justify="right", min_width=4 if name.startswith("rank") else 7)
    table.add_column("path", overflow="fold")

    def rank(value: int | None) -> str:
        return f">{answer.depth:,}" if value is None else f"{value:,}"

    def number(value: float | None) -> str:
        return "" if value is None else f"{value:.4f}"

    def add(hit: Found, style: str | None = None) -> None:
        row = [rank(hit.rank), *([rank(hit.rank_before)] if compared and ranked else [])]
        row.append(number(hit.score) if ranked else str(hit.id))
        if explain and ranked:
            row += [number(hit.cosine), number(hit.score_before), number(hit.correction)]
        row += [number(hit.terms[i][1]) for i in by_term]
        path = display_path(hit.item.path) + (f"  (and {len(hit.copies)} like it)" if hit.copies else "")
        table.add_row(*row, Text(path), style=style)

    for hit in answer.hits:
        add(hit)
    left = _left(answer)
    if left:
        table.add_section()
        for hit in left:
            add(hit, style="dim")
        page = f"among the first {len(answer.before)}" if not answer.offset else "on this page"
        table.caption = f"dim: {page} without the patch, no longer with it"
    return table


def _title(answer: Answer, gallery: Gallery) -> str:
    from clipmend.data.images import display_path

    here = f"{len(answer.hits):,}"
    if answer.offset and answer.hits:
        here = f"{answer.offset + 1:,} to {answer.offset + len(answer.hits):,}"
    filtered = f" that pass the filters, of {len(gallery):,}" if answer.query.where else ""
    way = "" if answer.exact else " (approximate search)"
    return f"{here} of {answer.total:,} images{filtered} in {display_path(gallery.name)}{way}"


def _write_sheet(path: Path, hits: list[Found], title: str, columns: int) -> None:
    from clipmend.data.sheets import contact_sheet

    if not hits:
        raise ValueError("nothing was found, so there is nothing to draw")
    if all(hit.file is None for hit in hits):
        raise ValueError("it is not known where these images are: name their folder with --images DIR")
    captions = []
    for hit in hits:
        before = f" (was {hit.rank_before})" if hit.rank_before is not None else ""
        captions.append(f"{hit.rank}{before}  {hit.score:.3f}  {Path(hit.item.path).name}")
    sheet = contact_sheet([hit.file or Path(hit.item.path) for hit in hits], captions, columns=columns, title=title)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.stem}.tmp{path.suffix}")
    try:
        sheet.save(beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
