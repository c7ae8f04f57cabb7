"""Linear probes: can a linear reader recover the negation from the states of a layer?

Two questions, each answered on objects *and* wordings that the probe has never seen: a word learnt by heart is worth nothing.

* **negated or not**: is the text a plain one or its negation?
* **which of two objects is denied**: "a dog but no cat" and "a cat but no dog" have nearly the same words. Given both, the
  probe says which denies the dog, from the difference of the two states and the states of the two objects; its weights are learnt
  on other objects and other wordings.

Both sides are balanced, so chance is one half, and a layer that cannot tell two texts apart gets exactly that.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from clipmend.negation.pairs import with_article

__all__ = ["CHANCE", "Denials", "Split", "denial_probe", "denial_texts", "disjoint_splits", "negated_probe"]

CHANCE = 0.5
OBJECT_FOLDS, WORDING_FOLDS = 3, 5
MOST_PAIRS = 2000

# wording, then the same statement with the denied object last and first; {a} is asserted, {d} denied.
_DENIALS = (
    ("no", "{ax} but no {d}", "no {d} but {ax}"),
    ("without", "{ax} without {dx}", "without {dx}, but with {ax}"),
    (
        "does not",
        "this image features {ax} and does not feature {dx}",
        "this image does not feature {dx} and features {ax}",
    ),
    ("is not", "{ax} is here but {dx} is not", "{dx} is not here but {ax} is"),
    ("cannot", "we can see {ax} but cannot see {dx}", "we cannot see {dx} but can see {ax}"),
)


@dataclass(frozen=True)
class Split:
    """Rows to train and to test on, which share neither an object nor a wording."""

    train: np.ndarray
    test: np.ndarray


@dataclass(frozen=True)
class Denials:
    """Texts that assert one object and deny another.

    Args:
        texts: ``M`` texts; neighbours ``2k`` and ``2k + 1`` are the same sentence with the objects exchanged: the first of the two
            denies ``first``, the other denies ``second``.
        first, second: the two objects, the same for both neighbours.
        wordings: the negated words of each text.
        folds: the object fold: objects of one fold are in no text of another.
        objects: the objects, and ``object_texts`` one plain text for each.
    """

    texts: tuple[str, ...]
    first: tuple[str, ...]
    second: tuple[str, ...]
    wordings: tuple[str, ...]
    folds: np.ndarray
    objects: tuple[str, ...]
    object_texts: tuple[str, ...]


def disjoint_splits(object_folds: np.ndarray, wordings: Sequence[str], wording_folds: int = WORDING_FOLDS) -> Iterator[Split]:
    """Every cell (object fold, wording fold) is the test set once; training uses the rows that share neither with it.

    Args:
        object_folds: ``[N]`` fold of each row's objects.
        wordings: the wording of each row; wordings are dealt into at most ``wording_folds`` folds, whole.

    Yields:
        Splits whose two sides are both non-empty.
    """
    wording_fold = np.unique(np.asarray(wordings, dtype=object).astype(str), return_inverse=True)[1] % wording_folds
    for objects in np.unique(object_folds):
        for words in np.unique(wording_fold):
            test = np.flatnonzero((object_folds == objects) & (wording_fold == words))
            train = np.flatnonzero((object_folds != objects) & (wording_fold != words))
            if len(test) and len(train):
                yield Split(train, test)


def negated_probe(
    positive: np.ndarray, contrast: np.ndarray, objects: Sequence[str], wordings: Sequence[str], *, seed: int = 0
) -> np.ndarray | str:
    """Is a text the plain one or the negated one of its pair? Read from the states of one layer.

    Args:
        positive: ``[N, W]`` states of the plain texts.
        contrast: ``[N, W]`` states of the negated texts.
        objects: the object of each pair, ``""`` where it is not known.
        wordings: the negated words of each pair.
        seed: deals objects into folds, and picks 2,000 pairs where there are more.

    Returns:
        ``[N]`` accuracy of each pair (0, 1/2 or 1: its two texts), NaN for a pair that was never tested; or, in words, why the
        question cannot be asked (objects not named, fewer than two wordings or three objects).
    """
    if not all(objects):
        return "the pairs do not name their objects: that train and test objects differ could not be assured"
    if len(set(wordings)) < 2:
        return "the pairs have one wording: train and test wordings cannot differ"
    if len(set(objects)) < OBJECT_FOLDS:
        return f"the pairs have fewer than {OBJECT_FOLDS} objects: train and test objects cannot differ"
    rng = np.random.default_rng(seed)
    folds = _deal(objects, rng)
    chosen = np.arange(len(positive))
    if len(chosen) > MOST_PAIRS:
        chosen = np.sort(rng.choice(chosen, MOST_PAIRS, replace=False))
    accuracy = np.full(len(positive), np.nan)
    for split in disjoint_splits(folds[chosen], [wordings[int(i)] for i in chosen]):
        train, test = chosen[split.train], chosen[split.test]
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
        _fit(model, np.concatenate([positive[train], contrast[train]]), np.repeat([0, 1], len(train)))
        right_plain = model.predict(positive[test]) == 0
        right_negated = model.predict(contrast[test]) == 1
        accuracy[test] = (right_plain.astype(float) + right_negated) / 2
    return accuracy


def denial_texts(nouns: Sequence[str], *, seed: int = 0) -> Denials:
    """The texts of the second question: couples of objects in five wordings, each object denied once, order of mention balanced.

    Args:
        nouns: at least 6 different objects, singular, without article.
        seed: deals objects into folds and couples.

    Raises:
        ValueError: fewer than 6 nouns.
    """
    if len(set(nouns)) < 2 * OBJECT_FOLDS:
        raise ValueError(f"the probe for the denied object needs {2 * OBJECT_FOLDS} different nouns or more, got {len(set(nouns))}")
    rng = np.random.default_rng(seed)
    fold_of = _deal(nouns, rng)
    texts, first, second, wordings, folds = [], [], [], [], []
    couple = 0
    for fold in range(OBJECT_FOLDS):
        members = [noun for noun, f in zip(nouns, fold_of, strict=True) if f == fold]
        members = [members[i] for i in rng.permutation(len(members))]
        steps = [step for step in (1, 3) if step < len(members) and 2 * step != len(members)] or [1]
        couples = {tuple(sorted((members[i], members[(i + step) % len(members)]))) for step in steps for i in range(len(members))}
        for a, b in sorted(couples):
            for place, (wording, *orders) in enumerate(_DENIALS):
                sentence = orders[(couple + place) % 2]
                for asserted, absent in ((b, a), (a, b)):
                    texts.append(sentence.format(ax=with_article(asserted), d=absent, dx=with_article(absent)))
                    first.append(a)
                    second.append(b)
                    wordings.append(wording)
                    folds.append(fold)
            couple += 1
    return Denials(
        tuple(texts),
        tuple(first),
        tuple(second),
        tuple(wordings),
        np.array(folds),
        tuple(nouns),
        tuple(f"a photo of {with_article(noun)}" for noun in nouns),
    )


def denial_probe(states: np.ndarray, object_states: np.ndarray, denials: Denials) -> tuple[np.ndarray, np.ndarray]:
    """Of two sentences with their objects exchanged, which denies which? Read from the states of one layer.

    With the states ``t`` and ``t'`` of the two sentences and ``a``, ``b`` of the objects, the probe is the sign of
    ``sum_k w_k (t_k - t'_k) (a_k - b_k)``: linear in the texts, without intercept, and turned round when either is exchanged. With
    all ``w_k = 1`` it is what cosine similarity itself reads: the sentence that denies ``a`` should be the farther from it.

    Args:
        states: ``[M, W]`` states of ``denials.texts``.
        object_states: ``[K, W]`` states of ``denials.object_texts``.
        denials: the texts.

    Returns:
        ``[C]`` accuracy of each couple of objects, averaged over wordings (a tie counts one half): of the trained probe, and of
        the untrained one. Below one half, the untrained one hears the denied object as the one that is there.
    """
    row = {noun: k for k, noun in enumerate(denials.objects)}
    apart = object_states[[row[a] for a in denials.first[::2]]] - object_states[[row[b] for b in denials.second[::2]]]
    features = (states[1::2] - states[0::2]) * apart  # the second of two neighbours asserts the first object
    trained = np.full(len(features), np.nan)
    for split in disjoint_splits(denials.folds[::2], denials.wordings[::2]):
        model = make_pipeline(StandardScaler(with_mean=False), LogisticRegression(C=0.01, max_iter=2000, fit_intercept=False))
        train = features[split.train]
        _fit(model, np.concatenate([train, -train]), np.repeat([1, 0], len(train)))
        trained[split.test] = _right(model.decision_function(features[split.test]))
    wordings = len(_DENIALS)
    return trained.reshape(-1, wordings).mean(1), _right(features.sum(1)).reshape(-1, wordings).mean(1)


def _right(margins: np.ndarray) -> np.ndarray:
    return (np.sign(margins) + 1) / 2


def _fit(model: LogisticRegression, features: np.ndarray, labels: np.ndarray) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a layer with no signal has no optimum worth waiting for
        model.fit(features, labels)


def _deal(objects: Sequence[str], rng: np.random.Generator) -> np.ndarray:
    """Deal the distinct objects into folds of equal size, at random; the fold of each row."""
    names = sorted(set(objects))
    fold = dict(zip(names, rng.permutation(len(names)) % OBJECT_FOLDS, strict=True))
    return np.array([fold[name] for name in objects])
