"""The rule parser: on drawn captions, whose parse is known, on nouns it has not seen, and on sentences as people write them."""

from __future__ import annotations

import random

import pytest

from clipmend.data.nouns import load_nouns
from clipmend.data.records import Caption
from clipmend.data.scenes import make_scenes, retrieval_captions
from clipmend.data.scenes.build import exclusion_queries, scene_captions
from clipmend.data.scenes.world import KINDS
from clipmend.data.statements import WORDING_SETS, Speaker
from clipmend.evaluation.rivals.parser import measure, parse, rule_form, singular


@pytest.mark.parametrize("subset", ["standard", "reserved_wording", "reserved_kind"])
def test_drawn_captions(subset: str) -> None:
    scenes = make_scenes(60, 31, "test")
    captions = [c for i, scene in enumerate(scenes) for c in scene_captions(scene, 31, i, "test", subset)]
    captions += [*retrieval_captions(scenes, 31, True, 4, subset), *exclusion_queries(31, subset)]
    report = measure(captions, KINDS)
    assert report.count > 500
    assert report.plain > 100
    assert report.denies >= 0.99, report.wrong
    assert report.asserts >= 0.99, report.wrong
    assert report.false_denials == 0
    assert min(share for _, share in report.wordings.values()) >= 0.95


@pytest.mark.parametrize("wordings", ["training", "reserved", "published"])
def test_other_nouns(wordings: str) -> None:
    nouns = {noun.singular: noun for noun in load_nouns()}
    speaker, rng = Speaker(nouns, WORDING_SETS[wordings]), random.Random(8)
    right, total = 0, 0
    for _ in range(400):
        wording = rng.choice(speaker.wordings)
        caption = speaker.hybrid(rng.sample(list(nouns), 2), rng.sample(list(nouns), wording.kinds), wording, rng)
        if caption is not None:
            total += 1
            right += {d.lower() for d in caption.denies} == set(parse(caption.text).denies)
    assert total > 200
    assert right / total > 0.97


@pytest.mark.parametrize(
    ("text", "asserts", "denies"),
    [
        ("This image shows a person on a bicycle, but no car is visible.", ["a person on a bicycle"], ["car"]),
        ("A dining table is present in this image, but there's no chair in sight.", ["a dining table"], ["chair"]),
        ("There is no dog in the image, but a couch and a potted plant are included.", ["a couch", "a potted plant"], ["dog"]),
        ("There is no umbrella here. A group of people on a beach.", ["a group of people on a beach"], ["umbrella"]),
        ("In this image, a cat is present, but a dog is not.", ["a cat"], ["dog"]),
        ("A bus is absent from this photo.", [], ["bus"]),
        ("You won’t find a tv monitor in this image.", [], ["tv monitor"]),
        ("a man without a hat next to a dog", ["a man next to a dog"], ["hat"]),
        ("No cars are parked on the street.", ["the street"], ["car"]),
        ("A street with no cars or people.", ["a street"], ["car", "person"]),
        ("Neither a fork nor a knife is visible on the table.", ["the table"], ["fork", "knife"]),
        ("There are no clouds in the sky above the two zebras.", ["the sky above the two zebras"], ["cloud"]),
        ("not a dog but a cat", ["a cat"], ["dog"]),
        ("A bench in the park with nobody on it.", ["a bench in the park"], ["person"]),
        ("A dog and a cat are not present in this picture.", [], ["dog", "cat"]),
        ("The lung x-ray shows no evidence of pneumonia.", ["the lung x-ray"], ["pneumonia"]),
        ("A plate of food that has broccoli but lacks carrots.", ["a plate of food that has broccoli"], ["carrot"]),
        ("Scissors are missing from the desk.", ["the desk"], ["scissors"]),
        ("no pair of tongs", [], ["pair of tongs"]),
    ],
)  # fmt: skip
def test_sentences(text: str, asserts: list[str], denies: list[str]) -> None:
    found = parse(text)
    assert (list(found.asserts), list(found.denies)) == (asserts, denies)


@pytest.mark.parametrize("text", ["", "   ", "🐈", "a cat and a dog", "locker no. 5", "not only a cat but also a dog", "a" * 5000])
def test_nothing_denied(text: str) -> None:
    assert parse(text).denies == ()
    assert rule_form(text) is None


@pytest.mark.parametrize(
    "text", ["no", "not", "no no no", "without", "nor", ". no . no .", "a cat is not", "no " * 400, "neither nor |"]
)
def test_cues_alone_end(text: str) -> None:
    assert isinstance(parse(text).denies, tuple)


def test_forms() -> None:
    form = rule_form("A red cup and two dogs, but no bread or apples.")
    assert form is not None
    assert (form.positive, form.denied) == ("a photo of a red cup and two dogs", ("a photo of bread", "a photo of an apple"))
    alone = rule_form("no cat")
    assert alone is not None
    assert alone.positive == "a photo"
    caption = parse("the dog, but no cat").caption
    assert (caption.form, caption.asserts, caption.denies, caption.complete) == ("hybrid", ("dog",), ("cat",), False)


def test_singular() -> None:
    words = {
        "red cats": "red cat",
        "buses": "bus",
        "butterflies": "butterfly",
        "glass": "glass",
        "people": "person",
        "foxes": "fox",
    }
    assert {word: singular(word) for word in words} == words


def test_a_wrong_parse_is_counted() -> None:
    gold = [
        Caption("a cat but no dog", form="hybrid", asserts=("cat",), denies=("bird",), wording="no"),
        Caption("no dog", form="negative", denies=("dog",), wording="no"),
        Caption("a cat without a dog", asserts=("cat",)),
    ]
    report = measure(gold, ["cat", "dog"])
    assert (report.count, report.denies, report.plain, report.false_denials) == (2, 0.5, 1, 1.0)
    assert report.wordings == {"no": (2, 0.5)}
    assert report.wrong[0][0] == "a cat but no dog"
