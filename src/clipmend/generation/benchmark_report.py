"""The tables of a run over a real generator: scores with intervals, paired differences, the published row beside."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from clipmend.data.records import Caption
from clipmend.data.sheets import contact_sheet
from clipmend.evaluation.results import write_json
from clipmend.generation.benchmark_prompts import FORM_NAMES
from clipmend.generation.score import Score, ScoreDifference, negation_score, score_difference
from clipmend.search.store import write_atomically

__all__ = ["PUBLISHED", "GenerationReport", "Row", "write_generation_report"]

PUBLISHED = (("published: frozen generator", 29.2), ("published: the same, corrected embedding", 47.6))
"""Negation score of the PeakPatch paper (arXiv 2607.23271), in per cent. Not measured here; which prompts, generator and judge they
were measured with is not known to us."""
PARTS = ("affirmative", "exclusion", "hybrid", "negated")
"""Parts of the prompts: by form, and exclusion and hybrid together."""
_MEASURES = {"score": "negation score", "presence_recall": "presence recall", "exclusion_success": "exclusion success"}


@dataclass(frozen=True)
class Row:
    """One image.

    Args:
        method: column of the table.
        prompt: place among the prompts.
        seed: of the noise.
        image: its file.
        answers: the judge's probability of each thing that the prompt speaks of; NaN: it cannot tell.
    """

    method: str
    prompt: int
    seed: int
    image: Path
    answers: dict[str, float]


@dataclass
class GenerationReport:
    """What was measured.

    Args:
        prompts: the prompts.
        rows: every image, methods one after the other, each in the same order.
        methods: their labels, ``"plain"`` first.
        threshold: a thing is there from this probability on.
        judge, pipeline: their names.
        settings: how was drawn.
        blank: by method, images of one colour.
    """

    prompts: list[Caption]
    rows: list[Row]
    methods: list[str]
    threshold: float = 0.5
    judge: str = ""
    pipeline: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    blank: dict[str, int] = field(default_factory=dict)

    @cached_property
    def scores(self) -> dict[tuple[str, str], Score]:
        """By method and part of the prompts; a part that no prompt belongs to is left out."""
        found = {}
        for method in self.methods:
            for part in PARTS:
                rows = [row for row in self.rows if row.method == method and self._belongs(row.prompt, part)]
                if rows:
                    found[method, part] = self._score(rows)
        return found

    def difference(self, method: str, part: str) -> ScoreDifference:
        """``method`` less plain, on the same prompts and seeds."""
        return score_difference(self.scores[self.methods[0], part], self.scores[method, part])

    def _belongs(self, prompt: int, part: str) -> bool:
        form = FORM_NAMES[self.prompts[prompt].form]
        return form == part or (part == "negated" and form != "affirmative")

    def _score(self, rows: Sequence[Row]) -> Score:
        asked = [self.prompts[row.prompt] for row in rows]
        things = sorted({thing for prompt in asked for thing in (*prompt.asserts, *prompt.denies)})
        column = {thing: place for place, thing in enumerate(things)}
        present = np.full((len(rows), len(things)), np.nan)
        for place, row in enumerate(rows):
            for thing, value in row.answers.items():
                present[place, column[thing]] = value
        return negation_score(
            [prompt.asserts for prompt in asked], [prompt.denies for prompt in asked], present,
            things=things, clusters=[row.prompt for row in rows], threshold=self.threshold,
        )  # fmt: skip

    def lines(self) -> list[dict[str, Any]]:
        """The long table: one measure a line, shares in per cent."""
        found: list[dict[str, Any]] = []
        for (method, part), score in self.scores.items():
            numbers = score.to_dict()
            change = None if method == self.methods[0] else self.difference(method, part)
            for name, title in _MEASURES.items():
                if numbers[name] is None:
                    continue
                low, high = numbers[f"{name}_interval"]
                paired = None if change is None else getattr(change, name)
                line = {"method": method, "prompts": part, "measure": title, "value": 100 * numbers[name],
                        "low": 100 * low, "high": 100 * high, "images": score.n, "unjudged": score.unjudged}  # fmt: skip
                if paired is not None:
                    line |= {"difference": 100 * paired.difference, "difference_low": 100 * paired.low,
                             "difference_high": 100 * paired.high}  # fmt: skip
                found.append({**line, "source": "measured"})
        published = {"prompts": "", "measure": _MEASURES["score"], "source": "published: arXiv 2607.23271"}
        return found + [{**published, "method": name, "value": value} for name, value in PUBLISHED]

    def markdown(self) -> str:
        """The tables and notes."""
        measured = [line for line in self.lines() if line["source"] == "measured"]
        settings = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        text = [f"# Negation score of {self.pipeline}", "", f"Judge: {self.judge}. {settings}.", ""]
        for part in PARTS:
            chosen = [line for line in measured if line["prompts"] == part]
            if not chosen:
                continue
            count = len({row.prompt for row in self.rows if self._belongs(row.prompt, part)})
            names = list(dict.fromkeys(line["measure"] for line in chosen))
            text += [f"## {part}: {count} prompts", "", f"| | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
            for method in self.methods:
                cells = {line["measure"]: _cell(line) for line in chosen if line["method"] == method}
                text.append(f"| {method} | {' | '.join(cells.get(name, '') for name in names)} |")
            if part == "negated":
                blank = " |" * (len(names) - 1)
                text += [f"| *{name}* | *{value}* |{blank}" for name, value in PUBLISHED]
            text.append("")
        text += ["Per cent, 95 % intervals over prompts, and in brackets the paired difference to plain with its interval.", ""]
        text += [f"- {note}" for note in self.notes()]
        return "\n".join(text) + "\n"

    def notes(self) -> list[str]:
        """What to know about the numbers."""
        notes = [
            "Published rows were not measured here; which prompts, generator and judge they were measured with is not known to us.",
            "A judge errs, and more so on generated images: see sheet.png, and judge some by hand.",
        ]
        lost = {method: score.unjudged for (method, part), score in self.scores.items() if part != "negated" and score.unjudged}
        notes += [f"{method}: {count} images of which the judge could not tell are left out." for method, count in lost.items()]
        notes += [
            f"{method}: {count} images are of one colour, as half precision and safety checkers leave them. They count as images "
            "that show nothing, which respects every exclusion."
            for method, count in self.blank.items()
            if count
        ]
        if len(self.prompts) < 100:
            notes.append(f"{len(self.prompts)} prompts: the intervals are wide.")
        return notes

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        about = {
            "pipeline": self.pipeline,
            "judge": self.judge,
            "threshold": self.threshold,
            "settings": self.settings,
            "blank": self.blank,
        }
        rows = [
            {
                "method": row.method, "prompt": self.prompts[row.prompt].text, "seed": row.seed, "image": row.image.name,
                "answers": {thing: None if value != value else value for thing, value in row.answers.items()},
            }
            for row in self.rows
        ]  # fmt: skip
        return {**about, "notes": self.notes(), "lines": self.lines(), "images": rows}


def _cell(line: dict[str, Any]) -> str:
    cell = f"{line['value']:.1f} ({line['low']:.1f} .. {line['high']:.1f})"
    if "difference" in line:
        cell += f" [{line['difference']:+.1f}: {line['difference_low']:+.1f} .. {line['difference_high']:+.1f}]"
    return cell


def write_generation_report(report: GenerationReport, folder: Path, shown: int = 12) -> None:
    """Write ``table.md``, ``table.csv``, ``results.json`` and ``sheet.png``: the first prompts that deny, a row each."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "table.md", report.markdown().encode())
    names = ["method", "prompts", "measure", "value", "low", "high", "difference", "difference_low", "difference_high"]
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, [*names, "images", "unjudged", "source"], lineterminator="\n")
    table.writeheader()
    table.writerows(report.lines())
    write_atomically(folder / "table.csv", text.getvalue().encode())
    write_json(folder / "results.json", report.to_dict())
    seed = report.rows[0].seed
    places = [place for place, prompt in enumerate(report.prompts) if prompt.denies] or list(range(len(report.prompts)))
    by = {(row.method, row.prompt): row.image for row in report.rows if row.seed == seed}
    keys = [(method, place) for place in places[:shown] for method in report.methods]
    captions = [f"{method}: {report.prompts[place].text}" for method, place in keys]
    sheet = contact_sheet(
        [by[key] for key in keys], captions, columns=len(report.methods), title=f"{report.pipeline}, seed {seed}", caption_lines=3
    )
    data = io.BytesIO()
    sheet.save(data, "PNG")
    write_atomically(folder / "sheet.png", data.getvalue())
