"""Which images, captions and questions a training step sees."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from clipmend.data.phrases import NUMBER_WORDS
from clipmend.data.records import FALSE, TRUE, Caption, NegationData
from clipmend.negation.features import TextFeatures

__all__ = ["Batch", "Pairs", "Source", "Triples", "one_sided", "split_images"]

_RIVALS = 96  # captions of each form among which a new question finds its false ones


@dataclass
class Batch:
    """One truthful step: rows of images and captions, their truth and each caption's own image."""

    images: Tensor  # [B, D]
    captions: np.ndarray  # [M] rows of the source's captions
    truth: Tensor  # [B, M] int8
    own: Tensor  # [M] row of ``images`` or -1
    plain: np.ndarray  # [M] bool: affirmative, to be preserved


@dataclass
class Triples:
    """One released step: image, original caption, negated caption."""

    images: Tensor  # [B, D]
    originals: np.ndarray  # [B]
    negated: np.ndarray  # [B]


@dataclass
class Pairs:
    """Images with a negated caption that is true of each and one that is false."""

    images: np.ndarray  # [P] rows of the source's images
    true: np.ndarray  # [P] rows of the source's captions
    false: np.ndarray  # [P]


class Source:
    """Annotated data with its features, ready to be sampled.

    Args:
        data: captions, facts, questions.
        images: ``[N, D]`` unit image embeddings (or what stands in for them), aligned with ``data.images``.
        texts: features of every caption, aligned with ``data.captions``.
        chosen: images that may be sampled (default: all).
        groups: ``[N]`` integers; a batch draws its images from one group only. Text-only sets come in small worlds that share
            their nouns, so that a batch holds sets with and without each.
        targets: ``[M, D]`` guidance of the captions (see :func:`~clipmend.negation.guidance.guidance_targets`); zero rows for none.
        balanced: leave out captions and questions that teach what can be denied rather than what is (see :func:`one_sided`).
    """

    def __init__(
        self,
        data: NegationData,
        images: Tensor,
        texts: TextFeatures,
        chosen: np.ndarray | None = None,
        groups: np.ndarray | None = None,
        targets: Tensor | None = None,
        balanced: bool = False,
    ) -> None:
        if len(images) != len(data.images):
            raise ValueError(f"{data.name}: {len(images)} image embeddings for {len(data.images)} images")
        if not torch.isfinite(images).all():
            bad = int((~torch.isfinite(images).all(1)).nonzero()[0])
            raise ValueError(f"{data.name}: the embedding of image {bad} ({data.images[bad]}) holds NaN or infinity")
        self.data, self.images, self.texts, self.targets = data, images, texts, targets
        self.chosen = np.arange(len(images)) if chosen is None else np.asarray(chosen)
        self.groups = None
        if groups is not None:
            self.groups = [self.chosen[groups[self.chosen] == g] for g in np.unique(groups[self.chosen])]
        inside = np.zeros(len(images), bool)
        inside[self.chosen] = True
        self.affirmative: dict[int, list[int]] = defaultdict(list)
        self.negated: dict[int, list[int]] = defaultdict(list)
        self.deniers: dict[str, list[int]] = defaultdict(list)
        self.queries: list[int] = []
        self.by_form: dict[str, list[int]] = defaultdict(list)
        left_out = one_sided(data.captions) if balanced else frozenset()
        for row, caption in enumerate(data.captions):
            if (caption.image >= 0 and not inside[caption.image]) or row in left_out:
                continue
            if caption.image >= 0:
                (self.negated if caption.denies else self.affirmative)[caption.image].append(row)
            for atom in caption.denies:
                self.deniers[atom].append(row)
            if caption.form == "negative":
                self.queries.append(row)
            self.by_form[caption.form].append(row)
        self.questions = [q for q in data.questions if inside[q.image] and left_out.isdisjoint(q.options)]
        self.forms: dict[str, list[int]] = defaultdict(list)
        for k, question in enumerate(self.questions):
            self.forms[question.template].append(k)

    def batch(self, rng: np.random.Generator, size: int, queries: float = 0.5) -> Batch:
        """Sample ``size`` images; each brings an affirmative caption, a true negated one, and one that denies what it shows.

        Args:
            rng: where chance comes from.
            size: images (fewer where the data, or a group of it, has fewer).
            queries: purely negative captions added, as a share of ``size``: what an exclusion query looks like.
        """
        pool = self.chosen if self.groups is None else self.groups[rng.integers(len(self.groups))]
        images = rng.choice(pool, min(size, len(pool)), replace=False)
        rows: list[int] = []
        for image in images.tolist():
            for own in (self.affirmative, self.negated):
                if own.get(image):
                    rows.append(own[image][rng.integers(len(own[image]))])
            denied = [atom for atom in sorted(self.data.facts[image]) if atom in self.deniers]
            if denied:
                candidates = self.deniers[denied[rng.integers(len(denied))]]
                rows.append(candidates[rng.integers(len(candidates))])
        extra = round(queries * len(images))
        if self.queries and extra:
            rows.extend(self.queries[k] for k in rng.integers(len(self.queries), size=extra))
        captions = np.unique(np.asarray(rows, np.int64))
        truth = self.data.truth(images.tolist(), captions.tolist())
        place = {image: b for b, image in enumerate(images.tolist())}
        own_rows = np.array([place.get(self.data.captions[c].image, -1) for c in captions.tolist()])
        # A caption without an image in the batch takes one it is true of, at random: "no cat" is a caption of any catless image.
        priority = rng.random(truth.shape) * (truth == TRUE)
        adopted = np.where((truth == TRUE).any(0), priority.argmax(0), -1)
        own_rows = np.where(own_rows >= 0, own_rows, adopted)
        plain = np.array([self.data.captions[c].form == "affirmative" for c in captions.tolist()], bool)
        return Batch(self.images[images], captions, torch.from_numpy(truth), torch.from_numpy(own_rows), plain)

    def triples(self, rng: np.random.Generator, size: int) -> Triples:
        """Sample ``size`` triples for the released objective, from images that have both kinds of caption."""
        pool = [i for i in self.chosen.tolist() if self.affirmative.get(i) and self.negated.get(i)]
        if not pool:
            needs = "the released objective and pretraining need images with an affirmative and a negated caption"
            raise ValueError(f"{self.data.name}: {needs}")
        images = rng.choice(pool, min(size, len(pool)), replace=False)
        pick = lambda rows: rows[rng.integers(len(rows))]  # noqa: E731
        originals = np.array([pick(self.affirmative[i]) for i in images.tolist()])
        negated = np.array([pick(self.negated[i]) for i in images.tolist()])
        return Triples(self.images[images], originals, negated)

    def question_batch(self, rng: np.random.Generator, size: int) -> tuple[Tensor, np.ndarray, Tensor]:
        """``[Q, D]`` images, ``[Q, O]`` caption rows with the options shuffled, ``[Q]`` answers.

        Half are questions of the data, forms in equal parts; half are new at every step: a true caption of an image beside
        captions of the same form that are false of it. The same few thousand questions would be learned by heart.
        """
        each = -(-size // (2 * len(self.forms)))
        asked = np.concatenate([rng.choice(found, min(each, len(found)), replace=False) for found in self.forms.values()])
        most = min(len(self.questions[k].options) for k in asked)
        rows: list[list[int]] = []  # the right option first
        images: list[int] = []
        for k in asked.tolist():
            question = self.questions[k]
            wrong = [o for n, o in enumerate(question.options) if n != question.answer]
            rows.append([question.options[question.answer], *rng.permutation(wrong)[: most - 1].tolist()])
            images.append(question.image)
        for image, row in self._new_questions(rng, max(0, size - len(rows)), most):
            images.append(image)
            rows.append(row)
        orders = [rng.permutation(most) for _ in rows]
        options = np.asarray([[row[o] for o in order] for row, order in zip(rows, orders, strict=True)])
        answers = torch.tensor([int(np.flatnonzero(order == 0)[0]) for order in orders])
        return self.images[images], options, answers

    def _new_questions(self, rng: np.random.Generator, count: int, most: int) -> list[tuple[int, list[int]]]:
        """Up to ``count`` pairs of an image and ``most`` captions of one form, the first true of it and the others false."""
        captions = self.data.captions
        images = rng.choice(self.chosen, min(count, len(self.chosen)), replace=False).tolist()
        drawn = {form: rng.choice(rows, min(_RIVALS, len(rows)), replace=False) for form, rows in self.by_form.items()}
        rivals = np.concatenate(list(drawn.values()))
        false = self.data.truth(images, rivals.tolist()) == FALSE  # [Q, R]
        forms = np.array([captions[row].form for row in rivals.tolist()])
        found = []
        for place, image in enumerate(images):
            own = [*self.affirmative.get(image, []), *self.negated.get(image, [])]
            form = sorted({captions[row].form for row in own})
            if not form:
                continue
            wanted = form[rng.integers(len(form))]
            own = [row for row in own if captions[row].form == wanted]
            wrong = rivals[false[place] & (forms == wanted)]
            if len(wrong) >= most - 1:
                found.append((image, [own[rng.integers(len(own))], *rng.choice(wrong, most - 1, replace=False).tolist()]))
        return found

    def paired_rows(self, rng: np.random.Generator, size: int) -> Pairs:
        """Sample ``size`` images (fewer where some lack one of the two) with a true and a false negated caption."""
        images, true, false = [], [], []
        for image in rng.choice(self.chosen, min(size, len(self.chosen)), replace=False).tolist():
            denied = [atom for atom in sorted(self.data.facts[image]) if atom in self.deniers]
            if not denied or not self.negated.get(image):
                continue
            candidates = self.deniers[denied[rng.integers(len(denied))]]
            images.append(image)
            true.append(self.negated[image][rng.integers(len(self.negated[image]))])
            false.append(candidates[rng.integers(len(candidates))])
        return Pairs(np.asarray(images, np.int64), np.asarray(true, np.int64), np.asarray(false, np.int64))


def one_sided(captions: Sequence[Caption]) -> frozenset[int]:
    """Rows of captions that assert a kind of thing that no caption of the data ever denies.

    "A cat but no dog", where dogs are denied and cats never are, teaches that the cat is what is there because it is a cat. A patch
    fitted on such captions fails at "a dog but no cat". The kind of an atom is its last word; places ("at beach") do not count.
    Affirmative captions stay where fewer than half of them would.
    """
    denied = {atom.rsplit(" ", 1)[-1] for caption in captions for atom in caption.denies}
    odd = [row for row, caption in enumerate(captions) if any(kind not in denied for kind in _kinds_asserted(caption))]
    plain = sum(not caption.denies for caption in captions)
    keep_plain = 2 * sum(not captions[row].denies for row in odd) > plain
    return frozenset(row for row in odd if captions[row].denies or not keep_plain)


def _kinds_asserted(caption: Caption) -> list[str]:
    """Last words of what is asserted; a count ("two cats") stands beside its kind and is passed over, and so is a place."""
    things = [atom.split(" ") for atom in caption.asserts if not atom.startswith("at ")]
    return [words[-1] for words in things if words[0] not in NUMBER_WORDS]


def split_images(count: int, fraction: float, seed: int, most: int = 500) -> tuple[np.ndarray, np.ndarray]:
    """Split ``count`` images into training and validation, at random but fixed by ``seed``.

    At most ``most`` images validate, and at least one is left to train on.
    """
    order = np.random.default_rng((seed, 1)).permutation(count)
    held = max(0, min(most, round(fraction * count), count - 1))
    return np.sort(order[held:]), np.sort(order[:held])
