"""Long paragraphs, near-twins of scenes, and minimal pairs of captions."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from clipmend.data.scenes.draw import Scene, box_around, overlap, with_object
from clipmend.data.scenes.facts import count_atom, scene_facts, text_rng
from clipmend.data.scenes.world import (
    BACKGROUNDS,
    COLOURS,
    DENIABLE_KINDS,
    KINDS,
    NUMBERS,
    SIZE_WORDS,
    SIZES,
    allowed_colours,
    with_article,
)

__all__ = ["MAX_WORDS", "MIN_WORDS", "Change", "Dense", "Pair", "dense_captions", "minimal_pairs", "paragraph", "twin"]

MIN_WORDS, MAX_WORDS = 60, 150
_TWIN_OVERLAP = 0.12
_COUNTS = ("", "one object", "two objects", "three objects", "four objects", "five objects", "six objects")
_FILLERS = (
    "Everything is drawn with clean dark outlines and even colours.",
    "The light is soft and comes from all sides alike.",
    "The whole drawing is simple and easy to take in at a glance.",
)
_OBJECT_SENTENCES = (
    "{Where} of the picture there is {thing}.",
    "{Thing} can be seen {where} of the image.",
    "{Where}, one finds {thing}, drawn with a dark outline.",
    "There is {thing} {where} of the scene.",
)
_NEGATION_FRAMES = {
    "with / without": ("a photo with {a}", "a photo without {a}"),
    "of / of no": ("a photo of {a}", "a photo of no {x}"),
    "there is": ("there is {a} in the picture", "there is no {x} in the picture"),
    "feature": ("this image features {a}", "this image does not feature {a}"),
    "see": ("you can see {a}", "you cannot see {a}"),
    "present": ("{a} is present", "{a} is not present"),
    "show": ("the picture shows {a}", "the picture does not show {a}"),
}


@dataclass(frozen=True, slots=True)
class Change:
    """What tells a twin from its scene: ``attribute`` (background, kind, colour or size) of object ``index`` (-1: none)."""

    attribute: str
    before: str
    after: str
    index: int = -1


@dataclass(frozen=True, slots=True)
class Dense:
    """A scene, its twin, and a paragraph for each: the paragraphs differ in the words that say what changed."""

    scene: Scene
    caption: str
    twin: Scene
    twin_caption: str
    change: Change

    def to_json(self) -> dict[str, Any]:
        """As a row of ``dense.jsonl``."""
        return {
            "image": self.scene.name,
            "caption": self.caption,
            "twin_image": self.twin.name,
            "twin_caption": self.twin_caption,
            "change": asdict(self.change),
        }


@dataclass(frozen=True, slots=True)
class Pair:
    """A caption true of an image and the smallest change that makes it false.

    Args:
        kind: ``"negation"``, ``"attribute"``, ``"relation"``, ``"order"`` or ``"count"``.
        positive: true of the image.
        contrast: false of it.
        image: position of the scene.
        group: the frame; pairs of one group differ in their objects only.
        object: the kind that the pair is about.
    """

    kind: str
    positive: str
    contrast: str
    image: int
    group: str
    object: str


def _where(scene: Scene, index: int) -> str:
    x, y = scene.objects[index].centre
    column = "left" if x < 0.36 else "right" if x > 0.64 else ""
    row = "upper" if y < 0.36 else "lower" if y > 0.64 else ""
    if row and column:
        return f"in the {row} {column} part"
    if column:
        return f"on the {column} side"
    return f"in the {row} part" if row else "in the middle"


def paragraph(scene: Scene, rng: random.Random, unclear: frozenset[int] = frozenset()) -> str:
    """Describe a scene in 60-150 words: background, every object with size, colour and place, and how they stand to each other.

    Args:
        scene: the scene.
        rng: source of choices; the same state gives scenes of equal layout the same sentences.
        unclear: objects that no relation is told of, since another one looks alike.
    """
    background = BACKGROUNDS[scene.background]
    names = [f"{SIZE_WORDS[o.size][0]} {o.colour} {o.kind}" for o in scene.objects]
    sentences = [f"This is a drawing of {background.noun} with {_COUNTS[len(names)]}.", background.details[0]]
    order = list(range(len(names)))
    rng.shuffle(order)
    for index in order:
        thing, where = with_article(names[index]), _where(scene, index)
        template = rng.choice(_OBJECT_SENTENCES)
        sentences.append(template.format(thing=thing, Thing=_capital(thing), where=where, Where=_capital(where)))
    relations = scene.relations()
    rng.shuffle(relations)
    tail = [background.details[1]]
    fillers = list(_FILLERS)
    rng.shuffle(fillers)
    told = 0
    for first, relation, second in relations:
        if told == 3 or _words([*sentences, *tail]) > 105:
            break
        if first in unclear or second in unclear:
            continue
        words = "to the left of" if relation == "left of" else relation
        subject, other = _reference(scene, first), _reference(scene, second)
        sentences.append(f"The {subject} is {words} the {other}.")
        told += 1
    while _words([*sentences, *tail]) < MIN_WORDS + 4 and fillers:
        tail.append(fillers.pop())
    return " ".join([*sentences, *tail])


def _reference(scene: Scene, index: int) -> str:
    thing = scene.objects[index]
    return f"{SIZE_WORDS[thing.size][0]} {thing.colour} {thing.kind}"


def _unclear(scene: Scene) -> set[int]:
    """Objects that their size, colour and kind do not single out."""
    names = [_reference(scene, index) for index in range(len(scene.objects))]
    return {index for index, name in enumerate(names) if names.count(name) > 1}


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _words(sentences: Sequence[str]) -> int:
    return sum(len(sentence.split()) for sentence in sentences)


def twin(scene: Scene, rng: random.Random) -> tuple[Scene, Change]:
    """The scene with one attribute changed: the background, or the kind, colour or size of one object (its box follows)."""
    attributes = ["background", "kind", "colour", "size"]
    rng.shuffle(attributes)
    for attribute in [*attributes, "colour"]:  # a colour can always be changed
        made = _changed(scene, rng, attribute)
        if made:
            return made
    raise AssertionError("unreachable: every background allows several colours")


def _changed(scene: Scene, rng: random.Random, attribute: str) -> tuple[Scene, Change] | None:
    if attribute == "background":
        used = {thing.colour for thing in scene.objects}
        others = [b for b in BACKGROUNDS if b != scene.background and not used & BACKGROUNDS[b].clashes]
        if not others:
            return None
        new = rng.choice(others)
        return replace(scene, background=new), Change("background", scene.background, new)
    index = rng.randrange(len(scene.objects))
    thing = scene.objects[index]
    if attribute == "colour":
        new = rng.choice([c for c in allowed_colours(scene.background) if c != thing.colour])
        return with_object(scene, index, colour=new), Change("colour", thing.colour, new, index)
    longest = max(thing.box[2] - thing.box[0], thing.box[3] - thing.box[1])
    if attribute == "kind":
        choices = [kind for kind in KINDS if kind not in scene.kinds]
    else:
        choices = [size for size in SIZES if size != thing.size]
    rng.shuffle(choices)
    for new in choices[:6]:
        kind = new if attribute == "kind" else thing.kind
        side = longest if attribute == "kind" else longest / SIZES[thing.size] * SIZES[new]
        box = box_around(kind, side, *thing.centre)
        inside = min(box) >= 0 and max(box) <= 1
        others_boxes = [other.box for k, other in enumerate(scene.objects) if k != index]
        if inside and all(overlap(box, other) <= _TWIN_OVERLAP for other in others_boxes):
            old = thing.kind if attribute == "kind" else thing.size
            return with_object(scene, index, box=box, **{attribute: new}), Change(attribute, old, new, index)
    return None


def dense_captions(scenes: Sequence[Scene], seed: int) -> list[Dense]:
    """One paragraph and one near-twin a scene; scene i's do not depend on the others."""
    found = []
    for image, scene in enumerate(scenes):
        other, change = twin(scene, text_rng(seed, "twin", image))
        other = replace(other, name=scene.name.replace("images/", "twins/", 1) if scene.name else "")
        unclear = frozenset(_unclear(scene) | _unclear(other))
        texts = [paragraph(plan, text_rng(seed, "dense", image), unclear) for plan in (scene, other)]
        found.append(Dense(scene, texts[0], other, texts[1], change))
    return found


def minimal_pairs(scenes: Sequence[Scene], seed: int) -> list[Pair]:
    """Minimal pairs of five kinds, at most one of each kind a scene.

    ``negation`` denies what is there (training wordings, never a reserved kind); ``attribute`` changes a colour or a size;
    ``relation`` turns left into right or above into below; ``order`` exchanges the colours of two things, or two things in a
    relation, without changing a word; ``count`` changes a number.
    """
    pairs = []
    for image, scene in enumerate(scenes):
        rng = text_rng(seed, "pairs", image)
        for make in (_negation_pair, _attribute_pair, _relation_pair, _order_pair, _count_pair):
            pair = make(scene, rng, image)
            if pair:
                pairs.append(pair)
    return pairs


def _negation_pair(scene: Scene, rng: random.Random, image: int) -> Pair | None:
    kinds = [kind for kind in scene.kinds if kind in DENIABLE_KINDS]
    if not kinds:
        return None
    kind, group = rng.choice(kinds), rng.choice(list(_NEGATION_FRAMES))
    positive, contrast = (frame.format(a=with_article(kind), x=kind) for frame in _NEGATION_FRAMES[group])
    return Pair("negation", positive, contrast, image, group, kind)


def _attribute_pair(scene: Scene, rng: random.Random, image: int) -> Pair | None:
    thing, facts = rng.choice(scene.objects), scene_facts(scene)
    if rng.random() < 0.6:
        group, old, values = "colour", thing.colour, list(COLOURS)
    else:
        group, old, values = "size", thing.size, list(SIZES)
    wrong = [value for value in values if f"{value} {thing.kind}" not in facts]
    if not wrong:
        return None
    names = [SIZE_WORDS[v][0] if group == "size" else v for v in (old, rng.choice(wrong))]
    positive, contrast = (f"a photo of {with_article(f'{name} {thing.kind}')}" for name in names)
    return Pair("attribute", positive, contrast, image, group, thing.kind)


def _related(scene: Scene, rng: random.Random) -> tuple[str, str, str] | None:
    """Kinds of a clear relation between two things that are each the only one of their kind."""
    found = [
        (scene.objects[i].kind, relation, scene.objects[j].kind)
        for i, relation, j in scene.relations()
        if scene.count(scene.objects[i].kind) == scene.count(scene.objects[j].kind) == 1
    ]
    return rng.choice(found) if found else None


def _relation_pair(scene: Scene, rng: random.Random, image: int) -> Pair | None:
    related = _related(scene, rng)
    if not related:
        return None
    first, relation, second = related
    words = ("to the left of", "to the right of") if relation == "left of" else ("above", "below")
    if rng.random() < 0.5:  # told from the other end
        first, second, words = second, first, words[::-1]
    texts = [f"{with_article(first)} {w} {with_article(second)}" for w in words]
    return Pair("relation", texts[0], texts[1], image, relation, first)


def _order_pair(scene: Scene, rng: random.Random, image: int) -> Pair | None:
    facts = scene_facts(scene)
    swaps = [
        (a, b)
        for a in scene.objects
        for b in scene.objects
        if a.kind != b.kind and a.colour != b.colour
        and not {f"{b.colour} {a.kind}", f"{a.colour} {b.kind}"} & facts
    ]  # fmt: skip
    if swaps and rng.random() < 0.6:
        a, b = rng.choice(swaps)
        texts = [
            f"{with_article(f'{one} {a.kind}')} and {with_article(f'{two} {b.kind}')}"
            for one, two in ((a.colour, b.colour), (b.colour, a.colour))
        ]
        return Pair("order", texts[0], texts[1], image, "colours exchanged", a.kind)
    related = _related(scene, rng)
    if not related:
        return None
    first, relation, second = related
    words = "to the left of" if relation == "left of" else relation
    texts = [f"{with_article(one)} {words} {with_article(two)}" for one, two in ((first, second), (second, first))]
    return Pair("order", texts[0], texts[1], image, f"{relation} exchanged", first)


def _count_pair(scene: Scene, rng: random.Random, image: int) -> Pair | None:
    kinds = sorted(scene.kinds, key=lambda kind: -scene.count(kind))
    kind = kinds[0] if scene.count(kinds[0]) > 1 else rng.choice(kinds)
    number = scene.count(kind)
    other = rng.choice([n for n in NUMBERS if n != number])
    texts = [f"a photo of {count_atom(kind, n)}" for n in (number, other)]
    return Pair("count", texts[0], texts[1], image, f"{NUMBERS[number]} / {NUMBERS[other]}", kind)
