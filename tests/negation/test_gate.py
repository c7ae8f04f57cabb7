"""The gate's cues: what triggers it, what must not, and its own report."""

from __future__ import annotations

import pytest

from clipmend.negation.gate import gate_report, has_negation

NEGATED = [
    "a street with no cars",
    "No dog in sight",
    "this is not a dog",
    "a picture without a cat",
    "a picture w/o a cat",
    "there is nothing on the table",
    "nobody on the beach",
    "neither a cat nor a dog",
    "a scene lacking a cat",
    "the room lacks a chair",
    "a table with a lack of plates",
    "devoid of people",
    "a road void of cars",
    "a street free of cars",
    "sugar-free cake",
    "the dog is absent",
    "absence of trees",
    "the lamp is missing",
    "a salad minus the tomato",
    "a beach sans umbrella",
    "everything except a cat",
    "animals excluding dogs",
    "a park apart from benches",
    "animals other than cats",
    "a cat is nowhere to be seen",
    "a street with zero cars",
    "there isn't a dog",
    "there isn’t a dog",
    "there isn 't a dog",
    "there is n't a dog",
    "there isnt a dog",
    "we can't see a dog",
    "we cannot see a dog",
    "I dont see a dog",
    "the image doesn't feature a dog",
    "THERE AREN'T ANY DOGS",
    "a cat rather than a dog",
    "a cat instead of a dog",
    "a room with no\nchairs",
    "a dog, not only one but two, and no cat",
    "nothing but sand",
    "no one on the pier",
    "a non-red car",
    "a treeless hill",
    "people-less street",
    "a house w/out a garage",
    "hardly any clouds",
    "scarcely a car",
    "group shots excl. kids",
    "a table cleared of plates",
    "a photo with the text removed",
    "birds that have vanished",
    "a playground missing children",
]
PLAIN = [
    "",
    "a dog",
    "locker no. 5",
    "bus no 7 at the station",
    "No.5 perfume",
    "a notebook and a knot",
    "a free concert",
    "free parking",
    "a Nordic cabin in northern light",
    "a black cat",
    "nonchalant people at noon",
    "an astronaut in zero gravity",
    "ground zero memorial",
    "minus 5 degrees outside",
    "a poster in a sans-serif font",
    "not only a dog but also a cat",
    "an absent-minded professor",
    "a piano and a cannon",
    "a want ad",
    "wandering ants",
    "an unlit candle",
    "an excellent exhibition",
    "a slack rope and lace",
    "a snowman with a carrot nose",
    "someone other people know",
    "a wireless mouse on a stainless steel sink",
    "unless it rains",
    "a homeless man on an endless road",
    "less sugar",
    "bless you",
    "a duty-free shop",
    "a hands-free headset",
    "a missing person poster",
    "a minus sign on a chalkboard",
    "the zero on a scoreboard",
    "forget-me-not flowers",
    "a non-profit fundraiser",
    "a never-ending staircase",
    "a lacklustre finish",
    "Dr. No film poster",
    "a none of your business t-shirt",
    "🙂🙂",
]


@pytest.mark.parametrize("text", NEGATED)
def test_negated_captions_trigger(text: str) -> None:
    assert has_negation(text)


@pytest.mark.parametrize("text", PLAIN)
def test_plain_captions_do_not(text: str) -> None:
    assert not has_negation(text)


def test_report_counts_both_mistakes() -> None:
    texts = ["a dog", "a sign that says no parking", "no dog", "an unlit street", "a cat"]
    report = gate_report(texts, [False, False, True, True, False])
    assert report.false_triggers == ("a sign that says no parking",)
    assert report.misses == ("an unlit street",)
    assert report.false_trigger_rate == pytest.approx(1 / 3)
    assert report.miss_rate == pytest.approx(1 / 2)
    assert report.to_dict()["plain"] == 3


def test_report_of_one_class_has_no_rate_for_the_other() -> None:
    report = gate_report(["a dog"], [False])
    assert report.false_trigger_rate == 0
    assert report.miss_rate is None


def test_report_needs_a_label_a_text() -> None:
    with pytest.raises(ValueError, match="2 texts but 1 labels"):
        gate_report(["a", "b"], [True])


def test_every_wording_of_the_drawn_world_is_a_cue():
    from clipmend.data.scenes.wordings import ALL_WORDINGS

    words = {"x": "cat", "xs": "cats", "a": "a cat", "y": "dog", "ys": "dogs", "b": "a dog", "pos": "a cup", "place": "a photo"}
    texts = [t.format(**words) for w in ALL_WORDINGS.values() for t in (*w.sentences, *w.hybrids, *w.queries)]
    assert gate_report(texts, [True] * len(texts)).misses == ()
    assert not has_negation("a clear view of the beach")
    assert not has_negation("an empty street under a clear sky")


@pytest.mark.parametrize(
    "text",
    [
        *(f"it isn{mark}t a dog" for mark in "'‘’‛ʻʼʽʹ′´`΄᾽᾿՚ꞌ＇"),
        *(f"sugar{mark}free cake" for mark in "-\u2010\u2011\u2012\u2013\u2212－"),
        "a non\u2011red car",
        "a people\u2011less street",
        "ＮＯ ｃａｒｓ",
        "it is n\u00adot a dog",
        "no\u200bcars",
        "no\ufeffcars",
        "person_without_helmet",
        "no_helmet",
    ],
)
def test_other_characters_that_look_alike(text: str) -> None:
    assert has_negation(text)


@pytest.mark.parametrize(
    "text",
    ["a non\u2011stop flight", "forget\u2011me\u2011not flowers", "a hands\u2010free headset", "\u200ba_notebook\ufeff", "№ 5"],
)
def test_other_hyphens_in_words_that_deny_nothing(text: str) -> None:
    assert not has_negation(text)


@pytest.mark.parametrize(
    "text",
    [
        "a corner with no stop sign",
        "a robot, no 3d effects",
        "no 18th century houses",
        "a street with no 4x4 cars",
        "no 1990s cars",
        "no 2-story houses",
        "whether a street is without cars or not",
        "she daren't jump",
        "they neednt run",
        "we shan t see a dog",
    ],
)
def test_a_denial_that_begins_like_a_phrase_that_denies_nothing(text: str) -> None:
    assert has_negation(text)


@pytest.mark.parametrize(
    "text",
    ["No. 10 Downing Street", "room no 12b", "no #5", "no.#5", "nos 3 and 4", "platform no 9½", "whether it is red or not"],
)
def test_numbers_and_phrases_are_known_still(text: str) -> None:
    assert not has_negation(text)


@pytest.mark.parametrize(
    "text", ["", "  ", "\t\n", "\0", "\ud800", "猫がいない", "нет собак", "لا قطط", "🙂", "a" * 10_000, "whether " * 1_000]
)
def test_any_text_is_judged(text: str) -> None:
    assert not has_negation(text)
