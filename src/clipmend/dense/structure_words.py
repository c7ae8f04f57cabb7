"""Captions without the words for colour, material and texture, by word lists and the words around them."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

__all__ = ["strip_appearance"]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Colours and nothing else, as descriptions of images have them.
_COLOURS = _words(
    "red blue green yellow black white gray grey purple brown beige cyan magenta turquoise teal maroon indigo "
    "burgundy crimson scarlet "
    "azure khaki reddish bluish greenish yellowish blackish whitish greyish grayish purplish pinkish brownish "
    "orangish golden silvery "
    "multicolored multicoloured colorful colourful multi-colored multi-coloured monochrome monochromatic fuchsia "
    "chartreuse ochre taupe "
    "off-white jet-black snow-white sky-blue navy-blue"
)
# Colours that are things too (fruit, flowers, metals, food, animals): taken out only where they describe what follows.
_COLOUR_THINGS = _words(
    "orange rose pink plum peach olive lime lemon cherry apricot gold silver bronze copper cream mint lavender lilac violet ivory "
    "salmon coral mustard chocolate coffee caramel charcoal rust emerald ruby sapphire amber jade navy tan chestnut mahogany aqua "
    "aquamarine mauve wine cobalt ebony"
)
_MATERIALS = _words("wooden metallic woollen woolen leathery plastic-covered stainless-steel wrought-iron faux-leather")
_MATERIAL_THINGS = _words(
    "wood metal steel iron glass stone brick marble granite concrete clay paper cardboard plastic rubber leather wool silk linen "
    "canvas bamboo brass tin fur lace felt fleece foam vinyl wicker rattan tile straw feather cloth fabric cotton "
    "denim suede velvet "
    "satin chiffon polyester nylon spandex rayon cashmere corduroy tweed aluminum aluminium ceramic porcelain linoleum"
)
_TEXTURES = _words(
    "glossy matte shiny grainy fuzzy fluffy silky velvety wrinkled crumpled woven knitted striped plaid checkered "
    "chequered checked "
    "dotted polka-dot polka-dotted spotted speckled mottled paisley herringbone textured patterned smooth coarse furry "
    "camouflage-patterned translucent frosted lustrous iridescent"
)
# Shades, before a colour: "light blue", "dark brown".
_SHADES = _words("light dark pale bright deep vivid pastel neon faded dusty soft hot baby sky royal navy forest lime olive off")
# A colour word before one of these belongs to it and is no colour there.
_COMPOUNDS = _words(
    "juice peel tree trees grove blossom blossoms slice slices wedge wedges zest marmalade garden gardens bush bushes petal petals "
    "window windows medal medals mine mines bar bars coin coins jewelry jewellery leaf bullion rush tomato "
    "tomatoes pudding pie tart "
    "jam cake cakes cheese cup cups bean beans shop shops house houses oil branch branches pit pits pits sauce soup glass glasses "
    "fish fillet reef reefs seed seeds tea grower growers cutlery trophy trophies smith plates lake ice chip chips cookie cookies "
    "bread board lane stick sticks stain stains remover salad gas soda lamp shade field fields bed beds hip hips "
    "water guard officer "
    "ship ships uniform base pier drink milk pepper peppers grass rink panther industry mill mills worker workers bottle "
    "bottles tray clip clips towel towels bag bags plane planes cracker crackers vine"
)
# Fixed phrases whose colour names a thing of its own.
_KEPT = re.compile(
    r"\b(?:red (?:cross|carpet|cabbage|wine|panda|fox|onion)s?|white (?:wine|house|wash|water|board)s?|black(?:board|berry|bird)s?|"
    r"black (?:bear|hole|market|pepper|tie|bean|belt)s?|green (?:house|bean|tea|pepper|onion)s?|blue(?:berry|bird|"
    r"bell|print)s?|blue "
    r"(?:jay|whale|cheese)s?|brown (?:bear|rice|sugar)s?|grey ?hounds?|gr[ae]y (?:wolf|squirrel|seal)s?|yellow pages|"
    r"(?:gold|silver|bronze) (?:medal|trophy|coin|cup)\w*|rolling stones?|paper (?:towel|clip|plane)s?|"
    r"(?:stained|magnifying|drinking|wine|looking|hour) ?glass(?:es)?|orange juice|tin can)\b",
    re.IGNORECASE,
)
# What a describing word is not before: here the sentence goes on without a noun of its own.
_FUNCTION = _words(
    "a an and are as at be been but by for from had has have he her his in into is it its near next not of off on onto or over she "
    "so than that the their them there these they this those to under up was were which while who with within without behind above "
    "below beside between along across around against about after before during through toward towards can could may might will "
    "would should must do does did where when also too both all some many most each every no two three four five six seven eight "
    "nine ten lies lie sits sit stands stand rests rest hangs hang grows grow blooms bloom falls fall floats float"
)
_DEGREES = _words("very quite mostly partly slightly somewhat rather mainly entirely all fully partially completely deeply")
_BE = _words("is are was were be been being looks look appears appear seems seem turned painted colored coloured dyed")
_DETERMINERS = _words("a an the")
_NOUNS_IN_LY = _words("fly butterfly dragonfly belly lily family jelly bully ally trolley dolly")
_JOINS = _words("and or with")

_TOKEN = re.compile(r"[^\W\d_]+(?:[-'\u2019][^\W\d_]+)*|\d+(?:[.,]\d+)*|\s+|.", re.DOTALL)


def strip_appearance(text: str, least: int = 1) -> str:
    """A caption without its words for colour, material and texture.

    Words that name nothing but an appearance go wherever they stand: "a red car", "the car is red". Words that are things as well
    (orange, rose, plum, gold, glass, stone) go only where they describe what follows ("an orange car", "a glass door") or stand
    behind a form of *to be* without an article ("the car is orange"). They stay as things ("an orange and a knife", "a rose in a
    vase") and in compounds ("orange juice", "a gold medal"). Words left pointing at nothing ("very", "and") go with them, and "an"
    becomes "a" where the next word wants it.

    It knows words, not grammar: it errs towards keeping a word.

    Args:
        text: the caption.
        least: words of content that must be left; else the caption comes back as it is, its spaces made single.
    """
    clean = " ".join(text.split())
    kept = [match.span() for match in _KEPT.finditer(clean)]
    pieces = list(_TOKEN.finditer(clean))
    words = [k for k, piece in enumerate(pieces) if piece.group()[0].isalpha()]
    place = {k: n for n, k in enumerate(words)}
    low = [pieces[k].group().lower() for k in words]
    gone: set[int] = set()

    def held(n: int) -> bool:
        return any(begin <= pieces[words[n]].start() < end for begin, end in kept)

    def adjacent(n: int) -> bool:
        """Whether nothing but a space or a hyphen is between word ``n`` and the next."""
        return n + 1 < len(words) and clean[pieces[words[n]].end() : pieces[words[n + 1]].start()] in (" ", "-")

    for n in range(len(words) - 1, -1, -1):  # backwards: whether the next word is one that goes is known
        if not held(n) and _is_appearance(low, n, adjacent, gone):
            gone.add(n)
    for n in sorted(gone):
        m = n - 1
        while m >= 0 and m not in gone and adjacent(m) and not held(m) and (low[m] in _DEGREES or low[m] in _SHADES):
            gone.add(m)
            m -= 1
    gone |= {n for n in range(1, len(words) - 1) if low[n] in _JOINS and n - 1 in gone and n + 1 in gone}
    for first in sorted(n for n in gone if n - 1 not in gone):
        last = next(n for n in range(first, len(words) + 1) if n + 1 not in gone)
        if not first or not adjacent(first - 1):
            continue
        if low[first - 1] in _DETERMINERS and not (adjacent(last) and low[last + 1] not in _FUNCTION):
            gone -= set(range(first, last + 1))  # "a pale blue": it would leave an article alone
        elif low[first - 1] in _BE and not adjacent(last):
            gone.add(first - 1)  # "the car is red.": nothing is left to say with "is"
    if not gone:
        return clean
    left = _tidy("".join("" if place.get(k) in gone else piece.group() for k, piece in enumerate(pieces)))
    if clean[0].isupper():
        left = left[:1].upper() + left[1:]
    content = [word for word in re.findall(r"[^\W\d_]+", left.lower()) if word not in _FUNCTION]
    return left if len(content) >= least else clean


def _is_appearance(low: list[str], n: int, adjacent: Callable[[int], bool], gone: set[int]) -> bool:
    """Whether word ``n`` tells an appearance; ``gone``: the words behind it that do."""
    word = low[n]
    parts = word.split("-")
    if word in _COLOURS | _MATERIALS | _TEXTURES or (len(parts) > 1 and parts[-1] in ("colored", "coloured", "toned")):
        return True
    if len(parts) == 2 and parts[0] in _SHADES and parts[1] in _COLOURS | _COLOUR_THINGS:
        return True
    if word not in _COLOUR_THINGS | _MATERIAL_THINGS:
        return False
    if adjacent(n):
        following = low[n + 1]
        if n + 1 in gone:  # "orange leather chair": what goes must itself be before a thing
            after = next((m for m in range(n + 1, len(low)) if m not in gone), None)
            if after is not None and all(adjacent(m) for m in range(n, after)) and _is_thing(low[after]):
                return True
        elif following in _COMPOUNDS:
            return False
        elif _is_thing(following):
            return True
        elif following in ("and", "or") and adjacent(n + 1) and n + 2 in gone and low[n + 2] in _COLOURS | _COLOUR_THINGS:
            return True  # "orange and white stripes"
    before = n - 1
    while before >= 0 and adjacent(before) and (low[before] in _DEGREES or low[before] in _SHADES):
        before -= 1
    return word in _COLOUR_THINGS and before >= 0 and adjacent(before) and low[before] in _BE


def _is_thing(word: str) -> bool:
    """Whether a word may be what an adjective before it describes."""
    adverb = word.endswith("ly") and word not in _NOUNS_IN_LY
    return word not in _FUNCTION and not adverb and not word.endswith("ed")


@lru_cache(maxsize=64)
def _article(word: str) -> str:
    return "an" if word[:1] in "aeiou" and not word.startswith(("one", "uni", "use", "eu")) else "a"


def _tidy(text: str) -> str:
    text = re.sub(r"\s+", " ", text)
    text = re.sub(r"(?<=\s)-+(?=\s)|(?<=\s)-(?=\w)|(?<=\w)-(?=\s)", "", text)
    text = re.sub(r"\s+", " ", text)
    text = re.sub(r"(?:\s*,)+\s*([.;:!?])", r"\1", text)
    text = re.sub(r"\s*,(?:\s*,)+", ",", text)
    text = re.sub(r"\s+([,.;:!?])", r"\1", text)
    text = re.sub(r"\b(a|an|the),\s+", r"\1 ", text, flags=re.IGNORECASE)
    text = text.strip(" ,")

    def fitting(match: re.Match[str]) -> str:
        article, word = match[1], match[2]
        wanted = _article(word.lower())
        return f"{wanted.capitalize() if article[0].isupper() else wanted} {word}"

    text = re.sub(r"\b([Aa]n?) ([^\W\d_]+)", fitting, text)
    return re.sub(r"([.!?] )([a-z])", lambda m: m[1] + m[2].upper(), text)
