import numpy as np
import pytest
import torch
from tests.evaluation.fakes import LookupEncoder, random_unit
from torch.nn.functional import normalize

from clipmend.data.records import Caption
from clipmend.evaluation import (
    ChoiceItem,
    ExclusionQuery,
    NegationDirection,
    PhraseProjection,
    QueryArithmetic,
    RetrievalData,
    evaluate_choice,
    gold_captions,
)
from helpers import RandomDualEncoder

TEXTS = (
    "a cat and a red cup, no dog",
    "neither dog nor bus",
    "a cat",
    "a photo",
    "a photo of a cat and a red cup",
    "a photo of a dog",
    "a photo of a bus",
)
FORMS = {
    TEXTS[0]: Caption(TEXTS[0], form="hybrid", asserts=("cat", "red cup"), denies=("dog",)),
    TEXTS[1]: Caption(TEXTS[1], form="negative", denies=("dog", "bus")),
    TEXTS[2]: Caption(TEXTS[2], asserts=("cat",)),
}


@pytest.fixture
def encoder() -> LookupEncoder:
    rng = np.random.default_rng(0)
    return LookupEncoder(dict(zip(TEXTS, random_unit(rng, len(TEXTS), 8) * 3, strict=True)), unit=True)


def test_query_arithmetic(encoder: LookupEncoder) -> None:
    e = {t: encoder.encode_texts([t])[0] for t in TEXTS}
    rows = QueryArithmetic(encoder, FORMS, 0.7).encode_texts([*TEXTS[:3], "a photo"])
    torch.testing.assert_close(rows[0], normalize(e["a photo of a cat and a red cup"] - 0.7 * e["a photo of a dog"], dim=0))
    torch.testing.assert_close(rows[1], normalize(e["a photo"] - 0.7 * e["a photo of a dog"] - 0.7 * e["a photo of a bus"], dim=0))
    assert torch.equal(rows[2], e["a cat"])  # denies nothing
    assert torch.equal(rows[3], e["a photo"])  # of no known form


def test_phrase_projection(encoder: LookupEncoder) -> None:
    own, dog = encoder.encode_texts([TEXTS[0], "a photo of a dog"])
    row = PhraseProjection(encoder, FORMS, 1.0).encode_texts([TEXTS[0]])[0]
    assert float(row @ dog) == pytest.approx(0, abs=1e-6)
    away = PhraseProjection(encoder, FORMS, 2.0).encode_texts([TEXTS[0]])[0]
    assert float(away @ dog) == pytest.approx(-float(own @ dog), abs=1e-6)


def test_negation_direction(encoder: LookupEncoder) -> None:
    pairs = [("a cat", TEXTS[1]), ("a photo of a dog", "a photo")]
    baseline = NegationDirection.learn(encoder, pairs, FORMS, weight=-0.5)
    e = {t: encoder.encode_texts([t])[0] for t in TEXTS}
    direction = ((e[TEXTS[1]] - e["a cat"]) + (e["a photo"] - e["a photo of a dog"])) / 2
    torch.testing.assert_close(baseline.direction, direction)
    torch.testing.assert_close(baseline.encode_texts([TEXTS[0]])[0], normalize(e[TEXTS[0]] - 0.5 * direction, dim=0))
    projected = NegationDirection(encoder, FORMS, direction, 1.0, "project").encode_texts([TEXTS[0]])[0]
    assert float(projected @ direction) == pytest.approx(0, abs=1e-6)
    with pytest.raises(ValueError, match="needs pairs"):
        NegationDirection.learn(encoder, [], FORMS)
    with pytest.raises(ValueError, match="8 finite numbers"):
        NegationDirection(encoder, FORMS, torch.zeros(3))
    with pytest.raises(ValueError, match="mode is"):
        NegationDirection(encoder, FORMS, direction, mode="turn")  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [QueryArithmetic, PhraseProjection])
def test_a_baseline_is_a_dual_encoder(make: type[QueryArithmetic]) -> None:
    backbone = RandomDualEncoder()
    baseline = make(backbone, {"a cat": Caption("a cat", form="negative", denies=("dog",))}, 0.5)
    assert baseline.fingerprint == backbone.fingerprint
    states = baseline.text_states(["x y"], [2, 4])
    torch.testing.assert_close(baseline.project(states), backbone.project(backbone.text_states(["x y"], [2, 4])))
    long = baseline.encode_texts(["other", "a cat"], normalize=False)
    torch.testing.assert_close(long[0], backbone.encode_texts(["other"], normalize=False)[0])
    assert float(long[1].norm()) == pytest.approx(1, abs=1e-6)
    images = torch.eye(16)
    torch.testing.assert_close(baseline.score(images, ["a cat"]), images @ baseline.encode_texts(["a cat"]).T)
    assert baseline.name.startswith("random + ")


def test_tuning_takes_the_best_weight_and_embeds_once() -> None:
    # "a photo" ties with "a dog"; less a photo of a dog, it turns to the cat; twice that is no better.
    encoder = LookupEncoder({"no dog": [1, 0], "a photo": [1, 0], "a photo of a dog": [0.9, -0.44], "a dog": [1, 0]}, unit=True)
    parse = (Caption("no dog", form="negative", denies=("dog",)), Caption("a dog", asserts=("dog",)))
    items = [
        ChoiceItem("dog", ("no dog", "a dog"), 1, "affirmative", parse=parse),
        ChoiceItem("cat", ("no dog", "a dog"), 0, "negative", parse=parse),
    ]
    images = {"dog": torch.tensor([1.0, 0.0]), "cat": torch.tensor([0.0, 1.0])}
    tuned = QueryArithmetic(encoder, {}).tune(items, (2.0, 1.0, 0.0), image_embeddings=images)
    assert tuned.curve == {2.0: 1.0, 1.0: 1.0, 0.0: 0.0}
    assert tuned.weight == 1.0
    assert tuned.baseline.weight == 1.0
    assert encoder.calls["texts"] <= 4
    best = evaluate_choice(tuned.baseline.with_captions(gold_captions(items)), items, image_embeddings=images)
    assert best.accuracy == 1.0
    assert evaluate_choice(encoder, items, image_embeddings=images).accuracy < 1.0
    by_function = QueryArithmetic(encoder, {}).tune(lambda b: -abs(b.weight - 0.2))
    assert by_function.weight == 0.2
    with pytest.raises(ValueError, match="no weights"):
        QueryArithmetic(encoder, {}).tune(items, ())


def test_equal_scores_take_the_smallest_weight(encoder: LookupEncoder) -> None:
    moved = NegationDirection(encoder, FORMS, torch.ones(8))
    assert min(moved.weights) < 0
    assert abs(moved.tune(lambda b: 0.0).weight) == min(abs(w) for w in moved.weights)


def test_gold_captions_of_everything() -> None:
    item = ChoiceItem("i", ("x", "y"), 0, "affirmative", parse=(Caption("x"), Caption("y", form="negative", denies=("z",))))
    blind = ChoiceItem("i", ("v", "w"), 0, "affirmative")
    retrieval = RetrievalData(["i"], ["u"], np.array([0]), [Caption("u", asserts=("q",))])
    found = gold_captions([item, blind], retrieval, [ExclusionQuery("no cat", "cat")], [Caption("t")])
    assert sorted(found) == ["no cat", "t", "u", "x", "y"]
    assert found["no cat"].denies == ("cat",)
    assert gold_captions(RetrievalData(["i"], ["u"], np.array([0]))) == {}
