"""``clipmend search``: ask an index, or whatever else holds image vectors, with or without a patch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from clipmend.cli.copy import SOURCE_HELP
from clipmend.cli.encoders import PATCH_HELP, check_corrects_scores, load_encoder, refuse_without_patch

if TYPE_CHECKING:
    from clipmend.search.gallery import Gallery, Item
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
EMPTY = (
    "the query is empty; say what to look for, in words or by --image FILE or --like ID, or list every image that lies in a folder "
    "with folder:."
)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(name="search", epilog=EPILOG, context_settings={"allow_extra_args": True})(search)


def search(
    context: typer.Context,
    index: str = typer.Argument(..., metavar="INDEX", help=SOURCE_HELP),
    query: str | None = typer.Argument(None, help=QUERY_HELP, show_default=False),
    patch: str | None = typer.Option(None, "--patch", help=PATCH_HELP + " Ranks without it are shown beside."),
    strength: float = typer.Option(1.0, "--strength", min=0, max=3, help="How strongly the patch corrects; 0 is not at all."),
    gate: bool | None = typer.Option(
        None, "--gate/--no-gate", help="Mend only texts in which a word denies something (the default), or every text."
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
    images: Path | None = typer.Option(
        None, "--images", metavar="DIR", help="Folder of the images, where INDEX does not know it or they have moved."
    ),
    model: str | None = typer.Option(None, "--model", help="Where to load the index's encoder from, if not by the name it keeps."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON, as POST /search of the service answers."),
    paths: bool = typer.Option(False, "--paths", help="Print the paths alone, one a line."),
    null: bool = typer.Option(False, "-0", "--null", help="With --paths: end each with NUL, for xargs -0."),
    device: str | None = typer.Option(None, "--device", help="cpu, cuda, mps; default: the best that is there."),
) -> None:
    """Find the images that fit a query best. The index stays as it is, patch or no patch."""
    if sheet is not None and sheet.suffix.lower() not in SHEET_SUFFIXES:
        raise ValueError(f"--sheet writes {', '.join(SHEET_SUFFIXES)} (got {sheet.name!r})")
    if sheet is None and columns is not None:
        raise ValueError("--columns belongs to --sheet FILE")
    if any(more.startswith("-") for more in context.args):
        raise ValueError("behind -- stands the query alone, quoted as a whole: options stand before it")
    if context.args:
        whole = " ".join([query or "", *context.args])
        raise ValueError(f"quote the whole query, which is one argument: '{whole}'")
    if null and not paths:
        raise ValueError("--null belongs to --paths")
    if paths and (as_json or explain):
        raise ValueError("--paths prints paths alone: leave out --json and --explain")
    if query is None and not (image or like):
        raise typer.BadParameter(EMPTY.removeprefix("the query is empty; "), param_hint="QUERY")
    query = query or ""
    if not (query.strip() or image or like):  # before a model is loaded
        raise ValueError(EMPTY)
    refuse_without_patch(patch, strength=strength != 1, gate=gate is not None, rerank=rerank > 0)
    from clipmend.cli.search_output import print_answer, print_paths
    from clipmend.search.answers import plain_texts
    from clipmend.search.opening import open_gallery
    from clipmend.search.searcher import Searcher, list_images

    opened = open_gallery(index) if images is None else open_gallery(index, images=images)
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
            compared = patch is not None and bool(asked.texts)  # it changes how words are read, and nothing else
            answer = Searcher(gallery, plain, None if patch is None else encoder).search(
                asked, k, offset, rerank=rerank, collapse=collapse, compare=compared, explain=explain, exact=exact
            )
        if sheet is not None:
            shown = str(asked) if query.strip() != asked.text.strip() else query.strip()
            _write_sheet(sheet, answer, shown if patch is None else f"{shown}  ·  patch {patch}", columns or 4)
        if as_json:
            told = _as_json(answer, str(asked) if image or like else query, gallery, explain)
            told |= {"model": name or None, "patch": patch, "strength": strength if patch else None}
            typer.echo(json.dumps(plain_texts(told), indent=2, allow_nan=False))
        elif paths:
            print_paths(answer, null=null)
        else:
            shown_as = {"patched": patch is not None, "explain": explain, "reranked": rerank > 0, "collapsed": collapse is not None}
            print_answer(answer, gallery, sheet, **shown_as)


def _query(text: str, image: list[Path], like: list[str], gallery: Gallery) -> Query:
    """The query with the images that options name added to it."""
    from clipmend.search.grammar import Query, Term, parse_query

    read = parse_query(text, gallery.fields) if text.strip() else Query((), (), "", gallery.fields)
    more = [Term(1.0, "image", str(path)) for path in image] + [Term(1.0, "like", value) for value in like]
    return Query((*read.terms, *more), read.where, read.text, gallery.fields) if more else read


def _as_json(answer: Answer, query: str, gallery: Gallery, explain: bool) -> dict[str, Any]:
    """The service's answer, with what a program on this machine can use besides."""
    from clipmend.search.answers import answer_json

    def file(item: Item) -> str | None:
        found = gallery.file(item)
        return None if found is None else os.path.abspath(found)

    def more(hit: Found) -> dict[str, Any]:
        told: dict[str, Any] = {"file": file(hit.item)}
        if hit.copies:
            told["copy_files"] = [file(item) for item in gallery.items(hit.copies)]
        return told | ({"explain": hit.explain()} if explain and answer.query.terms else {})

    return answer_json(answer, query, more) | {"edition": gallery.edition or None}


def _write_sheet(path: Path, answer: Answer, title: str, columns: int) -> None:
    from clipmend.data.sheets import contact_sheet

    hits = answer.hits
    if not hits:
        raise ValueError("nothing was found, so there is nothing to draw")
    if all(hit.file is None for hit in hits):
        raise ValueError("it is not known where these images are: name their folder with --images DIR")
    captions = []
    for hit in hits:
        before = f" (was {hit.rank_before})" if hit.rank_before is not None else ""
        score = f"  {hit.score:.3f}" if answer.query.terms else ""
        captions.append(f"{hit.rank}{before}{score}  {Path(hit.item.path).name}")
    sheet = contact_sheet([hit.file or Path(hit.item.path) for hit in hits], captions, columns=columns, title=title)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.stem}.tmp{path.suffix}")
    try:
        sheet.save(beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
