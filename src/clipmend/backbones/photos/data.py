"""Training data for the photographs' patch: made of class names alone, without one image.

A photograph reaches the joint space as a mixture of class vectors, so a mixture drawn at random is as good as a photograph for
learning what "no" means: a few subjects share most of the weight, each spread over the classes that a classifier would confuse
with it, and clutter takes the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from clipmend.backbones.photos.classes import consensus, framed, synonyms
from clipmend.backbones.photos.encoder import PhotosEncoder
from clipmend.data.nouns import Noun, load_nouns, regular_plural
from clipmend.data.records import Caption, NegationData, Question

__all__ = ["HELD_OUT", "class_name_data", "training_nouns"]

HELD_OUT: dict[str, tuple[str, ...]] = {
    "cat": ("cat", "kitten", "tomcat", "tabby", "lynx"),
    "coffee": ("coffee", "espresso", "cappuccino", "latte", "cup", "teacup", "mug", "cafetiere"),
    "rocket": ("rocket", "missile", "projectile", "spaceship", "space shuttle", "space capsule", "launch pad"),
    "motorcycle": ("motorcycle", "motorcyclist", "motorbike", "moped", "scooter", "disk brake", "crash helmet", "sidecar"),
    "temple": ("temple", "pagoda", "shrine", "stupa", "palace", "monastery", "bell cote"),
    "flower": ("flower", "wildflower", "daisy", "bouquet"),
}
"""What the sample photographs show, with the words that speak of it: kept out of training, in any role, so that the photographs
test what the patch has not seen."""

_NAMED = 0.45  # least cosine between a noun and a class for the class to count as a picture of the noun
_ALIKE = 0.5  # nouns of one world are less alike than this, so that the absence of one is not contradicted by another
_NEIGHBOURS = 5  # classes that a classifier confuses with the right one
_CLUTTER = 8


def training_nouns(encoder: PhotosEncoder, holdout: Iterable[str] = tuple(HELD_OUT)) -> tuple[list[Noun], np.ndarray]:
    """Everything the classifier can show by some name: its classes and the shipped nouns that come near one.

    Args:
        encoder: whose classes they are.
        holdout: things to leave out: keys of :data:`HELD_OUT`, or any other words.

    Returns:
        ``n`` nouns and ``[n, C]`` weights, each row a distribution over the classes that show the noun.
    """
    nouns, shows, _ = _vocabulary(encoder, holdout)
    return nouns, shows


def _vocabulary(encoder: PhotosEncoder, holdout: Iterable[str]) -> tuple[list[Noun], np.ndarray, np.ndarray]:
    """:func:`training_nouns`, and the ``[n, D]`` unit embeddings of the nouns."""
    banned = _banned(holdout)
    shipped = {noun.singular.lower(): noun for noun in load_nouns(exclude=banned)}
    allowed = np.array([not any(_mentions(part, banned) for part in synonyms(name)) for name in encoder.class_names])
    nouns: dict[str, Noun] = {}
    own: dict[str, int] = {}
    for row, name in enumerate(encoder.class_names):
        first = synonyms(name)[0]
        if not allowed[row] or first.lower() in nouns:  # two classes of one name, such as the two cranes: the first keeps it
            continue
        own[first.lower()] = row
        nouns[first.lower()] = shipped.get(first.lower()) or Noun(first, regular_plural(first), False, "classes")
    for word, noun in shipped.items():
        nouns.setdefault(word, noun)
    everything = list(nouns.values())
    names = encoder.encode_texts([framed(noun.singular) for noun in everything])
    likeness = (names @ F.normalize(encoder.class_vectors.cpu().float(), dim=-1).T).numpy()  # [n, C]
    likeness[:, ~allowed] = -1
    kept, weights, rows = [], [], []
    for row, noun in enumerate(everything):
        known = own.get(noun.singular.lower())
        if known is None and likeness[row].max() < _NAMED:
            continue
        shows = np.zeros(likeness.shape[1])
        if known is not None:
            shows[known] = 1
        else:
            near = np.argsort(-likeness[row])[:_NEIGHBOURS]
            near = near[likeness[row][near] >= _NAMED]
            shows[near] = np.exp((likeness[row][near] - likeness[row].max()) / 0.05)
        kept.append(noun)
        rows.append(row)
        weights.append(shows / shows.sum())
    return kept, np.stack(weights), names[rows].numpy()


def class_name_data(
    encoder: PhotosEncoder, count: int = 4800, seed: int = 0, holdout: Iterable[str] = tuple(HELD_OUT)
) -> tuple[NegationData, Tensor, np.ndarray]:
    """Sets of nouns with embeddings made as a photograph's would be, and captions and questions about them.

    Args:
        encoder: whose classes make up the images.
        count: number of sets.
        seed: fixes everything.
        holdout: things that nothing shows and no caption mentions: keys of :data:`HELD_OUT`, or any other words.

    Returns:
        the data (each of its ``images`` is a text saying what is shown), ``[count, D]`` unit embeddings, and ``[count]`` the
        world of each set: the sets of a world share their nouns, so a batch from one world holds sets with and without each.

    Raises:
        ValueError: ``count`` below 1.
    """
    from clipmend.negation.text_only import WORLD_NOUNS, WORLD_SETS, text_only_captions

    if count < 1:
        raise ValueError(f"count is {count}; it must be at least 1")
    rng = np.random.default_rng((seed, 23))
    holdout = tuple(holdout)
    nouns, shows, names = _vocabulary(encoder, holdout)
    sampler = _Photographs(encoder, holdout)
    row_of = {noun.singular: row for row, noun in enumerate(nouns)}
    facts: list[frozenset[str]] = []
    captions: list[Caption] = []
    questions: list[Question] = []
    probabilities: list[np.ndarray] = []
    groups: list[int] = []
    deck: list[int] = []
    while len(facts) < count:
        world, deck = _deal(rng, deck, names, WORLD_NOUNS)
        sets = min(WORLD_SETS, count - len(facts))
        part, _ = text_only_captions([nouns[row] for row in world], sets, int(rng.integers(2**31)))
        first, offset = len(captions), len(facts)
        captions += [replace(c, image=c.image + offset) if c.image >= 0 else c for c in part.captions]
        questions += [
            replace(q, image=q.image + offset, options=tuple(first + option for option in q.options)) for q in part.questions
        ]
        groups += [groups[-1] + 1 if groups else 0] * sets
        facts += part.facts
        for shown in part.facts:
            probabilities.append(sampler.draw(rng, [shows[row_of[name]] for name in sorted(shown)]))
    vectors = encoder.class_vectors.cpu().float()
    images = consensus(torch.from_numpy(np.stack(probabilities)).float(), vectors, encoder.top_k)
    labels = [f"an image of {', '.join(sorted(shown))}" for shown in facts]
    return NegationData(labels, facts, captions, questions, name="class names"), images, np.asarray(groups)


class _Photographs:
    """Draws class probabilities as a classifier would give them for a photograph of some subjects."""

    def __init__(self, encoder: PhotosEncoder, holdout: Sequence[str]) -> None:
        banned = _banned(holdout)
        allowed = np.array([not any(_mentions(part, banned) for part in synonyms(name)) for name in encoder.class_names])
        vectors = F.normalize(encoder.class_vectors.cpu().float(), dim=-1).numpy()
        likeness = vectors @ vectors.T
        likeness[:, ~allowed] = -1
        self.near = np.argsort(-likeness, axis=1)[:, : _NEIGHBOURS + 1]  # the class itself among them
        self.likeness = np.take_along_axis(likeness, self.near, 1)
        self.allowed = np.flatnonzero(allowed)

    def draw(self, rng: np.random.Generator, subjects: Sequence[np.ndarray]) -> np.ndarray:
        """``[C]`` probabilities for subjects given as distributions over classes."""
        total = np.zeros(len(self.near))
        shares = rng.dirichlet(np.full(len(subjects), 3.0))
        for share, shows in zip(shares, subjects, strict=True):
            main = int(rng.choice(len(shows), p=shows))
            spread = np.exp(self.likeness[main] / 0.1) * rng.exponential(size=self.near.shape[1])
            sure = rng.uniform(0.4, 1)  # what the classifier gives the right class; those it confuses with it share the rest
            total[main] += share * sure
            total[self.near[main]] += share * (1 - sure) * spread / spread.sum()
        clutter = rng.choice(self.allowed, _CLUTTER, replace=False)
        mess = rng.exponential(size=_CLUTTER) ** 2
        amount = rng.beta(1, 3)
        total *= 1 - amount
        total[clutter] += amount * mess / mess.sum()
        return total


def _deal(rng: np.random.Generator, deck: list[int], names: np.ndarray, size: int) -> tuple[list[int], list[int]]:
    """Take ``size`` nouns from the deck, no two alike; every noun is dealt before any comes again."""
    world: list[int] = []
    passed: list[int] = []
    while len(world) < size:
        if not deck:
            deck = rng.permutation(len(names)).tolist()
            if len(passed) > len(names):
                raise ValueError(f"the nouns are too alike, or too few ({len(names)}), to choose {size} that differ")
        row = deck.pop()
        if row in world or (world and float((names[world] @ names[row]).max()) >= _ALIKE):
            passed.append(row)
        else:
            world.append(row)
    return world, deck + passed


def _banned(holdout: Iterable[str]) -> list[str]:
    return [word for thing in holdout for word in HELD_OUT.get(thing, (thing,))]


def _mentions(text: str, words: Sequence[str]) -> bool:
    padded = f" {text.lower().replace('-', ' ')} "
    return any(f" {word.lower()} " in padded or f" {regular_plural(word.lower())} " in padded for word in words)
