"""The query language: one line of text that says what to look for, on the command line, in Python, over HTTP and on the page.

Natural language is taken as it is. Arithmetic has its texts in quotes, ``"a beach" + 0.5 "sunset" - "people"``, and may name
images (``image:photo.jpg``, ``like:17``). Filters are words like ``folder:2024/holiday`` or ``date>=2024-05``. What could be meant
in two ways is an error that writes out both.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from clipmend.search.conditions import NAME, condition_text, conditions_of, quote, quoted_unless_plain
from clipmend.search.gallery import BASE_FIELDS, Condition, FieldType

__all__ = [
    "MAX_CHARACTERS",
    "MAX_CONDITIONS",
    "MAX_TERMS",
    "MAX_WEIGHT",
    "MIN_WEIGHT",
    "Query",
    "QueryError",
    "Term",
    "parse_query",
]

TermKind = Literal["text", "image", "like"]

MAX_CHARACTERS, MAX_TERMS, MAX_CONDITIONS = 2000, 32, 32
MIN_WEIGHT, MAX_WEIGHT = 0.001, 1000.0

_NUMBER = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_OPEN, _CURLY, _CURLY_CLOSE = '"“”„', "“”„", "“”"  # telephones type curly ones
_TERM_STARTS = rf"(?:[{_OPEN}]|(?:image|like):\S)"
_TIMES = r"(?:\s*\*\s*|\s+)"  # not nothing: 5" is five inches
_SIGN = re.compile(rf"[+-](?=\s|$|{_TERM_STARTS}|{_NUMBER}{_TIMES}{_TERM_STARTS})")
_SIGNED_WORD = re.compile(r"[+-](?=[^\W\d])")
_WEIGHT = re.compile(rf"({_NUMBER}){_TIMES}(?={_TERM_STARTS})")
_REFERENCE = re.compile(r"(image|like):(?=\S)")
_FILTER = re.compile(rf"({NAME})(>=|<=|!=|:|=|<|>)(?=\S)")
_SPACED_FILTER = re.compile(rf"({NAME})(?:\s+(>=|<=|!=|=|<|>)\s*|(>=|<=|!=|=|<|>)\s+)(?=\S)")
_SPACED_COLON = re.compile(rf"({NAME}):\s+(\S+)")
_OPERATOR = re.compile(r">=|<=|!=|:|=|<|>")
_WORD = re.compile(r"\S+")
_SPACE = re.compile(r"\s*")


class QueryError(ValueError):
    """A query that cannot be read, or that could be meant in two ways.

    Attributes:
        position: of the character where it goes wrong, counting from 0; ``None`` where it is the query as a whole.
    """

    def __init__(self, message: str, position: int | None = None) -> None:
        super().__init__(message)
        self.position = position


@dataclass(frozen=True, slots=True)
class Term:
    """One summand of a query.

    Attributes:
        weight: what its vector is multiplied by, 0.001 to 1000 or the negative of that.
        kind: ``text``: words; ``image``: a file, or the name of an image that comes with the query; ``like``: an image of the
            gallery, by its id or its path.
        value: the words, the file, or the id or path.
    """

    weight: float
    kind: TermKind
    value: str

    def __post_init__(self) -> None:
        if self.kind not in ("text", "image", "like"):
            raise QueryError(f"a term is a text, an image or like an image, not {self.kind!r}")
        if not (MIN_WEIGHT <= abs(self.weight) <= MAX_WEIGHT):  # NaN too
            raise QueryError(f"a weight is from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}, not {self.weight:g}")
        if not self.value.strip():
            raise QueryError(f"an empty {self.kind} says nothing: leave the term out")

    def __str__(self) -> str:
        return f"{'-' if self.weight < 0 else ''}{self._unsigned()}"

    def _unsigned(self) -> str:
        size = abs(self.weight)
        number = "" if size == 1 else f"{int(size) if size.is_integer() else repr(size)} "
        said = quote(self.value) if self.kind == "text" else f"{self.kind}:{quoted_unless_plain(self.value)}"
        return number + said


@dataclass(frozen=True)
class Query:
    """A query that has been read; ``str`` writes it, and reading that gives an equal one.

    ``Query(())`` is every image, which no text says: an empty text is an error.

    Attributes:
        terms: what is looked for, added up; none: images are listed, not ranked.
        where: what images must fulfil, all of it.
        text: as it was typed; not compared.
        fields: the fields it was read with; not compared.
    """

    terms: tuple[Term, ...]
    where: tuple[Condition, ...] = ()
    text: str = field(default="", compare=False)
    fields: Mapping[str, FieldType] = field(default_factory=lambda: BASE_FIELDS, compare=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.terms) > MAX_TERMS:
            raise QueryError(f"a query has at most {MAX_TERMS} terms, not {len(self.terms)}")
        if len(self.where) > MAX_CONDITIONS:
            raise QueryError(f"a query has at most {MAX_CONDITIONS} conditions, not {len(self.where)}")

    @property
    def texts(self) -> tuple[str, ...]:
        """The words of its text terms, in order."""
        return tuple(term.value for term in self.terms if term.kind == "text")

    def __str__(self) -> str:
        filters = [condition_text(condition, self.fields.get(condition.field)) for condition in self.where]
        if len(self.terms) == 1 and self.terms[0].kind == "text" and self.terms[0].weight == 1:
            bare = " ".join([self.terms[0].value, *filters])
            with suppress(QueryError):  # words that look like a filter or an operator stand in quotes
                if parse_query(bare, self.fields, limit=len(bare)) == self:
                    return bare
        return " ".join([*([_sum(self.terms)] if self.terms else []), *filters])


def _sum(terms: tuple[Term, ...]) -> str:
    said = str(terms[0])
    for term in terms[1:]:
        said += f" {'-' if term.weight < 0 else '+'} {term._unsigned()}"
    return said


@dataclass(frozen=True, slots=True)
class _Token:
    """A piece of a query: ``[start, end)`` of the text, and what it says."""

    kind: Literal["word", "quoted", "sign", "weight", "image", "like"]
    value: str
    start: int
    end: int


def parse_query(text: str, fields: Mapping[str, FieldType] = BASE_FIELDS, *, limit: int = MAX_CHARACTERS) -> Query:
    """Read a query.

    Args:
        text: for instance ``a beach without people``, ``"a beach" + 0.5 "sunset" - "people"``, ``like:17 - "snow" date:2024``.
        fields: the fields that filters may name, with their types: :attr:`Gallery.fields`.
        limit: the most characters that are read.

    Returns:
        the query, with at least one term or condition.

    Raises:
        QueryError: empty or too long; a quotation that is never closed; an operator without a term, or a term without an
            operator; a bare text beside operators (both readings are written out); an unknown field; a value that does not fit
            its field; too many terms or conditions.

    Example:
        >>> parse_query('"a beach" - "people" folder:2024')
        Query(terms=(Term(weight=1.0, kind='text', value='a beach'), Term(weight=-1.0, kind='text', value='people')), ...
    """
    if len(text) > limit:
        raise QueryError(f"a query has at most {limit:,} characters, not {len(text):,}")
    if not text.strip():
        raise QueryError("the query is empty; say what to look for")
    tokens, where = _Lexer(text, fields).read()
    tokens = _weights_or_words(tokens)
    words = any(token.kind == "word" for token in tokens)
    if words and all(token.kind in ("word", "quoted") for token in tokens):
        terms: tuple[Term, ...] = (Term(1.0, "text", _joined(text, tokens)),)
    elif words:
        raise _ambiguous(text, tokens, where, fields)
    else:
        terms = _arithmetic(tokens)
    return Query(terms, tuple(where), text, fields)


class _Lexer:
    """Cuts a query into tokens and takes the filters out."""

    def __init__(self, text: str, fields: Mapping[str, FieldType]) -> None:
        self.text, self.fields, self.at = text, fields, 0
        self.tokens: list[_Token] = []
        self.where: list[Condition] = []

    def read(self) -> tuple[list[_Token], list[Condition]]:
        while True:
            self._match(_SPACE)
            if self.at >= len(self.text):
                return self.tokens, self.where
            self._token()

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self.text, self.at)
        if match:
            self.at = match.end()
        return match

    def _add(self, kind: Literal["word", "quoted", "sign", "weight", "image", "like"], value: str, start: int) -> None:
        self.tokens.append(_Token(kind, value, start, self.at))

    def _token(self) -> None:
        start = self.at
        if self.text[start] in _OPEN:
            value = self._quotation()
            operator = self._match(_OPERATOR)
            if operator:
                self._filter(value, operator[0], start)
            else:
                self._add("quoted", value, start)
        elif sign := self._match(_SIGN):
            self._add("sign", sign[0], start)
        elif sign := self._match(_SIGNED_WORD):
            name = _FILTER.match(self.text, self.at)
            if name and not _REFERENCE.match(self.text, self.at) and self._known(name[1]):
                raise QueryError(
                    f"{sign[0]}{name[1]}{name[2]} is no filter: write {name[1]}!=VALUE for images where it is another", start
                )
            self._add("sign", sign[0], start)
        elif weight := self._match(_WEIGHT):
            self._add("weight", weight[1], start)
        elif reference := self._match(_REFERENCE):
            kind: Literal["image", "like"] = "image" if reference[1] == "image" else "like"
            self._add(kind, self._value(), start)
        elif found := self._match(_FILTER):
            self._filter(found[1], found[2], start)
        elif (found := _SPACED_FILTER.match(self.text, start)) and self._known(found[1]):
            self.at = found.end()
            self._filter(found[1], found[2] or found[3], start)
        elif (found := _SPACED_COLON.match(self.text, start)) and self._known(found[1]):
            raise QueryError(
                f"{found[1]}: {found[2]} may be meant in two ways: as a filter, {found[1]}:{found[2]}, or as words, which then "
                f"stand in quotes, {quote(self.text.strip())}",
                start,
            )
        else:
            self._match(_WORD)
            self._add("word", self.text[start : self.at], start)

    def _quotation(self) -> str:
        """What stands between the quotation mark here and its partner; afterwards the position is behind that."""
        start = self.at
        closing = _CURLY_CLOSE if self.text[start] in _CURLY else '"'
        said = []
        at = start + 1
        while at < len(self.text):
            c = self.text[at]
            if c == "\\" and at + 1 < len(self.text) and self.text[at + 1] in '"“”„\\':
                said.append(self.text[at + 1])
                at += 2
                continue
            if c in closing:
                self.at = at + 1
                return "".join(said)
            said.append(c)
            at += 1
        raise QueryError(
            f'the quotation that begins at character {start + 1} is never closed; a quotation mark that belongs to a text is \\"',
            start,
        )

    def _value(self) -> str:
        """A value: quoted, or up to the next space."""
        if self.at < len(self.text) and self.text[self.at] in _OPEN:
            value = self._quotation()
            after = self.text[self.at : self.at + 1]
            if after and not after.isspace():
                raise QueryError(f"after the quotation that ends at character {self.at} a space is missing", self.at)
            return value
        match = self._match(_WORD)
        return match[0] if match else ""

    def _known(self, name: str) -> str | None:
        """The field of that name; letter case counts only where two differ in nothing else (telephones write a capital first)."""
        if name in self.fields:
            return name
        alike = [known for known in self.fields if known.casefold() == name.casefold()]
        return alike[0] if len(alike) == 1 else None

    def _filter(self, name: str, op: str, start: int) -> None:
        known = self._known(name)
        if known is None:
            self._match(_WORD)
            piece = self.text[start : self.at]
            fields = ", ".join(self.fields) or "none"
            raise QueryError(
                f"{piece} looks like a filter, but there is no field {name!r} (there are: {fields}); if it belongs to the text, "
                f"put the text in quotes: {quote(self.text.strip())}",
                start,
            )
        if self.at >= len(self.text) or self.text[self.at].isspace():
            raise QueryError(f'{self.text[start : self.at]} lacks a value; an empty one is ""', start)
        value = self._value()
        try:
            self.where.extend(conditions_of(known, op, value, self.fields[known]))
        except ValueError as error:
            raise QueryError(str(error), start) from None


def _weights_or_words(tokens: list[_Token]) -> list[_Token]:
    """A number is a weight where a term may begin, and a word of the text elsewhere (``over 3 "friends"``)."""
    result: list[_Token] = []
    for token in tokens:
        if token.kind == "weight" and result and result[-1].kind != "sign":
            kind: Literal["word", "weight"] = "word" if result[-1].kind == "word" else "weight"
            token = _Token(kind, token.value, token.start, token.end)
        result.append(token)
    return result


def _joined(text: str, tokens: list[_Token]) -> str:
    """The text under tokens as it was typed; where a filter stood between them, a space."""
    said = ""
    for number, token in enumerate(tokens):
        between = text[tokens[number - 1].end : token.start] if number else ""
        said += (between if not between.strip() else " ") + text[token.start : token.end]
    return said.strip()


def _arithmetic(tokens: list[_Token]) -> tuple[Term, ...]:
    """Signed, weighted terms."""
    terms: list[Term] = []
    sign: _Token | None = None
    weight: _Token | None = None
    for token in tokens:
        if token.kind == "sign":
            if sign is not None:
                raise QueryError(f"a term is missing between the operators {sign.value} and {token.value}", token.start)
            sign = token
        elif token.kind == "weight":
            if terms and sign is None:
                raise QueryError(f"an operator is missing before {token.value}: write + or - between terms", token.start)
            weight = token
        else:
            if terms and sign is None:
                raise QueryError("an operator is missing between two terms: write + or - between them", token.start)
            size = float(weight.value) if weight else 1.0
            if not (math.isfinite(size) and MIN_WEIGHT <= size <= MAX_WEIGHT):
                raise QueryError(
                    f"a weight is from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}, not {weight.value if weight else size}",
                    weight.start if weight else token.start,
                )
            kind: TermKind = "text" if token.kind == "quoted" else token.kind  # type: ignore[assignment]
            if not token.value.strip():
                raise QueryError(f"an empty {kind} says nothing: leave the term out", token.start)
            terms.append(Term(-size if sign and sign.value == "-" else size, kind, token.value))
            sign = weight = None
    if sign is not None:
        raise QueryError(f"after {sign.value} a term is missing", sign.start)
    return tuple(terms)


def _ambiguous(text: str, tokens: list[_Token], where: list[Condition], fields: Mapping[str, FieldType]) -> QueryError:
    """A bare text beside operators: what it may mean, both ways, ready to be copied."""
    as_terms: list[_Token] = []
    run: list[_Token] = []

    def close() -> None:
        if run:
            if as_terms and as_terms[-1].kind not in ("sign", "weight"):
                as_terms.append(_Token("sign", "+", run[0].start, run[0].start))
            as_terms.append(_Token("quoted", _joined(text, run), run[0].start, run[-1].end))
            run.clear()

    for token in tokens:
        if token.kind == "word":
            run.append(token)
            continue
        close()
        if token.kind != "sign" and as_terms and as_terms[-1].kind not in ("sign", "weight"):
            as_terms.append(_Token("sign", "+", token.start, token.start))
        as_terms.append(token)
    close()
    words = (Term(1.0, "text", _joined(text, tokens)),)
    readings = []
    with suppress(QueryError):  # as arithmetic it would be wrong anyhow
        readings.append(_sum(_arithmetic(as_terms)))
    readings.append(_sum(words))
    filters = [condition_text(condition, fields.get(condition.field)) for condition in where]
    readings = [" ".join([reading, *filters]) for reading in readings]
    first = next(token for token in tokens if token.kind != "word")
    if len(readings) == 1:
        return QueryError(f"this reads like arithmetic; if it is all one text, put it in quotes: {readings[0]}", first.start)
    return QueryError(f"this may be meant in two ways: as arithmetic, {readings[0]}, or as one text, {readings[1]}", first.start)
