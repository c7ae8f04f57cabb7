"""Which absent thing to deny: one that usually stands beside what is shown, or any."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np

__all__ = ["Absences", "How"]

How = Literal["plausible", "random"]


class Absences:
    """Draws things that an image does not show.

    ``"plausible"``: in proportion to the mean, over the things shown, of how often the thing stands beside them in this data set
    (the share of the images with the one that also have the other). "No dog" is said of an image with a person and a sofa more
    often than of one with an aeroplane. Where nothing that may be denied ever stood beside what is shown, the draw is in
    proportion to how frequent things are; ``"random"`` draws all alike.

    Args:
        present: what each image of the data set shows.
        how: ``"plausible"`` or ``"random"``.

    Raises:
        ValueError: another ``how``.
    """

    def __init__(self, present: Sequence[Collection[str]], how: How = "plausible") -> None:
        if how not in ("plausible", "random"):
            raise ValueError(f"absent things are chosen 'plausible' or 'random', not {how!r}")
        self.how = how
        self._atoms = sorted({atom for atoms in present for atom in atoms})
        self._column = {atom: k for k, atom in enumerate(self._atoms)}
        together = np.zeros((len(self._atoms), len(self._atoms)))
        for atoms in present:
            shown = np.array([self._column[a] for a in atoms], np.int64)
            together[np.ix_(shown, shown)] += 1
        self._frequency = np.diag(together).copy()
        self._given = together / np.maximum(self._frequency, 1)[:, None]  # [shown, other]: share of the shown one's images

    def weights(self, shown: Collection[str], candidates: Sequence[str]) -> np.ndarray:
        """``[len(candidates)]`` what the draw is in proportion to."""
        if self.how == "random":
            return np.ones(len(candidates))
        columns = np.array([self._column.get(c, -1) for c in candidates], np.int64)
        seen = columns >= 0
        rows = np.array([self._column[s] for s in sorted(shown) if s in self._column], np.int64)
        out = np.zeros(len(candidates))
        if len(rows):
            out[seen] = self._given[np.ix_(rows, columns[seen])].mean(0)
        if not out.any():
            out[seen] = self._frequency[columns[seen]]
        return out if out.any() else np.ones(len(candidates))

    def draw(self, rng: random.Random, shown: Collection[str], candidates: Sequence[str], count: int = 1) -> list[str]:
        """``count`` different candidates (fewer where there are fewer), in the order they were drawn."""
        left = list(candidates)
        if self.how == "random":
            return rng.sample(left, min(count, len(left)))
        weights = self.weights(shown, left)
        drawn: list[str] = []
        while left and len(drawn) < count:
            total = weights.sum()
            if total <= 0:  # the rest never stood beside it: all alike
                weights, total = np.ones(len(left)), float(len(left))
            place = int(np.searchsorted(np.cumsum(weights), rng.random() * total, side="right"))
            place = min(place, len(left) - 1)
            drawn.append(left.pop(place))
            weights = np.delete(weights, place)
        return drawn
