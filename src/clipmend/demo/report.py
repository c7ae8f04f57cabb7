"""The demo's picture and its self-contained HTML report."""

from __future__ import annotations

import base64
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from clipmend.data.images import open_image

if TYPE_CHECKING:
    from clipmend.demo.run import Findings
    from clipmend.demo.searches import Asked

__all__ = ["write_picture", "write_report"]

GREEN, RED, GREY, BLUE = "#2f8f4e", "#d0342c", "#8a8f98", "#2b6cb0"
FORMS = ("affirmative", "negative", "hybrid")
TITLES = {
    "choice": "Multiple choice (4 options, chance 25)",
    "retrieval": "Plain text-image retrieval",
    "negated_retrieval": "Retrieval with negated captions",
    "exclusion": "Exclusion: images without X above images with X, for queries that exclude X",
    "presence": 'Presence: images with X above images without, for "a photo of a X"',
}


def write_picture(found: Findings, path: Path) -> None:
    """The whole story in one PNG: where the signal dies, what mending gives, one search before and after."""
    figure = Figure(figsize=(12, 7.2), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    panels: Any = figure.subfigures(2, 1, height_ratios=(1.0, 1.15))
    top, bottom = panels
    curve, bars, plane = top.subplots(1, 3, width_ratios=(1.0, 1.2, 1.0))
    _curve(curve, found)
    _bars(bars, found)
    _map(plane, found)
    asked = max(found.scenes, key=lambda a: sum(a.wrong_before) - sum(a.wrong_after))
    _strips(bottom, asked)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100)
    _write(path, buffer.getvalue())


def write_report(found: Findings, path: Path) -> None:
    """One HTML file that needs nothing beside it: pictures and thumbnails are inside."""
    environment = Environment(loader=PackageLoader("clipmend.demo"), autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    html = environment.get_template("report.html.j2").render(
        found=found,
        story=_embedded((path.parent / "picture.png").read_bytes()),
        diagnosis=_embedded((path.parent / "diagnosis.png").read_bytes()),
        tables=[_table(found, task) for task in TITLES if task in found.evaluations["backbone"]],
        sections=[
            ("Drawn scenes", [_shown(a) for a in found.scenes]),
            ("Real photographs", [_shown(a) for a in found.photos]),
        ],
        validation=found.patch.metrics["validation"],
    )
    _write(path, html.encode("utf-8"))


def _table(found: Findings, task: str) -> dict[str, Any]:
    """Rows of measures, a column for each model, and the paired difference of the mended encoder."""
    models = {name: e[task] for name, e in found.evaluations.items() if task in e}
    differences = found.comparisons[task].differences
    rows = []
    for name, measure in models["backbone"].measures().items():
        if measure.detail:
            continue
        cells = [m.show() if (m := r.measures().get(name)) else "-" for r in models.values()]
        d = differences.get(name)
        change = "-"
        if d is not None:
            middle, low, high = (measure.show(value, signed=True) for value in (d.difference, d.low, d.high))
            change = f"{middle} [{low}, {high}]"
        rows.append((name, cells, change, measure.count))
    return {"title": TITLES[task], "models": list(models), "rows": rows}


def _shown(asked: Asked) -> dict[str, Any]:
    rows = [("before", asked.before, asked.wrong_before), ("after", asked.after, asked.wrong_after)]
    return {
        "asked": asked,
        "rows": [(label, [(_thumbnail(p), w, p.name) for p, w in zip(paths, wrong, strict=True)]) for label, paths, wrong in rows],
    }


def _thumbnail(path: Path, side: int = 112) -> str:
    image = open_image(path)
    image.thumbnail((side, side))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=80)
    return _embedded(buffer.getvalue(), "jpeg")


def _embedded(content: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _curve(axis: Any, found: Findings) -> None:
    rows = [row for row in found.diagnosis.layers if row.relative_lcd is not None]
    values = [float(row.relative_lcd) for row in rows]
    layers = [row.layer for row in rows]
    low, high = [row.relative_lcd.low for row in rows], [row.relative_lcd.high for row in rows]
    axis.fill_between(layers, low, high, color=BLUE, alpha=0.15, lw=0)
    axis.plot(layers, values, "o-", color=BLUE)
    axis.axvline(found.diagnosis.peak, color=GREY, ls=":", lw=1)
    beside = {"textcoords": "offset points", "fontsize": 9}
    axis.annotate("still told apart", (found.diagnosis.peak, max(values)), xytext=(0, 12), ha="center", **beside)
    axis.annotate("forgotten", (layers[-1], values[-1]), xytext=(-8, -2), ha="right", color=RED, **beside)
    axis.set(title='"X" against "no X", by text layer', xlabel="layer", ylabel="relative divergence")
    axis.set(xticks=layers, ylim=(0, 1.3 * max(values)))
    _clean(axis)


def _bars(axis: Any, found: Findings) -> None:
    """Choice by template and exclusion, backbone against mended."""
    names = [f"acc_{form}" for form in FORMS]
    before = [100 * found.evaluations["backbone"]["choice"].metrics[n] for n in names]
    after = [100 * found.evaluations["mended"]["choice"].metrics[n] for n in names]
    before.append(100 * found.evaluations["backbone"]["exclusion"].auroc)
    after.append(100 * found.evaluations["mended"]["exclusion"].auroc)
    place = np.arange(len(before))
    for offset, values, colour, label in ((-0.2, before, GREY, "backbone"), (0.2, after, GREEN, "mended")):
        for x, value in zip(place + offset, values, strict=True):
            axis.text(x, value + 1.5, f"{value:.0f}", ha="center", fontsize=8)
        axis.bar(place + offset, values, 0.38, color=colour, label=label)
    labels = ["choice:\naffirmative", "choice:\nnegative", "choice:\nhybrid", "exclusion\nAUROC"]
    axis.set(title="Held-out scenes, per cent", xticks=place, xticklabels=labels, ylim=(0, 118))
    axis.legend(frameon=False, ncols=2, loc="upper center", fontsize=8)
    axis.tick_params(axis="x", labelsize=8)
    _clean(axis)


def _map(axis: Any, found: Findings) -> None:
    """Affirmative and negated captions after mending; the inset shows them before."""
    inset = axis.inset_axes((0.02, 0.66, 0.34, 0.32))
    for points, where in ((found.map["after"], axis), (found.map["before"], inset)):
        affirmative, negated = np.asarray(points["affirmative"]), np.asarray(points["negated"])
        for a, b in zip(affirmative, negated, strict=True):
            where.plot(*zip(a, b, strict=True), color=GREY, lw=0.5, alpha=0.6)
        size = 18 if where is axis else 5
        where.scatter(*affirmative.T, s=size, color=BLUE, label="with X")
        where.scatter(*negated.T, s=size, color=RED, label="without X")
        where.set(xticks=[], yticks=[])
    inset.text(0.04, 0.95, "before", transform=inset.transAxes, va="top", fontsize=7)
    axis.set_title("Captions with and without X, after")
    axis.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.01), ncols=2)
    _clean(axis)


def _strips(panel: Any, asked: Asked) -> None:
    columns = len(asked.before)
    axes = panel.subplots(2, columns)
    panel.suptitle(f"\u201c{asked.query.text}\u201d, the same image index", fontsize=12)
    answers = (("before", asked.before, asked.wrong_before), ("after", asked.after, asked.wrong_after))
    for line, (label, paths, wrong) in enumerate(answers):
        for column in range(columns):
            axis = axes[line, column]
            axis.set(xticks=[], yticks=[])
            if column < len(paths):
                axis.imshow(np.asarray(open_image(paths[column])))
                for spine in axis.spines.values():
                    spine.set(color=RED if wrong[column] else GREEN, linewidth=3)
        axes[line, 0].set_ylabel(label, fontsize=11)


def _clean(axis: Any) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.title.set_fontsize(10)


def _write(path: Path, content: bytes) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(content)
    os.replace(part, path)
