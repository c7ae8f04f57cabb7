"""What others printed about the same tables: shown beside what is measured, and always marked "published"."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

__all__ = ["QUESTIONS", "PublishedRow", "published_rows"]

QUESTIONS = {"COCO_val_mcq_llama3.1_rephrased": 5914, "VOC2007_mcq_llama3.1_rephrased": 5031}
"""Questions of the published tables, where a source says so."""


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One printed number. None of them was measured by this project.

    Args:
        table: name of NegBench's table, ``""`` where the source does not say which.
        method: what was measured.
        model: on which model.
        metric: name of the measure, as in our results (``acc_negative``, ``image_retrieval_recall@5``).
        value: in per cent.
        value_high: upper end where a range was printed, else ``None``.
        source: who printed it.
        note: what to know about it.
    """

    table: str
    method: str
    model: str
    metric: str
    value: float
    value_high: float | None
    source: str
    note: str

    @property
    def shown(self) -> str:
        """``"39.3"``, or ``"34.5-35.9"``."""
        return f"{self.value:.1f}" if self.value_high is None else f"{self.value:.1f}-{self.value_high:.1f}"


@lru_cache(maxsize=1)
def _read() -> tuple[PublishedRow, ...]:
    text = (files("clipmend.benchmark") / "published.csv").read_text(encoding="utf-8")
    return tuple(
        PublishedRow(
            row["table"], row["method"], row["model"], row["metric"], float(row["value"]),
            float(row["value_high"]) if row["value_high"] else None, row["source"], row["note"],
        )
        for row in csv.DictReader(text.splitlines())
    )  # fmt: skip


def published_rows(table: str | None = None) -> list[PublishedRow]:
    """The printed numbers, of one table, or (``None``) all."""
    return [row for row in _read() if table is None or row.table == table]
