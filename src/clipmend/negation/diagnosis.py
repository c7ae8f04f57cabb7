"""Where does a text encoder lose a distinction? Layer by layer, in one pass over minimal pairs.

A caption and its negation drift apart up to a middle layer and come together again towards the last. *Layer-wise compositional
divergence* (LCD) measures how far apart the two are; dividing by how far apart different objects are in the same sentence
(*relative* LCD) makes layers comparable, since states spread out over the depth. What the middle layers hold and the last has lost
is what a patch puts back (PeakPatch, arXiv 2607.23271; the exact formulas are ours and stand at :func:`diagnose`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from clipmend.backbones.base import DualEncoder, OnLong
from clipmend.backbones.progress import track
from clipmend.negation.diagnosis_alignment import cosines, image_embeddings
from clipmend.negation.diagnosis_measures import (
    LEAST_FOR_INTERVAL,
    NEGLIGIBLE_SPREAD,
    Estimate,
    Grouping,
    bootstrap_weights,
    distances,
    estimate,
    spread,
    unit_vectors,
)
from clipmend.negation.diagnosis_results import Diagnosis, KindDiagnosis, LayerDiagnosis
from clipmend.negation.diagnosis_suggest import suggest
from clipmend.negation.pairs import NOUNS, Pair, minimal_pairs, pair_list
from clipmend.negation.probes import Denials, denial_probe, denial_texts, negated_probe

FEW_PAIRS = 30
"""Fewer pairs of a kind than this are measured, but called too few."""
_NOT_OF_THESE = "it asks about built-in sentences, not about the pairs that were given"

__all__ = ["Diagnosis", "Estimate", "KindDiagnosis", "LayerDiagnosis", "diagnose"]


def diagnose(
    encoder: DualEncoder,
    pairs: Iterable[Pair | tuple[str, str]] | str | Path | None = None,
    images: Any = None,
    *,
    kinds: Sequence[str] | str | None = None,
    bootstrap: int = 1000,
    seed: int = 0,
    probes: bool = True,
    batch_size: int = 64,
    on_long: OnLong = "warn",
    progress: bool = False,
) -> Diagnosis:
    """Find the layer at which a text encoder loses a distinction.

    With ``e_l(T)`` the encoder's own pooling of the states after layer ``l`` through its final layer norm, and pairs
    ``(T+_i, T-_i)``:

    * ``LCD_l = mean_i 1 - cos(e_l(T+_i), e_l(T-_i))``;
    * ``relative LCD_l = LCD_l / mean_(i, j) 1 - cos(e_l(T+_i), e_l(T+_j))`` over all ``i, j`` of one frame about different objects;
      withheld where there are none, or where that mean is below 1e-4 (states all alike);
    * visual alignment ``VA_l = mean_i cos(project(e_l(T_i)), image_i)`` for ``T+`` and ``T-``;
    * two linear probes for negation (:mod:`clipmend.negation.probes`).

    Every text goes through the encoder once. Intervals resample whole pairs (couples of objects for the probe of the denied one).

    Args:
        encoder: any encoder; a text-only one will do without ``images``.
        pairs: :class:`Pair` objects, tuples ``(positive, contrast)``, or a table (:func:`clipmend.negation.pairs.read_pairs`).
            Default: the built-in minimal pairs of ``kinds``.
        images: embeddings ``[N, D]`` (tensor or array) or images (paths, PIL), one for each pair; or the folder that holds the
            files which the pairs name.
        kinds: the kinds to measure. Default: ``("negation",)`` for built-in pairs, every kind that is there for given ones.
        bootstrap: resamples for the intervals; 0 for none.
        seed: of the resamples and of the probes' folds.
        probes: train the two probes (for the kind ``"negation"``); of given pairs only the first, as the second asks about built-in
            sentences.
        batch_size: texts a forward pass.
        on_long: what to do with texts over the context length (see :meth:`DualEncoder.text_states`).
        progress: show progress bars on a terminal.

    Raises:
        ValueError: no pairs (of a kind asked for), images that do not fit the pairs or the encoder, states that are not finite.
        OSError: the table or an image cannot be read.
    """
    if bootstrap < 0:
        raise ValueError(f"bootstrap is {bootstrap}; it must be 0 or more")
    given, groups, notes = _choose(pairs, [kinds] if isinstance(kinds, str) else kinds)
    used = [row for rows in groups.values() for row in rows]
    pictures = image_embeddings(encoder, images, given, used, notes, progress=progress)  # [len(given), D]
    probed = probes and "negation" in groups
    # The second question is asked in built-in sentences about built-in objects; beside pairs of the user's own it would pass for
    # a measurement of those.
    denials = denial_texts(NOUNS, seed=seed) if probed and pairs is None else None
    texts = [text for row in used for text in (given[row].positive, given[row].contrast)]
    if denials is not None:
        texts += [*denials.texts, *denials.object_texts]
    states = _States(encoder, texts, batch_size, on_long, progress)

    results: dict[str, KindDiagnosis] = {}
    for kind, rows in groups.items():
        group = [given[row] for row in rows]
        layers, draws = _measure(encoder, group, states, None if pictures is None else pictures[rows], bootstrap, seed)
        if probed and kind == "negation":
            layers = _probe(layers, group, states, denials, bootstrap, seed, progress)
        peak = suggest(layers).peak
        results[kind] = KindDiagnosis(kind, len(group), peak, tuple(layers), _collapse(layers, draws, peak))
        notes += _remarks(kind, group, layers)

    main = "negation" if "negation" in results else next(iter(results))
    suggestion = suggest(results[main].layers)
    reason = suggestion.reason
    if results[main].count < FEW_PAIRS:
        count = results[main].count
        reason += f" {_counted(count)} {'is' if count == 1 else 'are'} too few to choose layers by; the built-in pairs are 180."
    return Diagnosis(
        encoder.name,
        main,
        results,
        suggestion.peak,
        suggestion.anchor,
        suggestion.scn_layers,
        reason,
        tuple(notes),
        bootstrap,
        seed,
    )


class _States:
    """Pooled states of every distinct text, from one pass over all layers."""

    def __init__(self, encoder: DualEncoder, texts: Sequence[str], batch_size: int, on_long: OnLong, progress: bool) -> None:
        distinct = list(dict.fromkeys(texts))
        self._row = {text: row for row, text in enumerate(distinct)}
        layers = range(1, encoder.num_text_layers + 1)
        found = encoder.text_states(
            distinct, layers, token_layers=(), embedding=False, batch_size=batch_size, on_long=on_long, progress=progress
        )
        self.pooled = encoder.pooled(found)  # [U, L, W]
        bad = (~self.pooled.isfinite()).any(-1).nonzero()
        if len(bad):
            row, layer = bad[0].tolist()
            raise ValueError(
                f"{encoder.name}: the state of {distinct[row]!r} after layer {layer + 1} is not finite (NaN or infinite)"
            )

    def __call__(self, texts: Sequence[str], layer: int) -> np.ndarray:
        """``[N, W]`` states after ``layer``."""
        return self.pooled[[self._row[text] for text in texts], layer - 1].numpy()

    def projected(self, encoder: DualEncoder, texts: Sequence[str], layer: int) -> np.ndarray:
        """``[N, D]`` the same in the joint space."""
        return encoder.project(self.pooled[[self._row[text] for text in texts], layer - 1]).float().cpu().numpy()


def _choose(
    pairs: Iterable[Pair | tuple[str, str]] | str | Path | None, kinds: Sequence[str] | None
) -> tuple[list[Pair], dict[str, list[int]], list[str]]:
    """The pairs as given, the rows of each kind that is asked for, and notes."""
    if kinds is not None and not len(kinds):
        raise ValueError("no kind of pair was asked for")
    notes: list[str] = []
    if pairs is None:
        given = [pair for kind in dict.fromkeys(kinds or ("negation",)) for pair in minimal_pairs(kind)]
    else:
        given, notes = pair_list(pairs)
    there = list(dict.fromkeys(pair.kind for pair in given))
    chosen = there if kinds is None else list(dict.fromkeys(kinds))
    missing = [kind for kind in chosen if kind not in there]
    if missing:
        raise ValueError(f"no pairs of kind {', '.join(missing)}; the kinds that are there: {', '.join(there)}")
    groups = {kind: [row for row, pair in enumerate(given) if pair.kind == kind] for kind in chosen}
    left_out = len(given) - sum(map(len, groups.values()))
    if left_out:
        notes.append(f"{left_out} pairs of other kinds left out")
    return given, groups, notes


def _measure(
    encoder: DualEncoder, pairs: list[Pair], states: _States, pictures: np.ndarray | None, bootstrap: int, seed: int
) -> tuple[list[LayerDiagnosis], np.ndarray]:
    """Every layer but for the probes, and the bootstrap draws ``[L, B]`` of relative LCD (the same resamples at every layer)."""
    count = len(pairs)
    grouping = Grouping([pair.frame for pair in pairs], [pair.about for pair in pairs])
    positive, contrast = [pair.positive for pair in pairs], [pair.contrast for pair in pairs]
    once = np.ones((1, count))
    rows: list[LayerDiagnosis] = []
    draws = np.full((encoder.num_text_layers, bootstrap), np.nan)
    for layer in range(1, encoder.num_text_layers + 1):
        unit = unit_vectors(states(positive, layer))
        apart = distances(unit, unit_vectors(states(contrast, layer)))  # [N]
        between = float(spread(unit, grouping, once)[0])
        reason = _why_withheld(between, grouping)
        lcd_draws, filled = np.full(bootstrap, np.nan), 0
        for weights in bootstrap_weights(count, bootstrap, _rng(seed, pairs[0].kind)):
            block = slice(filled, filled + len(weights))
            filled += len(weights)
            lcd_draws[block] = weights @ apart / count
            if not reason:
                yardstick = spread(unit, grouping, weights)
                draws[layer - 1, block] = np.divide(
                    lcd_draws[block], yardstick, out=np.full(len(weights), np.nan), where=yardstick > NEGLIGIBLE_SPREAD
                )
        relative = None if reason else estimate(float(apart.mean()) / between, draws[layer - 1], count)
        row = LayerDiagnosis(
            layer,
            estimate(float(apart.mean()), lcd_draws, count),
            None if np.isnan(between) else between,
            relative,
            withheld={"relative_lcd": reason} if reason else {},
        )
        rows.append(_align(row, encoder, positive, contrast, states, pictures, bootstrap, seed))
    return _shares(rows, draws), draws


def _remarks(kind: str, pairs: list[Pair], rows: list[LayerDiagnosis]) -> list[str]:
    """What the user should know about one kind: identical texts, quantities withheld and at which layers."""
    notes = []
    if len(pairs) < FEW_PAIRS:
        intervals = f"; below {LEAST_FOR_INTERVAL} no interval is given" if len(pairs) < LEAST_FOR_INTERVAL else ""
        verb = "is" if len(pairs) == 1 else "are"
        notes.append(
            f"{kind}: {_counted(len(pairs))} {verb} too few for a result: give at least {FEW_PAIRS}, of several objects and frames"
            f"{intervals}"
        )
    same = sum(pair.positive == pair.contrast for pair in pairs)
    if same:
        notes.append(f"{kind}: {same} of {len(pairs)} pairs have two identical texts")
    for quantity in dict.fromkeys(name for row in rows for name in row.withheld):
        where = [row for row in rows if quantity in row.withheld]
        layers = "every layer" if len(where) == len(rows) else "layer " + ", ".join(str(row.layer) for row in where)
        notes.append(f"{kind}: {quantity.replace('_', ' ')} withheld at {layers}: {where[0].withheld[quantity]}")
    return notes


def _counted(pairs: int) -> str:
    return "One pair" if pairs == 1 else f"{pairs} pairs"


def _why_withheld(between: float, grouping: Grouping) -> str:
    if not grouping.comparable:
        return "no frame has pairs about two different objects"
    if between < NEGLIGIBLE_SPREAD:
        return f"different objects lie {between:.1e} apart there, below {NEGLIGIBLE_SPREAD:g}: the states are all alike"
    return ""


def _align(
    row: LayerDiagnosis,
    encoder: DualEncoder,
    positive: list[str],
    contrast: list[str],
    states: _States,
    pictures: np.ndarray | None,
    bootstrap: int,
    seed: int,
) -> LayerDiagnosis:
    """Add visual alignment, over the pairs that have an image."""
    if pictures is None:
        return row
    having = np.flatnonzero(np.isfinite(pictures).all(1))
    if not len(having):
        return replace(row, withheld={**row.withheld, "alignment": "no pair of this kind names an image"})
    result = []
    for texts in (positive, contrast):
        values = cosines(states.projected(encoder, [texts[i] for i in having], row.layer), pictures[having])
        result.append(_mean(values, bootstrap, seed, "alignment"))
    return replace(row, alignment=result[0], alignment_contrast=result[1])


def _shares(rows: list[LayerDiagnosis], draws: np.ndarray) -> list[LayerDiagnosis]:
    """Add how often each layer that could be the peak has the highest relative LCD, over the resamples."""
    first = 1 if len(rows) > 2 else 0  # as in clipmend.negation.diagnosis_suggest
    early = np.where(np.isfinite(draws[first:-1]), draws[first:-1], -np.inf)
    usable = np.isfinite(early).any(0) if len(early) else np.zeros(0, bool)
    if not usable.any():
        return rows
    share = np.bincount(early[:, usable].argmax(0), minlength=len(early)) / usable.sum()
    shared = [replace(row, peak_share=float(s)) for row, s in zip(rows[first:-1], share, strict=True)]
    return rows[:first] + shared + rows[-1:]


def _probe(
    rows: list[LayerDiagnosis],
    pairs: list[Pair],
    states: _States,
    denials: Denials | None,
    bootstrap: int,
    seed: int,
    progress: bool,
) -> list[LayerDiagnosis]:
    """Add both probes to every layer; without ``denials`` the first alone."""
    objects, wordings = [pair.object for pair in pairs], [pair.words for pair in pairs]
    positive, contrast = [pair.positive for pair in pairs], [pair.contrast for pair in pairs]
    probed = []
    for row in track(rows, len(rows), "probes", progress):
        negated = negated_probe(states(positive, row.layer), states(contrast, row.layer), objects, wordings, seed=seed)
        if isinstance(negated, str):
            row = replace(row, withheld={**row.withheld, "probe_negated": negated})
        else:
            row = replace(row, probe_negated=_mean(negated[~np.isnan(negated)], bootstrap, seed, "negated"))
        if denials is None:
            row = replace(row, withheld={**row.withheld, "probe_denied": _NOT_OF_THESE, "cosine_denied": _NOT_OF_THESE})
        else:
            denied, cosine = denial_probe(states(denials.texts, row.layer), states(denials.object_texts, row.layer), denials)
            row = replace(
                row,
                probe_denied=_mean(denied, bootstrap, seed, "denied"),
                cosine_denied=_mean(cosine, bootstrap, seed, "denied"),
            )
        probed.append(row)
    return probed


def _collapse(rows: list[LayerDiagnosis], draws: np.ndarray, peak: int) -> Estimate | None:
    """Relative LCD of the last layer over the peak's, with the interval of the paired draws."""
    top, last = rows[peak - 1].relative_lcd, rows[-1].relative_lcd
    if top is None or last is None or top.value <= 0:
        return None
    ratio = np.divide(draws[-1], draws[peak - 1], out=np.full(draws.shape[1], np.nan), where=draws[peak - 1] > 0)
    return estimate(last.value / top.value, ratio, top.count)


def _mean(values: np.ndarray, bootstrap: int, seed: int, stream: str) -> Estimate:
    count = len(values)
    draws = [weights @ values / count for weights in bootstrap_weights(count, bootstrap, _rng(seed, stream))]
    return estimate(float(values.mean()), np.concatenate(draws) if draws else np.zeros(0), count)


def _rng(seed: int, stream: str) -> np.random.Generator:
    """A generator for one purpose, the same at every layer: layers are then compared on the same resamples."""
    return np.random.default_rng([seed, zlib.crc32(stream.encode())])
