"""Answers as JSON: one shape for ``POST /search`` of the service and ``clipmend search --json``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from clipmend.search.searcher import Answer, Found
from clipmend.search.spelling import plain

__all__ = ["answer_json", "hit_json", "plain_texts"]


def answer_json(answer: Answer, query: str, more: Callable[[Found], dict[str, Any]] | None = None) -> dict[str, Any]:
    """What a search gave, fit for JSON of strict readers: no NaN, no lone surrogates.

    Args:
        answer: of :class:`~clipmend.search.searcher.Searcher`.
        query: as it was typed.
        more: what else is to be told of an image, by name.

    Returns:
        a dict as "What an answer says" in docs/searching.md describes it.
    """
    ranked = bool(answer.query.terms)

    def hits(found: list[Found]) -> list[dict[str, Any]]:
        return [hit_json(hit, ranked) | (more(hit) if more else {}) for hit in found]

    return {
        "query": plain(query),
        "terms": [
            {"weight": term.weight, "kind": term.kind, "value": plain(term.value), "mended": mended}
            for term, mended in zip(answer.query.terms, answer.mended, strict=True)
        ],
        "where": [{"field": plain(c.field), "op": c.op, "value": _value(c.value)} for c in answer.query.where],
        "total": answer.total,
        "offset": answer.offset,
        "exact": answer.exact,
        "depth": answer.depth,
        "hint": None if answer.hint is None else plain(answer.hint),
        "milliseconds": round(1000 * answer.seconds, 2),
        "hits": hits(answer.hits),
        "before": hits(answer.before),
    }


def hit_json(found: Found, ranked: bool = True) -> dict[str, Any]:
    """One image of an answer; ``ranked``: whether its score means anything, which of a mere list it does not."""
    fields = found.item.fields
    return {
        "id": found.id,
        "key": str(found.id),
        "path": plain(found.item.path),
        "rank": found.rank,
        "score": found.score if ranked else None,
        "rank_before": found.rank_before,
        "score_before": found.score_before,
        "correction": found.correction,
        "width": _whole(fields.get("width")),
        "height": _whole(fields.get("height")),
        "fields": {plain(name): _value(value) for name, value in fields.items() if _is_told(value)},
        "copies": list(found.copies),
    }


def plain_texts(told: Any) -> Any:
    """The same lists and dicts with every text as :func:`~clipmend.search.spelling.plain` has it."""
    if isinstance(told, dict):
        return {name: plain_texts(value) for name, value in told.items()}
    if isinstance(told, list):
        return [plain_texts(value) for value in told]
    return plain(told) if isinstance(told, str) else told


def _is_told(value: object) -> bool:
    """JSON has no NaN and no infinity."""
    return isinstance(value, str) or (isinstance(value, (int, float)) and math.isfinite(value))


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def _value(value: str | float) -> str | float:
    return plain(value) if isinstance(value, str) else value
