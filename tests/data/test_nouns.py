"""The shipped nouns: what they must and must not hold."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from clipmend.data.nouns import Noun, indefinite_article, load_nouns

NOUNS = load_nouns()


def test_a_few_thousand_in_many_categories() -> None:
    assert 2500 <= len(NOUNS) <= 4000
    sizes = Counter(noun.category for noun in NOUNS)
    assert len(sizes) >= 25
    assert min(sizes.values()) >= 20


def test_no_noun_twice() -> None:
    counts = Counter(noun.singular.lower() for noun in NOUNS)
    assert [word for word, count in counts.items() if count > 1] == []


def test_every_row_is_clean_text() -> None:
    for noun in NOUNS:
        for form in (noun.singular, noun.plural):
            if form is not None:
                assert re.fullmatch(r"[A-Za-z][A-Za-z'\- ]*[A-Za-z]", form), noun
                assert "  " not in form
        assert noun.mass == (noun.plural is None)


def test_no_noun_speaks_of_absence() -> None:
    """A noun with a negation in it ("no smoking sign") would turn every caption about it upside down."""
    cues = {"no", "not", "without", "free", "absent", "lacking", "none", "nothing", "never", "empty", "missing"}
    assert [noun.singular for noun in NOUNS if cues & set(re.split(r"[ -]", noun.singular.lower()))] == []


def test_nothing_offensive_or_abstract() -> None:
    unwanted = {"slut", "whore", "gypsy", "eskimo", "midget", "cripple", "retard", "cock", "bitch", "negro", "oriental", "savage"}
    abstract = {"idea", "love", "freedom", "theory", "justice", "thought", "opinion", "truth", "reason", "hope", "time"}
    words = {word for noun in NOUNS for word in re.split(r"[ -]", noun.singular.lower())}
    assert words & unwanted == set()
    assert {noun.singular.lower() for noun in NOUNS} & abstract == set()


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("cat", "a cat"),
        ("apple", "an apple"),
        ("hourglass", "an hourglass"),
        ("honeycomb", "a honeycomb"),
        ("unicycle", "a unicycle"),
        ("uniform", "a uniform"),
        ("university", "a university"),
        ("ukulele", "a ukulele"),
        ("umbrella", "an umbrella"),
        ("urn", "an urn"),
        ("utility knife", "a utility knife"),
        ("USB stick", "a USB stick"),
        ("eucalyptus tree", "a eucalyptus tree"),
        ("X-ray picture", "an X-ray picture"),
        ("e-reader", "an e-reader"),
        ("bread", "bread"),
        ("cup of tea", "a cup of tea"),
    ],
)
def test_indefinite(word: str, expected: str) -> None:
    noun = next(noun for noun in NOUNS if noun.singular == word)
    assert noun.indefinite == expected


def test_article_follows_the_first_letter_but_for_known_sounds() -> None:
    odd = {
        noun.singular
        for noun in NOUNS
        if (indefinite_article(noun.singular) == "an") != (noun.singular[0].lower() in "aeiou") and not noun.mass
    }
    assert odd <= {
        "eucalyptus tree",
        "hourglass",
        "uniform",
        "unicycle",
        "utility knife",
        "USB stick",
        "ukulele",
        "university",
        "X-ray picture",
    }
    assert indefinite_article("unidentified bird") == "an"
    with pytest.raises(ValueError, match="empty"):
        indefinite_article("  ")


def test_irregular_plurals() -> None:
    plurals = {noun.singular: noun.plural for noun in NOUNS}
    expected = {
        "mouse": "mice",
        "goose": "geese",
        "sheep": "sheep",
        "wolf": "wolves",
        "child": "children",
        "woman": "women",
        "tooth": "teeth",
        "leaf": "leaves",
        "cactus": "cacti",
        "potato": "potatoes",
        "cup of tea": "cups of tea",
        "firefighter": "firefighters",
        "snowman": "snowmen",
        "knife": "knives",
        "church": "churches",
        "cherry": "cherries",
        "monkey": "monkeys",
        "person": "people",
    }
    assert {word: plurals[word] for word in expected} == expected
    assert plurals["bread"] is None


def test_exclude_drops_compounds_and_plurals() -> None:
    kept = {noun.singular for noun in load_nouns(exclude=["cat", "Wolves"])}
    assert not kept & {"cat", "Persian cat", "cat flap", "wolf", "pack of wolves"}
    assert "catfish" in kept


def test_categories() -> None:
    birds = load_nouns(categories=["birds"])
    assert Noun("owl", "owls", False, "birds") in birds
    assert {noun.category for noun in birds} == {"birds"}
    with pytest.raises(ValueError, match="dragons"):
        load_nouns(categories=["dragons"])


def test_some_follows_without_any() -> None:
    forms = {noun.singular: noun.some for noun in NOUNS}
    assert forms["cat"] == "cats"
    assert forms["bread"] == "bread"


def test_the_returned_list_is_the_callers_own() -> None:
    load_nouns().clear()
    assert len(load_nouns()) == len(NOUNS)
