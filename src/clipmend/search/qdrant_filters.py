"""Conditions as Qdrant's filters."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from clipmend.search.conditions import fulfils
from clipmend.search.gallery import Condition, FieldType

__all__ = ["MOST_VALUES", "OWN", "TooManyValues", "filter_of", "spelt", "written"]

OWN = "clipmend"
"""The payload key, and the key of the collection's metadata, that is ours alone."""
MOST_VALUES = 50_000
"""Most distinct values of a field among which a pattern is looked for."""

Facet = Callable[[str, int], list[tuple[str, int]]]


class TooManyValues(ValueError):
    """A pattern over a field of more distinct values than can be asked for."""


def written(text: str) -> str:
    """A text as JSON can carry it: bytes of file names that are no UTF-8 become escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def spelt(key: str) -> str:
    """A payload key as a path within the payload: quoted where it would be taken for several keys."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else f'"{key}"'


def filter_of(where: Sequence[Condition], fields: Mapping[str, FieldType], facet: Facet, *, ours: bool) -> Any:
    """The filter that all conditions together are.

    Args:
        where: conditions that fit the fields.
        fields: the gallery's.
        facet: gives the values of a field, at most so many.
        ours: whether the payload has what clipmend adds (the folders above a folder).

    Raises:
        TooManyValues: see there.
    """
    from qdrant_client import models

    must: list[Any] = []
    must_not: list[Any] = []
    for condition in where:
        key, value = spelt(condition.field), condition.value
        absent = models.IsEmptyCondition(is_empty=models.PayloadField(key=key))
        if isinstance(value, str):
            same = models.FieldCondition(key=key, match=models.MatchValue(value=written(value)))
            if condition.op == "=":
                must.append(same)
            elif condition.op == "!=":
                must_not += [same, absent]
            elif condition.op == "under":
                if not value:
                    must_not.append(absent)
                else:
                    above = f"{OWN}.under.{key}" if ours else key
                    must.append(models.FieldCondition(key=above, match=models.MatchValue(value=written(value))))
            else:
                must.append(models.FieldCondition(key=key, match=models.MatchAny(any=_matching(condition, facet))))
        else:
            number = float(value)
            within = models.Range(gte=number, lte=number)  # a match by value is for whole numbers alone
            if condition.op == "=":
                must.append(models.FieldCondition(key=key, range=within))
            elif condition.op == "!=":
                must_not += [models.FieldCondition(key=key, range=within), absent]
            else:
                bound = {"<": "lt", "<=": "lte", ">": "gt", ">=": "gte"}[condition.op]
                must.append(models.FieldCondition(key=key, range=models.Range(**{bound: number})))
    return models.Filter(must=must or None, must_not=must_not or None)


def _matching(condition: Condition, facet: Facet) -> list[str]:
    """The values that a pattern fits: Qdrant has no patterns, but knows the values of a field."""
    values = [value for value, _ in facet(condition.field, MOST_VALUES + 1)]
    if len(values) > MOST_VALUES:
        raise TooManyValues(
            f"{condition.field} has more than {MOST_VALUES:,} values, among which Qdrant finds no pattern; ask for a whole value "
            f"({condition.field}=VALUE), or for a folder"
        )
    pattern = Condition(condition.field, "like", written(str(condition.value)))
    found = [value for value in values if fulfils({condition.field: value}, [pattern])]
    return found + [UUID(value).hex for value in found if _is_uuid(value)]  # values that look like UUIDs are told with hyphens


def _is_uuid(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False
