"""Tables of dense retrieval: one result, models against sets, and what was printed about the same sets."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING

from clipmend.evaluation.dense import DIRECTIONS, PARTS, DenseResult
from clipmend.evaluation.dense_twins import TWINS
from clipmend.evaluation.results import Measure

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["PublishedDense", "cross_notes", "cross_table", "gallery_notes", "published_dense", "result_table"]


@dataclass(frozen=True, slots=True)
class PublishedDense:
    """One printed row: recall at 1, both ways, in per cent. None was measured by this project.

    Args:
        dataset: the set it is about.
        method: what was measured.
        trained_on: the set it was trained on; ``""`` where the source does not say which.
        text_to_image: recall at 1 of images by text.
        image_to_text: recall at 1 of texts by image.
        source: who printed it.
    """

    dataset: str
    method: str
    trained_on: str
    text_to_image: float
    image_to_text: float
    source: str

    @property
    def shown(self) -> str:
        """``"88.25/86.24"``, with as many decimals as were printed."""
        pair = (self.text_to_image, self.image_to_text)
        decimals = 1 if all(round(value, 1) == value for value in pair) else 2
        return "/".join(f"{value:.{decimals}f}" for value in pair)


@lru_cache(maxsize=1)
def _read() -> tuple[PublishedDense, ...]:
    text = (files("clipmend.evaluation") / "dense_published.csv").read_text(encoding="utf-8")
    return tuple(
        PublishedDense(
            row["set"], row["method"], row["trained_on"], float(row["text_to_image"]), float(row["image_to_text"]), row["source"]
        )
        for row in csv.DictReader(text.splitlines())
    )


def published_dense(dataset: str | None = None) -> list[PublishedDense]:
    """The printed rows about a set (``docci``, ``dci``, ``long-dci``, ``urban1k``), or (``None``) all."""
    return [row for row in _read() if dataset is None or row.dataset == dataset]


def result_table(result: DenseResult) -> Table:
    """A row for each direction and part, a column for each cut-off; the interval beside the first."""
    from rich.markup import escape
    from rich.table import Table

    split = f" ({result.split})" if result.split else ""
    title = escape(f"{result.title}: {result.model} on {result.dataset}{split}")
    table = Table(title=title, title_justify="left", caption_justify="left")
    measures = result.measures()
    ks = [k for k in result.ks if any(f"{found}_retrieval_recall@{k}" in measures for found in DIRECTIONS)]
    table.add_column("", overflow="fold")
    for k in ks:
        table.add_column(f"R@{k}", justify="right")
    table.add_column("median rank", justify="right")
    table.add_column("n", justify="right")
    for part, heading in {"": "", **PARTS}.items():
        for found, direction in DIRECTIONS.items():
            prefix = f"{part}/" if part else ""
            cells = [measures.get(f"{prefix}{found}_retrieval_recall@{k}") for k in ks]
            median = measures.get(f"{prefix}{found}_retrieval_median_rank")
            known = [cell for cell in [*cells, median] if cell is not None]
            if known:
                shown = [_cell(cell, interval=place == 0) for place, cell in enumerate(cells)]
                label = f"{heading}: {direction}" if heading else direction
                table.add_row(label, *shown, _cell(median), f"{known[0].count:,}")
    for name, heading in TWINS.items():
        twin = measures.get(f"twins/{name}")
        if twin is not None:
            shown = [_cell(twin, interval=True), *[""] * (len(ks) - 1)] if ks else []
            table.add_row(heading, *shown, "" if ks else _cell(twin, interval=True), f"{twin.count:,}")
    table.caption = escape("\n".join(gallery_notes(result) + result.notes))
    return table


def _cell(measure: Measure | None, interval: bool = False) -> str:
    if measure is None:
        return ""
    if not interval or measure.low != measure.low:
        return measure.show()
    return f"{measure.show()} ({measure.show(measure.low)}-{measure.show(measure.high)})"


def gallery_notes(result: DenseResult) -> list[str]:
    """What a result was measured on, in lines: the gallery, captions that were cut, what training has seen."""
    notes = [f"gallery of {len(result.image_ranks):,} images and {len(result.text_ranks):,} captions"]
    if result.gallery:
        notes[0] += f", sha256 {result.gallery[:16]}"
    notes += _cut(result)
    if result.overlap is not None:
        notes.append(str(result.overlap))
    return notes


def _cut(result: DenseResult) -> list[str]:
    """The line about captions that were cut, where the encoder says how many."""
    if result.truncated is None or not result.distinct:
        return []
    share = 100 * result.truncated / result.distinct
    return [f"{result.truncated:,} of {result.distinct:,} distinct captions ({share:.1f} %) cut at {result.context_length} tokens"]


def cross_notes(results: Sequence[Sequence[DenseResult]]) -> list[str]:
    """What stands under :func:`cross_table`, in lines: of each set its gallery, each model's cut captions, and what was noted.

    Args:
        results: as there.
    """
    lines = []
    for place, first in enumerate(results[0]):
        lines.append(f"{first.dataset}: {gallery_notes(first)[0]}")
        lines += [f"{first.dataset}, {row[place].model}: {line}" for row in results for line in _cut(row[place])]
        lines += dict.fromkeys(f"{first.dataset}: {note}" for row in results for note in row[place].notes)
    return lines


def cross_table(
    results: Sequence[Sequence[DenseResult]],
    *,
    trained_on: Sequence[str] = (),
    published: bool = False,
    part: str = "",
) -> Table:
    """Models against sets: recall at 1, text to image / image to text.

    Args:
        results: of each model, its results on the sets, in one order.
        trained_on: of each model, the set it was trained on (``""``: unknown); cells of that set are marked.
        published: add the printed rows about these sets, marked "published".
        part: ``""`` for the whole gallery, or a part (``"unseen_gallery"``) where there is one, else the whole.

    Raises:
        ValueError: no results, or models with different sets.
    """
    from rich.markup import escape
    from rich.table import Table

    if not results or not results[0]:
        raise ValueError("no results to show")
    sets = [(result.dataset, result.split) for result in results[0]]
    for row in results:
        if [(result.dataset, result.split) for result in row] != sets or [r.items for r in row] != [r.items for r in results[0]]:
            raise ValueError("the models to show side by side were measured on different sets")
    heading = "Dense captions, R@1 %, text → image / image → text"
    table = Table(title=heading + (f", {PARTS[part]}" if part else ""), title_justify="left", caption_justify="left")
    table.add_column("model", overflow="fold")
    for name, split in sets:
        table.add_column(f"{name} ({split})" if split else name, justify="right")
    for number, row in enumerate(results):
        own = trained_on[number] if number < len(trained_on) else ""
        cells = [_pair(result.measures(), part) + (" *" if own == result.dataset else "") for result in row]
        table.add_row(escape(row[0].model), *cells)
    notes = ["* the set that the model was trained on"] if any(trained_on) else []
    if published:
        for (method, own), printed in _published({name for name, _ in sets}).items():
            label = f"{method} [published, trained on {own}]" if own else f"{method} [published]"
            table.add_row(escape(label), *[printed.get(name, "") for name, _ in sets])
        notes.append("published: printed in arXiv 2608.18521, not measured here")
    table.caption = "\n".join(notes)
    return table


def _pair(measures: Mapping[str, Measure], part: str) -> str:
    shown = []
    for found in DIRECTIONS:
        name = f"{found}_retrieval_recall@1"
        measure = measures.get(f"{part}/{name}", measures.get(name)) if part else measures.get(name)
        shown.append("-" if measure is None else measure.show())
    return "/".join(shown)


def _published(sets: set[str]) -> dict[tuple[str, str], dict[str, str]]:
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for row in published_dense():
        if row.dataset in sets:
            own = row.trained_on if row.trained_on != row.dataset else ""
            rows.setdefault((row.method, own), {})[row.dataset] = row.shown
    return rows
