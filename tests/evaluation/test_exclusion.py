import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from tests.evaluation.fakes import LookupEncoder, random_unit

from clipmend.data.phrases import photo_of, with_article
from clipmend.evaluation import (
    ExclusionQuery,
    Presence,
    auroc,
    compare,
    evaluate_exclusion,
    presence_auroc,
    read_exclusion,
    read_presence,
)
from clipmend.evaluation.areas import macro, weighted_auroc

# ---- AUROC ---------------------------------------------------------------------------------------------------------------------


def slow_auroc(scores: np.ndarray, positive: np.ndarray, weights: np.ndarray | None = None) -> float:
    weights = np.ones(len(scores)) if weights is None else weights
    won = total = 0.0
    for i in np.flatnonzero(positive):
        for j in np.flatnonzero(~positive):
            w = weights[i] * weights[j]
            total += w
            won += w * (1.0 if scores[i] > scores[j] else 0.5 if scores[i] == scores[j] else 0.0)
    return won / total if total else float("nan")


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 30))
def test_auroc_against_the_plain_loop(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    scores, positive = rng.integers(0, 5, n).astype(float), rng.random(n) < 0.5
    assert auroc(scores, positive) == pytest.approx(slow_auroc(scores, positive), nan_ok=True)
    weights = rng.integers(0, 3, (n, 4)).astype(np.float32)
    found = weighted_auroc(scores, positive, weights)
    slow = [slow_auroc(scores, positive, weights[:, s]) for s in range(4)]
    np.testing.assert_allclose(found, slow, atol=1e-12)


def test_auroc_against_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    scores, positive = rng.normal(size=500).round(1), rng.random(500) < 0.3
    assert auroc(scores, positive) == pytest.approx(roc_auc_score(positive, scores))
    assert auroc(-scores, positive) == pytest.approx(1 - auroc(scores, positive))


def test_auroc_edges() -> None:
    assert auroc([1.0, 1.0, 1.0], [True, False, False]) == 0.5
    assert np.isnan(auroc([1.0, 2.0], [True, True]))
    assert np.isnan(auroc([1.0], [False]))
    assert auroc([1.0, 1.0 + 1e-7], [True, False], tie_tolerance=1e-6) == 0.5
    with pytest.raises(ValueError, match="score of item 1 is NaN"):
        auroc([1.0, np.nan], [True, False])
    with pytest.raises(ValueError, match="one length"):
        auroc([1.0], [True, False])


def test_macro_averages_within_kinds_first() -> None:
    assert macro([1.0, 1.0, 1.0, 0.0], ["a", "a", "a", "b"]) == 0.5
    assert macro([1.0, np.nan, 0.0], ["a", "b", "c"]) == 0.5
    assert macro([1.0, np.nan], ["a", "a"]) == 1.0
    assert np.isnan(macro([np.nan], ["a"]))
    np.testing.assert_allclose(macro([[1.0, 0.0], [0.0, np.nan]], ["a", "b"]), [0.5, 0.0])


# ---- reading -------------------------------------------------------------------------------------------------------------------


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def test_reads_queries(tmp_path: Path) -> None:
    queries = read_exclusion(write(tmp_path / "q.csv", "\ufeffquery,absent,wording,subset\r\nno cat,cat,no,standard\r\n"))
    assert list(queries) == [ExclusionQuery("no cat", "cat", "no", "standard", 2)]
    assert queries[0].caption.denies == ("cat",)
    assert read_exclusion(write(tmp_path / "q.csv", "query,absent\nno cat,cat\n"))[0].wording == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("query\nno cat\n", "column absent is missing"),
        ("query,absent\nno cat,\n", "line 2: absent is empty"),
        ("query,absent\n ,cat\n", "line 2: query is empty"),
        ("query,absent\nno cat, no dog,cat\n", "line 2: 3 fields"),
    ],
)
def test_broken_queries(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"q\.csv") as caught:
        read_exclusion(write(tmp_path / "q.csv", content))
    assert message in str(caught.value)


def test_reads_presence_from_scenes_and_tables(tmp_path: Path) -> None:
    scenes = [
        {"image": "a.png", "background": "beach", "objects": [{"kind": "cat", "colour": "red"}, {"kind": "cat"}]},
        {"image": "b.png", "objects": []},
    ]
    text = "\n".join(json.dumps(s) for s in scenes) + "\n\n"
    found = read_presence(write(tmp_path / "scenes.jsonl", text))
    assert found.images == ["a.png", "b.png"]
    assert found.kinds == [frozenset({"cat"}), frozenset()]
    table = 'image,present\na.png,cat;red bus\nb.png,\nc.png,"[""cat"", ""dog""]"\nd.png,"[\'cat\']"\n'
    found = read_presence(write(tmp_path / "p.csv", table))
    assert found.kinds == [frozenset({"cat", "red bus"}), frozenset(), frozenset({"cat", "dog"}), frozenset({"cat"})]
    assert found.vocabulary == {"cat", "dog", "red bus"}
    lines = '{"image": "a", "present": ["cat"]}\n{"image": "a", "present": ["cat"]}\n'
    assert "1 images annotated twice alike" in read_presence(write(tmp_path / "p.jsonl", lines)).notes[0]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "p.jsonl",
            '{"image": "a", "present": ["cat"]}\n{"image": "a", "present": []}\n',
            "line 2: image 'a' is annotated differently",
        ),
        ("p.jsonl", '{"image": "a"}\n', "line 1: needs present"),
        ("p.jsonl", '{"image": "a", "objects": [{"name": "cat"}]}\n', "line 1: needs present"),
        ("p.jsonl", '{"image": "a", "present": "cat"}\n', "line 1: present must be a list"),
        ("p.jsonl", '{"present": ["cat"]}\n', "line 1: image must be"),
        ("p.jsonl", "[1]\n", "line 1: each line must be a JSON object"),
        ("p.jsonl", "{\n", "line 1: not JSON"),
        ("p.jsonl", "", "no images"),
        ("p.csv", "image,present\na,[cat\n", "line 2: present is no list"),
        ("p.csv", 'image,present\na,"[1, 2]"\n', "line 2: present must be a list"),
        ("p.csv", "image,present\n,cat\n", "line 2: image is empty"),
        ("p.csv", "image,kinds\na,cat\n", "column present is missing"),
    ],
)
def test_broken_presence(tmp_path: Path, name: str, content: str, message: str) -> None:
    with pytest.raises(ValueError, match=name) as caught:
        read_presence(write(tmp_path / name, content))
    assert message in str(caught.value)


# ---- evaluation ----------------------------------------------------------------------------------------------------------------


def world(seed: int = 0, images: int = 60) -> tuple[Presence, list[ExclusionQuery], LookupEncoder, torch.Tensor]:
    """Three kinds as three axes; "no X" as the axis turned round for wording "good", as it is for wording "bad"."""
    rng = np.random.default_rng(seed)
    kinds = ["cat", "dog", "bus"]
    there = rng.random((images, 3)) < 0.4
    vectors = torch.from_numpy((there + rng.normal(0, 0.2, there.shape)).astype(np.float32))
    presence = Presence([f"{i}.png" for i in range(images)], [frozenset(np.array(kinds)[row].tolist()) for row in there])
    texts: dict[str, np.ndarray] = {}
    queries = []
    for k, kind in enumerate(kinds):
        axis = np.eye(3, dtype=np.float32)[k]
        texts |= {f"good {kind}": -axis, f"bad {kind}": axis, f"a photo of a {kind}": axis}
        queries += [ExclusionQuery(f"good {kind}", kind, "good", "seen"), ExclusionQuery(f"bad {kind}", kind, "bad", "new")]
    return presence, queries, LookupEncoder(texts), vectors


def test_each_query_against_scikit_learn() -> None:
    presence, queries, encoder, vectors = world()
    result = evaluate_exclusion(encoder, queries, presence, image_embeddings=vectors, samples=50)
    unit = torch.nn.functional.normalize(vectors, dim=-1)
    for q, query in enumerate(queries):
        absent = [query.absent not in kinds for kinds in presence.kinds]
        assert result.values[q] == pytest.approx(roc_auc_score(absent, (unit @ encoder.encode_texts([query.query]).T)[:, 0]))
    metrics = result.metrics
    assert metrics["auroc/wording=good"] > 0.9 > 0.1 > metrics["auroc/wording=bad"]
    assert metrics["auroc/seen"] == metrics["auroc/wording=good"]
    assert metrics["auroc"] == pytest.approx(0.5, abs=1e-6)
    assert metrics["auroc/kind=cat"] == pytest.approx(
        np.mean([v for v, q in zip(result.values, queries, strict=True) if q.absent == "cat"])
    )
    shown = result.measures()["auroc/wording=good"]
    assert shown.low < shown.value < shown.high <= 1
    assert result.table().row_count == 5
    assert result.table(detail=True).row_count == 8


def test_presence_is_the_other_way_round() -> None:
    presence, _, encoder, vectors = world()
    result = presence_auroc(encoder, presence, image_embeddings=vectors, samples=50)
    assert result.kinds == ["bus", "cat", "dog"]
    assert result.metrics["presence_auroc"] > 0.9
    excluded = evaluate_exclusion(
        encoder, [ExclusionQuery("a photo of a cat", "cat")], presence, image_embeddings=vectors, samples=10
    )
    assert result.metrics["presence_auroc/kind=cat"] == pytest.approx(1 - excluded.auroc)
    only = presence_auroc(encoder, presence, ["cat"], template="bad {kind}", image_embeddings=vectors, samples=10)
    assert only.metrics["presence_auroc"] == pytest.approx(result.metrics["presence_auroc/kind=cat"])


def test_one_class_queries_are_skipped_and_counted() -> None:
    presence, queries, encoder, vectors = world()
    encoder.texts["no unicorn"] = [1, 1, 1]
    everywhere = Presence(presence.images, [kinds | {"sky"} for kinds in presence.kinds])
    encoder.texts["no sky"] = [1, 1, 1]
    extra = [ExclusionQuery("no unicorn", "unicorn"), ExclusionQuery("no sky", "sky")]
    result = evaluate_exclusion(encoder, queries + extra, everywhere, image_embeddings=vectors, samples=20)
    assert result.skipped == 2
    assert any("2 of 8 queries skipped: no image, or every image, has sky, unicorn" in note for note in result.notes)
    assert result.auroc == pytest.approx(evaluate_exclusion(encoder, queries, presence, image_embeddings=vectors).auroc)
    assert result.measures()["auroc"].count == 6
    nothing = evaluate_exclusion(encoder, extra, everywhere, image_embeddings=vectors, samples=20)
    assert np.isnan(nothing.auroc)
    assert nothing.to_dict()["metrics"]["auroc"] is None
    one_image = Presence(["0.png"], [frozenset({"cat"})])
    assert evaluate_exclusion(encoder, queries, one_image, image_embeddings=vectors[:1]).skipped == 6


def test_queries_about_several_kinds(tmp_path: Path) -> None:
    read = read_exclusion(write(tmp_path / "q.csv", "query,absent\nneither cat nor dog,cat | dog\n"))
    assert read[0].absent == "cat|dog"
    assert read[0].caption.denies == ("cat", "dog")
    with pytest.raises(ValueError, match="line 2: absent names no kind"):
        read_exclusion(write(tmp_path / "q.csv", "query,absent\nneither,|\n"))
    presence, queries, encoder, vectors = world()
    encoder.texts["neither cat nor dog"] = [-1, -1, 0]
    result = evaluate_exclusion(encoder, [*queries[::2], *read], presence, image_embeddings=vectors, samples=20)
    unit = torch.nn.functional.normalize(vectors, dim=-1)
    neither = [not kinds & {"cat", "dog"} for kinds in presence.kinds]
    assert result.values[3] == pytest.approx(roc_auc_score(neither, unit @ torch.tensor([-1.0, -1.0, 0.0])))
    cat, dog, bus, both = result.values
    assert result.metrics["auroc/kind=cat"] == pytest.approx((cat + both) / 2)
    assert result.metrics["auroc"] == pytest.approx(((cat + both) / 2 + (dog + both) / 2 + bus) / 3)
    assert result.measures()["auroc/kind=cat"].count == 2
    over = evaluate_exclusion(encoder, [*queries[::2], *read], presence, image_embeddings=vectors, samples=20, over="kinds")
    assert over.clusters("kinds") == 3


def test_a_constant_scorer_gets_one_half() -> None:
    presence, queries, _, _ = world()
    rng = np.random.default_rng(0)
    vectors = torch.from_numpy(random_unit(rng, 1, 37)).repeat(60, 1)
    result = evaluate_exclusion(LookupEncoder(default=random_unit(rng, 1, 37)[0]), queries, presence, image_embeddings=vectors)
    assert (result.values == 0.5).all()


def test_order_of_images_says_nothing() -> None:
    presence, queries, encoder, vectors = world()
    order = np.random.default_rng(1).permutation(60)
    moved = Presence([presence.images[i] for i in order], [presence.kinds[i] for i in order])
    first = evaluate_exclusion(encoder, queries, presence, image_embeddings=vectors)
    again = evaluate_exclusion(encoder, queries[::-1], moved, image_embeddings=vectors[order])
    np.testing.assert_allclose(first.values, again.values[::-1])


def test_score_correction_only_on_request() -> None:
    presence, queries, encoder, vectors = world()
    before = evaluate_exclusion(encoder, queries, presence, image_embeddings=vectors)
    encoder.correction = lambda a, b: -2 * (a * b).sum(1)
    np.testing.assert_array_equal(evaluate_exclusion(encoder, queries, presence, image_embeddings=vectors).values, before.values)
    turned = evaluate_exclusion(encoder, queries, presence, image_embeddings=vectors, score_correction=True)
    np.testing.assert_allclose(turned.values, 1 - before.values, atol=1e-6)
    encoder.correction = lambda a, b: torch.full((len(a),), torch.nan)
    with pytest.raises(ValueError, match=r"score of image '0.png' for 'good cat' is not finite"):
        evaluate_exclusion(encoder, queries, presence, image_embeddings=vectors, score_correction=True)


def test_bootstrap_over_images_against_the_plain_loop() -> None:
    presence, queries, encoder, vectors = world(images=25)
    result = evaluate_exclusion(encoder, queries, presence, image_embeddings=vectors, samples=40, seed=5)
    rng = np.random.default_rng(5)
    slow = []
    for _ in range(40):
        rows = rng.integers(0, 25, 25)
        values = [auroc(result.scores[q][rows], ~result.present[q][rows]) for q in range(6)]
        slow.append(macro(values, result.kinds))
    measure = result.measures()["auroc"]
    assert (measure.low, measure.high) == pytest.approx(tuple(np.nanquantile(slow, [0.025, 0.975])), abs=1e-6)


def test_bootstrap_over_kinds() -> None:
    presence, queries, encoder, vectors = world()
    result = evaluate_exclusion(encoder, queries[::2], presence, image_embeddings=vectors, over="kinds", samples=400)
    measure = result.measures()["auroc"]
    assert (measure.low, measure.high) == pytest.approx((result.values.min(), result.values.max()), abs=1e-9)
    assert np.isnan(result.measures()["auroc/kind=cat"].low)
    with pytest.raises(ValueError, match="images or kinds"):
        evaluate_exclusion(encoder, queries, presence, image_embeddings=vectors, over="queries")


def test_compare_over_images_and_kinds() -> None:
    presence, queries, encoder, vectors = world()
    good = evaluate_exclusion(encoder, queries, presence, image_embeddings=vectors)
    flat = evaluate_exclusion(LookupEncoder(default=[1.0, 1.0, 1.0]), queries, presence, image_embeddings=vectors)
    for over in ("images", "kinds"):
        found = compare(flat, good, samples=200, over=over).differences["auroc/wording=good"]
        assert 0 < found.low <= found.difference <= found.high
    other = Presence(presence.images, [frozenset({"cat"})] * 30 + [frozenset()] * 30)
    with pytest.raises(ValueError, match="different items"):
        compare(good, evaluate_exclusion(encoder, queries, other, image_embeddings=vectors))
    with pytest.raises(ValueError, match="cannot compare a result of 'exclusion'"):
        compare(good, presence_auroc(encoder, presence, image_embeddings=vectors))


def test_no_queries() -> None:
    presence, _, encoder, vectors = world()
    with pytest.raises(ValueError, match="no queries"):
        evaluate_exclusion(encoder, [], presence, image_embeddings=vectors)


# ---- wording -------------------------------------------------------------------------------------------------------------------


def test_photo_of() -> None:
    assert photo_of([]) == "a photo"
    assert photo_of(["cat"]) == "a photo of a cat"
    assert photo_of(["red apple", "apple", "umbrella", "at beach"]) == "a photo of a red apple and an umbrella at the beach"
    assert photo_of(["cup", "big cup", "red cup", "big red cup", "bus"]) == "a photo of a big red cup and a bus"
    assert photo_of(["cat", "dog", "bus"]) == "a photo of a cat, a dog and a bus"
    assert photo_of(["two cups"]) == "a photo of two cups"
    assert photo_of(["at beach"]) == "a photo at the beach"
    assert [with_article(n) for n in ("hour", "unicorn", "umbrella", "ewe", "orange cat")] == [
        "an hour",
        "a unicorn",
        "an umbrella",
        "a ewe",
        "an orange cat",
    ]
