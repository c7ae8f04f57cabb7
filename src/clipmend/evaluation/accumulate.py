"""Metrics that grow batch by batch and merge across processes: ``update``, ``merge`` or ``gather``, ``compute``.

Each keeps one small row a query, keyed by the query's number, so that a row seen by two processes (samplers pad the last batch
with repeats) counts once, and the result does not depend on who saw which batch. Only ranks, choices or scores are kept, never
embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["ChoiceAccumulator", "ExclusionAccumulator", "RankAccumulator"]

A = TypeVar("A", bound="_Accumulator")


class _Accumulator:
    """Rows by key: a list of blocks, joined on demand."""

    columns: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._blocks: list[dict[str, NDArray[Any]]] = []

    def _add(self, keys: ArrayLike, **values: NDArray[Any]) -> None:
        block = {"key": np.asarray(keys, np.int64).reshape(-1), **values}
        if len({len(v) for v in block.values()}) > 1:
            raise ValueError("rows of one update differ in number: " + ", ".join(f"{k} {len(v)}" for k, v in block.items()))
        self._blocks.append(block)

    def rows(self) -> dict[str, NDArray[Any]]:
        """Every row once, in the order of its key.

        Raises:
            ValueError: nothing was added, or one key came with two different rows.
        """
        if not any(len(block["key"]) for block in self._blocks):
            raise ValueError(f"{type(self).__name__}: nothing to compute; call update first")
        joined = {name: np.concatenate([block[name] for block in self._blocks]) for name in ("key", *self.columns)}
        keys, first, inverse = np.unique(joined["key"], return_index=True, return_inverse=True)
        if len(keys) < len(inverse):
            for name in self.columns:
                values = joined[name]
                same = np.array_equal(values, values[first][inverse], equal_nan=values.dtype.kind == "f")
                if not same:
                    raise ValueError(f"{type(self).__name__}: a query was added twice with different {name}")
        return {name: values[first] for name, values in joined.items()}

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """The rows, to send to another process or to keep."""
        return self.rows() if self._blocks else {}

    def load_state_dict(self: A, state: dict[str, NDArray[Any]]) -> A:
        """Take the rows of :meth:`state_dict` in place of one's own."""
        self._blocks = [dict(state)] if state else []
        return self

    def merge(self: A, *others: A) -> A:
        """Take in the rows of other accumulators of the same kind."""
        for other in others:
            if type(other) is not type(self):
                raise ValueError(f"cannot merge {type(other).__name__} into {type(self).__name__}")
            self._blocks.extend(other._blocks)
        return self

    def gather(self: A) -> A:
        """Merge with every process of ``torch.distributed``'s default group (nothing to do where none is running)."""
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            states: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(states, self.state_dict())
            self._blocks = [state for state in states if state]
        return self

    def reset(self) -> None:
        """Forget every row."""
        self._blocks = []


class RankAccumulator(_Accumulator):
    """Recall at k and the median rank, from ranks.

    Args:
        ks: cut-offs.

    Example:
        >>> metric = RankAccumulator(ks=(1, 5))
        >>> metric.update([0, 1], [1, 7])
        >>> metric.compute()
        {'recall@1': 0.5, 'recall@5': 0.5, 'median_rank': 4.0}
    """

    columns = ("rank",)

    def __init__(self, ks: Sequence[int] = (1, 5, 10)) -> None:
        super().__init__()
        if not ks or min(ks) < 1:
            raise ValueError(f"recall is taken at 1 or more, not at {tuple(ks)}")
        self.ks = tuple(ks)

    def update(self, queries: ArrayLike, ranks: ArrayLike) -> None:
        """Add queries, by number, with the ranks (from 1) of their own items."""
        values = np.asarray(ranks, np.int64).reshape(-1)
        if len(values) and values.min() < 1:
            raise ValueError("ranks start at 1")
        self._add(queries, rank=values)

    def compute(self) -> dict[str, float]:
        """``recall@k`` for each k, and ``median_rank``."""
        ranks = self.rows()["rank"]
        return {**{f"recall@{k}": float((ranks <= k).mean()) for k in self.ks}, "median_rank": float(np.median(ranks))}


class ChoiceAccumulator(_Accumulator):
    """Accuracy of multiple choice, from scores; ties are wrong.

    Args:
        tie_tolerance: scores this close are tied.
    """

    columns = ("chosen", "correct")

    def __init__(self, tie_tolerance: float = 1e-6) -> None:
        super().__init__()
        self.tie_tolerance = tie_tolerance

    def update(self, questions: ArrayLike, scores: ArrayLike, answers: ArrayLike) -> None:
        """Add questions, by number.

        Args:
            questions: ``[B]`` their numbers.
            scores: ``[B, options]``; ``-inf`` where a question has fewer options.
            answers: ``[B]`` positions of the right options.

        Raises:
            ValueError: a score that is NaN, or fewer than two options.
        """
        table = np.asarray(scores, np.float64)
        right = np.asarray(answers, np.int64)
        if table.ndim != 2 or table.shape[1] < 2:
            raise ValueError(f"scores must be [questions, options] with two options or more, not {table.shape}")
        if np.isnan(table).any():
            row = int(np.flatnonzero(np.isnan(table).any(1))[0])
            raise ValueError(f"question {np.asarray(questions).reshape(-1)[row]}: a score is NaN")
        rows = np.arange(len(table))
        ordered = np.sort(table, axis=1)
        clear = ordered[:, -1] > ordered[:, -2] + self.tie_tolerance
        chosen = np.where(clear, table.argmax(1), -1)
        correct = clear & (chosen == right)
        if len(table) and not np.isfinite(table[rows, right]).all():
            raise ValueError("an answer names an option without a score")
        self._add(questions, chosen=chosen, correct=correct)

    def outcome(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """``chosen`` (-1 for a tie) and ``correct`` of each question, in the order of their numbers."""
        rows = self.rows()
        return rows["chosen"], rows["correct"]

    def compute(self) -> dict[str, float]:
        """``acc``: the share answered right."""
        return {"acc": float(self.outcome()[1].mean())}


class ExclusionAccumulator(_Accumulator):
    """AUROC of images without a thing above images with it, macro over kinds; images arrive batch by batch.

    Args:
        kinds: ``[Q]`` the absent kind of each query.
        tie_tolerance: scores this close are ties and count one half.
    """

    columns = ("scores", "present")

    def __init__(self, kinds: Sequence[str], tie_tolerance: float = 1e-6) -> None:
        super().__init__()
        self.kinds = list(kinds)
        self.tie_tolerance = tie_tolerance

    def update(self, images: ArrayLike, scores: ArrayLike, present: ArrayLike) -> None:
        """Add images, by number.

        Args:
            images: ``[B]`` their numbers.
            scores: ``[B, Q]`` score of each image for each query.
            present: ``[B, Q]`` True where the query's absent kind is in the image.
        """
        table, there = np.asarray(scores, np.float32), np.asarray(present, bool)
        if table.ndim != 2 or table.shape != there.shape or table.shape[1] != len(self.kinds):
            raise ValueError(f"scores {table.shape} and presence {there.shape} must both be [images, {len(self.kinds)}]")
        self._add(images, scores=table, present=there)

    def compute(self) -> dict[str, float]:
        """``auroc``, macro over kinds (NaN where no query has both classes), and ``skipped``: queries with one class."""
        from clipmend.evaluation.areas import auroc, macro

        rows = self.rows()
        values = np.array([auroc(rows["scores"][:, q], ~rows["present"][:, q], self.tie_tolerance) for q in range(len(self.kinds))])
        return {"auroc": float(macro(values, self.kinds)), "skipped": float(np.isnan(values).sum())}
