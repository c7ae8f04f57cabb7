"""Minimal pairs: two texts that differ in one thing, and whether an encoder keeps that one thing apart is the question.

Built-in pairs (:func:`minimal_pairs`) cross a handful of sentence frames with everyday nouns; a user's own come from a table
(:func:`read_pairs`). Everything that is measured compares a pair with *other objects in the same frame*, so each pair knows both.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import overload

__all__ = ["KINDS", "NOUNS", "Pair", "PairTable", "minimal_pairs", "read_pairs"]

KINDS = ("negation", "attribute", "relation", "order", "count")

_NOUNS = """dog cat horse cow sheep bird car bus train bicycle boat truck chair table bed lamp clock cup bottle banana pizza cake
laptop phone book tree umbrella hat guitar ladder"""
NOUNS = tuple(_NOUNS.split())
"""The nouns of the built-in pairs: one word each, common in captions, regular plurals but for *sheep*."""

# (frame, wording, positive, contrast). The wording names the negated words: two frames that share them are never set against
# each other as if they were different wordings. "{x}" is an object with its article, "{X}" without, "{y}" a second object.
_NEGATION = (
    ("photo", "no", "a photo of {x}", "a photo of no {X}"),
    ("picture", "without", "a picture with {x}", "a picture without {x}"),
    ("features", "does not", "this image features {x}", "this image does not feature {x}"),
    ("scene", "no", "there is {x} in the scene", "there is no {X} in the scene"),
    ("visible", "is not", "{x} is visible in this photo", "{x} is not visible in this photo"),
    ("see", "cannot", "we can see {x} in the picture", "we cannot see {x} in the picture"),
)
# Colours and numbers are fixed within a frame, so that two pairs of one frame differ in their objects alone.
_ATTRIBUTE = (
    ("photo", "", "a photo of a red {X}", "a photo of a blue {X}"),
    ("is", "", "the {X} is black", "the {X} is white"),
    ("ground", "", "a green {X} on the ground", "a yellow {X} on the ground"),
    ("shows", "", "this image shows a large {X}", "this image shows a small {X}"),
    ("binding", "", "a red {X} and a blue {Y}", "a blue {X} and a red {Y}"),
)
_RELATION = (
    ("left", "", "{x} to the left of {y}", "{x} to the right of {y}"),
    ("above", "", "{x} above {y}", "{x} below {y}"),
    ("front", "", "{x} in front of {y}", "{x} behind {y}"),
    ("close", "", "a photo of {x} close to {y}", "a photo of {x} far from {y}"),
    ("top", "", "this image shows {x} on top of {y}", "this image shows {x} underneath {y}"),
)
_ORDER = (
    ("left", "", "{x} to the left of {y}", "{y} to the left of {x}"),
    ("above", "", "{x} above {y}", "{y} above {x}"),
    ("behind", "", "a photo of {x} behind {y}", "a photo of {y} behind {x}"),
    ("larger", "", "{x} that is larger than {y}", "{y} that is larger than {x}"),
    ("looks", "", "{x} facing {y} in this image", "{y} facing {x} in this image"),
)
_COUNT = (
    ("photo", "", "a photo of two {XS}", "a photo of three {XS}"),
    ("there", "", "there are three {XS} in the scene", "there are five {XS} in the scene"),
    ("features", "", "this image features four {XS}", "this image features two {XS}"),
    ("see", "", "we can see five {XS}", "we can see six {XS}"),
    ("one", "", "one {X} outside", "two {XS} outside"),
)
_FRAMES = dict(zip(KINDS, (_NEGATION, _ATTRIBUTE, _RELATION, _ORDER, _COUNT), strict=True))


_WORD = re.compile(r"[\w']+")


@dataclass(frozen=True, slots=True)
class Pair:
    """Two texts that differ in one thing.

    Args:
        positive: the plain text, ``T+``.
        contrast: its counterpart, ``T-``: for the kind ``"negation"`` the negated text.
        kind: what differs; pairs of different kinds are measured apart.
        object: what the pair is about. Pairs of one frame with different objects give the yardstick of relative divergence;
            ``""`` means the positive text itself.
        frame: the sentence frame both texts share; ``""`` where none is known (all such pairs count as one frame).
        image: file name of an image that the positive text describes, or ``""``.
        wording: the words that make the contrast ("no", "without"); ``""`` means those that ``contrast`` has and ``positive`` has
            not. Probes never train and test on one wording.

    Raises:
        ValueError: one of the two texts is empty.
    """

    positive: str
    contrast: str
    kind: str = "negation"
    object: str = ""
    frame: str = ""
    image: str = ""
    wording: str = ""

    def __post_init__(self) -> None:
        for side in ("positive", "contrast"):
            if not getattr(self, side).strip():
                raise ValueError(f"the {side} text of a pair is empty (the other: {self.positive or self.contrast!r})")

    @property
    def about(self) -> str:
        """The object, or the positive text where no object was given."""
        return self.object or self.positive

    @property
    def words(self) -> str:
        """The wording; where none was given, the words that the contrast adds ("no"), or the frame where it adds none."""
        added = set(_WORD.findall(self.contrast.lower())) - set(_WORD.findall(self.positive.lower()))
        return self.wording or " ".join(sorted(added)) or self.frame


@dataclass(frozen=True)
class PairTable(Sequence[Pair]):
    """Pairs read from a table: a sequence of :class:`Pair`, with what was noticed on reading.

    Args:
        pairs: the distinct pairs, in the table's order.
        source: the file.
        duplicates: rows that repeated an earlier one and were dropped.
        notes: remarks to show the user (how columns were understood, what was dropped).
    """

    pairs: tuple[Pair, ...]
    source: str = ""
    duplicates: int = 0
    notes: tuple[str, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.pairs)

    @overload
    def __getitem__(self, rows: int) -> Pair: ...
    @overload
    def __getitem__(self, rows: slice) -> tuple[Pair, ...]: ...
    def __getitem__(self, rows: int | slice) -> Pair | tuple[Pair, ...]:
        return self.pairs[rows]

    def __iter__(self) -> Iterator[Pair]:
        return iter(self.pairs)


def minimal_pairs(kind: str = "negation", nouns: Sequence[str] = NOUNS) -> list[Pair]:
    """The built-in minimal pairs of one kind: every frame crossed with every noun.

    * ``negation``: "a photo of a dog" / "a photo of no dog"; "a picture with a dog" / "without a dog"; six frames, five wordings.
    * ``attribute``: "a photo of a red dog" / "of a blue dog"; and "a red dog and a blue cat" / "a blue dog and a red cat".
    * ``relation``: "a dog to the left of a cat" / "to the right of a cat".
    * ``order``: "a dog above a cat" / "a cat above a dog".
    * ``count``: "a photo of two dogs" / "of three dogs".

    Args:
        kind: one of :data:`KINDS`.
        nouns: the objects, singular, without article; at least 2 different ones. Second objects follow from a noun's place in
            the list, so the same nouns always give the same pairs.

    Returns:
        ``len(frames) * len(nouns)`` pairs, frame by frame.

    Raises:
        ValueError: an unknown kind, or fewer than two nouns, or repeated or empty ones.
    """
    if kind not in _FRAMES:
        raise ValueError(f"there are no built-in pairs of kind {kind!r}; the kinds are {', '.join(KINDS)}")
    names = [noun.strip() for noun in nouns]
    if len(set(names)) != len(names) or len(names) < 2 or not all(names):
        raise ValueError("minimal pairs need at least two different nouns, none of them empty")
    pairs = []
    for place, (frame, wording, positive, contrast) in enumerate(_FRAMES[kind]):
        for i, noun in enumerate(names):
            # A step that grows with the frame gives each noun other companions in other frames.
            other = names[(i + 1 + (3 * place) % (len(names) - 1)) % len(names)]
            words = {"x": with_article(noun), "X": noun, "XS": _plural(noun), "y": with_article(other), "Y": other}
            about = f"{noun}, {other}" if "{y}" in positive or "{Y}" in positive else noun
            pairs.append(Pair(positive.format(**words), contrast.format(**words), kind, about, frame, wording=wording))
    return pairs


def read_pairs(path: str | Path, kind: str = "negation", *, columns: tuple[str, str] | None = None) -> PairTable:
    """Read pairs from a table of text: CSV, TSV, or CSV with semicolons.

    The first line names the columns. ``positive`` and ``contrast`` (or ``caption``/``affirmative`` and ``negated``/``negative``)
    hold the texts; ``kind``, ``object``, ``frame`` (or ``group``), ``wording`` and ``image`` may be there, others are ignored.
    UTF-8 with or without byte order mark, UTF-16 with one, any line ends; blank lines are skipped.

    Args:
        path: the file.
        kind: kind of the pairs in a file that has no ``kind`` column.
        columns: names of the two columns that hold the texts, where they are called otherwise.

    Returns:
        The distinct pairs; repeated rows are dropped and counted.

    Raises:
        ValueError: missing columns, an empty cell, too many or too few cells, a file that is empty or not text; the message
            names the file and the row (the line in the file, from 1).
        OSError: the file cannot be read.
    """
    path = Path(path)
    text = _decode(path)
    lines = text.splitlines()
    first_line = next((line for line in lines if line.strip()), "")
    if not first_line:
        raise ValueError(f"{path}: the file is empty; a table with the columns positive and contrast was expected")
    delimiter = _delimiter(path, first_line)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    where: dict[str, int] = {}
    notes: list[str] = []
    pairs: list[Pair] = []
    seen: set[Pair] = set()
    duplicates = 0
    try:
        for cells in reader:
            row = reader.line_num
            if not any(cell.strip() for cell in cells):
                continue
            if header is None:
                header = [cell.strip() for cell in cells]
                where = _columns(path, header, columns)
                continue
            if len(cells) != len(header):
                raise ValueError(
                    f"{path}, row {row}: {len(cells)} cells where the first line has {len(header)}; "
                    f"put double quotes around a text that holds the separator {delimiter!r}"
                )
            pair = _pair(path, row, {name: cells[k].strip() for name, k in where.items()}, kind)
            if pair in seen:
                duplicates += 1
                continue
            seen.add(pair)
            pairs.append(pair)
    except csv.Error as error:
        raise ValueError(f"{path}, row {reader.line_num}: not a readable table ({error}); check its quotes") from error
    if not pairs:
        raise ValueError(f"{path}: the table has a header and no rows")
    if duplicates:
        notes.append(f"{path.name}: {duplicates} repeated row{'s' if duplicates > 1 else ''} dropped")
    return PairTable(tuple(pairs), str(path), duplicates, tuple(notes))


_SYNONYMS = {
    "positive": ("positive", "affirmative", "caption", "original"),
    "contrast": ("contrast", "negated", "negative", "negation"),
    "kind": ("kind",),
    "object": ("object",),
    "frame": ("frame", "group"),
    "wording": ("wording",),
    "image": ("image", "filepath", "image_path"),
}


def _columns(path: Path, header: list[str], chosen: tuple[str, str] | None) -> dict[str, int]:
    """Which column holds what."""
    lower = [name.lower() for name in header]
    where = {}
    for name, synonyms in _SYNONYMS.items():
        found = [k for synonym in synonyms for k, column in enumerate(lower) if column == synonym]
        if found:
            where[name] = found[0]
    for name, column in zip(("positive", "contrast"), chosen or (), strict=False):
        if column not in header:
            raise ValueError(f"{path}: no column {column!r} (the columns are {', '.join(header)})")
        where[name] = header.index(column)
    if chosen and where["positive"] == where["contrast"]:
        raise ValueError(f"{path}: column {chosen[0]!r} cannot hold both texts of a pair; name two columns")
    missing = [name for name in ("positive", "contrast") if name not in where]
    if missing:
        raise ValueError(
            f"{path}: no column {' and no column '.join(missing)} (the first line must name the columns, and has "
            f"{', '.join(header)}); columns of other names are chosen with columns=(plain, contrast) (--columns PLAIN,CONTRAST)"
        )
    return where


def _pair(path: Path, row: int, cells: dict[str, str], kind: str) -> Pair:
    for name in ("positive", "contrast"):
        if not cells[name]:
            raise ValueError(f"{path}, row {row}: the cell {name} is empty")
    if "kind" in cells and not cells["kind"]:
        raise ValueError(f"{path}, row {row}: the cell kind is empty")
    return Pair(**{"kind": kind, **cells})


def _decode(path: Path) -> str:
    data = path.read_bytes()
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        row = data[: error.start].count(b"\n") + 1
        raise ValueError(f"{path}, row {row}: not {encoding.removesuffix('-sig').upper()} text; save the table as UTF-8") from error
    if "\0" in text:
        raise ValueError(f"{path}, row {text[: text.index(chr(0))].count(chr(10)) + 1}: a zero byte; this is not a text table")
    return text


def _delimiter(path: Path, first_line: str) -> str:
    if path.suffix.lower() in (".tsv", ".tab"):
        return "\t"
    # The separator of the first line; spreadsheets save "CSV" with tabs or semicolons in many countries.
    counts = {mark: first_line.count(mark) for mark in (",", "\t", ";")}
    return "," if counts[","] else max(counts, key=lambda mark: counts[mark])


def with_article(word: str) -> str:
    """ "a dog", "an umbrella": by the first letter."""
    return f"{'an' if word[0].lower() in 'aeiou' else 'a'} {word}"


def _plural(noun: str) -> str:
    if noun.endswith("sheep"):
        return noun
    if noun.endswith(("s", "x", "z", "ch", "sh")):
        return f"{noun}es"
    if noun.endswith("y") and noun[-2:-1] not in tuple("aeiou"):
        return f"{noun[:-1]}ies"
    return f"{noun}s"


def pair_list(pairs: Iterable[Pair | tuple[str, str]] | str | Path) -> tuple[list[Pair], list[str]]:
    """Pairs in whatever way they were given, as a list, with the notes of a table: a path, :class:`Pair` objects or tuples.

    Raises:
        ValueError: an element is neither a pair nor two texts, or there is none.
    """
    if isinstance(pairs, str | Path):
        pairs = read_pairs(pairs)
    notes = list(pairs.notes) if isinstance(pairs, PairTable) else []
    found: list[Pair] = []
    for row, pair in enumerate(pairs):
        if isinstance(pair, Pair):
            found.append(pair)
        elif isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2 and all(isinstance(t, str) for t in pair):
            found.append(Pair(pair[0], pair[1]))
        else:
            raise ValueError(f"pair {row} is {pair!r}; a Pair or a tuple (positive, contrast) was expected")
    if not found:
        raise ValueError("no pairs to diagnose with")
    return found, notes
