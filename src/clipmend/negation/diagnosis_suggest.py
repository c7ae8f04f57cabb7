"""From what a diagnosis measured to the layers a patch should read, with the reason in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clipmend.negation.diagnosis_measures import NEGLIGIBLE_SPREAD

if TYPE_CHECKING:
    from clipmend.negation.diagnosis import LayerDiagnosis

__all__ = ["Suggestion", "suggest"]

LEAST_RISE = 0.02
"""Alignment that moves by less than this over the layers does not rise."""
STABLE = 0.1
"""A layer is stable while alignment has made at most this part of its way up."""


@dataclass(frozen=True)
class Suggestion:
    """Layers for a patch.

    Args:
        peak: the layer whose tokens the correction reads: where the contrast is clearest.
        anchor: an earlier, stable layer, read beside it; at most ``peak``.
        scn_layers: layers of the score correction: the peak and the last.
        reason: why, in words.
    """

    peak: int
    anchor: int
    scn_layers: tuple[int, ...]
    reason: str


def suggest(layers: Sequence[LayerDiagnosis]) -> Suggestion:
    """Choose peak, anchor and score-correction layers.

    * Peak: the highest relative LCD from the second layer to the last but one (after the first block a text is still little more
      than its words; an encoder of two layers has nothing else before its last). Where that is withheld at every such layer, the
      highest raw LCD; where that too is negligible, two thirds of the depth.
    * Anchor: with images, the last layer before the peak at which alignment (mean over plain and contrast texts) has made at most a
      tenth of its way from its lowest value up to the peak to its highest from there on; without, or where it does not rise, two
      layers before the peak.
    * Score correction: the peak and the last layer.

    Args:
        layers: every layer, first to last.
    """
    last = layers[-1].layer
    if last == 1:
        return Suggestion(1, 1, (1,), "The encoder has one layer: peak, anchor and score correction all read it.")
    peak, why_peak = _peak(layers)
    anchor, why_anchor = _anchor(layers, peak)
    reason = f"Peak {peak}: {why_peak}. Anchor {anchor}: {why_anchor}. Score correction reads the peak and the last layer."
    return Suggestion(peak, anchor, (peak, last), reason)


def _peak(layers: Sequence[LayerDiagnosis]) -> tuple[int, str]:
    early, last = layers[1 if len(layers) > 2 else 0 : -1], layers[-1]
    relative = {row.layer: row.relative_lcd for row in early if row.relative_lcd is not None and row.relative_lcd.value > 1e-9}
    if relative:
        peak = max(relative, key=lambda layer: relative[layer].value)
        why = f"relative LCD is highest there between the first layer and the last, {relative[peak]}"
        share = layers[peak - 1].peak_share
        if share is not None:
            why += f", in {share:.0%} of resamples"
        if last.relative_lcd is not None:
            why += f"; the last layer keeps {last.relative_lcd.value / relative[peak].value:.0%} of it"
        return peak, why
    withheld = next((row.withheld["relative_lcd"] for row in early if "relative_lcd" in row.withheld), "it is zero everywhere")
    highest = max(early, key=lambda row: row.lcd.value)
    if highest.lcd.value > NEGLIGIBLE_SPREAD:
        return (
            highest.layer,
            f"raw LCD is highest there between the first layer and the last; relative LCD could not be used ({withheld})",
        )
    depth = max(early[0].layer, min(last.layer - 1, round(2 * last.layer / 3)))
    return (
        depth,
        f"two thirds of the depth; LCD is negligible at every layer before the last, and relative LCD no guide ({withheld})",
    )


def _anchor(layers: Sequence[LayerDiagnosis], peak: int) -> tuple[int, str]:
    usual = max(1, peak - 2)
    steps = (
        f"{peak - usual} layer{'s' if peak - usual != 1 else ''} before the peak" if peak > 1 else "the first layer, as the peak"
    )
    curve = {}
    for row in layers:
        if row.alignment is None or row.alignment_contrast is None:
            return usual, f"{steps} (no images to align with)"
        curve[row.layer] = (row.alignment.value + row.alignment_contrast.value) / 2
    low = min(value for layer, value in curve.items() if layer <= peak)
    high = max(value for layer, value in curve.items() if layer >= peak)
    if high - low < LEAST_RISE:
        return usual, f"{steps} (alignment with the images does not rise)"
    stable = [layer for layer, value in curve.items() if layer < peak and value <= low + STABLE * (high - low)]
    if not stable:
        return usual, f"{steps} (alignment rises from the first layer on)"
    return max(stable), f"the last stable layer before alignment with the images rises ({curve[max(stable)]:.3f}, later {high:.3f})"
