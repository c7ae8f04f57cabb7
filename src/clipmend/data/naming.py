"""From the names that data sets give their categories to nouns that a sentence can hold: singular, plural, counted or not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from clipmend.data.nouns import MASS, Noun, load_nouns, regular_plural
from clipmend.data.tables import problem, read_table, text_field

__all__ = ["Mentions", "Names", "noun_of", "read_nouns"]

# Spellings of Pascal VOC and COCO, and nouns of theirs that the shipped list lacks or that have no regular plural.
_SPELLED = {
    "diningtable": "dining table",
    "pottedplant": "potted plant",
    "tvmonitor": "TV monitor",
    "tv": "TV",
    "skis": "pair of skis",
    "hair drier": "hair dryer",
}
_PAIRS = re.compile(
    r"(scissors|skis|jeans|trousers|pants|shorts|tights|glasses|sunglasses|goggles|tongs|pliers|tweezers|headphones|earphones|"
    r"binoculars|pyjamas|pajamas|overalls|leggings|shears|chopsticks|handcuffs)$"
)
_UNCHANGED = frozenset({"sheep", "fish", "deer", "aircraft", "spacecraft", "bison", "salmon", "moose", "squid", "shrimp", "dice"})
_IRREGULAR = {"man": "men", "woman": "women", "child": "children", "person": "people", "foot": "feet", "tooth": "teeth"}
_IRREGULAR |= {"goose": "geese", "mouse": "mice", "knife": "knives", "leaf": "leaves", "shelf": "shelves", "loaf": "loaves"}
_IRREGULAR |= {"wolf": "wolves", "calf": "calves", "half": "halves", "scarf": "scarves", "policeman": "policemen"}
_UNCOUNTED = """
sand snow water grass fog mist smoke rain ice mud gravel soil dirt furniture luggage food bread rice pasta
cheese butter milk coffee tea wine beer juice soup meat beef pork bacon sugar salt honey jam broccoli lettuce
spinach garlic corn jewellery jewelry clothing equipment graffiti money paper glass metal wood plastic fabric
concrete asphalt foliage vegetation sunlight traffic text writing pavement seaweed hair fur
"""
_MASS = frozenset(_UNCOUNTED.split())

# Other words by which captions mention a category: "a man" is a person.
_ALSO = {
    "person": "man men woman women boy boys girl girls child children kid kids baby babies guy guys lady ladies player players "
    "rider riders skier skiers surfer surfers crowd toddler adult adults someone couple family human humans",
    "bicycle": "bike bikes",
    "motorcycle": "motorbike motorbikes motor-bike",
    "motorbike": "motorcycle motorcycles",
    "airplane": "plane planes aeroplane aeroplanes jet jets airliner aircraft",
    "aeroplane": "plane planes airplane airplanes jet jets airliner aircraft",
    "couch": "sofa sofas couches",
    "sofa": "couch couches sofas",
    "TV": "television televisions tvs monitor monitors screen screens",
    "TV monitor": "television televisions tv tvs monitor monitors screen screens",
    "cell phone": "phone phones cellphone cellphones smartphone smartphones mobile",
    "dining table": "table tables",
    "potted plant": "plant plants",
    "refrigerator": "fridge fridges",
    "donut": "doughnut doughnuts",
    "laptop": "computer computers",
    "cow": "cattle calf bull bulls",
    "sheep": "lamb lambs",
    "dog": "puppy puppies",
    "cat": "kitten kittens kitty",
    "handbag": "purse purses bag bags",
    "backpack": "rucksack bag bags",
    "sports ball": "ball balls baseball soccer football basketball",
    "mouse": "computer mouse",
    "hair dryer": "hair drier hairdryer blow dryer",
    "boat": "ship ships sailboat sailboats canoe kayak",
    "tie": "necktie neckties",
    "oven": "stove stoves",
    "toilet": "urinal urinals",
    "horse": "pony ponies",
    "bird": "duck ducks goose geese seagull seagulls pigeon pigeons parrot owl eagle chicken chickens",
}
# Entries of several words stand in the table without a mark; these are the ones.
_PHRASES = ("computer mouse", "hair drier", "blow dryer")


@lru_cache(maxsize=1)
def _shipped() -> dict[str, Noun]:
    return {noun.singular: noun for noun in load_nouns()}


def noun_of(category: str) -> Noun:
    """The noun for a category, whatever way a data set spells it.

    ``"diningtable"`` gives "dining table", ``"traffic_light"`` "traffic light", ``"scissors"`` "pair of scissors", ``"broccoli"`` a
    mass noun. What the shipped list of nouns lacks follows the plural of its last word, else the rules of spelling.

    Raises:
        ValueError: no letter in it.
    """
    name = re.sub(r"\s*\([^)]*\)", "", category.replace("_", " "))  # "bow (ribbon)" speaks of a bow
    name = " ".join(name.split())
    if not any(c.isalpha() for c in name):
        raise ValueError(f"the category {category!r} is no noun: it holds no letter")
    name = " ".join(
        word if word[1:] != word[1:].lower() else word.lower() for word in name.split()
    )  # "TV" stays, "Person" does not
    name = _SPELLED.get(name, name)
    shipped = _shipped()
    if name in shipped:
        return shipped[name]
    *before, last = name.split(" ")
    if _PAIRS.fullmatch(last) and before[:2] != ["pair", "of"]:
        return Noun(f"pair of {name}", f"pairs of {name}", False, "given")
    if before[:2] == ["pair", "of"]:
        return Noun(name, f"pairs {' '.join([*before[1:], last])}", False, "given")
    if last in _MASS:
        return Noun(name, None, True, "given")
    if last in _UNCHANGED:
        many: str | None = last
    elif last in _IRREGULAR:
        many = _IRREGULAR[last]
    elif last in shipped:
        many = shipped[last].plural
    else:
        many = regular_plural(last)
    return Noun(name, None if many is None else " ".join([*before, many]), many is None, "given")


def read_nouns(path: str | Path) -> dict[str, Noun]:
    """Nouns of one's own: a CSV with ``category, singular, plural``, the plural ``-`` for a noun that is not counted.

    Raises:
        ValueError: naming file and line: a column missing, a field blank, a category named twice.
    """
    path = Path(path)
    nouns: dict[str, Noun] = {}
    for line, row in read_table(path, ("category", "singular", "plural"))[1]:
        category, singular, plural = (text_field(path, line, row, column) for column in ("category", "singular", "plural"))
        if category in nouns:
            raise problem(path, line, f"the category {category!r} is named twice")
        nouns[category] = Noun(singular, None if plural == MASS else plural, plural == MASS, "given")
    return nouns


class Names:
    """The noun of each category of a data set.

    Args:
        given: nouns of your own by category; they come first.
    """

    def __init__(self, given: Mapping[str, Noun] | None = None) -> None:
        self._nouns: dict[str, Noun] = dict(given or {})
        self._category: dict[str, str] = {}

    def atom(self, category: str) -> str:
        """The fact that an image shows the category: the noun's singular.

        Raises:
            ValueError: two categories have one noun, so that a caption could not tell them apart.
        """
        noun = self._nouns.get(category)
        if noun is None:
            noun = self._nouns[category] = noun_of(category)
        other = self._category.setdefault(noun.singular, category)
        if other != category:
            raise ValueError(f"the categories {other!r} and {category!r} are both called {noun.singular!r}; give them other nouns")
        return noun.singular

    def nouns(self) -> dict[str, Noun]:
        """The nouns by atom, of the categories that were asked for."""
        return {atom: self._nouns[category] for atom, category in self._category.items()}


class Mentions:
    """Which things a caption speaks of, by its words: the noun in either number, and common other words for it.

    Args:
        nouns: by atom.
    """

    def __init__(self, nouns: Mapping[str, Noun]) -> None:
        self._atoms: dict[str, set[str]] = {}
        for atom, noun in nouns.items():
            for word in _words(atom, noun):
                self._atoms.setdefault(word, set()).add(atom)
        longest = sorted(self._atoms, key=lambda w: (-len(w), w))
        self._pattern = re.compile(rf"\b({'|'.join(map(re.escape, longest))})\b") if longest else None

    def __call__(self, captions: Iterable[str]) -> frozenset[str]:
        """The atoms that any of the captions mentions; the longest match counts, so that a hot dog is no dog."""
        if self._pattern is None:
            return frozenset()
        found: set[str] = set()
        for caption in captions:
            for match in self._pattern.finditer(caption.lower().replace("-", " ")):
                found |= self._atoms[match.group()]
        return frozenset(found)


def _words(atom: str, noun: Noun) -> set[str]:
    words = {atom, noun.singular, noun.some}
    also = _ALSO.get(atom, "")
    for phrase in _PHRASES:
        if phrase in also:
            words.add(phrase)
            also = also.replace(phrase, "")
    words |= set(also.split())
    words |= {word.partition(" of ")[2] for word in words if word.startswith(("pair of ", "pairs of "))}
    return {word.lower().replace("-", " ") for word in words if word}
