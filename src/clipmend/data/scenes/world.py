"""What exists in the drawn world: kinds, colours, sizes, backgrounds, and which kinds are reserved.

Reserved kinds and reserved wordings (:mod:`clipmend.data.scenes.wordings`) were chosen once. Reserved kinds are drawn and asserted
like all others, but no training text ever *denies* one; reserved wordings appear in no training text at all. They measure whether
a patch learned negation as an operation or only about the nouns and phrases it was shown.
"""

from __future__ import annotations

from dataclasses import dataclass

from clipmend.data.scenes.wordings import ALL_WORDINGS, RESERVED_WORDINGS, WORDINGS, Wording

__all__ = [
    "ALL_WORDINGS",
    "BACKGROUNDS",
    "COLOURS",
    "DENIABLE_KINDS",
    "KINDS",
    "NUMBERS",
    "RESERVED_KINDS",
    "RESERVED_WORDINGS",
    "SIZES",
    "SIZE_WORDS",
    "WORDINGS",
    "Background",
    "Wording",
    "allowed_colours",
    "article",
    "plural",
    "with_article",
]

_PLURALS: dict[str, str] = {
    "cat": "cats",
    "dog": "dogs",
    "fish": "fish",
    "bird": "birds",
    "butterfly": "butterflies",
    "snail": "snails",
    "turtle": "turtles",
    "tree": "trees",
    "flower": "flowers",
    "mushroom": "mushrooms",
    "cactus": "cacti",
    "apple": "apples",
    "house": "houses",
    "car": "cars",
    "boat": "boats",
    "bicycle": "bicycles",
    "airplane": "airplanes",
    "rocket": "rockets",
    "cup": "cups",
    "umbrella": "umbrellas",
    "chair": "chairs",
    "clock": "clocks",
    "balloon": "balloons",
    "book": "books",
    "hat": "hats",
    "lamp": "lamps",
    "key": "keys",
    "guitar": "guitars",
    "crown": "crowns",
    "bell": "bells",
}

KINDS: tuple[str, ...] = tuple(_PLURALS)
"""Everything that can be drawn; each a common noun, each with its own silhouette."""

RESERVED_KINDS: tuple[str, ...] = ("dog", "mushroom", "boat", "umbrella", "clock", "guitar")
"""Drawn and asserted, but denied in no training text."""

DENIABLE_KINDS: tuple[str, ...] = tuple(kind for kind in KINDS if kind not in RESERVED_KINDS)
"""Kinds that training texts may deny."""

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (216, 32, 36),
    "orange": (246, 128, 22),
    "yellow": (252, 218, 44),
    "green": (40, 160, 62),
    "blue": (36, 92, 222),
    "purple": (128, 52, 186),
    "pink": (250, 142, 196),
    "white": (250, 250, 248),
}
"""Colour of an object by name, sRGB 0-255."""

SIZES: dict[str, float] = {"small": 0.21, "medium": 0.31, "large": 0.44}
"""Longest side of an object as a fraction of the image's side (each varies by 5% either way)."""

SIZE_WORDS: dict[str, tuple[str, ...]] = {"small": ("small", "little"), "medium": ("medium-sized",), "large": ("large", "big")}
"""How captions name a size."""

NUMBERS: dict[int, str] = {1: "one", 2: "two", 3: "three"}


@dataclass(frozen=True, slots=True)
class Background:
    """A background and how captions speak of it.

    Args:
        name: its name; the atom that states it is ``f"at {name}"``.
        place: adverbial, as in "a cat on a beach".
        noun: noun phrase, as in "a beach with a cat".
        clashes: colours that no object has in front of it, because they would not stand out.
        details: sentences that describe it, for long paragraphs.
    """

    name: str
    place: str
    noun: str
    clashes: frozenset[str]
    details: tuple[str, str]

    @property
    def atom(self) -> str:
        """The fact that a scene has this background."""
        return f"at {self.name}"


def _background(name: str, place: str, noun: str, clashes: str, *details: str) -> Background:
    first, second = details
    return Background(name, place, noun, frozenset(clashes.split()), (first, second))


BACKGROUNDS: dict[str, Background] = {
    background.name: background
    for background in (
        _background(
            "beach", "on a beach", "a beach", "yellow",
            "Pale sand fills the lower part, and calm turquoise water stretches behind it up to the horizon.",
            "The air above the water is clear and bright, and gentle waves roll towards the shore.",
        ),
        _background(
            "meadow", "in a meadow", "a meadow", "green",
            "Fresh grass covers the gentle hills, and short blades of it catch the light.",
            "Above the rolling hills the air is bright and a few soft clouds drift along.",
        ),
        _background(
            "desert", "in the desert", "a desert", "orange yellow",
            "Long dunes of warm sand lie one behind the other, each with a soft shaded slope.",
            "The air above the dunes is hazy and pale from the heat of the day.",
        ),
        _background(
            "snow", "in the snow", "a snowy field", "white",
            "A thick layer of snow covers the ground, and single flakes are still falling slowly.",
            "The air is cold and grey, and the drifts in the distance look soft and untouched.",
        ),
        _background(
            "night sky", "under a night sky", "a night sky", "blue purple",
            "It is dark, and many tiny points of light are scattered over the deep blue above.",
            "Towards the bottom the darkness turns a little paler, as it does long after sunset.",
        ),
        _background(
            "street", "on a street", "a street", "",
            "Grey asphalt with a dashed line runs across the lower part, next to a paved walkway.",
            "Behind the walkway stands a long plain brick wall that reaches up to the top.",
        ),
        _background(
            "kitchen", "in a kitchen", "a kitchen", "white",
            "Square pale tiles cover the wall, and a long wooden counter runs along the bottom.",
            "The grout between the tiles forms a regular grid, and everything looks clean and tidy.",
        ),
        _background(
            "mountains", "in the mountains", "a mountain landscape", "white",
            "Jagged grey peaks with pale tops rise in the distance, one row behind the other.",
            "The lower slopes are rocky and bare, and a thin mist hangs between the ridges.",
        ),
    )
}  # fmt: skip
"""The eight backgrounds. None shows anything that is among :data:`KINDS`."""


def allowed_colours(background: str) -> tuple[str, ...]:
    """Colours that stand out in front of a background, in the order of :data:`COLOURS`."""
    clashes = BACKGROUNDS[background].clashes
    return tuple(colour for colour in COLOURS if colour not in clashes)


def plural(kind: str) -> str:
    """Plural of a kind: ``"butterfly"`` gives ``"butterflies"``."""
    return _PLURALS[kind]


def article(word: str) -> str:
    """The indefinite article that goes before a word of this world: ``"an"`` before a vowel, else ``"a"``."""
    return "an" if word[0].lower() in "aeiou" else "a"


def with_article(words: str) -> str:
    """``"orange cup"`` gives ``"an orange cup"``."""
    return f"{article(words)} {words}"
