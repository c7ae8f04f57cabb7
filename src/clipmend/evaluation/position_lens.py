"""The position lens: does an encoder read a caption to its end, or its first sentence only?

Long captions open with a sentence that sums them up, and models learn to rely on it (DeBias-CLIP, arXiv 2602.22419: without it
Long-CLIP loses 17.1 points on DOCCI). Each change of :mod:`.caption_changes` is put to every caption at once, and recall compared
with that of the captions as they are, query by query.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clipmend.backbones.base import DualEncoder
from clipmend.data.dense.collection import DenseData
from clipmend.evaluation.caption_changes import AS_THEY_ARE, CaptionChange, change_captions, position_changes
from clipmend.evaluation.dense import DIRECTIONS, DenseResult, dense_retrieval
from clipmend.evaluation.dense_embed import embed_captions, embed_images, present
from clipmend.evaluation.embed import OnMissing, distinct
from clipmend.evaluation.results import Comparison, Difference, Measure, compare, model_names, write_json

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["PositionLens", "PositionView", "evaluate_positions", "plot_positions"]


@dataclass(frozen=True)
class PositionView:
    """Retrieval with the captions changed in one way.

    Args:
        name: of the change, ``"as-they-are"`` for none.
        about: the same in words.
        result: recall; its ``truncated`` of ``distinct`` captions are cut by the encoder.
        change: paired with the captions as they are; ``None`` for those themselves.
        unchanged: captions that keep their text, too few sentences or equal ones.
        shared: captions whose text another image's caption has too: neither can be told by anyone.
    """

    name: str
    about: str
    result: DenseResult
    change: Comparison | None
    unchanged: int
    shared: int

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        found = self.result.to_dict()
        cut = found["truncation"]
        about = {
            "change": self.name,
            "about": self.about,
            "metrics": found["metrics"],
            "intervals": found["intervals"],
            "counts": found["counts"],
            "captions": len(self.result.text_ranks),
            "unchanged": self.unchanged,
            "shared": self.shared,
            "truncation": cut,
        }
        if self.change is not None:
            paired = self.change.to_dict()
            about |= {name: paired[name] for name in ("differences", "difference_intervals")}
        return about


@dataclass
class PositionLens:
    """What :func:`evaluate_positions` found; the first view is that of the captions as they are.

    Args:
        dataset, split, model, pretrained: names.
        views: one a change.
        ks: cut-offs.
        gallery: SHA-256 of images and unchanged captions.
        seed: of the random order and of the bootstrap.
        level: nominal coverage of the intervals.
        notes: what a reader must know.
    """

    dataset: str
    split: str
    model: str
    pretrained: str
    views: list[PositionView]
    ks: tuple[int, ...]
    gallery: str
    seed: int = 0
    level: float = 0.95
    notes: list[str] = field(default_factory=list)

    def __getitem__(self, name: str) -> PositionView:
        """The view of a change, by its name.

        Raises:
            KeyError: there is none.
        """
        found = next((view for view in self.views if view.name == name), None)
        if found is None:
            raise KeyError(f"no view {name!r}; there are {', '.join(view.name for view in self.views)}")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {
            "task": "position_lens",
            "dataset": self.dataset,
            "split": self.split,
            "model": self.model,
            "pretrained": self.pretrained,
            "gallery": {"sha256": self.gallery, **self.views[0].result.details()["gallery"]},
            "seed": self.seed,
            "interval_level": self.level,
            "views": [view.to_dict() for view in self.views],
            "notes": list(self.notes),
        }

    def save(self, path: str | Path) -> Path:
        """Write :meth:`to_dict` as JSON, beside and renamed into place."""
        return write_json(path, self.to_dict())

    def plot(self, path: str | Path) -> Path:
        """Draw :func:`plot_positions` of this model alone."""
        return plot_positions([self], path)

    def table(self) -> Table:
        """A Rich table: a row a change and direction; recall, and the difference to the captions as they are with its interval."""
        from rich.markup import escape
        from rich.table import Table

        split = f" ({self.split})" if self.split else ""
        title = escape(f"Position lens, recall %: {self.model} on {self.dataset}{split}")
        table = Table(title=title, title_justify="left", caption_justify="left")
        table.add_column("captions", overflow="fold")
        for k in self._shown():
            table.add_column(f"R@{k}", justify="right")
            table.add_column(f"change ({100 * self.level:g} %)", justify="right")
        for heading in ("cut", "kept", "shared"):
            table.add_column(heading, justify="right")
        for found, direction in DIRECTIONS.items():
            table.add_row(direction, style="bold")
            for view in self.views:
                cells = []
                for k in self._shown():
                    name = f"{found}_retrieval_recall@{k}"
                    measure = view.result.measures().get(name)
                    cells.append("" if measure is None else measure.show())
                    cells.append(_difference(measure, view.change.differences.get(name) if view.change is not None else None))
                table.add_row(view.about, *cells, *(_counts(view) if found == next(iter(DIRECTIONS)) else ("", "", "")))
            table.add_section()
        table.caption = escape("\n".join(self._captions()))
        return table

    def _shown(self) -> list[int]:
        return [
            k for k in self.ks if any(f"{found}_retrieval_recall@{k}" in self.views[0].result.measures() for found in DIRECTIONS)
        ]

    def _captions(self) -> list[str]:
        result = self.views[0].result
        lines = [
            f"gallery of {len(result.image_ranks):,} images and {len(result.text_ranks):,} captions, sha256 {self.gallery[:16]}",
            f"cut: distinct captions longer than {result.context_length} tokens; kept: captions too short to be changed;",
            "shared: captions whose text another image's caption has too",
        ]
        return lines + self.notes


def _difference(measure: Measure | None, change: Difference | None) -> str:
    if measure is None or change is None:
        return ""
    low, high = (measure.show(value, signed=True) for value in (change.low, change.high))
    return f"{measure.show(change.difference, signed=True)} ({low} .. {high})"


def _counts(view: PositionView) -> tuple[str, str, str]:
    result = view.result
    cut = "-" if result.truncated is None else f"{100 * result.truncated / result.distinct:.1f} %"
    return cut, "" if view.change is None else f"{view.unchanged:,}", f"{view.shared:,}"


def evaluate_positions(
    encoder: DualEncoder,
    data: DenseData,
    *,
    changes: Sequence[CaptionChange] | None = None,
    ks: Sequence[int] = (1, 5),
    on_missing: OnMissing = "error",
    digests: Sequence[str] | None = None,
    batch_size: int = 32,
    text_batch_size: int = 64,
    samples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
    tie_tolerance: float = 1e-6,
    block: int | None = None,
    model: str | None = None,
    pretrained: str | None = None,
    progress: bool = False,
) -> PositionLens:
    """Recall of dense captions as they are and changed; images are embedded once, captions once a change.

    Args:
        encoder: any :class:`~clipmend.DualEncoder`.
        data: the set.
        changes: what to do to the captions (default: :func:`~clipmend.evaluation.caption_changes.position_changes`).
        ks: cut-offs.
        on_missing, digests, batch_size, text_batch_size, tie_tolerance, block, model, pretrained, progress: as
            :func:`~clipmend.evaluation.evaluate_dense`.
        samples: bootstrap draws of images (with their twins) for the differences.
        seed: of those draws, and of the random order.
        level: nominal coverage of the intervals.

    Raises:
        FileNotFoundError: images missing, unless they are skipped.
        ValueError: no image left, one that cannot be read, an embedding that is not finite, or two changes with one name.
    """
    asked = position_changes() if changes is None else list(changes)
    names = [AS_THEY_ARE, *(change.name for change in asked)]
    if len(set(names)) < len(names):
        raise ValueError(f"two changes have one name: {', '.join(names)}")
    given = len(data.images)
    data, keep = present(data, on_missing)
    if digests is None:
        digests = data.digests()
    elif len(keep) < given:
        digests = [digests[k] for k in keep]
    gallery = data.gallery_digest(digests)
    label, weights = model_names(encoder, model, pretrained)
    images = embed_images(encoder, data, batch_size=batch_size, progress=progress)

    def measure(texts: Sequence[str]) -> DenseResult:
        embedded = embed_captions(encoder, texts, data.where, batch_size=text_batch_size, progress=progress)
        result = dense_retrieval(
            images,
            embedded.vectors,
            data.image_of,
            ks=ks,
            twins=data.twins,
            level=level,
            tie_tolerance=tie_tolerance,
            block=block,
            dataset=data.name,
            model=label,
            pretrained=weights,
            # What is asked is the same whatever the wording: the paired difference is of one query to itself.
            items=[gallery, data.image_ids, data.captions, data.image_of.tolist(), tuple(ks)],
        )
        result.gallery, result.split, result.context_length = gallery, data.split, encoder.context_length
        result.truncated, result.distinct = embedded.truncated, embedded.distinct
        return result

    plain = measure(data.captions)
    views = [PositionView(AS_THEY_ARE, "as they are", plain, None, len(data), _shared(data, data.captions))]
    for change in asked:
        changed = change_captions(data.captions, change, seed=seed)
        result = measure(changed.texts)
        paired = compare(plain, result, samples=samples, seed=seed, level=level)
        views.append(PositionView(change.name, change.about, result, paired, changed.unchanged, _shared(data, changed.texts)))
    notes = [*data.notes, *plain.notes]
    return PositionLens(data.name, data.split, label, weights, views, plain.ks, gallery, seed, level, notes)


def _shared(data: DenseData, texts: Sequence[str]) -> int:
    """Captions whose text a caption of another image has too."""
    _, text_of = distinct([" ".join(text.split()) for text in texts])
    images: dict[int, set[int]] = {}
    for text, image in zip(text_of.tolist(), data.image_of.tolist(), strict=True):
        images.setdefault(text, set()).add(image)
    return sum(len(images[text]) > 1 for text in text_of.tolist())


def plot_positions(lenses: Sequence[PositionLens], path: str | Path) -> Path:
    """Draw the change of recall at the first cut-off by each change, a panel a direction, a colour a model, with intervals.

    Args:
        lenses: one a model, of the same changes on one set.
        path: a ``.png``, ``.svg`` or ``.pdf`` file; written beside and renamed.

    Raises:
        ValueError: nothing to draw, different changes or sets, or a gallery too small for any recall.
    """
    if not lenses:
        raise ValueError("no position lens to draw")
    if len({(lens.gallery, tuple(view.name for view in lens.views)) for lens in lenses}) > 1:
        raise ValueError("the models to draw side by side were measured on different sets, or with different changes")
    shown = lenses[0]._shown()
    if not shown:
        raise ValueError(f"{lenses[0].dataset}: the gallery is too small for recall at {', '.join(map(str, lenses[0].ks))}")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    views = lenses[0].views[1:]
    figure = Figure(figsize=(10, 1.4 + len(views) * (0.32 + 0.12 * len(lenses))), dpi=130, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 2, sharey=True)
    for axis, (found, direction) in zip(axes, DIRECTIONS.items(), strict=True):
        name = f"{found}_retrieval_recall@{shown[0]}"
        for number, lens in enumerate(lenses):
            spread = 0.6 * ((number + 0.5) / len(lenses) - 0.5)
            changes = [view.change.differences.get(name) if view.change else None for view in lens.views[1:]]
            values = [[100 * _part(c, what) for c in changes] for what in ("difference", "low", "high")]
            rows = [place + spread for place in range(len(views))]
            start = lens.views[0].result.measures().get(name)
            label = f"{lens.model}, {start.show()} as they are" if start is not None else lens.model
            colour = _COLOURS[number % len(_COLOURS)]
            axis.hlines(rows, values[1], values[2], color=colour, linewidth=1.6)
            axis.plot(values[0], rows, "o", color=colour, markersize=4.5, label=label)
        axis.axvline(0, color="0.4", linewidth=0.8)
        axis.set_title(direction, loc="left", fontsize=11)
        axis.set_xlabel(f"change of R@{shown[0]}, points")
        axis.grid(axis="x", alpha=0.3)
        axis.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16 if len(views) > 4 else -0.25))
    axes[0].set_yticks(range(len(views)), [view.about for view in views])
    axes[0].invert_yaxis()
    split = f" ({lenses[0].split})" if lenses[0].split else ""
    figure.suptitle(f"Captions of {lenses[0].dataset}{split}, changed sentence by sentence", fontsize=11)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        figure.savefig(part, format=path.suffix.lstrip(".") or "png")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


# Okabe and Ito's palette: told apart in print and by colour-blind readers.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def _part(change: Difference | None, what: str) -> float:
    return math.nan if change is None else float(getattr(change, what))
