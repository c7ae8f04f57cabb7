"""A rule parser: what an English caption asserts and what it denies, from its words alone.

A denial is found by a cue. Most cues stand before what they deny ("no cat", "without a cat", "does not show a cat"), some after it
("a cat is absent", "with the cat missing"). What a cue denies ends at the next boundary: a comma, a conjunction, a verb, a
place. What is left, without frames such as "a photo of", is what the caption asserts.

What it does not do: double negation, quantifiers ("few", "hardly any"), negation inside words ("treeless"), pronouns, other
languages, attributes without a noun ("not red"). Its accuracy on drawn scenes, whose parse is known, comes from :func:`measure`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from clipmend.data.nouns import load_nouns
from clipmend.data.phrases import NUMBER_WORDS, with_article
from clipmend.data.records import Caption
from clipmend.evaluation.rivals.base import Form
from clipmend.negation.gate import has_negation, without_false_cues

__all__ = ["Parsed", "ParserReport", "measure", "parse", "rule_form", "singular"]

_APOSTROPHES = str.maketrans(dict.fromkeys("‘’ʼʹ′´`＇", "'"))
_PICTURE = r"(?:image|picture|photo|photograph|scene|drawing|video|clip|frame|shot|view)"
_VERB = (
    r"(?:feature|include|show|contain|have|has|depict|display|see|find|spot|hold|involve|present|portray|capture|exhibit|reveal)"
    r"(?:s|es|d|ed|ing)?"
)
_NOT = r"(?:\s+not\b|\s?n't\b|nt\b)"
_SEEN = (
    rf"(?:present|visible|there|here|seen|shown|included|featured|depicted|found|spotted|part\s+of\s+it|part\s+of\s+(?:the|this)\s+{_PICTURE}"
    rf"|in\s+(?:it|sight|view)|(?:visible\s+|present\s+|shown\s+|seen\s+)?in\s+(?:the|this)\s+{_PICTURE})"
)

# Cues that stand behind what they deny, with the verb between the two.
_BACKWARD = re.compile(
    rf"""
      \s(?:is|are|was|were)(?:{_NOT}|\s+nowhere)(?:\s+(?:to\s+be\s+)?{_SEEN})\b
    | \s(?:is|are|was|were)\s+nowhere\b
    | \s(?:is|are|was|were)\s+(?:missing|absent|excluded|omitted|left\s+out|lacking(?=\s*(?:$|[,;.])))(?!\w)
    | \s(?:can|could)(?:not|\s+not|'t|t)\s+be\s+(?:seen|found|spotted)\b
    | \s(?:does|do|did){_NOT}\s+(?:appear|exist)\b
    | \s(?:is|are|was|were){_NOT}(?=\s*(?:$|[,;.]))                  # "a cat is present, but a dog is not"
    | \s(?:missing|absent|nowhere)(?=\s*(?:$|[,;]|from\b|in\b|to\b))
    | \snot\s+{_SEEN}\b
    """,
    re.VERBOSE,
)

# Cues that stand before it. The verbs that belong to a cue are part of it.
_FORWARD = re.compile(
    rf"""
      \b(?:there\s*)?(?:'s|is|are|was|were)(?:{_NOT}|\s+no(?=\s))(?:\s+(?:any|a\s+single))?\b
    | \b(?:does|do|did){_NOT}\s+{_VERB}\b(?:\s+any\b)?
    | \b(?:can|could|will|would|wo|ca)(?:\s?not|\s?n't|'t|nt)\s+{_VERB}\b(?:\s+any\b)?
    | \bnever\s+{_VERB}\b | \bnever\b
    | \b(?:has|have|had|with)\s+no\b
    | \bno\s+(?:sign|signs|trace|traces|hint|hints|evidence)\s+of\b
    | \bwithout(?:\s+any)?\b | \bw/o(?!\w)
    | \bneither\b | \bnor\b
    | \b(?:are|is)\s+zero\b | \bzero\b
    | \bnot\s+(?:a\s+single|any)\b | \bnot\b | \bno\b
    | \bminus\b | \bsans\b | \bbarring\b
    | \bexclud(?:e|es|ed|ing)\b | \bexcept(?:ing)?(?:\s+for)?\b | \b(?:apart|aside)\s+from\b
    | \bomit(?:s|ted|ting)?\b | \b(?:leave|leaves|leaving|left)\s+out\b
    | \black(?:s|ed|ing)?\b(?:\s+of\b)?
    | \b(?:the\s+)?absence\s+of\b | \b(?:devoid|bereft|void|empty|clear|bare|free)\s+of\b | \bfree\s+from\b
    | \bmissing\b(?=\s+(?:a|an|the|any|its)\s)
    | \b(?:rather|other)\s+than\b | \binstead\s+of\b
    """,
    re.VERBOSE,
)

_END = re.compile(
    rf"""
      [;:.!?]
    | ,(?!\s*(?:or|nor)\b)
    | \s(?:but|while|whereas|although|though|yet|however|where|which|that|who|because|with|without|except)\b
    | \s(?:can|could|will)\s+(?:be|also|not)\b
    | \s(?:is|are|was|were|appears?|has|have|had|does|do|being)\b
    | \s(?:here|anywhere|nearby|at\s+all|in\s+(?:sight|view|it|there|evidence)|to\s+be\s+(?:seen|found)
        |present|visible|included|shown)\b
    | \s(?:from|in|on|of|within)\s+(?:the|this|that|a|an)\s+{_PICTURE}\b
    | \s(?:there)\b(?=\s*$)
    """,
    re.VERBOSE,
)
_PLACE = re.compile(r"\s(?:on|in|at|near|beside|next\s+to|around|under|above|behind|by|beneath|below|inside|outside|from)\s+(?=\w)")
_PREPOSITION = re.compile(_PLACE.pattern.removeprefix(r"\s"))
_AND = re.compile(r",?\s+and\s+|\s+&\s+")
_OR = re.compile(r",?\s+(?:or|nor)\s+|,\s+")
_LEADING = re.compile(
    r"^(?:(?:a|an|the|any|some|single|visible|other|of|either|even|its|sign\s+of|signs\s+of|presence\s+of|to\s+be|be"
    r"|wearing|holding|carrying|having|using)\s+)+"
)
_CLAUSE = re.compile(
    r"[,;]\s*(?:and|but|with|while|whereas|although|though|yet|where)?\s+|\s(?:and|but|with|while|where|whereas|in\s+which)\s+"
)
_CLAUSE_LIST = re.compile(
    r"[,;]\s*(?:and|but|with|while|whereas|although|yet|where)\s+|[;]\s*|\s(?:but|with|while|where|whereas|in\s+which)\s+"
)
_BREAK = "|"
_PAIRS = ("scissors", "pants", "jeans", "shorts", "glasses", "trousers", "goggles", "binoculars", "clothes")

_FRAME = re.compile(
    rf"""^(?:
      (?:in|on)\s+(?:the|this)\s+{_PICTURE}\b,?
    | (?:this|that|the|a|an|one)\s+{_PICTURE}\s+(?:that\s+)?(?:(?:has|have|is|does|also|only|still)\s+)*
      (?:features?|shows?|includes?|contains?|depicts?|displays?|presents?|captures?|portrays?|featuring|showing|of|with|where|in\s+which|that|has|is)\b
    | (?:you|we|one)\s+(?:can\s+|could\s+)?(?:see|find|spot)s?\b
    | there(?:'s|\s+(?:is|are|was|were))\b | here\s+(?:is|are)\b
    | it\s+(?:shows?|has|is|features?|includes?|contains?)\b
    | (?:but|and|yet|with|while|whereas|although|though|where|which|that|who|it|only|just|however
        |instead|also|still|by|despite\s+the\s+presence\s+of|,|;|\.|:)(?=\W|$)
    | (?:is|are|was|were)\s+(?:\w+ed\s+(?=\w))?
    )\s*""",
    re.VERBOSE,
)
_TAIL = re.compile(
    rf"""(?:
      [\s,;.:]+
    | \s(?:is|are|was|were)\s+(?:also\s+|clearly\s+)?{_SEEN}(?:\s+(?:in|from)\s+(?:the|this|that)\s+{_PICTURE})?
    | \s(?:but|and|yet|with|while|whereas|although|though|where|that|which|in\s+which|it|has|have|is|are|was|were|does|do|there
        |you|you\s+can|of
        |everything\s+else|everything|anything|something|here|visible|present|included|shown|instead|or|from|in|on|at|who|who's
        |shows?|showing|features?|featuring|contains?|containing|includes?|including|depicts?|displays?|having)
    | \s(?:from|in)\s+(?:the|this|it)(?:\s+{_PICTURE})?
    )$""",
    re.VERBOSE,
)
_EMPTY = re.compile(
    rf"^(?:(?:a|an|the|this|that)\s+)?(?:{_PICTURE}|something|anything|everything|everything\s+else|nothing|it|you|there|this|a|an|the|on|in|at|of|to)?$"
)


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a text asserts and denies.

    Args:
        text: the text.
        asserts: what it asserts, in its own words and with their articles: ``("a man riding a wave", "two dogs")``.
        denies: what it denies, bare and in the singular: ``("cat", "red cup")``.
    """

    text: str
    asserts: tuple[str, ...] = ()
    denies: tuple[str, ...] = ()

    @property
    def caption(self) -> Caption:
        """As a caption; asserted phrases lose their article, as atoms have none."""
        asserts = tuple(_LEADING.sub("", phrase) or phrase for phrase in self.asserts)
        form = ("hybrid" if asserts else "negative") if self.denies else "affirmative"
        return Caption(self.text, -1, form, asserts, self.denies, complete=False)

    @property
    def form(self) -> Form | None:
        """The texts that a rival combines; ``None`` where nothing is denied."""
        if not self.denies:
            return None
        positive = f"a photo of {' and '.join(self.asserts)}" if self.asserts else "a photo"
        return Form(positive, tuple(f"a photo of {_some(noun)}" for noun in self.denies))


def parse(text: str) -> Parsed:
    """Parse an English caption or query.

    Example:
        >>> parse("A red cup and two dogs on a beach, but there is no cat or bird.")
        Parsed(text='A red cup ...', asserts=('a red cup', 'two dogs on a beach'), denies=('cat', 'bird'))
    """
    plain = unicodedata.normalize("NFKC", text.translate(_APOSTROPHES)).lower()
    plain = re.sub(r"\bnobody\b|\bno[ -]?one\b", "no person", re.sub(r"\s+", " ", plain).strip())
    if not has_negation(plain):
        return Parsed(text, tuple(_asserted([plain])))
    denied: list[str] = []
    kept: list[str] = []
    for sentence in re.split(r"(?<=[^\s.])[.!?]+(?:\s+|$)", without_false_cues(plain)):
        if sentence.strip():
            rest, found = _sentence(sentence.strip())
            kept += rest.split(_BREAK)
            denied += found
    return Parsed(text, tuple(_asserted(kept)), tuple(dict.fromkeys(denied)))


def rule_form(text: str) -> Form | None:
    """:func:`parse` as rivals want it: the ``forms`` of a :class:`~clipmend.evaluation.rivals.base.Rival`."""
    return parse(text).form


def _sentence(sentence: str) -> tuple[str, list[str]]:
    """What is left of a sentence, denials cut out and marked, and what they deny."""
    denied: list[str] = []
    # "no cat is visible", "not a cat is in sight": the cue before comes first, so that the one behind is only its tail.
    while True:
        behind, before = _BACKWARD.search(sentence), _FORWARD.search(sentence)
        if behind is not None and (before is None or behind.start() < before.start() or _within(before, behind)):
            start = _clause_start(sentence, behind)
            phrase = sentence[start : behind.start()]
            stop = behind.end() + _tail_length(sentence[behind.end() :])
            denied += _things(phrase, both=re.match(r"\s(?:are|were)\b", behind.group()) is not None)
            sentence = f"{sentence[:start]} {_BREAK} {sentence[stop:]}"
        elif before is not None:
            start, scope = before.start(), sentence[before.end() :]
            length = _scope_length(scope)
            phrase = scope[:length]
            denied += _things(phrase, both=False)
            rest = scope[length:]
            rest = rest[_tail_length(rest) :]
            sentence = f"{sentence[:start]} {_BREAK} {rest}"
        else:
            return sentence, denied


def _within(before: re.Match[str], behind: re.Match[str]) -> bool:
    """Whether the two matched the same "is not": then what follows decides, and the cue behind matched more of it."""
    return before.start() >= behind.start() and before.start() < behind.end()


def _clause_start(sentence: str, behind: re.Match[str]) -> int:
    """Where the noun phrase before a cue begins: after the last boundary before it."""
    plural = re.match(r"\s(?:are|were)\b", behind.group()) is not None
    boundary = _CLAUSE_LIST if plural else _CLAUSE
    last = sentence.rfind(_BREAK, 0, behind.start())
    start = last + 1 if last >= 0 else 0
    for match in boundary.finditer(sentence, start, behind.start()):
        start = match.end()
    return start


def _scope_length(scope: str) -> int:
    """How much of the text after a cue belongs to what it denies."""
    end = _END.search(scope)
    length = end.start() if end else len(scope)
    mark = scope.find(_BREAK)
    if 0 <= mark < length:
        length = mark
    place = _PLACE.search(scope, 0, length)
    if place:
        length = place.start()
    for match in _AND.finditer(scope, 0, length):
        after = scope[match.end() : length]
        # "no cats and dogs" denies both, "no cat and a dog" does not.
        bare = re.match(r"(?:a|an|the|there|some|no|not|it|you|this|one|two|three|several|many|neither|is|are)\b", after) is None
        before = scope[: match.start()].strip()
        if not (bare and after.strip() and len(after.split()) <= 2 and before.endswith("s")):
            return match.start()
    return length


def _tail_length(rest: str) -> int:
    """How much after a denial only says where: "is visible", "in this image", "to be seen"."""
    tail = re.match(
        rf"""(?:\s*(?:(?:is|are|was|were)\s+(?:visible|present|shown|seen|included|there|here|in\s+sight|to\s+be\s+seen)|can\s+be\s+(?:seen|found|spotted)
        |visible|present|here|there|anywhere|nearby|at\s+all|in\s+(?:sight|view|it)|to\s+be\s+(?:seen|found)|included|shown
        |(?:from|in|within|on)\s+(?:the|this|that)\s+{_PICTURE})\b)*""",
        rest,
        re.VERBOSE,
    )
    return tail.end() if tail else 0


def _things(phrase: str, both: bool) -> list[str]:
    """The things named in a denied phrase: bare, in the singular."""
    parts = _OR.split(phrase.strip())
    parts = [piece for part in parts for piece in (_AND.split(part) if both or re.search(r"s\s+and\s+\w+$", part) else [part])]
    things = []
    for part in parts:
        bare = _LEADING.sub("", f"{part.strip()} ").strip(" ,;.:'\"")
        bare = re.sub(rf"^(?:{'|'.join(NUMBER_WORDS[:10])})\s+", "", bare)
        if bare and not _EMPTY.match(bare):
            things.append(singular(bare))
    return things


def _asserted(fragments: Iterable[str]) -> list[str]:
    """Fragments of the text outside denials, without frames and loose words; empty ones left out."""
    kept: list[str] = []
    for fragment in fragments:
        for piece in re.split(r"(?<=\w)\.\s+|;\s+", fragment):
            text = f"{piece.strip()} "
            while True:
                shorter = _TAIL.sub("", _FRAME.sub("", text.strip()).rstrip())
                if shorter == text:
                    break
                text = shorter
            text = text.strip(" ,.;:")
            for part in (p.strip() for p in re.split(r",\s+(?:and\s+)?|\s+and\s+", text)):
                if not part or _EMPTY.match(part):
                    continue
                place = _PREPOSITION.match(part)
                if place and kept:  # "no cat on the table": the place goes on with what was said before
                    kept[-1] = f"{kept[-1]} {part}"
                else:
                    kept.append(part[place.end() :] if place else part)
    return kept


@lru_cache(maxsize=1)
def _number_of_nouns() -> tuple[dict[str, str], frozenset[str], frozenset[str]]:
    """Plural to singular, the singulars, and the mass nouns of the shipped list."""
    nouns = load_nouns()
    plurals = {noun.plural: noun.singular for noun in nouns if noun.plural}
    return plurals, frozenset(n.singular for n in nouns), frozenset(n.singular for n in nouns if n.mass)


def singular(phrase: str) -> str:
    """A noun phrase with its last word in the singular: by the list of nouns, else by the usual endings."""
    plurals, singulars, _ = _number_of_nouns()
    if phrase in plurals:
        return plurals[phrase]
    if phrase in singulars or phrase.endswith(_PAIRS):
        return phrase
    head, of, rest = phrase.partition(" of ")
    if of:
        return f"{singular(head)} of {rest}"  # "pairs of tongs": the head is before the "of"
    head, _, last = phrase.rpartition(" ")
    lead = f"{head} " if head else ""
    if last in singulars:
        return phrase
    if last in plurals:
        return lead + plurals[last]
    if len(last) < 4 or not last.endswith("s") or last.endswith(("ss", "us", "is")):
        return phrase
    if last.endswith("ies"):
        return f"{lead}{last[:-3]}y"
    if last.endswith(("ses", "xes", "ches", "shes", "zes")):
        return lead + last[:-2]
    return lead + last[:-1]


def _some(noun: str) -> str:
    """A noun as it follows "a photo of": mass nouns stand bare."""
    mass = _number_of_nouns()[2]
    return noun if noun.endswith(_PAIRS) or noun in mass or noun.rpartition(" ")[2] in mass else with_article(noun)


@dataclass(frozen=True)
class ParserReport:
    """How often the parser agrees with a known parse.

    Args:
        count: captions that deny something.
        denies: share of them whose denied things it found exactly.
        asserts: share of them whose asserted kinds of thing it found exactly (of those whose kinds are known).
        both: share with both.
        plain: captions that deny nothing.
        false_denials: share of those in which it saw a denial.
        wordings: by wording: captions, and the share with denied things exactly right.
        wrong: up to 20 texts that it got wrong, with what it found.
    """

    count: int
    denies: float
    asserts: float
    both: float
    plain: int
    false_denials: float
    wordings: dict[str, tuple[int, float]]
    wrong: tuple[tuple[str, Parsed], ...]


def measure(captions: Iterable[Caption], kinds: Iterable[str]) -> ParserReport:
    """Judge the parser on captions with a known parse.

    Args:
        captions: gold captions (drawn scenes' own).
        kinds: the nouns, in the singular, by which what is asserted is compared: backgrounds, colours and numbers are not.
    """
    names = set(kinds)
    denying = plain = false = right_denies = right_asserts = right_both = 0
    wordings: dict[str, list[bool]] = {}
    wrong: list[tuple[str, Parsed]] = []
    for gold in captions:
        found = parse(gold.text)
        if not gold.denies:
            plain += 1
            false += bool(found.denies)
            continue
        denying += 1
        denied = set(found.denies) == set(gold.denies)
        mentioned = {singular(word.strip(".,;")) for phrase in found.asserts for word in phrase.split()} & names
        asserted = mentioned == ({atom.split()[-1] for atom in gold.asserts} & names | _counted(gold.asserts, names))
        right_denies += denied
        right_asserts += asserted
        right_both += denied and asserted
        wordings.setdefault(gold.wording, []).append(denied)
        if not (denied and asserted) and len(wrong) < 20:
            wrong.append((gold.text, found))
    shares = {name: (len(rows), sum(rows) / len(rows)) for name, rows in sorted(wordings.items())}
    of = max(denying, 1)
    return ParserReport(
        denying, right_denies / of, right_asserts / of, right_both / of, plain, false / max(plain, 1), shares, tuple(wrong)
    )


def _counted(atoms: Iterable[str], names: set[str]) -> set[str]:
    """Kinds of atoms such as "two cats"."""
    return {singular(atom.split()[-1]) for atom in atoms} & names
