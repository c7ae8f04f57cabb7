"""Denials borrowed from the list of nouns."""

import re

import numpy as np
import pytest

from clipmend.data.nouns import load_nouns
from clipmend.data.records import FALSE, TRUE, Caption, NegationData
from clipmend.data.scenes import RESERVED_KINDS, make_scenes, negation_data
from clipmend.data.scenes.wordings import RESERVED_PATTERN
from clipmend.negation.borrowed import with_borrowed_denials


@pytest.fixture(scope="module")
def scenes() -> NegationData:
    drawn = make_scenes(60, 3)
    return negation_data(drawn, [scene.name for scene in drawn], 3)


def test_the_data_keep_their_numbers_and_the_new_captions_deny_what_they_never_speak_of(scenes: NegationData) -> None:
    more = with_borrowed_denials(scenes, share=0.5, exclude=scenes.reserved)
    assert more.captions[: len(scenes.captions)] == scenes.captions
    assert more.questions == scenes.questions
    new = more.captions[len(scenes.captions) :]
    plain = [caption for caption in scenes.captions if caption.image >= 0 and not caption.denies]
    assert len(new) == round(0.5 * len(plain))
    spoken = {atom for caption in scenes.captions for atom in (*caption.asserts, *caption.denies)}
    said = {(caption.image, caption.asserts) for caption in plain}
    for caption in new:
        assert caption.form == "hybrid"
        assert len(caption.denies) == 1
        assert caption.denies[0] not in spoken
        assert not caption.denies[0].endswith(tuple(RESERVED_KINDS))
        assert (caption.image, caption.asserts) in said
        assert not re.search(RESERVED_PATTERN, caption.text, re.IGNORECASE)


def test_their_truth_follows_from_what_they_assert(scenes: NegationData) -> None:
    more = with_borrowed_denials(scenes, share=0.5)
    rows = list(range(len(scenes.captions), len(more.captions)))
    truth = more.truth(range(len(more.images)), rows)
    for column, row in enumerate(rows):
        caption = more.captions[row]
        expected = [TRUE if set(caption.asserts) <= facts else FALSE for facts in more.facts]
        np.testing.assert_array_equal(truth[:, column], expected)


def test_a_seed_fixes_them_and_another_changes_them(scenes: NegationData) -> None:
    once, again, other = (with_borrowed_denials(scenes, seed=seed).captions for seed in (1, 1, 2))
    assert once == again
    assert once != other


def test_more_than_there_are_captions_and_every_noun_in_turn(scenes: NegationData) -> None:
    plain = sum(caption.image >= 0 and not caption.denies for caption in scenes.captions)
    nouns = [noun.singular for noun in load_nouns()[:40]]
    more = with_borrowed_denials(scenes, nouns, share=2.0)
    new = more.captions[len(scenes.captions) :]
    assert len(new) == 2 * plain
    counts = np.unique([caption.denies[0] for caption in new], return_counts=True)[1]
    assert counts.max() - counts.min() <= 1


def test_a_caption_of_two_sentences_gets_a_third_and_none_without_a_noun() -> None:
    told = [
        Caption("A dog. It sleeps.", 0, "affirmative", ("dog",), complete=False),
        Caption("no cat", 0, "negative", (), ("cat",)),
    ]
    data = NegationData(["a.png"], [frozenset({"dog"})], told)
    for seed in range(20):
        [new] = with_borrowed_denials(data, ["teapot"], share=1.0, seed=seed).captions[2:]
        assert "A dog. it sleeps" in new.text or "a dog. it sleeps" in new.text.lower()
        assert new.text.count(". ") == 2
        assert not new.complete
    assert with_borrowed_denials(data, ["dog", "cat"], share=1.0) is data
    assert with_borrowed_denials(data, ["teapot"], share=0.0) is data


def test_what_is_annotated_is_not_denied_though_no_caption_says_it() -> None:
    said = [Caption("A tree", 0, "affirmative", ("tree",), complete=False), Caption("no boat", 0, "negative", (), ("boat",))]
    nouns = ["car", "dog", "cup", "zebra", "teapot"]
    data = NegationData(
        ["a.png"], [frozenset({"red car", "tree", "black dog"})], said, vocabulary=frozenset({"car", "tree", "cup"}),
        unknown=[frozenset({"zebra"})],
    )  # fmt: skip
    for seed in range(10):
        [new] = with_borrowed_denials(data, nouns, share=1.0, seed=seed).captions[2:]
        assert new.denies == ("teapot",)
    assert with_borrowed_denials(data, nouns[:4], share=1.0) is data


def test_capital_letters_of_a_name_stay() -> None:
    said = [Caption("TV on a desk", 0, "affirmative", ("tv",)), Caption("no boat", 0, "negative", (), ("boat",))]
    data = NegationData(["a.png"], [frozenset({"tv"})], said)
    texts = [with_borrowed_denials(data, ["teapot"], share=1.0, seed=seed).captions[2].text for seed in range(20)]
    assert all("TV on a desk" in text for text in texts), texts
