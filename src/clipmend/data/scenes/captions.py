"""Short captions with their logical form: affirmative, negative, hybrid, queries, and captions as the web writes them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from clipmend.data.records import Caption
from clipmend.data.scenes.draw import Scene
from clipmend.data.scenes.facts import count_atom, scene_facts, text_rng
from clipmend.data.scenes.world import (
    BACKGROUNDS,
    COLOURS,
    DENIABLE_KINDS,
    KINDS,
    NUMBERS,
    RESERVED_KINDS,
    RESERVED_WORDINGS,
    SIZE_WORDS,
    WORDINGS,
    Wording,
    plural,
    with_article,
)

__all__ = [
    "SUBSETS",
    "Phrase",
    "Policy",
    "affirmative",
    "deny",
    "false_caption",
    "finish",
    "framed",
    "hybrid",
    "hybrid_caption",
    "join",
    "kinds_caption",
    "negative",
    "phrase",
    "policy",
    "query",
    "things_denied",
    "tower_captions",
]

_FRAMES = (
    "{p}", "{p}", "a photo of {p}", "a picture of {p}", "an image of {p}", "a drawing of {p}", "this image features {p}",
    "the picture shows {p}", "you can see {p}", "a scene with {p}",
)  # fmt: skip
_PHOTO_FRAMES = ("a photo of {p}", "a picture of {p}", "an image of {p}", "a drawing of {p}")
_PLACES = ("a photo", "a picture", "an image", "a scene", "a drawing")
_ATTRIBUTE_DENIED = 0.07  # share of denials that deny a coloured thing ("no red cup") rather than a kind


@dataclass(frozen=True, slots=True)
class Policy:
    """What a text may use: wordings of negation, and kinds it may deny."""

    wordings: tuple[Wording, ...]
    deniable: tuple[str, ...]


SUBSETS: dict[str, Policy] = {
    "standard": Policy(tuple(WORDINGS.values()), DENIABLE_KINDS),
    "reserved_wording": Policy(tuple(RESERVED_WORDINGS.values()), DENIABLE_KINDS),
    "reserved_kind": Policy(tuple(WORDINGS.values()), RESERVED_KINDS),
}
"""Test subsets by name; training texts are all ``"standard"``."""


def policy(subset: str) -> Policy:
    """Policy of a subset.

    Raises:
        ValueError: no subset has that name.
    """
    if subset not in SUBSETS:
        raise ValueError(f"unknown subset {subset!r}: choose one of {', '.join(SUBSETS)}")
    return SUBSETS[subset]


@dataclass(frozen=True, slots=True)
class Phrase:
    """A noun phrase and the atoms it asserts; ``headed`` where the background is its head ("a beach with a cat")."""

    text: str
    asserts: tuple[str, ...]
    headed: bool = False


def framed(said: Phrase, rng: random.Random, template: str = "") -> str:
    """A phrase in a frame ("a photo of ...") that goes with it, and with the wording's template it will stand in."""
    refers = " it " in template  # "..., but it does not show a cat": "it" needs a picture to refer to
    frames = _PHOTO_FRAMES if refers else ("{p}", *_PHOTO_FRAMES) if said.headed else _FRAMES
    return rng.choice(frames).format(p=said.text)


def join(parts: Sequence[str]) -> str:
    """``["a", "b", "c"]`` gives ``"a, b and c"``."""
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def finish(text: str, rng: random.Random) -> str:
    """Half of the texts as a sentence (capital, full stop), half as typed; texts of two sentences always as sentences."""
    if ". " in text or rng.random() < 0.5:
        return ". ".join(part[0].upper() + part[1:] for part in text.split(". ")) + "."
    return text


def phrase(
    scene: Scene, rng: random.Random, things: int | None = None, colours: float = 0.0, sizes: float = 0.0,
    place: float = 0.0, avoid: frozenset[str] = frozenset(),
) -> Phrase:  # fmt: skip
    """Name some objects of a scene.

    Args:
        scene: the scene.
        rng: source of choices.
        things: at most how many kinds to name; by default 1-4.
        colours, sizes, place: odds of naming each object's colour, its size, and the background.
        avoid: kinds not to name.
    """
    kinds = [kind for kind in scene.kinds if kind not in avoid]
    rng.shuffle(kinds)
    kinds = kinds[: things or rng.choice((1, 2, 2, 3, 3, 4))]
    parts, atoms = [], []
    for kind in kinds:
        text, said = _mention(scene, kind, rng, colours, sizes)
        parts.append(text)
        atoms += said
    background = BACKGROUNDS[scene.background]
    text, headed = join(parts), not parts
    if not parts or rng.random() < place:
        atoms.append(background.atom)
        if not parts:
            text = background.noun
        elif rng.random() < 0.7:
            text = f"{text} {background.place}"
        else:
            text, headed = f"{background.noun} with {text}", True
    return Phrase(text, tuple(dict.fromkeys(atoms)), headed)


def _mention(scene: Scene, kind: str, rng: random.Random, colours: float, sizes: float) -> tuple[str, list[str]]:
    """Name one kind by one of its objects, or by their number."""
    of_kind = [thing for thing in scene.objects if thing.kind == kind]
    if len(of_kind) > 1 and rng.random() < 0.5:
        return f"{NUMBERS[len(of_kind)]} {plural(kind)}", [kind, count_atom(kind, len(of_kind))]
    thing = rng.choice(of_kind)
    words, atoms = [], [kind]
    say_size, say_colour = rng.random() < sizes, rng.random() < colours
    if say_size:
        words.append(rng.choice(SIZE_WORDS[thing.size]))
        atoms.append(f"{thing.size} {kind}")
    if say_colour:
        words.append(thing.colour)
        atoms.append(f"{thing.colour} {kind}")
    if say_size and say_colour:
        atoms.append(f"{thing.size} {thing.colour} {kind}")
    return with_article(" ".join([*words, kind])), atoms


def affirmative(scene: Scene, rng: random.Random, image: int, things: int | None = None, colours: float = 0.0,
                sizes: float = 0.0, place: float = 0.0) -> Caption:  # fmt: skip
    """A true affirmative caption (odds as in :func:`phrase`)."""
    said = phrase(scene, rng, things, colours, sizes, place)
    text = finish(framed(said, rng), rng)
    return Caption(text, image, "affirmative", said.asserts)


def deny(template: str, denied: Sequence[str], **fields: str) -> str:
    """Fill a wording's template. ``denied`` are one or two things, each a kind with or without an adjective."""
    words: dict[str, str] = dict(fields)
    for names, thing in zip((("x", "xs", "a"), ("y", "ys", "b")), denied, strict=False):
        *adjectives, kind = thing.split(" ")
        words |= {names[0]: thing, names[1]: " ".join([*adjectives, plural(kind)]), names[2]: with_article(thing)}
    return template.format(**words)


def things_denied(
    rng: random.Random, rules: Policy, wording: Wording, facts: frozenset[str], true: bool, attributes: float = _ATTRIBUTE_DENIED
) -> tuple[str, ...] | None:
    """Things for a wording to deny, so that the denial is true (or false) of an image; ``None`` where the facts allow none."""
    absent = [kind for kind in rules.deniable if kind not in facts]
    present = [kind for kind in rules.deniable if kind in facts]
    if true:
        denied = rng.sample(absent, min(wording.kinds, len(absent)))
        if len(denied) < wording.kinds:
            return None
        if wording.kinds == 1 and rng.random() < attributes:
            kind = rng.choice(present) if present and rng.random() < 0.6 else denied[0]
            missing = [f"{colour} {kind}" for colour in COLOURS if f"{colour} {kind}" not in facts]
            return (rng.choice(missing),) if missing else tuple(denied)
        return tuple(denied)
    if not present:
        return None
    first = rng.choice(present)
    if wording.kinds == 1:
        if rng.random() < attributes:
            return (rng.choice([f"{colour} {first}" for colour in COLOURS if f"{colour} {first}" in facts]),)
        return (first,)
    others = [kind for kind in rules.deniable if kind != first]
    denied = [first, *rng.sample(others, min(wording.kinds - 1, len(others)))]
    rng.shuffle(denied)
    return tuple(denied) if len(denied) == wording.kinds else None


def negative(scene: Scene, rng: random.Random, image: int, rules: Policy, true: bool = True) -> Caption | None:
    """A caption that only denies: true of the scene, or false (then ``image`` is -1: its truth comes from its atoms alone)."""
    wording = rng.choice(rules.wordings)
    denied = things_denied(rng, rules, wording, scene_facts(scene), true)
    if denied is None:
        return None
    text = finish(deny(rng.choice(wording.sentences), denied), rng)
    return Caption(text, image if true else -1, "negative", (), denied, wording.name)


def hybrid(scene: Scene, rng: random.Random, image: int, rules: Policy, true: bool = True, colours: float = 0.3,
           sizes: float = 0.1, place: float = 0.25, things: Sequence[int] = (1, 1, 2, 2, 3),
           sentences: float = 0.0) -> Caption | None:  # fmt: skip
    """A caption that asserts and denies. A false one denies something the scene shows or asserts something it does not.

    ``things`` are the numbers of kinds it may assert; ``sentences`` as for :func:`hybrid_caption`.
    """
    facts = scene_facts(scene)
    wording = rng.choice(rules.wordings)
    if true:
        denied = things_denied(rng, rules, wording, facts, True)
        if denied is None:
            return None
        said = phrase(scene, rng, rng.choice(things), colours, sizes, place)
        return hybrid_caption(rng, said, wording, denied, image, sentences)
    absent = [kind for kind in KINDS if kind not in facts]
    if rng.random() < 0.5 and len(scene.kinds) > 1:  # what it asserts is there, but so is what it denies
        denied = things_denied(rng, rules, wording, facts, False)
        if denied is None:
            return None
        avoid = frozenset(thing.split(" ")[-1] for thing in denied)
        said = phrase(scene, rng, rng.choice(things), colours, sizes, place, avoid)
    else:
        wanted = rng.choice(absent)
        left = [kind for kind in rules.deniable if kind != wanted]
        denied = tuple(rng.sample(left, wording.kinds)) if len(left) >= wording.kinds else ()
        if not denied:
            return None
        kinds = [wanted]
        others = [kind for kind in scene.kinds if kind not in denied]
        if others and rng.random() < 0.5:
            kinds.insert(rng.randrange(2), rng.choice(others))
        said = Phrase(join([with_article(kind) for kind in kinds]), tuple(kinds))
    return hybrid_caption(rng, said, wording, denied, -1, sentences)


def hybrid_caption(
    rng: random.Random, said: Phrase, wording: Wording, denied: Sequence[str], image: int = -1, sentences: float = 0.0
) -> Caption:
    """Assert a phrase and deny things: in one of the wording's hybrid templates, or in two sentences with odds ``sentences``.

    The sentence that denies stands first or last ("There is no cat. A street with a car.").
    """
    if sentences and rng.random() < sentences:
        parts = [deny(rng.choice(wording.sentences), denied), framed(said, rng)]
        text = finish(". ".join(parts if rng.random() < 0.6 else parts[::-1]), rng)
        return Caption(text, image, "hybrid", said.asserts, tuple(denied), wording.name)
    template = rng.choice(wording.hybrids)
    asserted = framed(said, rng, template) if template.startswith("{pos}") else said.text
    text = finish(deny(template, denied, pos=asserted), rng)
    return Caption(text, image, "hybrid", said.asserts, tuple(denied), wording.name)


def query(rng: random.Random, wording: Wording, denied: Sequence[str], image: int = -1, background: str = "") -> Caption:
    """An exclusion query, as typed into an image search: "a photo without a cat", "a beach with no cat"."""
    place = BACKGROUNDS[background].noun if background else rng.choice(_PLACES)
    text = deny(rng.choice(wording.queries), denied, place=place)
    asserts = (BACKGROUNDS[background].atom,) if background else ()
    return Caption(text, image, "hybrid" if asserts else "negative", asserts, tuple(denied), wording.name)


def kinds_caption(
    rng: random.Random, form: str, asserts: Sequence[str] = (), denies: Sequence[str] = (), wording: Wording | None = None
) -> Caption:
    """A statement about kinds alone, of any form, written for no image (``image`` is -1): the options of questions."""
    if form == "negative":
        assert wording is not None
        return Caption(finish(deny(rng.choice(wording.sentences), denies), rng), -1, form, (), tuple(denies), wording.name)
    said = Phrase(join([with_article(kind) for kind in asserts]), tuple(asserts))
    if form == "hybrid":
        assert wording is not None
        return hybrid_caption(rng, said, wording, denies)
    return Caption(finish(framed(said, rng), rng), -1, form, said.asserts)


def false_caption(scene: Scene, rng: random.Random) -> Caption:
    """An affirmative caption that is false of the scene: a thing that is not there, or a wrong colour or size."""
    facts = scene_facts(scene)
    if rng.random() < 0.4:
        thing = rng.choice(scene.objects)
        wrong = [f"{c} {thing.kind}" for c in COLOURS if f"{c} {thing.kind}" not in facts]
        wrong += [f"{s} {thing.kind}" for s in SIZE_WORDS if f"{s} {thing.kind}" not in facts]
        atom = rng.choice(wrong)
        adjective = atom.split(" ")[0]
        words = rng.choice(SIZE_WORDS[adjective]) if adjective in SIZE_WORDS else adjective
        said = Phrase(with_article(f"{words} {thing.kind}"), (thing.kind, atom))
    else:
        kind = rng.choice([k for k in KINDS if k not in facts])
        said = Phrase(with_article(kind), (kind,))
    if rng.random() < 0.6:
        other = phrase(scene, rng, 1, 0.3, 0.1, avoid=frozenset({said.asserts[0]}))
        pair = [said, other] if rng.random() < 0.5 else [other, said]
        said = Phrase(join([p.text for p in pair]), tuple(dict.fromkeys(a for p in pair for a in p.asserts)), other.headed)
    return Caption(finish(framed(said, rng), rng), -1, "affirmative", said.asserts)


def tower_captions(scenes: Sequence[Scene], seed: int, per_image: int = 5, negated: float = 0.08) -> list[Caption]:
    """Captions as the web writes them, to train an image tower with.

    Args:
        scenes: one image each; ``Caption.image`` is the position in this sequence.
        seed: fixes every caption; scene i's captions do not depend on the other scenes.
        per_image: captions a scene.
        negated: share that contains a negated word. It says little about absence: what is denied is in the picture as often as
            not, as with "no parking" under a picture of parked cars.

    Returns:
        ``len(scenes) * per_image`` captions, those of one scene together. Most name one to four objects, some with colours,
        sizes or the background. Only training wordings are used and no reserved kind is denied.
    """
    rules, captions = SUBSETS["standard"], []
    for image, scene in enumerate(scenes):
        rng = text_rng(seed, "tower", image)
        for _ in range(per_image):
            if rng.random() < negated:
                captions.append(_careless(scene, rng, image, rules))
            else:
                colours, sizes, place = rng.choice(((0, 0, 0.25), (0.8, 0, 0.25), (0.6, 0.4, 0.4), (0.2, 0.1, 0.8)))
                captions.append(affirmative(scene, rng, image, None, colours, sizes, place))
    return captions


def _careless(scene: Scene, rng: random.Random, image: int, rules: Policy) -> Caption:
    """A caption with a negated word that is true as often as not; it stays with its image either way."""
    true = rng.random() < 0.5
    wording = rng.choice([w for w in rules.wordings if w.kinds == 1])
    denied = things_denied(rng, rules, wording, scene_facts(scene), true, 0.0)
    if denied is None:  # a scene of reserved kinds only
        return affirmative(scene, rng, image)
    said = phrase(scene, rng, rng.choice((1, 1, 2)), 0.3, 0.1, 0.3, frozenset(denied))
    if rng.random() < 0.4:
        return Caption(finish(deny(rng.choice(wording.sentences), denied), rng), image, "negative", (), denied, wording.name)
    return replace(hybrid_caption(rng, said, wording, denied), image=image)
