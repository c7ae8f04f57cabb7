"""What a look through data found, as a table and as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clipmend.data.images import display_path

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["CHECKS", "HARMLESS", "Finding", "PreflightReport"]

CHECKS = {
    "rows_unusable": "rows, annotations or files that cannot be used",
    "rows_duplicated": "rows that repeat an earlier one",
    "images_missing": "images without a file",
    "images_unreadable": "images that cannot be decoded",
    "images_duplicated": "images with the bytes of an earlier one",
    "captions_empty": "captions without text",
    "captions_duplicated": "captions twice under one image, or in one question",
    "captions_shared": "captions of several images (they tie)",
    "captions_truncated": "captions too long for the encoder",
}
"""What is looked for, in the order of the report."""

HARMLESS = frozenset({"captions_shared"})
"""Findings that are worth knowing and no fault: :attr:`PreflightReport.ok` disregards them."""


@dataclass
class Finding:
    """One kind of trouble: how often, and the first examples."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, example: str, keep: int) -> None:
        """Count one more."""
        self.count += 1
        if len(self.examples) < keep:
            self.examples.append(example)


@dataclass
class PreflightReport:
    """What :func:`preflight` found.

    Args:
        source: name of the data.
        records: rows read.
        images: distinct images named.
        captions: captions read, options of questions included.
        questions: rows that are questions.
        findings: by the names of :data:`CHECKS`; a check that was not made is not there.
        notes: remarks of the reader.
        complete: False where only the first rows were looked at.
    """

    source: str
    records: int = 0
    images: int = 0
    captions: int = 0
    questions: int = 0
    findings: dict[str, Finding] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    complete: bool = True

    @property
    def ok(self) -> bool:
        """Whether nothing was found but what is harmless."""
        return not any(finding.count for name, finding in self.findings.items() if name not in HARMLESS)

    def to_dict(self) -> dict[str, Any]:
        """All of it, fit for JSON."""
        return {
            "source": self.source,
            "records": self.records,
            "images": self.images,
            "captions": self.captions,
            "questions": self.questions,
            "complete": self.complete,
            "ok": self.ok,
            "findings": {name: {"count": f.count, "examples": f.examples} for name, f in self.findings.items()},
            "notes": self.notes,
        }

    def write_json(self, path: str | Path) -> None:
        """Write :meth:`to_dict` to a file, beside it first and then renamed into place."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(path.name + ".part")
        beside.write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="ascii")
        beside.replace(path)

    def table(self) -> Table:
        """A Rich table: a line a check."""
        from rich.table import Table
        from rich.text import Text

        rows = "rows" if self.complete else "rows looked at (the first)"
        counts = f"{self.records:,} {rows}, {self.images:,} images, {self.captions:,} captions"
        # Names may hold brackets, which are no markup, and bytes that are no text.
        table = Table(
            title=Text(f"{display_path(self.source)}: {counts}", style="table.title"), title_justify="left", show_lines=False
        )
        table.add_column("found")
        table.add_column("count", justify="right")
        table.add_column("first examples", overflow="fold")
        for name, finding in self.findings.items():
            style = "green" if not finding.count else "yellow" if name in HARMLESS else "red"
            shown = Text("\n".join(map(display_path, finding.examples[:3])))
            table.add_row(CHECKS[name], Text(f"{finding.count:,}", style=style), shown)
        return table
