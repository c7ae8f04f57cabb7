"""What is said: true where it claims to be, grammatical, and free of what is reserved."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipmend.data.records import FALSE, FORMS, TRUE, truth_matrix
from clipmend.data.scenes import (
    BACKGROUNDS,
    KINDS,
    RESERVED_KINDS,
    RESERVED_WORDINGS,
    SUBSETS,
    WORDINGS,
    exclusion_queries,
    make_scenes,
    negation_data,
    retrieval_captions,
    scene_facts,
    tower_captions,
)
from clipmend.data.scenes.build import scene_captions
from clipmend.data.scenes.captions import deny
from clipmend.data.scenes.wordings import RESERVED_PATTERN
from clipmend.data.scenes.world import plural, with_article

seeds = st.integers(0, 10**6)
RESERVED_TEXT = re.compile(RESERVED_PATTERN, re.IGNORECASE)
DENIAL = re.compile(
    r"\b(no|not|without|never|cannot|isn't|doesn't|zero|missing|leaves? out|leaving out|empty of|clear of|minus"
    r"|exclud(?:es|ing)|omit(?:s|ting)|aren't|won't)\b",
    re.IGNORECASE,
)


def _data(count=60, seed=4, split="test", subset="standard"):
    scenes = make_scenes(count, seed, split)
    return scenes, negation_data(scenes, [s.name for s in scenes], seed, split, subset)


def test_reserved_and_training_never_meet():
    assert len(WORDINGS) >= 18
    assert set(RESERVED_WORDINGS) == {
        "devoid of", "free of", "lacking", "absent", "nowhere", "sans", "neither nor", "everything except",
    }  # fmt: skip
    assert not set(WORDINGS) & set(RESERVED_WORDINGS)
    for wording in WORDINGS.values():
        for template in (*wording.sentences, *wording.hybrids, *wording.queries):
            assert not RESERVED_TEXT.search(template)
    for wording in RESERVED_WORDINGS.values():
        for template in (*wording.sentences, *wording.hybrids, *wording.queries):
            assert RESERVED_TEXT.search(template)


@pytest.mark.parametrize("wording", [*WORDINGS.values(), *RESERVED_WORDINGS.values()], ids=lambda w: w.name)
def test_every_wording_denies_and_has_each_use(wording):
    for templates in (wording.sentences, wording.hybrids, wording.queries):
        assert templates
        for template in templates:
            text = deny(template, ("cat", "apple")[: wording.kinds], pos="a red cup", place="a photo")
            assert "cat" in text
            assert ("apple" in text) == (wording.kinds == 2)
            assert "{" not in text
            assert DENIAL.search(text) or RESERVED_TEXT.search(text)
    assert all("{pos}" in template for template in wording.hybrids)
    assert all("{place}" in template for template in wording.queries)


@settings(max_examples=15, deadline=None)
@given(seeds)
def test_captions_are_true_of_their_scene_and_false_ones_false(seed):
    scenes = make_scenes(3, seed, "test")
    for image, scene in enumerate(scenes):
        captions = scene_captions(scene, seed, image, "test")
        truth = truth_matrix([scene_facts(scene)], captions)[0]
        for caption, value in zip(captions, truth, strict=True):
            assert value == (TRUE if caption.image == image else FALSE), caption
        assert {c.form for c in captions if c.image == image} == set(FORMS)


@settings(max_examples=10, deadline=None)
@given(seeds)
def test_nothing_reserved_leaks_into_training(seed):
    scenes = make_scenes(25, seed, "train")
    data = negation_data(scenes, [s.name for s in scenes], seed, "train")
    captions = [
        *data.captions, *tower_captions(scenes, seed, 5), *retrieval_captions(scenes, seed, negated=True), *exclusion_queries(seed),
    ]  # fmt: skip
    for caption in captions:
        assert not RESERVED_TEXT.search(caption.text), caption
        assert caption.wording in {"", *WORDINGS}
        assert not {atom.split()[-1] for atom in caption.denies} & set(RESERVED_KINDS), caption
    assert data.reserved == set(RESERVED_KINDS)
    asserted = {atom for caption in captions for atom in caption.asserts}
    assert asserted & set(RESERVED_KINDS)  # they are spoken of, only never denied


def test_training_data_refuse_reserved_subsets():
    scenes = make_scenes(4, 1)
    for subset in ("reserved_wording", "reserved_kind"):
        with pytest.raises(ValueError, match="must not see"):
            negation_data(scenes, [""] * 4, 1, "train", subset)
    with pytest.raises(ValueError, match="unknown subset"):
        negation_data(scenes, [""] * 4, 1, "test", "rare")


def _all_texts():
    scenes, _ = _data()
    texts = [c.text for c in tower_captions(scenes, 3, 4)]
    for subset in SUBSETS:
        texts += [c.text for c in _data(subset=subset)[1].captions]
        texts += [c.text for c in exclusion_queries(5, subset)]
        texts += [c.text for c in retrieval_captions(scenes, 3, True, subset=subset)]
    return texts


def test_grammar():
    texts = _all_texts()
    assert len(texts) > 3000
    plurals = "|".join(plural(kind) for kind in KINDS if plural(kind) != kind)
    places = "|".join(background.noun for background in BACKGROUNDS.values())
    pictures = "(photo|picture|image|drawing|scene)"
    slips = {
        "article": re.compile(r"\b(a [aeiou]|an [^aeiou\W])", re.IGNORECASE),
        "article before a plural": re.compile(rf"\ban? (?:\S+ )?(?:{plurals})\b", re.IGNORECASE),
        "double space or article": re.compile(r"  |\ba an?\b|\ban an?\b"),
        "punctuation": re.compile(r" [,.]|,,|\.\.|,\."),
        "unfilled": re.compile(r"[{}]"),
        "picture of a picture": re.compile(rf"{pictures} (of|with) an? {pictures}"),
        "scene with a place": re.compile(rf"\bscene with (?:{places}) with"),
        "nothing denied": re.compile(r"\b(no|any|without)[.,]?$"),
    }
    for text in texts:
        for name, pattern in slips.items():
            found = pattern.search(text)
            assert not found, (name, text)
        assert text == text.strip()
        if ". " in text:
            assert text.endswith(".")
            assert re.search(r"\. [A-Z]", text)


@given(st.sampled_from(KINDS))
def test_articles_and_plurals(kind):
    assert with_article(kind) == ("an " if kind[0] in "aeiou" else "a ") + kind
    assert with_article(f"orange {kind}").startswith("an orange")
    assert plural(kind)[:3] == kind[:3]


def test_captions_vary_in_what_they_say():
    _, data = _data(200)
    own = [c for c in data.captions if c.image >= 0 and c.form == "affirmative"]
    atoms = [any(" " in a and not a.startswith("at ") for a in c.asserts) for c in own]
    places = [any(a.startswith("at ") for a in c.asserts) for c in own]
    assert 0.3 < np.mean(atoms) < 0.9
    assert 0.1 < np.mean(places) < 0.6
    assert {c.wording for c in data.captions} == {"", *WORDINGS}


def test_attribute_denials_are_kept_apart_from_kinds():
    """ "no red cup" is true of a picture with a blue cup."""
    _, data = _data(300)
    coloured = [c for c in data.captions if any(" " in atom for atom in c.denies)]
    assert 0.01 < len(coloured) / len(data.captions) < 0.1
    beside = [c for c in coloured if c.image >= 0 and c.denies[0].split()[-1] in data.facts[c.image]]
    assert beside


def test_tower_captions_are_careless_about_absence():
    scenes = make_scenes(1500, 12)
    captions = tower_captions(scenes, 12, 4)
    assert len(captions) == 6000
    assert [c.image for c in captions] == [i for i in range(1500) for _ in range(4)]
    negated = [c for c in captions if c.denies]
    assert 0.065 < len(negated) / len(captions) < 0.095
    present = [c.denies[0] in scene_facts(scenes[c.image]) for c in negated]
    assert 0.44 < np.mean(present) < 0.56
    plain = [c for c in captions if not c.denies]
    truth = truth_matrix([scene_facts(s) for s in scenes], plain)
    assert (truth[[c.image for c in plain], range(len(plain))] == TRUE).all()
    assert not any(DENIAL.search(c.text) for c in plain)
    assert tower_captions(scenes[:7], 12, 4) == captions[:28]


def test_exclusion_queries_deny_and_ask_for_nothing_else():
    for subset, rules in SUBSETS.items():
        queries = exclusion_queries(3, subset)
        assert {q.wording for q in queries} == {w.name for w in rules.wordings}
        assert all(q.form == "negative" and not q.asserts and set(q.denies) <= set(rules.deniable) for q in queries)
        assert len({q.text for q in queries}) == len(queries)
        wordings = {kind: {q.wording for q in queries if kind in q.denies} for kind in rules.deniable}
        assert min(len(found) for found in wordings.values()) >= 3
        per_wording = {w.name: {q.denies for q in queries if q.wording == w.name} for w in rules.wordings}
        assert min(len(found) for found in per_wording.values()) >= 3


def test_negated_retrieval_says_the_plain_caption_and_a_true_denial():
    scenes = make_scenes(80, 6, "test")
    facts = [scene_facts(s) for s in scenes]
    plain = retrieval_captions(scenes, 6)
    for subset, rules in SUBSETS.items():
        negated = retrieval_captions(scenes, 6, negated=True, subset=subset)
        assert [(c.image, c.asserts) for c in negated] == [(c.image, c.asserts) for c in plain]
        for captions in (plain, negated):
            truth = truth_matrix(facts, captions)
            assert (truth[[c.image for c in captions], range(len(captions))] == TRUE).all()
        assert {c.wording for c in negated} <= {w.name for w in rules.wordings}
        assert all(set(c.denies) <= set(rules.deniable) for c in negated)
        places = {"before" if re.match(r"[^.]*\b(no|not|without|any)\b[^.]*\. ", c.text) else "after" for c in negated}
        assert subset != "standard" or places == {"before", "after"}


def test_texts_are_fixed_by_the_seed():
    scenes = make_scenes(20, 5, "test")
    first, again = (negation_data(scenes, [""] * 20, 9, "test") for _ in range(2))
    assert first.captions == again.captions
    assert first.questions == again.questions
    assert negation_data(scenes, [""] * 20, 10, "test").captions != first.captions


def test_no_scenes_give_empty_data():
    data = negation_data([], [], 1)
    assert not data.captions
    assert not data.questions
