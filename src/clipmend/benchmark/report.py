"""The tables of a run: measured rows with intervals and paired differences, published rows beside, and what a gain costs."""

from __future__ import annotations

import csv
import io
import textwrap
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from clipmend.benchmark.published import QUESTIONS, PublishedRow, published_rows
from clipmend.benchmark.tasks import Task
from clipmend.evaluation.labels import few_items
from clipmend.evaluation.results import Comparison, Measure, Result, compare, write_json
from clipmend.search.store import write_atomically

__all__ = ["HEADINGS", "Report", "Run", "write_report"]

HEADINGS: dict[str, dict[str, str]] = {
    "choice": {"affirmative": "acc_affirmative", "negative": "acc_negative", "hybrid": "acc_hybrid", "all": "acc"},
    "binary_choice": {"accuracy": "acc"},
    "retrieval": {
        "text to image R@1": "image_retrieval_recall@1", "R@5": "image_retrieval_recall@5",
        "image to text R@5": "text_retrieval_recall@5",
    },
    "zeroshot": {"top-1": "acc1", "top-5": "acc5", "mean per class": "mean_per_class_recall"},
    "pairs": {
        "attribute": "acc_attribute", "relation": "acc_relation", "order": "acc_order", "count": "acc_count",
        "all": "acc",
    },
    "respected": {
        "respected@1": "respected@1", "respected@5": "respected@5", "respected@10": "respected@10", "fulfilled@5": "fulfilled@5",
        "any image": "respected@all",
    },
}  # fmt: skip
"""Columns of a table, by kind of task: heading to measure."""
HEADINGS["negated_retrieval"] = HEADINGS["retrieval"]

_TITLES = {
    "choice": "multiple choice, accuracy %",
    "binary_choice": "binary choice, accuracy %",
    "retrieval": "retrieval, recall %",
    "negated_retrieval": "negated retrieval, recall %",
    "zeroshot": "zero-shot classification, accuracy %",
    "pairs": "minimal pairs, accuracy % (chance 50)",
    "respected": "first hits that show nothing denied, share %",
}
_MAIN = {
    "choice": "acc", "binary_choice": "acc", "zeroshot": "acc1", "pairs": "acc", "respected": "respected@5",
    "retrieval": "image_retrieval_recall@5", "negated_retrieval": "image_retrieval_recall@5",
}  # fmt: skip

_FAMILIES = {
    "image_retrieval_recall": "text to image R", "text_retrieval_recall": "image to text R",
    "respected": "respected", "fulfilled": "fulfilled",
}  # fmt: skip
"""Measures at cut-offs, and how a heading calls them."""
_USUAL = (1, 5, 10)


@dataclass(frozen=True)
class Run:
    """One method on one task.

    Args:
        label: of the method.
        model: its backbone.
        kind: ``"backbone"``, ``"patch"`` or ``"rival"``.
        task: name of the task.
        result: what was measured.
        path: the file that keeps it.
        kept: whether it was taken from there.
    """

    label: str
    model: str
    kind: str
    task: str
    result: Result
    path: Path
    kept: bool = False

    def line(self) -> str:
        """One line for the log."""
        measures = self.result.measures()
        name = next((n for n in _MAIN.values() if n in measures), next(iter(measures), ""))
        value = f"{name} {measures[name].show()}" if name else "nothing measured"
        return f"{self.task}: {self.label}: {value}{' (kept)' if self.kept else ''}"


@dataclass
class Report:
    """Everything that a run measured.

    Args:
        runs: method by method, task by task.
        names: the tasks, in order.
        tasks: by name.
        seed: of the bootstrap of paired differences.
        samples: its draws.
    """

    runs: list[Run]
    names: list[str]
    tasks: dict[str, Task]
    seed: int = 0
    samples: int = 400
    _differences: dict[tuple[str, str], Comparison | None] = field(default_factory=dict, repr=False)

    def of(self, task: str) -> list[Run]:
        """The runs of a task."""
        return [run for run in self.runs if run.task == task]

    def difference(self, run: Run) -> Comparison | None:
        """Paired difference of a run to its backbone's; ``None`` for the backbone itself, or where other items were asked."""
        key = (run.label, run.task)
        if key not in self._differences:
            base = next((r for r in self.of(run.task) if r.model == run.model and r.kind == "backbone"), None)
            fits = base is not None and run.kind != "backbone" and base.result.items == run.result.items
            self._differences[key] = (
                compare(base.result, run.result, samples=self.samples, seed=self.seed) if fits and base else None
            )
        return self._differences[key]

    @cached_property
    def kinds(self) -> dict[str, str]:
        """Kind of each task by its name."""
        return {name: task.kind for name, task in self.tasks.items()}

    def headings(self, task: str) -> dict[str, str]:
        """The columns of a task's table that some run has, heading to measure: the usual ones, and other cut-offs asked for."""
        present = list(dict.fromkeys(name for run in self.of(task) for name in run.result.measures()))
        usual = {heading: name for heading, name in HEADINGS[self.kinds[task]].items() if name in present}
        asked = {}
        for name in present:
            family, at, k = name.partition("@")
            others = [other for other in present if other.startswith(family + at)]
            if family in _FAMILIES and k.isdigit() and (int(k) not in _USUAL or not set(others) & set(usual.values())):
                asked[f"{_FAMILIES[family]}@{k}"] = name
        return usual | asked or {name: name for name in present}

    def main(self, task: str) -> str:
        """The measure of a task that differences and the plot show."""
        names = list(self.headings(task).values())
        return _MAIN[self.kinds[task]] if _MAIN[self.kinds[task]] in names else next(iter(names), "")

    def published(self, task: str) -> dict[str, list[PublishedRow]]:
        """Published rows of a task, by label."""
        rows: dict[str, list[PublishedRow]] = {}
        for row in published_rows(task):
            rows.setdefault(f"{row.method}, {row.model}", []).append(row)
        return rows

    def rows(self) -> list[dict[str, Any]]:
        """Every number in long form: measured ones with interval, count and paired difference, published ones marked so."""
        found = []
        for task in self.names:
            for run in self.of(task):
                difference = self.difference(run)
                for name, measure in run.result.measures().items():
                    scale = 1.0 if measure.kind == "rank" else 100.0
                    row: dict[str, Any] = {
                        "table": task, "kind": self.kinds[task], "method": run.label, "source": "measured", "metric": name,
                        "value": _rounded(scale * measure.value), "low": _rounded(scale * measure.low),
                        "high": _rounded(scale * measure.high), "count": measure.count,
                    }  # fmt: skip
                    if difference is not None and name in difference.differences:
                        change = difference.differences[name]
                        row |= {
                            "difference": _rounded(scale * change.difference),
                            "difference_low": _rounded(scale * change.low),
                            "difference_high": _rounded(scale * change.high),
                        }
                    found.append(row)
            for label, printed in self.published(task).items():
                for p in printed:
                    row = {"table": task, "kind": self.kinds[task], "method": label, "source": f"published: {p.source}"}
                    row |= {"metric": p.metric, "value": p.value, "note": p.note}
                    found.append(row | ({} if p.value_high is None else {"high": p.value_high}))
        return found

    def csv(self) -> str:
        """:meth:`rows` as CSV."""
        columns = (
            "table", "kind", "method", "source", "metric", "value", "low", "high", "count",
            "difference", "difference_low", "difference_high", "note",
        )  # fmt: skip
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows())
        return text.getvalue()

    def markdown(self) -> str:
        """The tables, for people."""
        tables = [name for name in self.names if not self.tasks[name].plain]
        costs = [name for name in self.names if self.tasks[name].plain]
        parts = [
            "# NegBench",
            "Per cent, with 95 % intervals. Rows marked *published* were printed by others and not measured here. Ties never count "
            "for a model. Differences are paired: to the backbone of the same row, on the same items.",
        ]
        for name in tables:
            parts.append(self._table(name))
        parts.append("## What it costs\n\nNothing here has to do with negation: a gain above is worth what is lost here.")
        for name in costs:
            parts.append(self._table(name))
        absent = [
            text
            for kind, text in (
                ("retrieval", "plain retrieval (no such table in the folder)"),
                ("zeroshot", "zero-shot classification (`--zeroshot DIR`)"),
                ("pairs", "attribute, relation and order pairs (`--pairs pairs.csv`)"),
            )
            if kind not in self.kinds.values()
        ]
        if absent:
            parts.append(f"**Not measured:** {'; '.join(absent)}.")
        elsewhere = published_rows("")
        if elsewhere:
            lines = ["## Published, of unstated tables", "", "| method | model | measure | % | source |", "|---|---|---|---|---|"]
            lines += [f"| {r.method} | {r.model} | {r.metric} | {r.shown} | *published*, {r.source} |" for r in elsewhere]
            parts.append("\n".join(lines))
        notes = list(dict.fromkeys(f"{run.task}: {note}" for run in self.runs for note in run.result.notes))
        if notes:
            parts.append("## Notes\n\n" + "\n".join(f"- {_cell(note)}" for note in notes))
        return "\n\n".join(parts) + "\n"

    def _table(self, name: str) -> str:
        task, headings, main = self.tasks[name], self.headings(name), self.main(name)
        count = max((m.count for run in self.of(name) for n, m in run.result.measures().items() if n == main), default=0)
        about = f" ({task.about})" if task.about else ""
        lines = [f"### {name}", "", f"{_TITLES[task.kind]}{about}; n = {count:,}", ""]
        shown = next((heading for heading, n in headings.items() if n == main), main)
        lines += [
            f"| method | {' | '.join(headings)} | difference: {shown} |",
            f"|---|{'---:|' * (len(headings) + 1)}",
        ]
        for run in self.of(name):
            measures = run.result.measures()
            cells = [_with_interval(measures[n]) if n in measures else "" for n in headings.values()]
            difference = self.difference(run)
            change = ""
            if difference is not None and main in difference.differences:
                d = difference.differences[main]
                change = f"{d.second.show(d.difference, True)} ({d.second.show(d.low, True)} to {d.second.show(d.high, True)})"
            lines.append(f"| {_cell(run.label)} | {' | '.join(cells)} | {change} |")
        for label, printed in self.published(name).items():
            by_metric = {row.metric: row for row in printed}
            cells = [by_metric[n].shown if n in by_metric else "" for n in headings.values()]
            if any(cells):
                lines.append(f"| {_cell(label)}, *published* ({_cell(printed[0].source)}) | {' | '.join(cells)} | |")
        remarks = self.remarks(name)
        if remarks:
            lines += ["", *(f"Note: {remark}." for remark in remarks)]
        return "\n".join(lines)

    def remarks(self, name: str) -> list[str]:
        """What must be read with the figures of a table: how few items there are, and that published rows are of other runs."""
        wanted = set(self.headings(name).values())
        remarks = few_items(m for run in self.of(name) for n, m in run.result.measures().items() if n in wanted)
        if any(row.metric in wanted for printed in self.published(name).values() for row in printed):
            count = max((m.count for run in self.of(name) for m in run.result.measures().values()), default=0)
            asked = QUESTIONS.get(name)
            other = f", on {asked:,} questions; here there are {count:,}" if asked is not None and asked != count else ""
            remarks.append(
                f"*published* rows were printed elsewhere, for the models they name{other}; only the others were measured here"
            )
        return remarks

    def plot(self, path: str | Path) -> Path:
        """Bars of each task's main measure, whiskers for the intervals, published rows hatched."""
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib.figure import Figure

        shown = [name for name in self.names if self.of(name)]
        columns = min(2, len(shown))
        lengths = [len(self.of(name)) + len(self._published_main(name)) for name in shown]
        lines = -(-len(shown) // columns)
        height = sum(1.2 + 0.28 * max(lengths[row * columns : (row + 1) * columns]) for row in range(lines))
        figure = Figure(figsize=(7.5 * columns, max(height, 2.5)), layout="constrained")
        ratios = [1.2 + 0.28 * max(lengths[row * columns : (row + 1) * columns]) for row in range(lines)]
        axes = figure.subplots(lines, columns, squeeze=False, gridspec_kw={"height_ratios": ratios})
        for position, axis in enumerate(axes.flat):
            if position >= len(shown):
                axis.axis("off")
                continue
            self._bars(axis, shown[position])
        target = Path(path)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=110)
        write_atomically(target, buffer.getvalue())
        return target

    def _published_main(self, name: str) -> list[tuple[str, float]]:
        main = self.main(name)
        return [(label, row.value) for label, printed in self.published(name).items() for row in printed if row.metric == main]

    def _bars(self, axis: Any, name: str) -> None:
        colours = {"backbone": "#9aa0a6", "patch": "#1f77b4", "rival": "#e0a030"}
        main = self.main(name)
        labels: list[str] = []
        unit = ", %"
        for run in self.of(name):
            measure = run.result.measures().get(main)
            if measure is not None:
                scale = 1 if measure.kind == "rank" else 100
                unit = "" if measure.kind == "rank" else unit
                value = scale * measure.value
                low, high = (0.0 if m != m else abs(scale * m - value) for m in (measure.low, measure.high))
                axis.barh(len(labels), value, xerr=[[low], [high]], color=colours[run.kind], error_kw={"lw": 1})
            labels.append(run.label)
        for label, value in self._published_main(name):
            axis.barh(len(labels), value, color="white", edgecolor="#555555", hatch="///")
            labels.append(f"{label} (published)")
        axis.set_yticks(range(len(labels)), [label if len(label) < 48 else label[:45] + "..." for label in labels], fontsize=8)
        axis.invert_yaxis()
        if unit:
            axis.set_xlim(0, 100)
        axis.set_title(f"{name}\n{main}{unit}", fontsize=8, loc="left")
        if remarks := [remark.replace("*", "") for remark in self.remarks(name)]:
            axis.set_xlabel("\n".join(line for remark in remarks for line in textwrap.wrap(remark, 100)), fontsize=6.5, loc="left")


def write_report(report: Report, folder: Path) -> None:
    """Write ``table.md``, ``table.csv``, ``results.json`` (CLIP_benchmark's shape, a list) and ``plot.png``."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "results.json", [run.result.to_dict() | _about(report, run) for run in report.runs])
    write_atomically(folder / "table.csv", report.csv().encode())
    write_atomically(folder / "table.md", report.markdown().encode())
    report.plot(folder / "plot.png")


def _about(report: Report, run: Run) -> dict[str, Any]:
    difference = report.difference(run)
    content: dict[str, Any] = {"benchmark": {"label": run.label, "method": run.kind, "file": str(run.path.name)}}
    if difference is not None:
        entries = difference.to_dict()
        content["differences"] = {key: entries[key] for key in ("differences", "difference_intervals")}
    return content


def _with_interval(measure: Measure) -> str:
    shown = measure.show()
    if measure.low != measure.low:
        return shown
    return f"{shown} ({measure.show(measure.low)}-{measure.show(measure.high)})"


def _rounded(value: float) -> float | str:
    return "" if value != value else round(value, 4)


def _cell(text: str) -> str:
    """Text that breaks no Markdown table."""
    return " ".join(text.replace("|", "\\|").split())
