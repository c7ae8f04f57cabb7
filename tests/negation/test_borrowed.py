"""Denials borrowed from the list of nouns."""

import hashlib
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


def test_neither_number_of_what_the_data_speak_of_is_denied() -> None:
    """Atoms in the plural, or with a capital, speak of the noun too."""
    said = [Caption("Two dogs", 0, "affirmative", ("dogs",)), Caption("no Boats", 0, "negative", (), ("Boats",))]
    data = NegationData(["a.png"], [frozenset({"dogs", "stray sheep", "wolves"})], said)
    nouns = ["dog", "boat", "sheep", "wolf", "hot dog", "teapot"]
    for seed in range(10):
        [new] = with_borrowed_denials(data, nouns, share=1.0, seed=seed).captions[2:]
        assert new.denies == ("teapot",)
    assert with_borrowed_denials(data, nouns[:5], share=1.0) is data


@pytest.mark.parametrize("other", ["two teapots beside it", "A TEA-POT, old", "a man"])
def test_what_a_caption_of_the_image_mentions_is_not_denied_of_it(other: str) -> None:
    """Captions that people wrote speak of more than is annotated; those of another image have no say."""
    said = [
        Caption("A man at a table", 0, "affirmative", ("person",), complete=False),
        Caption(other, 0, "affirmative", ("person",), complete=False),
        Caption("a woman and a teapot, a tea pot, a wug", 1, "affirmative", ("person",), complete=False),
        Caption("no boat", 0, "negative", (), ("boat",)),
    ]
    facts = [frozenset({"person"})] * 2
    data = NegationData(["a.png", "b.png"], facts, said, vocabulary=frozenset({"person", "boat"}))
    denied: dict[int, set[str]] = {0: set(), 1: set()}
    for seed in range(30):
        for new in with_borrowed_denials(data, ["teapot", "tea pot", "wug"], share=1.0, seed=seed).captions[4:]:
            denied[new.image] |= set(new.denies)
    assert not denied[1], "every noun is in the words of that image"
    gone = {"two teapots beside it": {"teapot"}, "A TEA-POT, old": {"tea pot"}, "a man": set()}[other]
    assert denied[0] == {"teapot", "tea pot", "wug"} - gone


def test_captions_that_people_wrote_are_denied_in_grammar() -> None:
    """Mass nouns are not counted, and "not a" does not follow what a person wrote; drawn scenes keep the texts of old."""
    said = [
        Caption("A man riding a bike.", 0, "affirmative", ("bike",), complete=False),
        Caption("no boat", 0, "negative", (), ("boat",)),
    ]
    data = NegationData(["a.png"], [frozenset({"bike"})], said, vocabulary=frozenset({"bike", "boat"}))
    texts = {with_borrowed_denials(data, ["bread"], share=1.0, seed=seed).captions[2].text for seed in range(200)}
    assert len(texts) > 20
    wrong = re.compile(r"\b(are no|are not any|aren't any|zero|single|a|not a) bread\b|\bbreads\b|bike,? not a\b|\bit (has|does)\b")
    assert not [text for text in texts if wrong.search(text)]
    assert all("man riding a bike" in text for text in texts)
    plurals = {with_borrowed_denials(data, ["knife"], share=1.0, seed=seed).captions[2].text for seed in range(200)}
    assert any("knives" in text for text in plurals)
    assert not [text for text in plurals if "knifes" in text]


def test_texts_of_drawn_scenes_are_those_that_the_bundled_patches_saw() -> None:
    """Another text would make the published fits another's; the digest is of the texts as they were when those were fitted."""
    drawn = make_scenes(60, 3)
    data = negation_data(drawn, [scene.name for scene in drawn], 3)
    new = with_borrowed_denials(data, share=0.7, exclude=data.reserved).captions[len(data.captions) :]
    digest = hashlib.sha256("\n".join(caption.text for caption in new).encode()).hexdigest()
    assert digest == "adb0826feb8b4e319c871e432c4f5c739e7eefa4b7c5807a65b7b223f41a4ace"
