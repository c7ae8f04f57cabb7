"""Results: numbers with counts and intervals, as a Rich table and as JSON, and paired comparisons of two of them."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from clipmend.evaluation.intervals import percentile, resample_weights, share_interval
from clipmend.evaluation.labels import few_items, folded_name, label_of, oracle_note

if TYPE_CHECKING:
    from rich.table import Table

__all__ = [
    "Comparison",
    "Difference",
    "Measure",
    "Result",
    "compare",
    "items_digest",
    "model_names",
    "side_by_side",
    "write_json",
]

Kind = Literal["share", "auroc", "rank"]


@dataclass(frozen=True)
class Measure:
    """One number of a result.

    Args:
        value: the number itself; NaN where nothing could be measured.
        count: how many items it rests on (questions, queries, images).
        low: lower bound of its interval.
        high: upper bound of its interval.
        kind: ``"share"`` (shown in per cent), ``"auroc"`` or ``"rank"``; a rank is better the lower it is.
        detail: True for one of many (a single kind's AUROC): left out of short tables.
    """

    value: float
    count: int
    low: float = math.nan
    high: float = math.nan
    kind: Kind = "share"
    detail: bool = False

    def show(self, number: float | None = None, signed: bool = False) -> str:
        """``number`` (default: the value) as this kind of measure is written."""
        number = self.value if number is None else number
        if math.isnan(number):
            return "-"
        sign = "+" if signed else ""
        if self.kind == "share":
            return f"{100 * number:{sign}.1f}"
        return f"{number:{sign}.3f}" if self.kind == "auroc" else f"{number:{sign}.1f}"


@dataclass
class Result(ABC):
    """What an evaluation found.

    Args:
        dataset: name of the data.
        model: name of the model.
        pretrained: weights or patch, ``""`` where the name says it all.
        language: language of the texts.
        items: digest of what was asked: two results can be compared only where it is equal.
        notes: what a reader must know: skipped images, duplicate rows, ties, queries of one class.
        level: nominal coverage of the intervals.
    """

    dataset: str
    model: str
    pretrained: str = ""
    language: str = "en"
    items: str = ""
    notes: list[str] = field(default_factory=list)
    level: float = 0.95

    task: ClassVar[str] = ""
    title: ClassVar[str] = ""

    @abstractmethod
    def measures(self) -> dict[str, Measure]:
        """Every number, by name, in the order of the table."""

    @abstractmethod
    def clusters(self, over: str = "images") -> int:
        """Number of clusters that a bootstrap draws from.

        Raises:
            ValueError: a kind of cluster that this result does not have.
        """

    @abstractmethod
    def resampled(self, weights: NDArray[np.float32], over: str = "images") -> dict[str, NDArray[np.float64]]:
        """Every measure on bootstrap draws: ``weights`` ``[C, s]`` to ``[s]`` each (NaN where a draw has nothing to measure)."""

    @property
    def metrics(self) -> dict[str, float]:
        """Name to value."""
        return {name: measure.value for name, measure in self.measures().items()}

    def details(self) -> dict[str, Any]:
        """More for the JSON file (a confusion table, what was skipped)."""
        return {}

    def to_dict(self) -> dict[str, Any]:
        """The shape CLIP_benchmark writes (``dataset, model, pretrained, task, metrics, language``), plus counts and intervals."""
        measures = self.measures()
        return {
            "dataset": self.dataset,
            "model": self.model,
            "pretrained": self.pretrained,
            "task": self.task,
            "metrics": {name: _number(m.value) for name, m in measures.items()},
            "language": self.language,
            "counts": {name: m.count for name, m in measures.items()},
            "intervals": {name: [_number(m.low), _number(m.high)] for name, m in measures.items()},
            "interval_level": self.level,
            "items": self.items,
            "notes": list(self.notes),
            **self.details(),
        }

    def save(self, path: str | Path) -> Path:
        """Write :meth:`to_dict` as JSON, beside and renamed into place."""
        return write_json(path, self.to_dict())

    def table(self, detail: bool = False, fold: str = "") -> Table:
        """A Rich table: measure, value, interval, count; ``detail`` adds the long tail (single kinds).

        With ``fold``, measures that have it in their names (``"/wording="``) are summed up in one line of the caption.
        """
        table = _new_table(f"{self.title}: {self.model} on {self.dataset}")
        table.add_column("measure", overflow="fold")
        for heading in ("value", f"{100 * self.level:g}% interval", "n"):
            table.add_column(heading, justify="right", no_wrap=True)
        measures = self.measures()
        folded = _folded(measures, fold)
        for name, m in measures.items():
            if name not in folded and (detail or not m.detail):
                table.add_row(label_of(name), m.show(), _interval(m, m.low, m.high), f"{m.count:,}")
        shown = [m for name, m in measures.items() if name not in folded and (detail or not m.detail)]
        notes = [*self.notes, *_summary(folded, fold), *few_items(shown), *oracle_note(measures)]
        if notes:
            table.caption = "\n".join(notes)
        return table


@dataclass(frozen=True)
class Difference:
    """``second - first`` of one measure, paired, with its interval."""

    first: Measure
    second: Measure
    difference: float
    low: float
    high: float


@dataclass
class Comparison:
    """Two results on the same items, measure by measure.

    Args:
        first: the result compared with (the backbone).
        second: the other (the mended encoder).
        differences: by measure, ``second - first``.
        level: nominal coverage of the intervals.
        over: what the bootstrap drew: ``"images"`` or ``"kinds"``.
    """

    first: Result
    second: Result
    differences: dict[str, Difference]
    level: float = 0.95
    over: str = "images"

    def to_dict(self) -> dict[str, Any]:
        """Both results and the differences, ready for JSON."""
        return {
            "first": self.first.to_dict(),
            "second": self.second.to_dict(),
            "differences": {name: _number(d.difference) for name, d in self.differences.items()},
            "difference_intervals": {name: [_number(d.low), _number(d.high)] for name, d in self.differences.items()},
            "interval_level": self.level,
            "resampled_over": self.over,
        }

    def save(self, path: str | Path) -> Path:
        """Write :meth:`to_dict` as JSON, beside and renamed into place."""
        return write_json(path, self.to_dict())

    def table(self, names: tuple[str, str] = ("backbone", "mended"), detail: bool = False, fold: str = "") -> Table:
        """A Rich table: first | second | difference with its interval | n; ``detail`` and ``fold`` as for :meth:`Result.table`."""
        table = _new_table(f"{self.first.title} on {self.first.dataset}")
        table.add_column("measure", overflow="fold")
        for heading in (*names, "difference", f"{100 * self.level:g}% interval", "n"):
            # Numbers are never broken: the measures' names give way. Headings of models are.
            table.add_column(folded_name(heading, 12), justify="right", no_wrap=heading not in names)
        folded = _folded({name: d.second for name, d in self.differences.items()}, fold)
        for name, d in self.differences.items():
            if name not in folded and (detail or not d.second.detail):
                row = (d.first.show(), d.second.show(), d.second.show(d.difference, signed=True))
                table.add_row(label_of(name), *row, _interval(d.second, d.low, d.high, signed=True), f"{d.second.count:,}")
        shown = [d.second for name, d in self.differences.items() if name not in folded and (detail or not d.second.detail)]
        told = [*_summary(folded, fold, names[1]), *few_items(shown), *oracle_note(self.differences)]
        notes = list(dict.fromkeys(self.first.notes + self.second.notes + told))
        if notes:
            table.caption = "\n".join(notes)
        return table


def compare(
    first: Result, second: Result, *, samples: int = 1000, seed: int = 0, level: float = 0.95, over: str = "images"
) -> Comparison:
    """Paired differences ``second - first`` of every measure of two results on the same items.

    Args:
        first: the result compared with.
        second: the other.
        samples: bootstrap draws.
        seed: fixes the draws.
        level: nominal coverage.
        over: what to draw: ``"images"`` (default; an image keeps all its questions and captions) or, for exclusion, ``"kinds"``.

    Raises:
        ValueError: the results come from different tasks, or from different items.
    """
    if type(first) is not type(second) or first.task != second.task:
        raise ValueError(f"cannot compare a result of {first.task!r} with one of {second.task!r}")
    if first.items != second.items:
        raise ValueError(
            f"the two results answer different items ({first.dataset!r}: {first.items[:12]}, {second.dataset!r}: "
            f"{second.items[:12]}); a paired difference needs the same rows and images in the same order: evaluate both on one file"
        )
    mine, other = first.measures(), second.measures()
    names = [name for name in mine if name in other]
    draws: dict[str, list[NDArray[np.float64]]] = {name: [] for name in names}
    clusters = first.clusters(over)
    for weights in resample_weights(clusters, samples, seed):
        a, b = first.resampled(weights, over), second.resampled(weights, over)
        for name in names:
            draws[name].append(b[name] - a[name])
    differences = {}
    for name in names:
        change = other[name].value - mine[name].value
        low = high = math.nan
        if not all(math.isnan(m.low) for m in (mine[name], other[name])):  # what is exact by itself has no chance in its difference
            drawn = np.concatenate(draws[name])
            if other[name].kind == "share":
                low, high = share_interval(drawn, change, other[name].count, clusters, span="difference", level=level, seed=seed)
            else:
                low, high = percentile(drawn, level, clusters)
        differences[name] = Difference(mine[name], other[name], change, low, high)
    return Comparison(first, second, differences, level, over)


def side_by_side(results: Mapping[str, Result], *, title: str = "", names: Iterable[str] | None = None, fold: str = "") -> Table:
    """Several models in one Rich table, one column each, e.g. the backbone, the baselines and the mended encoder.

    Args:
        results: column heading to result, all of one task.
        title: heading of the table.
        names: measures to show (default: every measure that is no detail).
        fold: leave out measures that have this in their names, where there are several.

    Raises:
        ValueError: no results, or results of different items.
    """
    if not results:
        raise ValueError("no results to show")
    everyone = list(results.values())
    if len({(r.task, r.items) for r in everyone}) > 1:
        raise ValueError("the results to show side by side answer different items")
    table = _new_table(title or f"{everyone[0].title} on {everyone[0].dataset}")
    table.add_column("measure", overflow="fold")
    for heading in results:
        table.add_column(folded_name(heading, 24), justify="right")
    columns = [r.measures() for r in everyone]
    folded = _folded(columns[0], fold)
    shown = list(names) if names is not None else [n for n, m in columns[0].items() if not m.detail and n not in folded]
    for name in shown:
        table.add_row(label_of(name), *[c[name].show() if name in c else "-" for c in columns])
    notes = few_items(c[name] for c in columns for name in shown if name in c) + oracle_note(shown)
    table.caption = "\n".join(notes) or None
    return table


def items_digest(items: Iterable[Any]) -> str:
    """SHA-256 of what was asked, from the ``repr`` of each item in order."""
    digest = hashlib.sha256()
    for item in items:
        digest.update(repr(item).encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()


def model_names(encoder: Any, model: str | None = None, pretrained: str | None = None) -> tuple[str, str]:
    """``(model, pretrained)`` as CLIP_benchmark writes them: ``open_clip:ARCH/TAG`` is split, any other name is kept whole."""
    name = str(getattr(encoder, "name", type(encoder).__name__))
    weights = ""
    if name.startswith("open_clip:") and "/" in name:
        name, weights = name.removeprefix("open_clip:").rsplit("/", 1)
    return (name if model is None else model), (weights if pretrained is None else pretrained)


def write_json(path: str | Path, content: Mapping[str, Any] | Sequence[Any]) -> Path:
    """Write JSON beside ``path`` and rename it into place, so that a reader never sees half a file."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp gives 0600, which a shared results folder does not want
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return target


def _folded(measures: Mapping[str, Measure], fold: str) -> dict[str, Measure]:
    """The measures that have ``fold`` in their names, where there are more than two."""
    found = {name: m for name, m in measures.items() if fold and fold in name and not m.detail}
    return found if len(found) > 2 else {}


def _summary(folded: Mapping[str, Measure], fold: str, whose: str = "") -> list[str]:
    """How many measures were folded and how far they range, in a line."""
    known = {name.partition(fold)[2]: m for name, m in folded.items() if math.isfinite(m.value)}
    if not known:
        return []
    low, high = (pick(known, key=lambda name: known[name].value) for pick in (min, max))
    of = f" {whose}" if whose else ""
    what = fold.strip("/=")
    ends = f"from {known[low].show()} ({low}) to {known[high].show()} ({high})"
    return [f"{len(folded)} {what}s apart,{of} {ends}; --{what}s shows each"]


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _interval(measure: Measure, low: float, high: float, signed: bool = False) -> str:
    if math.isnan(low) or math.isnan(high):
        return "-"
    return f"{measure.show(low, signed)} .. {measure.show(high, signed)}"


def _new_table(title: str) -> Table:
    from rich.table import Table

    return Table(title=title, title_justify="left", caption_justify="left")
