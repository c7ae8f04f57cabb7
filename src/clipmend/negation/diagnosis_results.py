"""What a diagnosis holds: estimates by layer and kind, the suggested layers, and their forms as JSON, table and picture."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clipmend.negation.diagnosis_measures import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

__all__ = ["Diagnosis", "KindDiagnosis", "LayerDiagnosis"]

FORMAT = "clipmend.diagnosis/1"
_ESTIMATES = ("lcd", "relative_lcd", "alignment", "alignment_contrast", "probe_negated", "probe_denied", "cosine_denied")


@dataclass(frozen=True)
class LayerDiagnosis:
    """What was measured at one layer for one kind of pair; every :class:`Estimate` carries its 95% interval.

    Args:
        layer: 1-indexed.
        lcd: mean ``1 - cos`` of the two texts of a pair, 0..2.
        spread: mean ``1 - cos`` of the positive texts of one frame about different objects; ``None`` where there are no such texts.
        relative_lcd: ``lcd / spread``: 1 means that the contrast moves a text as far as another object does.
        alignment: mean cosine of the positive texts with their images, both in the joint space.
        alignment_contrast: the same for the contrast texts.
        probe_negated: accuracy of the linear probe "negated or not", on unseen objects and wordings; chance .5.
        probe_denied: accuracy of the linear probe "which of two objects is denied", likewise; chance .5.
        cosine_denied: how often plain cosine answers that second question rightly; below .5 it hears the denied object as present.
        peak_share: share of resamples in which this layer has the highest relative LCD from the second to the last but one.
        withheld: for each quantity that is ``None`` although it was asked for, the reason.
    """

    layer: int
    lcd: Estimate
    spread: float | None = None
    relative_lcd: Estimate | None = None
    alignment: Estimate | None = None
    alignment_contrast: Estimate | None = None
    probe_negated: Estimate | None = None
    probe_denied: Estimate | None = None
    cosine_denied: Estimate | None = None
    peak_share: float | None = None
    withheld: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        estimates = {name: None if (e := getattr(self, name)) is None else e.to_dict() for name in _ESTIMATES}
        return {"layer": self.layer, **estimates, "spread": self.spread, "peak_share": self.peak_share, "withheld": self.withheld}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> LayerDiagnosis:
        estimates = {name: Estimate(**values[name]) for name in _ESTIMATES if values[name] is not None}
        return cls(**{**values, **estimates})


@dataclass(frozen=True)
class KindDiagnosis:
    """The layers of one kind of pair.

    Args:
        kind: what differs between the two texts.
        count: pairs.
        peak: the layer, after the first and before the last, at which this kind is clearest (chosen as the suggestion is).
        layers: first to last.
        collapse: relative LCD of the last layer over that of ``peak``; ``None`` where either is withheld.
    """

    kind: str
    count: int
    peak: int
    layers: tuple[LayerDiagnosis, ...]
    collapse: Estimate | None = None

    def to_dict(self) -> dict[str, Any]:
        collapse = None if self.collapse is None else self.collapse.to_dict()
        return {"count": self.count, "peak": self.peak, "collapse": collapse, "layers": [row.to_dict() for row in self.layers]}


@dataclass(frozen=True)
class Diagnosis:
    """Where an encoder loses a distinction, and the layers a patch should read.

    Args:
        encoder: its name.
        kind: the kind that the suggestion rests on: negation where it was measured, else the first.
        kinds: the measurements of every kind.
        peak, anchor, scn_layers: the suggestion (see :func:`clipmend.negation.diagnosis_suggest.suggest`); 1-indexed.
        reason: why, in words.
        notes: what the user should know: rows dropped, pairs without an image, quantities withheld.
        bootstrap, seed: of the intervals.
    """

    encoder: str
    kind: str
    kinds: dict[str, KindDiagnosis]
    peak: int
    anchor: int
    scn_layers: tuple[int, ...]
    reason: str
    notes: tuple[str, ...] = ()
    bootstrap: int = 1000
    seed: int = 0

    @property
    def layers(self) -> list[LayerDiagnosis]:
        """The layers of :attr:`kind`, first to last."""
        return list(self.kinds[self.kind].layers)

    @property
    def collapse(self) -> float | None:
        """Relative LCD of the last layer over that of the peak: 1 nothing is lost, 0 everything is; ``None`` where withheld."""
        estimate = self.kinds[self.kind].collapse
        return None if estimate is None else estimate.value

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw the curves (matplotlib, no display needed); written to ``path`` (.png, .svg, .pdf) if given."""
        from clipmend.negation.diagnosis_plot import plot_diagnosis

        return plot_diagnosis(self, path)

    def table(self, kind: str | None = None) -> Table:
        """The measurements of one kind (default: :attr:`kind`) as a table for the terminal."""
        from clipmend.negation.diagnosis_plot import diagnosis_table

        return diagnosis_table(self, kind or self.kind)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain values for JSON; no NaN."""
        return {
            "format": FORMAT,
            "encoder": self.encoder,
            "suggestion": {
                "peak": self.peak,
                "anchor": self.anchor,
                "scn_layers": list(self.scn_layers),
                "reason": self.reason,
                "kind": self.kind,
            },
            "collapse": self.collapse,
            "kinds": {name: result.to_dict() for name, result in self.kinds.items()},
            "notes": list(self.notes),
            "bootstrap": self.bootstrap,
            "seed": self.seed,
        }

    def to_json(self, path: str | Path | None = None) -> str:
        """Everything as JSON text; also written to ``path`` if given (beside it first, then renamed into place)."""
        text = json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n"
        if path is not None:
            path = Path(path)
            beside = path.with_name(f".{path.name}.{os.getpid()}.part")
            try:
                beside.write_text(text, encoding="utf-8")
                beside.replace(path)
            finally:
                beside.unlink(missing_ok=True)
        return text

    @classmethod
    def from_json(cls, source: str | Path) -> Diagnosis:
        """Read what :meth:`to_json` wrote: a path, or the text itself.

        Raises:
            ValueError: not a diagnosis.
        """
        text = source if isinstance(source, str) and source.lstrip().startswith("{") else Path(source).read_text(encoding="utf-8")
        values = json.loads(text)
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            raise ValueError(f"not a diagnosis written by this version (format {FORMAT} expected)")
        kinds = {
            name: KindDiagnosis(
                name,
                kind["count"],
                kind["peak"],
                tuple(LayerDiagnosis.from_dict(row) for row in kind["layers"]),
                None if kind["collapse"] is None else Estimate(**kind["collapse"]),
            )
            for name, kind in values["kinds"].items()
        }
        s = values["suggestion"]
        return cls(
            values["encoder"],
            s["kind"],
            kinds,
            s["peak"],
            s["anchor"],
            tuple(s["scn_layers"]),
            s["reason"],
            tuple(values["notes"]),
            values["bootstrap"],
            values["seed"],
        )
