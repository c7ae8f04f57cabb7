"""Conditions on what is known of images: read from text, checked, written back, and the plain rule of when one holds."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import lru_cache

from clipmend.search.gallery import BASE_FIELDS, Condition, FieldType, GalleryError, Operator

__all__ = ["check_conditions", "condition_text", "conditions_of", "folder_value", "fulfils", "parse_size", "parse_time"]

_ORDERED: tuple[Operator, ...] = ("<", "<=", ">", ">=")
_OPERATORS: Mapping[FieldType, tuple[Operator, ...]] = {
    "text": ("=", "!=", "like"),
    "folder": ("=", "!=", "under", "like"),
    "number": ("=", "!=", *_ORDERED),
    "size": ("=", "!=", *_ORDERED),
    "time": ("=", "!=", *_ORDERED),
}
_UNITS = {"": 1, "b": 1} | {
    f"{prefix}{tail}": base**power
    for power, prefix in enumerate("kmgt", 1)
    for tail, base in (("", 1000), ("b", 1000), ("ib", 1024))
}
_SIZE = re.compile(r"(-?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?)\s*([a-z]*)", re.IGNORECASE | re.ASCII)
_TIME = re.compile(
    r"(\d{4})(?:-(\d{1,2})(?:-(\d{1,2})(?:[T ](\d{1,2}):(\d{2})(?::(\d{2}))?(Z|[+-]\d{2}:?\d{2})?)?)?)?", re.IGNORECASE | re.ASCII
)
_QUOTES = '"“”„'


def conditions_of(name: str, op: str, value: str, type_: FieldType) -> tuple[Condition, ...]:
    """The conditions that ``NAME OP VALUE`` stands for, one or two (``date:2024`` is from its first day to its last).

    Args:
        name: the field.
        op: ``:``, ``=``, ``!=``, ``<``, ``<=``, ``>`` or ``>=``. ``:`` is the natural one of the type: a folder and all inside
            it, a text (with ``*`` or ``?`` a pattern without regard to letter case), a year, month or day, a number.
        value: as written, without quotes.
        type_: of the field.

    Raises:
        ValueError: a value that the type cannot read, or an operator that it does not have.
    """
    if type_ in ("text", "folder"):
        if op in _ORDERED:
            raise ValueError(f"{name} is a {type_}, which has no order: write {name}:VALUE, {name}=VALUE or {name}!=VALUE")
        pattern = op == ":" and any(c in value for c in "*?")
        if type_ == "folder":
            value = folder_value(value)
        if op == ":":
            return (Condition(name, "like" if pattern else "under" if type_ == "folder" else "=", value),)
        return (Condition(name, _operator(op), value),)
    if type_ == "time":
        return _time_conditions(name, op, value)
    number = parse_size(value) if type_ == "size" else _number(name, value)
    return (Condition(name, _operator(op), number),)


def _operator(op: str) -> Operator:
    return "=" if op == ":" else op  # type: ignore[return-value]


def _number(name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{name} is a number, and {value!r} is none")
    return number


def _time_conditions(name: str, op: str, value: str) -> tuple[Condition, ...]:
    start, end = parse_time(value)
    if op == "<":
        return (Condition(name, "<", start),)
    if op == ">=":
        return (Condition(name, ">=", start),)
    instant = end == start
    if op in ("<=", ">"):
        if instant:
            return (Condition(name, op, start),)  # type: ignore[arg-type]
        return (Condition(name, "<" if op == "<=" else ">=", end),)  # to the end of that year, month or day; from its end on
    if instant:
        return (Condition(name, _operator(op), start),)
    if op == "!=":
        raise ValueError(f"{name}!={value} would be two stretches of time: search for {name}<{value} or for {name}>{value}")
    return Condition(name, ">=", start), Condition(name, "<", end)


def parse_size(text: str) -> float:
    """Bytes of ``2MB``, ``1.5 GiB``, ``300k`` or ``1000``: kB, MB, GB, TB are powers of 1000, KiB, MiB, GiB, TiB of 1024.

    Raises:
        ValueError: anything else.
    """
    match = _SIZE.fullmatch(text.strip())
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"{text!r} is no size: write bytes, or a number with kB, MB, GB, TB (or KiB, MiB, GiB, TiB)")
    number = float(match[1]) * unit
    if not math.isfinite(number):
        raise ValueError(f"{text!r} is no size that a file could have")
    return number


def parse_time(text: str) -> tuple[float, float]:
    """First moment and end (the first moment after) of a year, month, day, minute or second, as seconds since 1970.

    Times without a zone are this machine's local time, as are the times that cameras write. A second is an instant: its end is
    its start. ``@SECONDS`` is an instant too.

    Raises:
        ValueError: no such time.
    """
    text = text.strip()
    wrong = f"{text!r} is no date: write 2024, 2024-05, 2024-05-31 or 2024-05-31T18:30"
    if text.startswith("@"):
        try:
            seconds = float(text[1:])
        except ValueError:
            seconds = math.nan
        if not math.isfinite(seconds):
            raise ValueError(wrong)
        return seconds, seconds
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(wrong)
    year, month, day, hour, minute, second, zone = match.groups()
    try:
        start = datetime(int(year), int(month or 1), int(day or 1), int(hour or 0), int(minute or 0), int(second or 0))
        if zone:
            start = start.replace(tzinfo=_zone(zone))
        first = _seconds(start)
        if second:
            return first, first
        if minute:
            return first, first + 60
        if (year, month or "12", day or "31") == (
            "9999",
            "12",
            "31",
        ):  # the calendar's end, which stands for "never" in many tables
            return first, _seconds(start.replace(month=12, day=31)) + 86400
        if day:
            end = start + timedelta(days=1)
        elif month:
            end = start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)
        else:
            end = start.replace(year=start.year + 1)
        return first, _seconds(end)
    except (ValueError, OverflowError, OSError):
        raise ValueError(wrong) from None


def _zone(text: str) -> timezone:
    if text.upper() == "Z":
        return timezone.utc
    digits = text[1:].replace(":", "")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return timezone(-offset if text[0] == "-" else offset)


def _seconds(moment: datetime) -> float:
    """Since 1970; a moment without a zone is local. Years before 1970 and past 2038 work on every platform."""
    if moment.tzinfo is not None:
        return (moment - datetime(1970, 1, 1, tzinfo=timezone.utc)).total_seconds()
    return moment.timestamp()


def folder_value(text: str) -> str:
    """A folder as galleries spell it: forward slashes, none at the ends, and ``.`` or nothing for the root."""
    parts = [part for part in text.split("/") if part not in ("", ".")]
    return "/".join(parts)


def condition_text(condition: Condition, type_: FieldType | None = None) -> str:
    """The condition as the query grammar writes it; reading it again gives the same one.

    Args:
        condition: a condition.
        type_: of its field; default: as in ``BASE_FIELDS``, else by its value.

    Raises:
        ValueError: one that the grammar cannot say: ``like`` without ``*`` and ``?``.
    """
    type_ = type_ or BASE_FIELDS.get(condition.field)
    op = {"under": ":", "like": ":"}.get(condition.op, condition.op)
    if isinstance(condition.value, str):
        value = condition.value
        if condition.op == "like" and not any(c in value for c in "*?"):
            raise ValueError(f"a pattern without * and ? is a plain value: Condition({condition.field!r}, '=', {value!r})")
        if condition.op == "under" and any(c in value for c in "*?"):
            raise ValueError(f"the folder {value!r} has a * or ? in its name, which in {condition.field}:VALUE makes a pattern")
        value = (value or ".") if type_ == "folder" or condition.op == "under" else value
    elif type_ == "time":
        value = _time_text(float(condition.value), condition.op)
    else:
        value = _plain_number(float(condition.value))
    return f"{quoted_name(condition.field)}{op}{quoted_unless_plain(value)}"


def _plain_number(number: float) -> str:
    return str(int(number)) if number.is_integer() and abs(number) < 1e15 else repr(number)


def _time_text(seconds: float, op: Operator) -> str:
    try:
        local = datetime.fromtimestamp(seconds)
        if op in (">=", "<") and not (local.hour or local.minute or local.second or local.microsecond):
            day = f"{local.year:04d}-{local.month:02d}-{local.day:02d}"
            if parse_time(day)[0] == seconds:
                return day
        if seconds.is_integer():
            moment = datetime(1970, 1, 1) + timedelta(seconds=seconds)
            return f"{moment.year:04d}-{moment.month:02d}-{moment.day:02d}T{moment:%H:%M:%S}Z"
    except (ValueError, OverflowError, OSError):
        pass  # outside the calendar
    return f"@{seconds!r}"


def quote(text: str) -> str:
    """``text`` in double quotes, with a backslash before each double quote and backslash in it."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def quoted_unless_plain(text: str) -> str:
    """``text`` itself where it can stand unquoted as a value, else in quotes."""
    return text if re.fullmatch(rf"[^\s{_QUOTES}]\S*", text) else quote(text)


NAME = r"[^\W\d]\w*(?:[.-]\w+)*"
"""What a field's name looks like where it is not in quotes."""


def quoted_name(name: str) -> str:
    return name if re.fullmatch(NAME, name) and name not in ("image", "like") else quote(name)


def check_conditions(where: Sequence[Condition], fields: Mapping[str, FieldType], name: str = "this gallery") -> None:
    """Refuse conditions that a gallery with these fields cannot answer.

    Args:
        where: conditions.
        fields: the gallery's.
        name: the gallery, for the message.

    Raises:
        GalleryError: a field that is not there, an operator that its type does not have, a value of another type.
    """
    for condition in where:
        type_ = fields.get(condition.field)
        if type_ is None:
            known = ", ".join(fields) or "none at all"
            raise GalleryError(f"{name} has no field {condition.field!r}; its fields: {known}")
        if condition.op not in _OPERATORS[type_]:
            raise GalleryError(
                f"{condition.field} is a {type_} field, which {condition.op!r} does not fit; "
                f"it takes {', '.join(_OPERATORS[type_])}"
            )
        text = isinstance(condition.value, str)
        if text != (type_ in ("text", "folder")):
            raise GalleryError(f"{condition.field} is a {type_} field, and {condition.value!r} is no value of it")
        if not text and not math.isfinite(condition.value):  # type: ignore[arg-type]
            raise GalleryError(f"{condition.field}: {condition.value!r} is no number to compare with")


def fulfils(values: Mapping[str, str | float], where: Sequence[Condition]) -> bool:
    """Whether an image of these field values fulfils all conditions: the rule that every gallery follows.

    A missing value fulfils none. ``like`` matches the whole value without regard to letter case.
    """
    return all(condition.field in values and _holds(values[condition.field], condition) for condition in where)


def _holds(value: str | float, condition: Condition) -> bool:
    wanted = condition.value
    op = condition.op
    if op == "=":
        return value == wanted
    if op == "!=":
        return value != wanted
    if op == "under":
        return not wanted or value == wanted or str(value).startswith(f"{wanted}/")
    if op == "like":
        return _pattern(str(wanted)).match(str(value).casefold()) is not None
    if isinstance(value, str) or isinstance(wanted, str):
        return False
    if op == "<":
        return value < wanted
    if op == "<=":
        return value <= wanted
    if op == ">":
        return value > wanted
    return value >= wanted


@lru_cache(maxsize=64)
def _pattern(text: str) -> re.Pattern[str]:
    # fnmatch's expressions never go back over what a star has taken, so that no pattern takes exponential time.
    return re.compile(fnmatch.translate(text.casefold().replace("[", "[[]")))
