"""Validation while a patch is trained: quick, on held-out images, from features."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from clipmend.data.records import FALSE, TRUE
from clipmend.negation.networks import ScoreCorrectionNetwork
from clipmend.negation.sampling import Source

__all__ = ["LEGEND", "Validation", "auroc", "legend_of"]

LEGEND = {
    "choice_ecn": "share of held-out questions answered by cosine",
    "choice": "share answered, with the score correction",
    "exclusion": "AUROC of what a denial leaves, over what it excludes",
    "recall": "R@5 of the image of a caption that asserts and denies",
    "kept": "cosine of plain captions to their own before",
    "score": "mean of choice, exclusion and recall, which the kept state is chosen by",
    "error": "its standard error",
}
"""What the metrics of a validation are; ``images/`` before a name is of images, ``text/`` of noun sets."""


def legend_of(metrics: Iterable[str]) -> str:
    """What the metrics that are there mean, in a line."""
    there = {name.rpartition("/")[2] for name in metrics}
    return "; ".join(f"{name}: {text}" for name, text in LEGEND.items() if name in there)


_MANY_IMAGES = 40

Correct = Callable[[np.ndarray], tuple[Tensor, dict[str, Tensor]]]


def auroc(positive: Tensor, negative: Tensor) -> float:
    """Share of (positive, negative) pairs in which the positive score is higher, ties one half; NaN for an empty side."""
    if len(positive) == 0 or len(negative) == 0:
        return float("nan")
    order = torch.sort(negative).values
    below = torch.searchsorted(order, positive, right=False)
    up_to = torch.searchsorted(order, positive, right=True)
    return float((below + up_to).double().mean() / (2 * len(negative)))


class Validation:
    """A fixed sample of questions, exclusion captions, hybrid and plain captions of held-out images.

    Args:
        source: the held-out images with their captions.
        questions: most questions asked.
        queries: most negative captions ranked against the images.
        hybrids: most captions that assert and deny, each looking for its own image.
        plain: most affirmative captions checked for having stayed in place.
        seed: fixes the sample.
    """

    def __init__(
        self, source: Source, *, questions: int = 1000, queries: int = 250, hybrids: int = 600, plain: int = 250, seed: int = 0
    ) -> None:
        self.source = source
        rng = np.random.default_rng((seed, 3))
        self.asked_images, self.asked = self._draw_questions(rng, questions)
        affirmative = [row for rows in source.affirmative.values() for row in rows]
        self.plain = np.array([affirmative[k] for k in _some(rng, len(affirmative), plain)], np.int64)
        chosen = source.chosen.tolist()
        hybrid = [row for rows in source.negated.values() for row in rows if source.data.captions[row].form == "hybrid"]
        self.hybrids = np.array([hybrid[k] for k in _some(rng, len(hybrid), hybrids)], np.int64)
        self.queries, truths = np.zeros(0, np.int64), np.zeros((len(chosen), 0), np.int8)
        if source.queries and chosen:
            # More candidates than needed: a query that no held-out image contradicts says nothing.
            candidates = np.array([source.queries[k] for k in _some(rng, len(source.queries), 8 * queries)], np.int64)
            truths = source.data.truth(chosen, candidates.tolist())
            usable = np.flatnonzero((truths == TRUE).any(0) & (truths == FALSE).any(0))[:queries]
            self.queries, truths = candidates[usable], truths[:, usable]
        self.truth = torch.from_numpy(truths)

    def measure(self, correct: Correct, scn: ScoreCorrectionNetwork | None) -> dict[str, float]:
        """Metrics in percent-free units: ``choice_ecn``, ``choice`` (with the SCN), ``exclusion`` (AUROC), ``recall`` (R@5 of
        the image of a caption that asserts and denies, among the held-out images), ``kept`` (cosine).

        ``score`` is the mean of choice, exclusion and recall, less what plain captions moved beyond a cosine of .95; ``error`` is
        its standard error, as if questions and captions were drawn independently. Neither is there where nothing that they rest on
        was held out.
        """
        out: dict[str, float] = {}
        parts, variances = [], []
        # The same caption stands in many places: each is corrected once.
        wanted = np.concatenate([self.asked.reshape(-1), self.queries, self.hybrids, self.plain])
        rows, places = np.unique(wanted, return_inverse=True)
        if not len(rows):
            return {}
        corrected, original, layers = _in_chunks(correct, rows)
        ends = np.cumsum([self.asked.size, len(self.queries), len(self.hybrids)])
        asked, queries, hybrids, plain = np.split(places.reshape(-1), ends)
        if self.asks:
            out.update(self._choice(corrected[asked], layers[asked], scn))
            parts.append(out["choice"])
            variances.append(_share_variance(out["choice"], len(self.asked)))
        if len(queries):
            images = self.source.images[self.source.chosen]
            scores = images @ corrected[queries].T  # [N, Q]
            values = [auroc(scores[self.truth[:, q] == TRUE, q], scores[self.truth[:, q] == FALSE, q]) for q in range(len(queries))]
            out["exclusion"] = float(np.nanmean(values))
            parts.append(out["exclusion"])
            variances.append(float(np.nanvar(values)) / len(values))
        if len(hybrids) and len(self.source.chosen) > _MANY_IMAGES:  # among fewer, rank 5 says little
            out["recall"] = self._recall(corrected[hybrids])
            parts.append(out["recall"])
            variances.append(_share_variance(out["recall"], len(hybrids)))
        if parts:
            out["score"] = float(np.mean(parts))
            out["error"] = float(np.sqrt(np.sum(variances))) / len(parts)
        if len(plain):
            out["kept"] = float((corrected[plain] * original[plain]).sum(-1).mean())
            if parts:
                out["score"] -= max(0.0, 0.95 - out["kept"])
        return out

    def _recall(self, corrected: Tensor) -> float:
        place = {image: k for k, image in enumerate(self.source.chosen.tolist())}
        own = torch.tensor([place[self.source.data.captions[row].image] for row in self.hybrids.tolist()])
        scores = corrected @ self.source.images[self.source.chosen].T  # [H, N]
        at_least = (scores >= scores.gather(1, own[:, None])).sum(1)  # ties count against
        return float((at_least <= 5).float().mean())

    def _draw_questions(self, rng: np.random.Generator, most: int) -> tuple[np.ndarray, np.ndarray]:
        """``[Q]`` images and ``[Q, O]`` captions, the right one first."""
        source = self.source
        chosen = [source.questions[k] for k in _some(rng, len(source.questions), most)]
        if not chosen:
            return np.zeros(0, np.int64), np.zeros((0, 0), np.int64)
        width = min(len(question.options) for question in chosen)
        images, rows = [], []
        for question in chosen:
            wrong = [option for k, option in enumerate(question.options) if k != question.answer]
            images.append(question.image)
            rows.append([question.options[question.answer], *wrong[: width - 1]])
        return np.asarray(images, np.int64), np.asarray(rows, np.int64)

    @property
    def asks(self) -> bool:
        """Whether there is a question to ask."""
        return len(self.asked) > 0

    def choice_by_bound(self, correct: Correct, scn: ScoreCorrectionNetwork, bounds: Sequence[float]) -> dict[float, float]:
        """The share of the questions answered by the corrected score with each bound of the network, which keeps the last."""
        rows, places = np.unique(self.asked, return_inverse=True)
        corrected, _, layers = (part[places.reshape(-1)] for part in _in_chunks(correct, rows))
        found = {}
        for bound in bounds:
            scn.bound = bound
            found[bound] = self._choice(corrected, layers, scn)["choice"]
        return found

    def _choice(self, corrected: Tensor, layers: Tensor, scn: ScoreCorrectionNetwork | None) -> dict[str, float]:
        """``choice_ecn`` and ``choice``: the share of the questions answered by cosine, and by the corrected score.

        ``corrected`` and ``layers`` hold one row an option, those of one question together.
        """
        most = self.asked.shape[1]
        images = self.source.images[self.asked_images].repeat_interleave(most, 0)
        cosine = (images * corrected).sum(-1)
        out = {"choice_ecn": _right(cosine.view(-1, most))}
        out["choice"] = out["choice_ecn"]
        if scn is not None:
            device = next(scn.parameters()).device
            contexts = torch.cat([layers[:, :-1], corrected[:, None]], 1)
            corrections = scn.correction(images.to(device), contexts.to(device)).cpu()
            out["choice"] = _right((cosine + corrections).view(-1, most))
        return out


def _right(scores: Tensor) -> float:
    """Share of rows whose first score is above all others: a tie is wrong."""
    return float((scores[:, :1] > scores[:, 1:]).all(1).float().mean())


def _share_variance(share: float, count: int) -> float:
    return share * (1 - share) / count


def _some(rng: np.random.Generator, count: int, most: int) -> np.ndarray:
    return np.sort(rng.choice(count, min(count, most), replace=False)) if count else np.zeros(0, np.int64)


def _in_chunks(correct: Correct, rows: np.ndarray, size: int = 512) -> tuple[Tensor, Tensor, Tensor]:
    """Corrected and original embeddings ``[M, D]`` and per-layer embeddings ``[M, L, D]``, on the CPU."""
    parts = [correct(rows[k : k + size]) for k in range(0, len(rows), size)]
    return (
        torch.cat([corrected.cpu() for corrected, _ in parts]),
        torch.cat([features["embedding"].cpu() for _, features in parts]),
        torch.cat([features["scn"].cpu() for _, features in parts]),
    )
