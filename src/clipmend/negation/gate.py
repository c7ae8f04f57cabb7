"""The gate: does a caption deny anything? Captions that do not may keep their plain embedding exactly.

A list of English cues, not a parser. It leans towards "yes": a false trigger only sends a plain caption through a correction that
was trained to leave it alone, while a miss loses the negation.

What it cannot do: other languages (a Spanish "no" triggers, "sin" does not; a German "kein" is missed); negation by meaning
alone ("a bare wall", "an empty street", "refuses"), or inside a word but for those in -less ("unlit" is missed, "treeless" is not);
scope (which word is denied); a count that looks like a number ("no 5 star hotels" is missed); quoted text ("a sign that says no
parking" triggers); spelling mistakes.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["GateReport", "gate_report", "has_negation", "without_false_cues"]

_AUXILIARIES = "ai|are|ca|could|dare|did|does|do|had|has|have|is|may|might|must|need|ought|sha|should|was|were|wo|would"

# Removed before the cues are looked for: they hold a cue's letters and deny nothing.
_NOT_NEGATION = re.compile(
    r"""
      \bnos?\s?(?:\.\s?\#?|\#)\d+       # no. 5, no.5, no #5
    | \bnos\s?\d+                       # nos 3
    | \bno\s\d+[a-c]?(?!\w|-\w)        # no 5, no 12a; but not "no 3d effects", "no 90s cars", "no 2-story houses"
    | \bnot\s(?:only|just|merely)\b      # not only a dog but also a cat
    | \bno\s(?:doubt|matter|wonder)\b
    | \b(?:whether\sor|if\sor)\snot\b
    | \bwhether\s(?P<asked>.{1,40})\sor\snot\b
    | \bnever\smind\b
    | \b(?:second\sto|bar)\snone\b
    | \bnone\sother\sthan\b
    | \bnothing\sless\sthan\b
    | \bno\sless\sthan\b
    | \bnon[- ]?stop\b                   # but not "no stop sign"
    | \bnon[- ]?profits?\b
    | \bnon[- ]?stick\b
    | \bnon[- ]?fiction\b
    | \bsans[- ]?serif\b
    | \bcomic\ssans\b
    | \babsent[- ]?minded(?:ly)?\b
    | \bminus\s?\d+                      # minus 5 degrees
    | \bminus\ssigns?\b
    | \bmissing\s(?:links?\b|(?:persons?|child|children)\s(?:posters?|notices?|reports?|signs?|flyers?)\b)
    | \b(?:duty|tax|toll|hands)-free\b
    | \b(?:forget|touch)-me-nots?\b
    | \bnever[- ]?ending\b | \bnever[- ]?land\b
    | \black-?lust(?:re|er)\b
    | \bnone\sof\s(?:your|my|our|his|her|their)\sbusiness\b
    | \bdr\.?\sno\b
    | \b(?:ground|absolute|sub|below|above|net|under)[- ]zero\b
    | \bzero\s(?:on|at|in)\b              # a zero on a scoreboard
    | \bzero[- ](?:gravity|degrees?|point|hour|emissions?|waste|carbon|tolerance)\b
    """,
    re.VERBOSE,
)

# Words in -less that name a kind of thing, a mood or a measure rather than something that is not there to be seen.
_NOT_LESS = (
    "un|nonethe|neverthe|regard|wire|cord|stain|seam|end|time|home|motion|price|fear|flaw|care|use|harm|help|rest|reck|ruth|breath|"
    "count|bound|limit|effort|doubt|weight|hope|sense|tire|relent|spot|speech|heart|shame|worth|self|aim|mind|pain|bottom|name"
)

_CUE = re.compile(
    rf"""
      \b(?:no|not|none|never|nothing|nobody|nowhere|neither|nor|nary|cannot|without|sans|minus|zero(?=[\s]\w))\b
    | \bno[- ]?one\b
    | (?<!\w)w/o(?:ut)?(?!\w)
    | \b(?!(?:{_NOT_LESS})less\b)[a-z]{{2,}}-?less\b    # treeless
    | \b(?:hardly|barely|scarcely)\san?y?\b
    | \b(?:{_AUXILIARIES})n\s?'\s?t\b     # isn't, isn 't
    | (?<!\w)n't\b                        # is n't
    | \b(?:ain|aren|couldn|didn|doesn|don|hadn|hasn|haven|isn|mightn|mustn|needn|shan|shouldn|wasn|weren|wouldn)\s?t\b  # isnt
    | \b(?:won|can)t\b
    | \black(?:s|ed|ing)?\b
    | \b(?:de)?void\sof\b | \bdevoid\b | \bbereft\sof\b | \b(?:empty|emptied|deprived|stripped|cleared|rid)\sof\b
    | \b(?:removed|vanished|disappeared|non-?existent)\b | \btaken\saway\b
    | \bfree\s(?:of|from)\b
    | \b\w+-free\b                        # sugar-free
    | \babsent\b | \babsence\b | \bmissing\b
    | \bexcept(?:ing)?\b | \bexcl\b | \bexclud(?:e|es|ed|ing)\b | \bexclusive\sof\b | \bbarring\b
    | \b(?:apart|aside)\sfrom\b
    | \b(?:other|rather)\sthan\b | \binstead\sof\b
    | \b(?:anything|all|everything|everyone)\sbut\b
    | \bfail(?:s|ed|ing)?\sto\b
    | \bomit(?:s|ted|ting)?\b
    | \b(?:leave|leaves|leaving|left)\sout\b
    | \b(?:clear|bare)\sof\b
    | \bnon-\w+                           # non-red
    """,
    re.VERBOSE,
)

_ALIKE = str.maketrans(
    dict.fromkeys("‘’‛ʻʼʽʹ′´`΄᾽᾿՚ꞌ＇", "'")
    | dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", "-")  # hyphens, one that does not break among them; en dash; minus
    | dict.fromkeys("_\u200b\ufeff", " ")
    | {"\u00ad": ""}  # a soft hyphen
)


def has_negation(text: str) -> bool:
    """Whether an English caption holds a negation cue.

    Case, kind of apostrophe, hyphen and white space do not matter. See the module's own text for what it cannot do.

    Example:
        >>> has_negation("a street with no cars"), has_negation("it isn’t a dog"), has_negation("locker no. 5 and a notebook")
        (True, True, False)
    """
    plain = unicodedata.normalize("NFKC", text.translate(_ALIKE)).lower()
    plain = re.sub(r"\s+", " ", plain)
    return _CUE.search(without_false_cues(plain)) is not None


def without_false_cues(text: str) -> str:
    """Lower-case text without the phrases that hold a cue's letters and deny nothing ("not only", "no. 5", "non-stop")."""
    return _NOT_NEGATION.sub(_rest, text)


def _rest(phrase: re.Match[str]) -> str:
    """What is left of a false cue: what is asked with "whether ... or not", where that denies something itself."""
    asked = phrase["asked"]
    return f" {asked} " if asked and _CUE.search(asked) else " "


@dataclass(frozen=True)
class GateReport:
    """How often the gate is wrong on captions whose negation is known.

    Args:
        plain: captions labelled as without negation.
        negated: captions labelled as negated.
        false_triggers: the plain captions in which it saw a cue.
        misses: the negated captions in which it saw none.
    """

    plain: int
    negated: int
    false_triggers: tuple[str, ...]
    misses: tuple[str, ...]

    @property
    def false_trigger_rate(self) -> float | None:
        """Share of plain captions with a cue; ``None`` where there are no plain captions."""
        return len(self.false_triggers) / self.plain if self.plain else None

    @property
    def miss_rate(self) -> float | None:
        """Share of negated captions without a cue; ``None`` where there are no negated captions."""
        return len(self.misses) / self.negated if self.negated else None

    def to_dict(self) -> dict[str, float | int | None]:
        """Counts and rates, ready for JSON."""
        return {
            "plain": self.plain,
            "negated": self.negated,
            "false_triggers": len(self.false_triggers),
            "misses": len(self.misses),
            "false_trigger_rate": self.false_trigger_rate,
            "miss_rate": self.miss_rate,
        }


def gate_report(texts: Sequence[str], labels: Sequence[bool]) -> GateReport:
    """Judge the gate on captions with known labels.

    Args:
        texts: captions.
        labels: True where the caption is negated (or hybrid).

    Raises:
        ValueError: not one label a text.
    """
    if len(texts) != len(labels):
        raise ValueError(f"{len(texts)} texts but {len(labels)} labels")
    seen = [has_negation(text) for text in texts]
    false_triggers = tuple(t for t, cue, label in zip(texts, seen, labels, strict=True) if cue and not label)
    misses = tuple(t for t, cue, label in zip(texts, seen, labels, strict=True) if not cue and label)
    negated = sum(map(bool, labels))
    return GateReport(len(texts) - negated, negated, false_triggers, misses)
