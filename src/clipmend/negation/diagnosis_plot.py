"""A diagnosis as a picture and as a table for the terminal."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.markup import escape
from rich.table import Table

from clipmend.negation.diagnosis_measures import Estimate
from clipmend.negation.probes import CHANCE

if TYPE_CHECKING:
    from clipmend.negation.diagnosis_results import Diagnosis, LayerDiagnosis

__all__ = ["diagnosis_table", "plot_diagnosis"]

# Okabe and Ito's palette: told apart in print and by colour-blind readers.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#666666")
MARKERS = "osD^vPX"
INK, FAINT = "#222222", "#9a9a9a"

Curve = tuple[str, Sequence["LayerDiagnosis"], Callable[["LayerDiagnosis"], Estimate | None]]


def plot_diagnosis(diagnosis: Diagnosis, path: str | Path | None = None) -> Figure:
    """Relative LCD, raw LCD, and where there are any, alignment with images and probe accuracy, by layer, with 95% bands.

    The figure stands by itself: no global state of matplotlib is touched and no display is needed.

    Args:
        diagnosis: what to draw.
        path: where to write it; the format follows the suffix (.png, .svg, .pdf). Written beside, then renamed.

    Raises:
        ValueError: a suffix that matplotlib does not write.
    """
    panels = _panels(diagnosis)
    columns = len(panels) if len(panels) < 4 else 2
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(5.2 * columns, 3.7 * rows + 0.6), dpi=130, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis, (title, label, curves, reference) in zip(axes, panels, strict=False):
        _panel(axis, title, label, curves, reference, diagnosis)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    figure.suptitle(_headline(diagnosis), fontsize=12.5, color=INK, x=0.01, ha="left")
    if path is not None:
        _write(figure, Path(path))
    return figure


def diagnosis_table(diagnosis: Diagnosis, kind: str) -> Table:
    """The measurements of one kind, a row for each layer; the peak, and the anchor of the suggestion, are marked.

    Raises:
        ValueError: a kind that was not measured.
    """
    if kind not in diagnosis.kinds:
        raise ValueError(f"kind {kind!r} was not measured; there are {', '.join(diagnosis.kinds)}")
    result = diagnosis.kinds[kind]
    shown = {name: text for name, text in _COLUMNS.items() if any(getattr(row, name) is not None for row in result.layers)}
    table = Table(title=escape(f"{diagnosis.encoder}: {kind}, {result.count} pairs"), title_justify="left", header_style="bold")
    table.add_column("layer", justify="right")
    for text in shown.values():
        table.add_column(text, justify="right")
    table.add_column("")
    for row in result.layers:
        marks = ["peak"] if row.layer == result.peak else []
        if kind == diagnosis.kind and row.layer == diagnosis.anchor:
            marks.append("anchor")
        cells = ["withheld" if (e := getattr(row, name)) is None else str(e) for name in shown]
        style = "bold" if row.layer == result.peak else None
        table.add_row(str(row.layer), *cells, " ".join(marks), style=style)
    probes = [name for name in shown if name in ("probe_negated", "probe_denied", "cosine_denied")]
    table.caption = "95% intervals over whole pairs" + (f"; chance of the last {len(probes)} is {CHANCE:g}" if probes else "")
    table.caption_justify = "left"
    return table


_COLUMNS = {
    "relative_lcd": "relative LCD",
    "lcd": "LCD",
    "alignment": "image, plain",
    "alignment_contrast": "image, contrast",
    "probe_negated": "probe: negated?",
    "probe_denied": "probe: which denied?",
    "cosine_denied": "cosine: which denied?",
}


def _panels(diagnosis: Diagnosis) -> list[tuple[str, str, list[Curve], float | None]]:
    """Title, axis label, curves and reference line of each panel that has anything to show."""
    main = diagnosis.layers
    kinds = [(name, result.layers) for name, result in diagnosis.kinds.items()]
    candidates: list[tuple[str, str, list[Curve], float | None]] = [
        (
            "Contrast, relative to another object",
            "relative LCD",
            [(name, rows, lambda row: row.relative_lcd) for name, rows in kinds],
            1.0,
        ),
        ("Contrast, raw", "LCD (1 − cosine)", [(name, rows, lambda row: row.lcd) for name, rows in kinds], None),
        (
            "Alignment with the image",
            "cosine to the image",
            [("plain text", main, lambda row: row.alignment), ("contrast text", main, lambda row: row.alignment_contrast)],
            None,
        ),
        (
            "What a reader recovers (unseen objects and wordings)",
            "accuracy",
            [
                ("probe: negated or not", main, lambda row: row.probe_negated),
                ("probe: which object is denied", main, lambda row: row.probe_denied),
                ("cosine: which object is denied", main, lambda row: row.cosine_denied),
            ],
            CHANCE,
        ),
    ]
    return [panel for panel in candidates if any(get(row) is not None for _, rows, get in panel[2] for row in rows)]


def _panel(axis: Axes, title: str, label: str, curves: Sequence[Curve], reference: float | None, diagnosis: Diagnosis) -> None:
    bottom = 0.0  # unless an interval reaches below: cosines to an image may
    for place, (name, rows, get) in enumerate(curves):
        points = [(row.layer, e) for row in rows if (e := get(row)) is not None]
        if not points:
            continue
        x = [layer for layer, _ in points]
        colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
        axis.plot(x, [e.value for _, e in points], color=colour, marker=marker, markersize=4.5, linewidth=1.8, label=name, zorder=3)
        low = [e.value if e.low is None else e.low for _, e in points]
        high = [e.value if e.high is None else e.high for _, e in points]
        bottom = min(bottom, 1.05 * min(low))
        axis.fill_between(x, low, high, color=colour, alpha=0.16, linewidth=0, zorder=2)
    if reference is not None:
        text = "chance" if label == "accuracy" else "as far as another object"
        axis.axhline(reference, color=FAINT, linewidth=1, linestyle=(0, (4, 3)), label=text, zorder=1)
    axis.set_ylim((0, 1.03) if label == "accuracy" else (bottom, axis.get_ylim()[1]))
    axis.axvline(diagnosis.peak, color=INK, linewidth=1.1, alpha=0.75, zorder=1)
    axis.axvline(diagnosis.anchor, color=INK, linewidth=1.1, linestyle=":", alpha=0.75, zorder=1)
    marks = {diagnosis.anchor: "anchor"}
    marks[diagnosis.peak] = "peak" if diagnosis.peak not in marks else "peak, anchor"
    for layer, word in marks.items():
        axis.annotate(
            word,
            (layer, 1),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color=INK,
        )
    axis.set_title(title, fontsize=10.5, color=INK, loc="left", pad=16)
    axis.set_xlabel("layer", fontsize=9, color=INK)
    axis.set_ylabel(label, fontsize=9, color=INK)
    axis.set_xlim(0.7, len(diagnosis.layers) + 0.3)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=14, min_n_ticks=1))
    axis.tick_params(labelsize=8.5, colors=INK, length=3)
    axis.grid(axis="y", color="#e6e6e6", linewidth=0.8, zorder=0)
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axis.spines[side].set_color(FAINT)
    axis.legend(fontsize=8, loc="best", labelcolor=INK, facecolor="white", edgecolor="none", framealpha=0.85)


def _headline(diagnosis: Diagnosis) -> str:
    """What the curves show, and no more: where intervals overlap, no layer is called the clearest."""
    rows, kind = diagnosis.layers, diagnosis.kinds[diagnosis.kind]
    name = "relative_lcd" if rows[diagnosis.peak - 1].relative_lcd is not None else "lcd"
    top: Estimate = getattr(rows[diagnosis.peak - 1], name)
    where = f"{diagnosis.encoder}: {diagnosis.kind} {{}} at layer {diagnosis.peak} of {len(rows)}"
    if top.low is None:
        text = where.format("measured highest") + " (no interval)"
    else:
        rivals = [
            row.layer
            for row in rows[1:-1]
            if row.layer != diagnosis.peak and (e := getattr(row, name)) is not None and e.high is not None and e.high >= top.low
        ]
        text = where.format("is clearest") if not rivals else where.format("measured highest") + f", {_overlap(rivals)}"
    lost = kind.collapse
    if lost is None:
        return text
    if lost.low is not None and lost.high is not None and lost.low <= 1 <= lost.high:
        return f"{text}; the last layer is level with it"
    return f"{text}; the last keeps {lost.value:.0%} of it"


def _overlap(layers: Sequence[int]) -> str:
    if len(layers) == 1:
        return f"not clearly: the interval of layer {layers[0]} overlaps"
    named = f"layers {', '.join(map(str, layers))}" if len(layers) <= 4 else f"{len(layers)} other layers"
    return f"not clearly: the intervals of {named} overlap"


def _write(figure: Figure, path: Path) -> None:
    kind = path.suffix.lstrip(".").lower()
    if kind not in figure.canvas.get_supported_filetypes():
        raise ValueError(f"{path}: no picture format {path.suffix!r}; use .png, .svg or .pdf")
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        figure.savefig(beside, format=kind)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
