"""A curve over checkpoints: recall by epoch, as a table and as a picture; what was measured is kept for the next run."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clipmend.evaluation.dense import DIRECTIONS, DenseResult
from clipmend.evaluation.results import write_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from clipmend.backbones.base import DualEncoder

__all__ = ["COLUMNS", "checkpoints", "curve_rows", "loadable", "measure_once", "plot_curve", "write_curve"]

COLUMNS = ("epoch", "checkpoint", "set", "split", "measure", "value", "low", "high", "n")
_NAME = re.compile(r"(epoch|checkpoint|step)[-_](\d+)")
_KEPT = "dense-curve.json"


def checkpoints(folder: str | Path) -> list[tuple[int, Path]]:
    """Checkpoints of a folder by their numbers: ``epoch-1``, ``epoch-2``, ...; else ``checkpoint-N``; else ``step-N``.

    Raises:
        FileNotFoundError, NotADirectoryError: no such folder.
        ValueError: none in it, or two with one number.
    """
    folder = Path(folder)
    if not folder.exists():
        raise FileNotFoundError(f"{folder}: no such folder")
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder}: not a folder")
    found: dict[str, dict[int, Path]] = {}
    for path in sorted(folder.iterdir()):
        match = _NAME.fullmatch(path.name)
        if match and path.is_dir():
            kind, number = match[1], int(match[2])
            if number in found.setdefault(kind, {}):
                raise ValueError(f"{folder}: {path.name} and {found[kind][number].name} have one number")
            found[kind][number] = path
    for kind in ("epoch", "checkpoint", "step"):
        if kind in found:
            return sorted(found[kind].items())
    raise ValueError(f"{folder}: holds no checkpoints called epoch-1, epoch-2, ... (nor checkpoint-N, step-N)")


def loadable(path: Path) -> str:
    """What :func:`clipmend.load` takes for a checkpoint's folder: open_clip's goes by another name than transformers'."""
    return f"open_clip:local-dir:{path}" if (path / "open_clip_config.json").is_file() else str(path)


def curve_rows(epoch: int, checkpoint: str, result: DenseResult) -> list[dict[str, Any]]:
    """A result as rows of the table, one a measure."""
    return [
        {
            "epoch": epoch,
            "checkpoint": checkpoint,
            "set": result.dataset,
            "split": result.split,
            "measure": name,
            "value": measure.value,
            "low": None if measure.low != measure.low else measure.low,
            "high": None if measure.high != measure.high else measure.high,
            "n": measure.count,
        }
        for name, measure in result.measures().items()
    ]


def measure_once(
    out: Path,
    encoder: DualEncoder,
    epoch: int,
    checkpoint: str,
    gallery: str,
    asked: Sequence[Any],
    measure: Callable[[], DenseResult],
) -> tuple[list[dict[str, Any]], bool]:
    """Rows of a checkpoint on a set: those kept in ``out`` from an earlier run, or measured now and kept.

    Kept rows are used only for a model with the same fingerprint, the same gallery and the same questions.

    Returns:
        The rows, and whether they were measured now.
    """
    parts = [encoder.fingerprint.to_dict(), gallery, list(asked)]
    key = hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
    kept = _kept(out)
    rows = kept.get(key)
    if rows is not None:
        return [{**row, "epoch": epoch, "checkpoint": checkpoint} for row in rows], False
    fresh = curve_rows(epoch, checkpoint, measure())
    write_json(out / _KEPT, kept | {key: fresh})
    return fresh, True


def _kept(out: Path) -> dict[str, list[dict[str, Any]]]:
    try:
        content = json.loads((out / _KEPT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    whole = isinstance(content, dict) and all(isinstance(rows, list) for rows in content.values())
    return content if whole else {}


def write_curve(rows: Iterable[Mapping[str, Any]], out: Path) -> tuple[Path, Path]:
    """Write ``dense-curve.csv`` (a row a measure) and ``dense-curve.png`` to a folder, each beside its place and renamed."""
    rows = list(rows)
    out.mkdir(parents=True, exist_ok=True)
    text = StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    table, picture = out / "dense-curve.csv", out / "dense-curve.png"
    with _in_place(table) as beside:
        beside.write_text(text.getvalue(), encoding="utf-8", newline="")
    plot_curve(rows, picture)
    return table, picture


def plot_curve(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Recall at 1 both ways by epoch, a panel a set, with intervals; the unseen part and twins where they were measured."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    sets = list(dict.fromkeys((row["set"], row["split"]) for row in rows))
    figure = Figure(figsize=(5.2 * max(len(sets), 1), 3.9), dpi=130, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    for place, (name, split) in enumerate(sets):
        axis = figure.add_subplot(1, len(sets), place + 1)
        _panel(axis, [row for row in rows if (row["set"], row["split"]) == (name, split)])
        axis.set_title(f"{name} ({split})" if split else name, loc="left", fontsize=11)
    with _in_place(path) as beside:
        figure.savefig(beside, format="png")


@contextmanager
def _in_place(path: Path) -> Iterator[Path]:
    """A file beside ``path`` that takes its place when the block ends."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield beside
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


# Okabe and Ito's palette: told apart in print and by colour-blind readers.
_LINES = {
    **{f"{found}_retrieval_recall@1": (f"R@1, {label}", colour, "o", "-")
       for (found, label), colour in zip(DIRECTIONS.items(), ("#0072B2", "#D55E00"), strict=True)},
    **{f"unseen_gallery/{found}_retrieval_recall@1": (f"unseen alone, {label}", colour, "s", "--")
       for (found, label), colour in zip(DIRECTIONS.items(), ("#56B4E9", "#E69F00"), strict=True)},
    "twins/group": ("twins: the whole group", "#009E73", "^", ":"),
}  # fmt: skip


def _panel(axis: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    from matplotlib.ticker import MaxNLocator

    for measure, (label, colour, marker, line) in _LINES.items():
        points = sorted((row for row in rows if row["measure"] == measure), key=lambda row: row["epoch"])
        if not points:
            continue
        x, y = [row["epoch"] for row in points], [100 * row["value"] for row in points]
        axis.plot(x, y, color=colour, marker=marker, linestyle=line, markersize=4.5, linewidth=1.8, label=label, zorder=3)
        if all(row["low"] is not None and row["high"] is not None for row in points):
            axis.fill_between(
                x, [100 * row["low"] for row in points], [100 * row["high"] for row in points], color=colour, alpha=0.13
            )
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlabel("epoch")
    axis.set_ylabel("%")
    axis.grid(alpha=0.25)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    if axis.lines:
        axis.legend(fontsize=8, frameon=False)
