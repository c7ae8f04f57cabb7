"""Probes find what was planted, find nothing where nothing is, and never see a test object or wording in training."""

from __future__ import annotations

import numpy as np
import pytest

from clipmend.negation import probes
from clipmend.negation.pairs import NOUNS, minimal_pairs
from clipmend.negation.probes import denial_probe, denial_texts, disjoint_splits, negated_probe

PAIRS = minimal_pairs()
OBJECTS = [pair.about for pair in PAIRS]
WORDINGS = [pair.words for pair in PAIRS]
WIDTH = 24


def noise(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, WIDTH))


def word_states(words: list[str], seed: int) -> np.ndarray:
    """A random state for each distinct word: what a probe could learn by heart."""
    names = sorted(set(words))
    table = dict(zip(names, noise(len(names), seed), strict=True))
    return np.stack([table[word] for word in words])


def test_splits_are_disjoint_and_test_every_row_once() -> None:
    folds = np.arange(len(PAIRS)) % 30 % 3  # a noun has one place in every frame
    splits = list(disjoint_splits(folds, WORDINGS))
    assert len(splits) == 15
    for split in splits:
        for values in (OBJECTS, WORDINGS):
            assert not {values[i] for i in split.train} & {values[i] for i in split.test}
    assert sorted(np.concatenate([split.test for split in splits])) == list(range(len(PAIRS)))


def test_probe_trains_on_other_objects_and_wordings(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def spy(folds: np.ndarray, wordings: list[str], *rest: int) -> list[probes.Split]:
        splits = list(disjoint_splits(folds, wordings, *rest))
        seen.extend(splits)
        return splits

    monkeypatch.setattr(probes, "disjoint_splits", spy)
    negated_probe(noise(len(PAIRS)), noise(len(PAIRS), 1), OBJECTS, WORDINGS)
    assert len(seen) == 15
    for split in seen:
        assert not {OBJECTS[i] for i in split.train} & {OBJECTS[i] for i in split.test}
        assert not {WORDINGS[i] for i in split.train} & {WORDINGS[i] for i in split.test}


def test_planted_negation_is_found() -> None:
    states = word_states(OBJECTS, 1) + word_states(WORDINGS, 2)
    direction = np.eye(WIDTH)[0] * 4
    accuracy = negated_probe(states - direction, states + direction, OBJECTS, WORDINGS)
    assert not isinstance(accuracy, str)
    assert np.nanmean(accuracy) > 0.97


def test_shuffled_sides_give_chance() -> None:
    states = word_states(OBJECTS, 1) + word_states(WORDINGS, 2)
    direction = np.eye(WIDTH)[0] * 4
    means = []
    for seed in range(4):
        swap = np.random.default_rng(seed).random(len(PAIRS)) < 0.5
        first = np.where(swap[:, None], states + direction, states - direction)
        second = np.where(swap[:, None], states - direction, states + direction)
        means.append(np.nanmean(negated_probe(first, second, OBJECTS, WORDINGS)))
    assert abs(np.mean(means) - 0.5) < 0.1


def test_a_wording_learnt_by_heart_is_worth_nothing() -> None:
    """Each wording has negated states of its own: a probe that saw it would be perfect, one that did not is at chance."""
    plain = noise(len(PAIRS), 3) * 0.1
    negated = plain + word_states(WORDINGS, 4) * 3
    accuracy = np.nanmean(negated_probe(plain, negated, OBJECTS, WORDINGS))
    direction = word_states(WORDINGS, 4)[0] * 3
    assert np.nanmean(negated_probe(plain, plain + direction, OBJECTS, WORDINGS)) > 0.97
    assert accuracy < 0.85


def test_constant_states_give_exactly_chance() -> None:
    same = np.ones((len(PAIRS), WIDTH))
    assert np.nanmean(negated_probe(same, same, OBJECTS, WORDINGS)) == 0.5
    denials = denial_texts(NOUNS)
    trained, untrained = denial_probe(np.ones((len(denials.texts), WIDTH)), noise(len(NOUNS)), denials)
    assert trained.tolist() == untrained.tolist() == [0.5] * len(trained)


@pytest.mark.parametrize(
    ("objects", "wordings", "reason"),
    [
        (OBJECTS, ["no"] * len(PAIRS), "one wording"),
        (["", *OBJECTS[1:]], WORDINGS, "do not name"),
        (["cat", "dog"] * (len(PAIRS) // 2), WORDINGS, "fewer than 3 objects"),
    ],
)
def test_a_question_that_cannot_be_asked_says_so(objects: list[str], wordings: list[str], reason: str) -> None:
    answer = negated_probe(noise(len(PAIRS)), noise(len(PAIRS), 1), objects, wordings)
    assert isinstance(answer, str)
    assert reason in answer


def test_large_sets_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "MOST_PAIRS", 60)
    accuracy = negated_probe(noise(len(PAIRS)), noise(len(PAIRS), 1), OBJECTS, WORDINGS)
    assert not isinstance(accuracy, str)
    assert 0 < np.isfinite(accuracy).sum() <= 60


def test_denial_texts_are_balanced_and_disjoint() -> None:
    denials = denial_texts(NOUNS, seed=3)
    assert len(set(denials.texts)) == len(denials.texts) >= 400
    first_mentioned_denied = []
    for k, (text, first, second) in enumerate(zip(denials.texts, denials.first, denials.second, strict=True)):
        absent, asserted = (first, second) if k % 2 == 0 else (second, first)
        negator = {"is not": "not", "does not": "not feature"}.get(denials.wordings[k], denials.wordings[k])
        assert negator in text
        if denials.wordings[k] in ("no", "without"):
            assert f"{denials.wordings[k]} {with_or_bare(denials.wordings[k], absent)}" in text
        first_mentioned_denied.append(text.index(absent) < text.index(asserted))
        assert denials.folds[k] == denials.folds[k - k % 2]
    assert 0.45 < np.mean(first_mentioned_denied) < 0.55  # the order of mention gives nothing away
    fold_of: dict[str, int] = {}
    for first, second, fold in zip(denials.first, denials.second, denials.folds, strict=True):
        assert fold_of.setdefault(first, fold) == fold_of.setdefault(second, fold) == fold
    assert denial_texts(NOUNS, seed=3).texts == denials.texts != denial_texts(NOUNS, seed=4).texts


def with_or_bare(wording: str, noun: str) -> str:
    return noun if wording == "no" else f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def denial_states(denials: probes.Denials, strength: float, seed: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """States that lean towards the asserted object, on the even coordinates alone, under noise and wording states."""
    objects = noise(len(denials.objects), seed)
    row = {noun: k for k, noun in enumerate(denials.objects)}
    a, b = (np.stack([objects[row[x]] for x in side]) for side in (denials.first, denials.second))
    asserted = np.where(np.arange(len(denials.texts))[:, None] % 2 == 0, b, a)
    mask = np.arange(WIDTH) % 2 == 0
    return a + b + word_states(list(denials.wordings), 6) + strength * asserted * mask + noise(len(asserted), 7), objects


def test_planted_denial_is_found_and_turned_round() -> None:
    denials = denial_texts(NOUNS)
    trained, cosine = denial_probe(*denial_states(denials, 2.0), denials)
    assert trained.mean() > 0.9
    assert cosine.mean() > 0.9
    trained, cosine = denial_probe(*denial_states(denials, -2.0), denials)
    assert trained.mean() > 0.9  # the signal is there for whoever learns to read it
    assert cosine.mean() < 0.1  # read as it stands, it says the opposite


def test_denial_shuffled_gives_chance() -> None:
    denials = denial_texts(NOUNS)
    states, objects = denial_states(denials, 2.0)
    means = []
    for seed in range(4):
        swap = np.repeat(np.random.default_rng(seed).random(len(states) // 2) < 0.5, 2)
        mirrored = states.reshape(-1, 2, WIDTH)[:, ::-1].reshape(-1, WIDTH)
        trained, cosine = denial_probe(np.where(swap[:, None], mirrored, states), objects, denials)
        means.append((trained.mean(), cosine.mean()))
    assert np.abs(np.mean(means, 0) - 0.5).max() < 0.1


def test_too_few_nouns_for_denials() -> None:
    with pytest.raises(ValueError, match="6 different nouns"):
        denial_texts(["cat", "dog", "bus"])
    assert denial_probe(noise(len(denial_texts(NOUNS[:6]).texts)), noise(6), denial_texts(NOUNS[:6]))[0].shape == (3,)
