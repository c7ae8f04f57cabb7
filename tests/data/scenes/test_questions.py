"""Questions: one true option, forms in equal thirds, and nothing that betrays the answer to one who cannot see."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipmend.data.records import FALSE, FORMS, TRUE, truth_matrix
from clipmend.data.scenes import RESERVED_KINDS, RESERVED_WORDINGS, SUBSETS, WORDINGS, choice_questions, make_scenes, scene_facts

QUESTIONS = 9000


@pytest.fixture(scope="module", params=list(SUBSETS))
def world(request):
    scenes = make_scenes(1000, 41, "test")
    captions, questions = choice_questions(scenes, 41, request.param, QUESTIONS)
    return request.param, scenes, captions, questions, truth_matrix([scene_facts(s) for s in scenes], captions)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6), st.integers(20, 40))
def test_exactly_one_option_is_true(seed, count):
    scenes = make_scenes(count, seed, "test")
    facts = [scene_facts(s) for s in scenes]
    captions, questions = choice_questions(scenes, seed)
    truth = truth_matrix(facts, captions)
    assert Counter(q.template for q in questions) == dict.fromkeys(FORMS, -(-count // 3))
    for question in questions:
        values = [truth[question.image, k] for k in question.options]
        assert values.count(TRUE) == 1
        assert values.count(FALSE) == 3
        assert values[question.answer] == TRUE
        texts = {captions[k].text.lower().rstrip(".") for k in question.options}
        assert len(texts) == 4
        assert captions[question.options[question.answer]].form == question.template


def test_forms_positions_and_reserved_things(world):
    subset, _, captions, questions, truth = world
    assert Counter(q.template for q in questions) == dict.fromkeys(FORMS, QUESTIONS // 3)
    positions = Counter(q.answer for q in questions)
    assert min(positions.values()) > 0.23 * QUESTIONS
    names = RESERVED_WORDINGS if subset == "reserved_wording" else WORDINGS
    assert {c.wording for c in captions} == {"", *names}
    denied = {kind for c in captions for kind in c.denies}
    if subset == "reserved_kind":
        assert denied == set(RESERVED_KINDS)
    else:
        assert not denied & set(RESERVED_KINDS)
    for question in questions:
        assert truth[question.image, question.options[question.answer]] == TRUE
        assert sum(truth[question.image, k] == TRUE for k in question.options) == 1
    for template in FORMS:  # false statements of every form stand against every right answer
        others = Counter(
            captions[k].form for q in questions if q.template == template for k in q.options if captions[k].form != template
        )
        assert set(others) == set(FORMS) - {template}
        assert max(others.values()) < 1.2 * min(others.values())


def _accuracy(scores, questions):
    """Accuracy by template; ``scores(question)`` gives four scores, ties are broken at random."""
    rng = np.random.default_rng(0)
    right = {template: [] for template in FORMS}
    for question in questions:
        noisy = np.asarray(scores(question), float) + rng.random(4) * 1e-3
        right[question.template].append(int(noisy.argmax()) == question.answer)
    return {template: 100 * np.mean(values) for template, values in right.items()}


def test_shuffled_images_leave_no_more_than_30_percent(world):
    """Even one who knows all truths, shown another question's image, stays near chance on each template."""
    _, _, _, questions, truth = world
    order = np.random.default_rng(5).permutation(len(questions))
    shown = {id(q): questions[k].image for q, k in zip(questions, order, strict=True)}
    oracle = _accuracy(lambda q: truth[shown[id(q)], list(q.options)], questions)
    assert max(oracle.values()) <= 30.0, oracle
    unshuffled = _accuracy(lambda q: truth[q.image, list(q.options)], questions)
    assert min(unshuffled.values()) == 100.0


def test_form_alone_leaves_no_more_than_30_percent(world):
    _, _, captions, questions, _ = world
    for form in FORMS:
        found = _accuracy(lambda q, form=form: [captions[k].form == form for k in q.options], questions)
        assert max(found.values()) <= 30.0, (form, found)
    majority = _accuracy(lambda q: [sum(captions[j].form == captions[k].form for j in q.options) for k in q.options], questions)
    assert max(majority.values()) <= 30.0, majority


def test_length_alone_betrays_little(world):
    _, _, captions, questions, _ = world
    for sign in (1, -1):
        found = _accuracy(lambda q, sign=sign: [sign * len(captions[k].text) for k in q.options], questions)
        assert np.mean(list(found.values())) <= 30.0, found


def test_a_constant_score_is_chance(world):
    _, _, _, questions, _ = world
    for value in _accuracy(lambda q: [0, 0, 0, 0], questions).values():
        assert value == pytest.approx(25, abs=3)


def test_too_few_scenes_are_refused_with_the_reason():
    scenes = [s for s in make_scenes(200, 3) if not set(s.kinds) & set(RESERVED_KINDS)][:5]
    with pytest.raises(ValueError, match=r"reserved_kind.*draw more scenes"):
        choice_questions(scenes, 3, "reserved_kind")
