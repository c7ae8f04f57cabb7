"""Captions to sentences, by rules alone: good enough to take a summary off a paragraph, in any script.

No model and no list of names: a caption is split the same way on every machine. What the rules know is said at
:func:`split_sentences`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["first_sentence", "join_sentences", "split_sentences"]

_CLOSING = "\"'\u2019\u201d\u00bb\u203a)\\]}\uff09\u300d\u300f\u3011\u300b"
# Full stops that need no space behind them (Chinese, Japanese), and those of other scripts that are written with one.
_TIGHT = "\u3002\uff01\uff1f\uff61"
_SPACED = ".!?\u2026\u061f\u06d4\u0964\u0965\u0589\u1362\u104b\u17d4\u1803"
_END = re.compile(
    rf"(?P<tight>[{_TIGHT}]+[{_CLOSING}]*)|(?P<marks>[{_SPACED}]+)(?P<closing>[{_CLOSING}]*)(?=\s|$)|(?P<paragraph>\n[^\S\n]*\n\s*)"
)
_LAST_WORD = re.compile(r"(\S+)$")
_NEAR = 160  # letters looked at on either side: the time stays in proportion to the text


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# A sentence never ends at these.
_GOES_ON = _words("e.g i.e eg ie mr mrs ms mx dr prof st mt vs cf viz approx gen gov sen rep capt lt sgt")
# A sentence ends at these only where the next word has a capital letter (or none of its letters have case).
_MAY_END = _words("etc inc ltd co corp jr sr al a.m p.m ft in lb lbs oz cm mm km kg max min dept est ca")
# Those of them that are nothing else; the others are words, or units behind a number.
_SURE = _words("etc inc ltd al a.m p.m")
# Numbers follow these: "No. 5".
_NUMBERED = _words("no nos nr fig figs vol p pp ch sec")
# What a sentence of a caption opens with, for the abbreviations that may or may not end one: "in the U.S. The" and "U.S. Army".
_OPENERS = _words(
    "a an the this that these those it its he she his her they their we there here in on at to of by with from behind beside above "
    "below under over near next between around along across as and but while two three four several some many most each both "
    "another other"
)


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, each as it is written, without the spaces around it.

    A sentence ends at one or more of ``. ! ? ...`` and the closing quotes and brackets behind them, if a space or the end follows;
    at the full stops of Chinese and Japanese without a space too; at those of Arabic, Urdu, Hindi, Armenian, Amharic, Burmese and
    Khmer; and at an empty line. What follows the last of them is a sentence as well. It does not end

    - inside a number or a name: ``3.5``, ``example.com``;
    - at ``e.g.``, ``i.e.``, ``Dr.``, ``St.`` and their like; at ``No. 5``; at initials (``J. F. Kennedy``); at a number that counts
      (``1. A dog``);
    - at ``etc.``, ``a.m.``, ``ft.`` and their like, at an ellipsis or behind a closing quote, where a small letter follows; at
      ``U.S.`` and its like unless a word follows that sentences begin with.

    A text all in small letters is split at its full stops as well.

    Args:
        text: anything; an empty one has no sentence.

    Example:
        >>> split_sentences("A red bus, e.g. a Routemaster, 4.4 m tall... with ads. It is parked")
        ['A red bus, e.g. a Routemaster, 4.4 m tall... with ads.', 'It is parked']
    """
    found: list[str] = []
    begin = 0
    for match in _END.finditer(text):
        if match["marks"] is not None and not _ends(text, begin, match):
            continue
        begin = _add(found, text, begin, match.end())
    _add(found, text, begin, len(text))
    return found


def first_sentence(text: str) -> str:
    """The first of them; ``""`` of a text that has none."""
    return next(iter(split_sentences(text)), "")


def join_sentences(sentences: Sequence[str]) -> str:
    """One text of them, in the order given; one that has no full stop and is not the last gets one."""
    closed = [s if _END.search(s[-3:]) else f"{s}." for s in sentences[:-1]]
    return " ".join([*closed, *sentences[-1:]])


def _add(found: list[str], text: str, begin: int, end: int) -> int:
    """Put a piece behind the others; one without a letter or digit belongs to the sentence before it."""
    piece = text[begin:end].strip()
    if any(letter.isalnum() for letter in piece) or (piece and not found):
        found.append(piece)
    elif piece:
        found[-1] += f" {piece}"
    return end


def _ends(text: str, begin: int, match: re.Match[str]) -> bool:
    """Whether a sentence that began at ``begin`` ends at these marks."""
    after = text[match.end() : match.end() + _NEAR].lstrip()
    if not after:
        return True
    opening = next((letter for letter in after if letter.isalnum()), "")
    small = opening.islower()
    marks = match["marks"]
    if match["closing"] or "\u2026" in marks or marks.startswith(".."):
        return not small
    if marks != ".":
        return True
    return not _is_abbreviation(text[max(begin, match.start() - _NEAR) : match.start()], after, small)


def _is_abbreviation(before: str, after: str, small: bool) -> bool:
    """Whether the full stop between ``before`` (of this sentence) and ``after`` belongs to the word before it."""
    last = _LAST_WORD.search(before)
    if last is None:
        return False
    word = last[1].lstrip("\"'\u2018\u201c\u00ab([{")
    lower = word.lower()
    earlier = before[: last.start()].split()
    following = re.split(r"[^\w]", after.lstrip("\"'\u2018\u201c\u00ab([{"), maxsplit=1)[0].lower()
    if lower in _GOES_ON:
        return True
    if lower in _NUMBERED:
        return following[:1].isdigit()
    if lower in _MAY_END:
        return small and (lower in _SURE or bool(earlier and earlier[-1][-1:].isdigit()))
    if re.fullmatch(r"(?:[^\W\d_]\.)+[^\W\d_]", word):  # U.S
        return small or following not in _OPENERS
    if len(word) == 1 and word.isupper():  # an initial, if it begins the sentence or another name is before it
        return not small and following not in _OPENERS and (not earlier or earlier[-1][:1].isupper())
    return word.isdigit() and not earlier
