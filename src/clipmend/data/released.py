"""Questions as the published training data has them.

A question is an original caption, which is right, its negated caption, and two captions of other images that share a category. An
absent thing's negation is true of the image, and yet a wrong option: a model learns to prefer the plain caption. Kept for the
comparison with the published method; see the ``truthful`` reading for questions whose wrong options are false.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from clipmend.data.choices import Questions
from clipmend.data.records import Caption, Question

__all__ = ["released_questions"]

_TRIES = 20


def released_questions(
    captions: Sequence[Caption], present: Sequence[Collection[str]], rng: random.Random, count: int | None = None
) -> Questions:
    """Ask about images.

    Args:
        captions: of each image pairs of an original and its negated caption, one after the other.
        present: what each image shows.
        rng: where chance comes from.
        count: number of questions; by default one an image. An image is asked about again with another of its captions.

    Returns:
        Questions over ``captions`` (the result has no captions of its own), every answer affirmative, at a random place. Images
        that share no category with two others are left out, with a note.
    """
    made = Questions()
    originals: dict[int, list[int]] = {}
    for row, caption in enumerate(captions):
        if not caption.denies:
            originals.setdefault(caption.image, []).append(row)
    sharing: dict[str, list[int]] = {}
    for image in originals:
        for atom in present[image]:
            sharing.setdefault(atom, []).append(image)
    order = list(originals)
    rng.shuffle(order)
    wanted = len(order) if count is None else count
    left_out: set[int] = set()
    turn = 0
    while len(made.questions) < wanted and len(left_out) < len(order):
        if count is None and turn == len(order):
            break
        image = order[turn % len(order)]
        own = originals[image][turn // len(order) % len(originals[image])]
        turn += 1
        if image in left_out:
            continue
        others = _others(image, sorted(present[image]), sharing, rng)
        texts = {captions[own].text, captions[own + 1].text}
        options = [own, own + 1]
        for other in others:
            row = rng.choice(originals[other])
            if captions[row].text not in texts:
                texts.add(captions[row].text)
                options.append(row)
            if len(options) == 4:
                break
        if len(options) < 4:
            left_out.add(image)
            continue
        rng.shuffle(options)
        made.questions.append(Question(image, tuple(options), options.index(own), "affirmative"))
    if left_out:
        made.notes.append(f"{len(left_out):,} images share no category with two others that have other captions: no question")
    return made


def _others(image: int, shown: Sequence[str], sharing: dict[str, list[int]], rng: random.Random) -> list[int]:
    """Other images that share a category with this one, a few in random order."""
    found: dict[int, None] = {}
    for _ in range(_TRIES):
        if not shown:
            break
        other = rng.choice(sharing[rng.choice(shown)])
        if other != image:
            found[other] = None
    return list(found)
