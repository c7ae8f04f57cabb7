"""Grammar of statements, nouns for categories, mentions, and the draw of absent things."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from clipmend.data.absences import Absences
from clipmend.data.naming import Mentions, Names, noun_of, read_nouns
from clipmend.data.nouns import Noun
from clipmend.data.readers.voc import VOC_CLASSES
from clipmend.data.scenes.wordings import RESERVED_PATTERN, RESERVED_WORDINGS
from clipmend.data.statements import WORDING_SETS, Speaker, denies_already, wordings_called

COCO = """
person, bicycle, car, motorcycle, airplane, bus, train, truck, boat, traffic light, fire hydrant, stop sign, parking
meter, bench, bird, cat, dog, horse, sheep, cow, elephant, bear, zebra, giraffe, backpack, umbrella, handbag, tie,
suitcase, frisbee, skis, snowboard, sports ball, kite, baseball bat, baseball glove, skateboard, surfboard, tennis
racket, bottle, wine glass, cup, fork, knife, spoon, bowl, banana, apple, sandwich, orange, broccoli, carrot, hot dog,
pizza, donut, cake, chair, couch, potted plant, bed, dining table, toilet, tv, laptop, mouse, remote, keyboard, cell
phone, microwave, oven, toaster, sink, refrigerator, book, clock, vase, scissors, teddy bear, hair drier, toothbrush
"""


@pytest.mark.parametrize(
    ("category", "one", "many"),
    [
        ("diningtable", "a dining table", "dining tables"),
        ("tvmonitor", "a TV monitor", "TV monitors"),
        ("aeroplane", "an aeroplane", "aeroplanes"),
        ("person", "a person", "people"),
        ("sheep", "a sheep", "sheep"),
        ("skis", "a pair of skis", "pairs of skis"),
        ("scissors", "a pair of scissors", "pairs of scissors"),
        ("knife", "a knife", "knives"),
        ("bread", "bread", "bread"),
        ("broccoli", "broccoli", "broccoli"),
        ("Traffic_light", "a traffic light", "traffic lights"),
        ("bow (ribbon)", "a bow", "bows"),
        ("school bus driver woman", "a school bus driver woman", "school bus driver women"),
        ("umbrella", "an umbrella", "umbrellas"),
        ("hourglass", "an hourglass", "hourglasses"),
    ],
)
def test_categories_become_nouns(category: str, one: str, many: str) -> None:
    noun = noun_of(category)
    assert (noun.indefinite, noun.some) == (one, many)


def test_every_category_of_coco_and_voc_has_a_noun_of_its_own() -> None:
    for categories in (COCO.replace("\n", " ").strip().split(", "), VOC_CLASSES):
        names = Names()
        assert len({names.atom(c) for c in categories}) == len(categories)
        assert not [noun.some for noun in names.nouns().values() if re.search(r"[^o]rses$|mans$|persons|knifes|mouses", noun.some)]


def test_two_categories_with_one_noun_are_refused(tmp_path: Path) -> None:
    names = Names()
    names.atom("tv")
    with pytest.raises(ValueError, match="'tv' and 'TV' are both called 'TV'"):
        names.atom("TV")
    with pytest.raises(ValueError, match="no letter"):
        Names().atom("42")
    table = tmp_path / "nouns.csv"
    table.write_text("category,singular,plural\nTV,television,televisions\ngrass,turf,-\n")
    given = Names(read_nouns(table))
    assert [given.atom("tv"), given.atom("TV"), given.atom("grass")] == ["TV", "television", "turf"]
    assert given.nouns()["turf"].mass
    table.write_text("category,singular,plural\nTV,television,televisions\nTV,set,sets\n")
    with pytest.raises(ValueError, match=r"nouns\.csv: line 3: the category 'TV' is named twice"):
        read_nouns(table)


def speaker(*categories: str, wordings: str = "all") -> Speaker:
    names = Names()
    for category in categories:
        names.atom(category)
    return Speaker(names.nouns(), wordings_called(wordings))


@pytest.mark.parametrize("atom", ["bread", "broccoli", "cat", "umbrella", "person", "pair of scissors", "sheep"])
@pytest.mark.parametrize("form", ["negative", "hybrid", "negated", "query"])
def test_no_wording_breaks_the_grammar(atom: str, form: str) -> None:
    says = speaker("bread", "broccoli", "cat", "umbrella", "person", "scissors", "sheep", "orange", "apple")
    rng = random.Random(3)
    mass = says.nouns[atom].mass
    used = Counter[str]()
    for wording in says.wordings:
        for _ in range(12):
            denies = [atom, "orange"][: wording.kinds]
            if form == "negative":
                made = says.negative(denies, wording, rng)
            elif form == "hybrid":
                made = says.hybrid(["apple"], denies, wording, rng)
            elif form == "negated":
                made = says.negated("A big apple sits on a plate.", ["apple"], denies, wording, rng, 4)
            else:
                made = says.query(denies, wording, rng)
            if made is None:
                assert mass or form == "negated", f"{wording.name} cannot say {atom}"
                continue
            used[wording.name] += 1
            text = made.text
            assert not re.search(r"\b[Aa] [aeiou](?!ni)|\b[Aa]n [^aeiouh]|[{}]|  |\.\.|,,", text), text
            assert made.denies == tuple(denies)
            if mass:
                assert not re.search(rf"\b(a|an|single|zero|are no|aren't any|are not any) {atom}\b|{atom}s\b", text), text
            if form == "negated":
                assert "apple sits on a plate" in text
                assert (made.complete, made.asserts, made.image) == (False, ("apple",), 4)
                assert " it does" not in text
                assert " it has" not in text
            assert bool(re.search(RESERVED_PATTERN, text, re.IGNORECASE)) == (wording.name in RESERVED_WORDINGS), text
    assert len(used) > 20


def test_the_published_templates() -> None:
    says = speaker("bread", "dog", wordings="published")
    rng = random.Random(0)
    texts = {says.negated("A cat on a mat.", (), ["dog"], w, rng, 0).text for w in says.wordings}  # type: ignore[union-attr]
    assert texts == {
        "A cat on a mat, but there is no dog.",
        "A cat on a mat, without any dogs.",
        "There is no dog here. A cat on a mat.",
    }
    with pytest.raises(ValueError, match="no wordings called 'rude'; choose one of training, reserved, all, published"):
        wordings_called("rude")


def test_training_wordings_hold_no_reserved_one() -> None:
    assert not {w.name for w in WORDING_SETS["training"]} & set(RESERVED_WORDINGS)
    assert {w.name for w in WORDING_SETS["reserved"]} == set(RESERVED_WORDINGS)


def test_mentions_go_by_words_and_the_longest_counts() -> None:
    names = Names()
    for category in ("person", "dog", "hot dog", "tie", "tv", "scissors", "couch", "car"):
        names.atom(category)
    mentions = Mentions(names.nouns())
    assert mentions(["Two men eat a hot-dog on the sofa"]) == {"person", "hot dog", "couch"}
    assert mentions(["A tied carpet and scissors", "A Television"]) == {"pair of scissors", "TV"}
    assert mentions([]) == frozenset()
    assert Mentions({})(["a dog"]) == frozenset()


@pytest.mark.parametrize(
    ("text", "denies"),
    [("A street without cars", True), ("It isn't red", True), ("Nobody's there", True), ("A note on a knot", False)],
)
def test_captions_that_deny_already(text: str, denies: bool) -> None:
    assert denies_already(text) == denies


def test_plausible_absences_are_drawn_as_they_stand_together() -> None:
    # beside a fork there is a knife in 3 of 4 images, a cup in 1 of 4, never a plane
    present = [{"fork", "knife"}] * 3 + [{"fork", "cup"}] + [{"plane"}] * 4
    absences = Absences(present)
    candidates = ["cup", "knife", "plane", "unheard of"]
    assert absences.weights({"fork"}, candidates).tolist() == [0.25, 0.75, 0, 0]
    drawn = Counter(absences.draw(random.Random(k), {"fork"}, candidates)[0] for k in range(2000))
    assert set(drawn) == {"cup", "knife"}
    assert drawn["knife"] / 2000 == pytest.approx(0.75, abs=0.04)
    assert sorted(absences.draw(random.Random(1), {"fork"}, candidates, 9)) == candidates, "each once, then the others"
    assert absences.weights({"plane"}, ["cup", "knife"]).tolist() == [1, 3], "nothing stood beside it: by frequency"
    assert absences.weights(set(), ["unheard of"]).tolist() == [1]
    even = Counter(Absences(present, "random").draw(random.Random(k), {"fork"}, candidates)[0] for k in range(2000))
    assert np.ptp(list(even.values())) < 150
    assert Absences([]).draw(random.Random(0), {"a"}, []) == []
    with pytest.raises(ValueError, match="'plausible' or 'random', not 'odd'"):
        Absences(present, "odd")  # type: ignore[arg-type]


def test_a_noun_of_ones_own_reads_as_given() -> None:
    says = Speaker({"gnu": Noun("gnu", "gnus", False, "given")}, wordings_called("training"))
    text = says.affirmative(["gnu"], random.Random(0)).text
    assert "a gnu" in text.lower()


def test_no_text_says_with_not_any() -> None:
    """A training wording that nobody would write; it stays in the training texts, which patches depend on."""
    from clipmend.data.scenes.wordings import WORDINGS

    wording = WORDINGS["not any"]
    assert wording.queries == ("{place} with not any {xs}",)
    speaker = Speaker({"cat": Noun("cat", "cats", False, "mammals")}, [wording])
    rng = random.Random(0)
    made = [say(["cat"], wording, rng) for say in (speaker.negative, speaker.query) for _ in range(200)]
    texts = {caption.text for caption in made if caption is not None}
    assert not [text for text in texts if "with not any" in text]
    assert "a scene where there are not any cats" in texts
