"""A word of advice where a search shows nothing: which filter fits no image, and what would; how far pages go."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from clipmend.data.images import display_path
from clipmend.search.conditions import condition_text
from clipmend.search.gallery import Condition, Gallery, GalleryError

__all__ = ["nothing_hint"]

_MOST_TOLD = 3  # conditions: each costs a look at all images
_VALUES = 6
_LOOKED_AT = 2_000
_LONGEST = 60


def nothing_hint(gallery: Gallery, where: Sequence[Condition], total: int, offset: int) -> str | None:
    """Why a page is empty.

    Args:
        gallery: that was searched.
        where: the query's conditions.
        total: how many images fulfil them.
        offset: of the page.

    Returns:
        for each condition that no image fulfils (three at most) the values that there are, or the offset that is beyond the end;
        ``None`` where there is nothing to say.
    """
    if total:
        passing = " that pass the filters" if where else ""
        images = f"1 image{passing.replace('pass', 'passes')}" if total == 1 else f"{total:,} images{passing}"
        return f"offset {offset:,} is beyond the end of {images}" if offset >= total else None
    if not where:
        return "there are no images here"
    unmet = [condition for condition in dict.fromkeys(where) if not gallery.count([condition])]
    if not unmet:
        return "each filter fits some images, but none passes them all" if len(where) > 1 else None
    said = [_said(gallery, condition) for condition in unmet[:_MOST_TOLD]]
    if len(unmet) > _MOST_TOLD:
        said.append(f"nor does any image pass {len(unmet) - _MOST_TOLD} more of the filters")
    return "; ".join(said)


def _said(gallery: Gallery, condition: Condition) -> str:
    type_ = gallery.fields.get(condition.field)
    if type_ not in ("text", "folder") or not isinstance(condition.value, str):
        return f"no image has {condition_text(condition, type_)}"
    wanted = display_path(condition.value) or "."
    if condition.op == "under":
        unmet = f"no image is in the folder {wanted!r} or in one inside it"
    else:
        unmet = f"no image has {display_path(condition.field)} {condition.op} {wanted!r}"
    try:
        values = gallery.values(condition.field, _LOOKED_AT)
    except GalleryError:  # a store that cannot count them
        return unmet
    if not values:
        return f"{unmet}; none has a value there"
    near = "" if condition.op == "!=" else _nearest(condition, [value for value, _ in values])
    shown = ", ".join(f"{_short(value or ('.' if type_ == 'folder' else ''))} ({count:,})" for value, count in values[:_VALUES])
    return f"{unmet}{near}; values there: {shown}{', and others' if len(values) > _VALUES else ''}"


def _nearest(condition: Condition, values: Sequence[str]) -> str:
    """``" (did you mean ...?)"``: letter case alone, else the closest spelling; of folders also those that only hold folders."""
    if condition.op == "under":
        parts = (value.split("/") for value in values)
        values = list(dict.fromkeys("/".join(path[:end]) for path in parts for end in range(1, len(path) + 1)))
    wanted = str(condition.value).casefold()
    spelled: dict[str, str] = {}
    for value in values:
        spelled.setdefault(value.casefold(), value)
    close = [wanted] if wanted in spelled else get_close_matches(wanted, spelled, n=1, cutoff=0.6)
    return f" (did you mean {_short(spelled[close[0]])!r}?)" if close and spelled[close[0]] != condition.value else ""


def _short(value: str) -> str:
    shown = display_path(value) or '""'
    return shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 1]}…"
