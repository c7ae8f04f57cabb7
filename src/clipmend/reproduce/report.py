"""The table: what was measured, with the printed row of the same name below, marked so."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clipmend.evaluation.results import write_json
from clipmend.reproduce.published import CHOICE, PUBLISHED, QUESTIONS, RETRIEVAL, TABLES
from clipmend.reproduce.run import Reproduction
from clipmend.search.store import write_atomically

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Row", "rich_tables", "rows_of", "write_report"]

PUBLISHED_MARK = "published"


@dataclass(frozen=True)
class Row:
    """One row of one table, in per cent.

    Args:
        table: our name of it.
        label: of the model.
        source: ``"measured"``, or ``"published"`` and by whom.
        values: by heading; a heading without a figure is left out.
        intervals: 95 % intervals, of measured rows.
        counts: questions or queries behind each figure, of measured rows.
    """

    table: str
    label: str
    source: str
    values: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def measured(self) -> bool:
        """Whether this run found it."""
        return self.source == "measured"


def headings(table: str) -> dict[str, str]:
    """Heading to measure of a table's columns."""
    return CHOICE if TABLES[table].task == "choice" else RETRIEVAL


def rows_of(done: Reproduction) -> list[Row]:
    """Measured rows, each followed by the published rows about the same, then those of what was not run; table by table."""
    rows = []
    for table in TABLES:
        for label, results in done.results.items():
            if table in results:
                rows.append(_measured(table, label, results[table]))
            rows += [_printed(p.label, p.source, table, p.values[table]) for p in PUBLISHED if p.row == label and table in p.values]
        rows += [
            _printed(p.label, p.source, table, p.values[table])
            for p in PUBLISHED
            if p.row not in done.results and table in p.values
        ]
        if not any(row.table == table and row.measured for row in rows):
            rows = [row for row in rows if row.table != table]
    return rows


def _measured(table: str, label: str, result: Mapping[str, Any]) -> Row:
    values, intervals, counts = {}, {}, {}
    for heading, measure in headings(table).items():
        value = result["metrics"].get(measure)
        if value is None:
            continue
        values[heading] = 100 * value
        low, high = result["intervals"][measure]
        if low is not None and high is not None:
            intervals[heading] = (100 * low, 100 * high)
        counts[heading] = result["counts"][measure]
    return Row(table, label, "measured", values, intervals, counts)


def _printed(label: str, source: str, table: str, values: Mapping[str, float]) -> Row:
    return Row(table, label, f"{PUBLISHED_MARK} ({source})", values)


def shown(value: float | None) -> str:
    """A figure in per cent, a dash for none."""
    return "-" if value is None or math.isnan(value) else f"{value:.1f}"


def rich_tables(done: Reproduction) -> list[Table]:
    """One Rich table for each of NegBench's tables that was measured."""
    from rich.table import Table

    tables = []
    rows = rows_of(done)
    for name in TABLES:
        own = [row for row in rows if row.table == name]
        if not own:
            continue
        count = max(max(row.counts.values(), default=0) for row in own if row.measured)
        table = Table(title=f"{TABLES[name].title}, % ({count:,} asked; model: {done.model})", title_justify="left")
        table.add_column("row")
        for heading in headings(name):
            table.add_column(heading, justify="right")
        table.add_column("source", overflow="fold")
        for row in own:
            style = None if row.measured else "dim"
            table.add_row(row.label, *(shown(row.values.get(h)) for h in headings(name)), row.source, style=style)
        tables.append(table)
    return tables


def caveats(done: Reproduction) -> list[str]:
    """What must be read with the figures."""
    told = [
        "'published' rows were printed elsewhere, for CLIP ViT-B/32 with its released weights; only 'measured' rows are this run's",
        "'all' is the accuracy over all questions; ties count as wrong; intervals are in table.csv and results/",
    ]
    for name, count in QUESTIONS.items():
        measured = next((r for r in rows_of(done) if r.table == name and r.measured), None)
        if measured is not None and measured.counts.get("all") != count:
            told.append(f"{TABLES[name].title}: {measured.counts.get('all', 0):,} questions here, {count:,} in the published table")
    return told + done.notes


def write_report(done: Reproduction, plan: Mapping[str, Any] | None = None) -> list[Path]:
    """Write ``table.md``, ``table.csv`` and ``table.json`` into the run's folder.

    Args:
        done: what was measured.
        plan: what was expected, for the JSON file.
    """
    rows = rows_of(done)
    folder = done.folder
    write_atomically(folder / "table.md", _markdown(done, rows).encode())
    write_atomically(folder / "table.csv", _csv(rows).encode())
    content = {
        "model": done.model,
        "rows": [
            {
                "table": TABLES[r.table].name, "row": r.label, "source": r.source, "values": dict(r.values),
                "intervals": {k: list(v) for k, v in r.intervals.items()}, "counts": dict(r.counts),
            }
            for r in rows
        ],
        "fits": done.fits,
        "plan": plan,
        "notes": caveats(done),
    }  # fmt: skip
    write_json(folder / "table.json", content)
    return [folder / name for name in ("table.md", "table.csv", "table.json")]


def _markdown(done: Reproduction, rows: list[Row]) -> str:
    lines = [f"# PeakPatch, run again: {done.model}", ""]
    for name in TABLES:
        own = [row for row in rows if row.table == name]
        if not own:
            continue
        columns = list(headings(name))
        lines += [f"## {TABLES[name].title}, %", "", f"| row | {' | '.join(columns)} | source |", "|---" * (len(columns) + 2) + "|"]
        for row in own:
            cells = [_cell(row, heading) for heading in columns]
            lines.append(f"| {row.label} | {' | '.join(cells)} | {row.source} |")
        lines.append("")
    lines += [f"- {note}" for note in caveats(done)]
    return "\n".join(lines) + "\n"


def _cell(row: Row, heading: str) -> str:
    text = shown(row.values.get(heading))
    if heading in row.intervals:
        low, high = row.intervals[heading]
        text += f" ({low:.1f}-{high:.1f})"
    return text


def _csv(rows: list[Row]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(("table", "row", "source", "measure", "value", "low", "high", "n"))
    for row in rows:
        for heading, value in row.values.items():
            low, high = row.intervals.get(heading, ("", ""))
            count = row.counts.get(heading, "")
            writer.writerow(
                (TABLES[row.table].name, row.label, row.source, heading, f"{value:.2f}", *map(_number, (low, high)), count)
            )
    return buffer.getvalue()


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.2f}"
