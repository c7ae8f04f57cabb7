from pathlib import Path

import numpy as np
import pytest
import torch
from tests.evaluation.fakes import LookupEncoder, random_unit
from torch.nn.functional import normalize

from clipmend.data.records import Caption
from clipmend.data.scenes.tables import write_scenes
from clipmend.evaluation import (
    ChoiceItem,
    ExclusionQuery,
    NegationDirection,
    QueryArithmetic,
    RetrievalData,
    RuleProjection,
    evaluate_choice,
    evaluate_rivals,
    gold_captions,
    rule_form,
)
from clipmend.evaluation.rivals.compare import make_rivals
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


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rivals") / "drawn"
    write_scenes(folder, count=12, size=32, seed=905, split="test")
    return folder


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


def test_rule_projection(encoder: LookupEncoder) -> None:
    own, dog, positive = encoder.encode_texts([TEXTS[0], "a photo of a dog", "a photo of a cat and a red cup"])
    row = RuleProjection(encoder, FORMS, 1.0, 0.0).encode_texts([TEXTS[0]])[0]
    assert float(row @ dog) == pytest.approx(0, abs=1e-6)
    away = RuleProjection(encoder, FORMS, 2.0, 0.0).encode_texts([TEXTS[0]])[0]
    assert float(away @ dog) == pytest.approx(-float(own @ dog), abs=1e-6)
    anchored = RuleProjection(encoder, FORMS, 1.0, 0.4)
    torch.testing.assert_close(anchored.encode_texts([TEXTS[0]])[0], normalize(own - (own @ dog) * dog + 0.4 * positive, dim=0))
    assert anchored.setting == "weight 1, anchor 0.4"
    assert (1.0, 0.0) in [tuple(p) for p in anchored.tune(lambda r: 0.0).curve]
    with pytest.raises(ValueError, match="2 strengths"):
        RuleProjection(encoder, FORMS, 1.0)


def test_negation_direction(encoder: LookupEncoder) -> None:
    pairs = [("a cat", TEXTS[1]), ("a photo of a dog", "a photo")]
    baseline = NegationDirection.learn(encoder, pairs, FORMS, -0.5)
    e = {t: encoder.encode_texts([t])[0] for t in TEXTS}
    direction = ((e[TEXTS[1]] - e["a cat"]) + (e["a photo"] - e["a photo of a dog"])) / 2
    torch.testing.assert_close(baseline.direction, direction)
    torch.testing.assert_close(baseline.encode_texts([TEXTS[0]])[0], normalize(e[TEXTS[0]] - 0.5 * direction, dim=0))
    projected = NegationDirection(encoder, FORMS, direction, 1.0, mode="project").encode_texts([TEXTS[0]])[0]
    assert float(projected @ direction) == pytest.approx(0, abs=1e-6)
    with pytest.raises(ValueError, match="needs pairs"):
        NegationDirection.learn(encoder, [], FORMS)
    with pytest.raises(ValueError, match="8 finite numbers"):
        NegationDirection(encoder, FORMS, torch.zeros(3))
    with pytest.raises(ValueError, match="mode is"):
        NegationDirection(encoder, FORMS, direction, mode="turn")  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [QueryArithmetic, RuleProjection])
def test_a_rival_is_a_dual_encoder(make: type[QueryArithmetic]) -> None:
    backbone = RandomDualEncoder()
    baseline = make(backbone, {"a cat": Caption("a cat", form="negative", denies=("dog",))})
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
    tuned = QueryArithmetic(encoder, {}).tune(items, [(2.0,), (1.0,), (0.0,)], image_embeddings=images)
    assert tuned.curve == {(2.0,): 1.0, (1.0,): 1.0, (0.0,): 0.0}
    assert tuned.strengths == tuned.rival.strengths == (1.0,)
    assert encoder.calls["texts"] <= 4
    best = evaluate_choice(tuned.rival.with_forms(gold_captions(items)), items, image_embeddings=images)
    assert best.accuracy == 1.0
    assert evaluate_choice(encoder, items, image_embeddings=images).accuracy < 1.0
    by_function = QueryArithmetic(encoder, {}).tune(lambda rival: -abs(rival.strengths[0] - 0.2))
    assert by_function.strengths == (0.2,)
    with pytest.raises(ValueError, match="no weights"):
        QueryArithmetic(encoder, {}).tune(items, ())


def test_equal_scores_take_the_smallest_weight(encoder: LookupEncoder) -> None:
    moved = NegationDirection(encoder, FORMS, torch.ones(8))
    tried = moved.grid["weight"]
    assert min(tried) < 0
    assert abs(moved.tune(lambda rival: 0.0).strengths[0]) == min(map(abs, tried))


def test_gold_captions_of_everything() -> None:
    item = ChoiceItem("i", ("x", "y"), 0, "affirmative", parse=(Caption("x"), Caption("y", form="negative", denies=("z",))))
    blind = ChoiceItem("i", ("v", "w"), 0, "affirmative")
    retrieval = RetrievalData(["i"], ["u"], np.array([0]), [Caption("u", asserts=("q",))])
    found = gold_captions([item, blind], retrieval, [ExclusionQuery("no cat", "cat")], [Caption("t")])
    assert sorted(found) == ["no cat", "t", "u", "x", "y"]
    assert found["no cat"].denies == ("cat",)
    assert gold_captions(RetrievalData(["i"], ["u"], np.array([0]))) == {}


def test_the_rule_parser_stands_in_for_the_gold_parse() -> None:
    text = "A cat, but no dog."
    encoder = LookupEncoder(
        {"a photo of a cat": [1, 0, 0], "a photo of a dog": [0, 1, 0], text: [0.6, 0.6, 0.1]}, default=[0, 0, 1], unit=True
    )
    gold = {text: Caption(text, form="hybrid", asserts=("cat",), denies=("dog",))}
    for rival in (QueryArithmetic, RuleProjection):
        torch.testing.assert_close(rival(encoder, rule_form).encode_texts([text]), rival(encoder, gold).encode_texts([text]))
    assert torch.equal(QueryArithmetic(encoder, rule_form).encode_texts(["a cat"])[0], torch.tensor([0.0, 0.0, 1.0]))


def test_both_parses_of_a_drawn_folder(drawn: Path) -> None:
    encoder = RandomDualEncoder(context_length=60)
    gold, rules = (
        evaluate_rivals(encoder, drawn, drawn, tasks=["choice", "retrieval"], parse=parse, samples=5) for parse in ("gold", "rules")
    )
    assert list(gold) == list(rules) == ["query arithmetic", "rule-based projection"]
    for name in gold:  # the rule parser is right on drawn captions, and phrases atoms otherwise at most
        assert rules[name]["choice"].pretrained.startswith("weight ")
        assert rules[name]["retrieval"].metrics == gold[name]["retrieval"].metrics
    with pytest.raises(ValueError, match="parse is 'gold' or 'rules'"):
        evaluate_rivals(encoder, drawn, drawn, parse="none")  # type: ignore[arg-type]


def test_rivals_that_are_compared_embed_a_text_once() -> None:
    encoder = RandomDualEncoder()
    forms = {"a cup but no cat": Caption("a cup but no cat", 0, "hybrid", ("cup",), ("cat",), "no")}
    first, second = make_rivals(encoder, forms, names=["arithmetic", "projection"])
    alone = make_rivals(RandomDualEncoder(), forms, names=["projection"])[0]
    first.encode_texts(["a cup but no cat", "a cup"])
    seen = encoder.texts_seen
    shared = second.encode_texts(["a cup but no cat", "a cup"])
    torch.testing.assert_close(shared, alone.encode_texts(["a cup but no cat", "a cup"]))
    assert encoder.texts_seen - seen < alone.encoder.texts_seen  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="share no embeddings"):
        second.share(alone)
