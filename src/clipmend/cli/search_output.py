"""What ``clipmend search`` prints: a table for people, plain lines for pipes, paths alone, the parts of each score."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from clipmend.data.images import display_path

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table

    from clipmend.search.gallery import Gallery
    from clipmend.search.searcher import Answer, Found

__all__ = ["print_answer", "print_paths"]

_CORRECTION = "the score counts the correction only with --rerank"


def print_paths(answer: Answer, *, null: bool) -> None:
    """Each image's path, byte by byte as it is: its file where that is known; one a line, or with NUL behind each."""
    end = b"\0" if null else b"\n"
    sys.stdout.buffer.write(b"".join(_bytes(hit) + end for hit in answer.hits))
    sys.stdout.flush()
    _print_hint(answer)


def _bytes(hit: Found) -> bytes:
    path = os.fspath(hit.file or hit.item.path)
    try:
        return os.fsencode(path)
    except UnicodeEncodeError:  # no file of this machine
        return path.encode("utf-8", "surrogatepass")


def print_answer(
    answer: Answer, gallery: Gallery, sheet: Path | None, *, patched: bool, explain: bool, reranked: bool, collapsed: bool
) -> None:
    """A table on a terminal, or with ``explain`` a block for each image; else a line for each, its columns parted by tabs.

    Lines go to standard output alone, everything that is said about them to standard error.
    """
    from rich.console import Console

    console, aside = Console(highlight=False), Console(stderr=True, highlight=False)
    is_terminal = console.is_terminal
    notes = console if is_terminal else aside
    compared = patched and bool(answer.depth and answer.query.texts)
    notes.print(_title(answer, gallery), markup=False, soft_wrap=True)
    explained = explain and bool(answer.query.terms)
    for line in _gated(answer, explained):
        notes.print(line, style="dim", markup=False, soft_wrap=True)
    if not is_terminal:
        for line in _lines(answer, compared, explained, collapsed):
            sys.stdout.write(line + "\n")
    elif answer.hits and explained:
        _print_blocks(console, answer, compared)
    elif answer.hits:
        console.print(_table(answer, compared))
    if explained and not reranked and any(hit.correction for hit in answer.hits):
        notes.print(_CORRECTION, style="dim", soft_wrap=not is_terminal)
    merged = sum(len(hit.copies) for hit in answer.hits)
    if collapsed:
        notes.print(
            f"{merged:,} image{'s' * (merged != 1)} merged into those that they are like", style="dim", soft_wrap=not is_terminal
        )
    if sheet is not None:
        notes.print(f"sheet: {sheet}", markup=False, soft_wrap=True)
    _print_hint(answer)


def _print_hint(answer: Answer) -> None:
    from rich.console import Console

    if answer.hint:
        aside = Console(stderr=True, highlight=False)
        aside.print(f"hint: {answer.hint}", style="yellow", markup=False, soft_wrap=not aside.is_terminal)


def _gated(answer: Answer, explained: bool) -> Iterator[str]:
    """What the gate did: to each text where that is asked, else where it left all of them as they are."""
    texts = [(term.value, mended) for term, mended in zip(answer.query.terms, answer.mended, strict=True) if mended is not None]
    if explained:
        for text, mended in texts:
            yield f"{'mended' if mended else 'left as it is, for no word in it denies anything'}: {display_path(text)}"
    elif texts and not any(mended for _, mended in texts):
        yield "no word of the query denies anything: it is embedded as without the patch (--no-gate mends it all the same)"


def _lines(answer: Answer, compared: bool, explained: bool, collapsed: bool) -> Iterator[str]:
    """A line of names, then one an image; the path is the last column, in one piece."""
    ranked = bool(answer.query.terms)
    terms = answer.query.terms if explained else ()
    names = ["rank", *(["rank_without_patch"] if compared else []), *(["score"] if ranked else []), "id"]
    if explained:
        names += ["cosine", *(["cosine_without_patch"] if compared else []), "correction", *map(str, terms)]
    names += [*(["copies"] if collapsed else []), "path"]
    if answer.hits:
        yield "\t".join(map(display_path, names))
    for hit in answer.hits:
        before = f">{answer.depth}" if hit.rank_before is None else str(hit.rank_before)
        row = [str(hit.rank), *([before] if compared else []), *([_number(hit.score)] if ranked else []), str(hit.id)]
        if explained:
            row += [_number(hit.cosine), *([_number(hit.score_before)] if compared else []), _number(hit.correction)]
            row += [_number(score) for _, score in hit.terms]
        row += [*([str(len(hit.copies))] if collapsed else []), display_path(hit.item.path)]
        yield "\t".join(row)


def _print_blocks(console: Console, answer: Answer, compared: bool) -> None:
    """For each image its path, and below it where its rank comes from."""
    several = len(answer.query.terms) > 1
    left = _left(answer) if compared else []
    for number, hit in enumerate([*answer.hits, *left]):
        gone = number >= len(answer.hits)
        if number == len(answer.hits):
            console.print(f"{_page(answer)} without the patch, no longer with it:")
        head = f"{_rank(hit.rank, answer):>4}  {display_path(hit.item.path)}{_copies(hit)}"
        console.print(head, style="dim" if gone else "bold", markup=False, soft_wrap=True)
        parts = [f"id {hit.id}", f"score {_number(hit.score)}", f"cosine {_number(hit.cosine)}"]
        if hit.correction is not None:
            parts.append(f"correction {hit.correction:+.4f}")
        lines = ["  ".join(parts)]
        if compared:
            lines.append(f"without patch: rank {_rank(hit.rank_before, answer)}, cosine {_number(hit.score_before)}")
        for line in lines:
            console.print(f"      {line}", style="dim" if gone else None, markup=False, soft_wrap=True)
        for term, score in hit.terms if several else ():
            console.print(f"      {_number(score):>7}  {display_path(str(term))}", style="dim", markup=False, soft_wrap=True)


def _table(answer: Answer, compared: bool) -> Table:
    from rich.table import Table
    from rich.text import Text

    ranked = bool(answer.query.terms)
    table = Table()
    for name in ["rank", *(["rank without patch"] if compared else []), *(["score"] if ranked else []), "id"]:
        table.add_column(Text(name), justify="right", min_width=7 if name == "score" else 4 if name.startswith("rank") else None)
    table.add_column("path", overflow="fold")

    def add(hit: Found, style: str | None = None) -> None:
        row = [_rank(hit.rank, answer), *([_rank(hit.rank_before, answer)] if compared else [])]
        row += [*([_number(hit.score)] if ranked else []), str(hit.id)]
        table.add_row(*row, Text(display_path(hit.item.path) + _copies(hit)), style=style)

    for hit in answer.hits:
        add(hit)
    left = _left(answer) if compared else []
    if left:
        table.add_section()
        for hit in left:
            add(hit, style="dim")
        table.caption = f"dim: {_page(answer)} without the patch, no longer with it"
    return table


def _left(answer: Answer) -> list[Found]:
    """Images of the page without the patch that are no longer on it."""
    found = {hit.id for hit in answer.hits}
    return [hit for hit in answer.before if hit.id not in found]


def _page(answer: Answer) -> str:
    return "on this page" if answer.offset else f"among the first {len(answer.before)}"


def _copies(hit: Found) -> str:
    return f"  (and {len(hit.copies)} like it)" if hit.copies else ""


def _rank(value: int | None, answer: Answer) -> str:
    return f">{answer.depth:,}" if value is None else f"{value:,}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _title(answer: Answer, gallery: Gallery) -> str:
    here = f"{len(answer.hits):,}"
    if answer.offset and answer.hits:
        here = f"{answer.offset + 1:,} to {answer.offset + len(answer.hits):,}"
    filtered = f" that pass the filters, of {len(gallery):,}" if answer.query.where else ""
    way = "" if answer.exact else " (approximate search)"
    return f"{here} of {answer.total:,} images{filtered} in {display_path(gallery.name)}{way}"
