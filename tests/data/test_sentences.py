"""Captions to sentences: what is one, what is none, and that nothing gets lost."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipmend.data.sentences import first_sentence, join_sentences, split_sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["A dog runs.", "It is brown!", "Is it fast?", "Yes"],
        ["a dog runs.", "it is brown.", "behind it is a cat"],
        ["Fruit, e.g. apples, i.e. red ones, fill a bowl.", "Another holds pears, etc. and plums.", "There is a third etc.", "All"],
        ["The tower is 3.5 m tall, at example.com v2.1.", "It leans by .5 degrees."],
        ["A path leads on... into the woods.", "It fades...", "Then\u2026", "Nothing."],
        ["Dr. Smith and Mrs. J. F. Kennedy stand on St. Mark's Square.", "They wave."],
        ["The sign shows the letter A.", "The next one shows B.", "It is old."],
        ["The flag of the U.S. Army hangs in the U.S.", "The wind blows.", "It is 9 a.m. in June.", "By 3 p.m.", "It rains."],
        ["Bus No. 5 waits.", "There is no.", "And no more."],
        ['A sign says "STOP!" in red.', 'It says "Go."', "(A smaller one is bent.)", "She said \u201cno.\u201d", "He left."],
        ["What?!", "Really..?", "It is!"],
        ["1. A dog on grass.", "A cat."],
        ["The wall is 3 ft. high.", "A cat walks in.", "It sits.", "The step is 5 cm.", "It is wet."],
        ["\u732b\u304c\u3044\u307e\u3059\u3002", "\u72ac\u3082\u300c\u3044\u307e\u3059\u3002\u300d", "\u8d64\u3044\uff01"],
        ["\u0643\u0644\u0628 \u0628\u0646\u064a\u061f", "\u0642\u0637\u0629."],
        ["\u0915\u0941\u0924\u094d\u0924\u093e\u0964", "\u092c\u093f\u0932\u094d\u0932\u0940\u0964"],
        [
            "\u0421\u043e\u0431\u0430\u043a\u0430 \u0431\u0435\u0436\u0438\u0442.",
            "\u041a\u043e\u0448\u043a\u0430 \u0441\u043f\u0438\u0442",
        ],
        ["A dog \U0001f436.", "\U0001f431 A cat."],
    ],
)
def test_what_is_a_sentence(sentences: list[str]) -> None:
    for gap in (" ", "\n", "  \t"):
        assert split_sentences(gap.join(sentences)) == sentences
    assert first_sentence(" ".join(sentences)) == sentences[0]


def test_scripts_without_spaces_and_paragraphs() -> None:
    assert split_sentences("\u732b\u3002\u72ac\u3002\u9ce5") == ["\u732b\u3002", "\u72ac\u3002", "\u9ce5"]
    assert split_sentences("A heading\r\n\r\nA dog runs\nover grass. It barks") == [
        "A heading",
        "A dog runs\nover grass.",
        "It barks",
    ]


@pytest.mark.parametrize("text", ["", "   ", "\n\n\t"])
def test_nothing(text: str) -> None:
    assert split_sentences(text) == []
    assert first_sentence(text) == ""
    assert join_sentences(split_sentences(text)) == ""


def test_only_marks() -> None:
    assert split_sentences("...") == ["..."]
    assert split_sentences("A dog. !!! \u2014 It runs.") == ["A dog. !!!", "\u2014 It runs."]


def test_joined_again() -> None:
    assert join_sentences(["It runs", "A dog.", 'She said "no."', "last"]) == 'It runs. A dog. She said "no." last'


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="aB3 .!?\u2026\n\u3002\"')(", max_size=60))
def test_nothing_is_lost_and_none_is_empty(text: str) -> None:
    found = split_sentences(text)
    assert all(piece.strip() == piece and piece for piece in found)
    assert re.sub(r"\s", "", "".join(found)) == re.sub(r"\s", "", text)
