import json
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.evaluation.fakes import LookupEncoder, random_unit
from torch import Tensor

from clipmend.backbones.base import PreparedTexts
from clipmend.evaluation import (
    RetrievalData,
    RuleProjection,
    compare,
    evaluate_retrieval,
    oracle_recall,
    ranks_both_ways,
    read_retrieval,
    rerank_both_ways,
)
from clipmend.evaluation.tables import TableWarning

# ---- ranks ---------------------------------------------------------------------------------------------------------------------


def slow_ranks(scores: np.ndarray, image_of: np.ndarray) -> tuple[list[int], list[int]]:
    """``scores [M, N]``: three plain lines each way."""
    m, n = scores.shape
    by_text = [1 + sum(scores[t, i] >= scores[t, image_of[t]] for i in range(n) if i != image_of[t]) for t in range(m)]
    by_image = []
    for i in range(n):
        own = [scores[t, i] for t in range(m) if image_of[t] == i]
        by_image.append(1 + sum(scores[t, i] >= max(own) for t in range(m) if image_of[t] != i) if own else 0)
    return by_text, by_image


def whole_numbers(seed: int, texts: int, images: int) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings of small whole numbers: exact sums, many ties; some images have several captions, some none."""
    rng = np.random.default_rng(seed)
    return (
        torch.from_numpy(rng.integers(-1, 2, (texts, 3)).astype(np.float32)),
        torch.from_numpy(rng.integers(-1, 2, (images, 3)).astype(np.float32)),
        torch.from_numpy(rng.integers(0, images, texts)),
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 30), st.integers(1, 12), st.integers(1, 7))
def test_ranks_against_the_plain_loop(seed: int, texts: int, images: int, block: int) -> None:
    t, i, image_of = whole_numbers(seed, texts, images)
    by_text, by_image = slow_ranks((t @ i.T).numpy(), image_of.numpy())
    found = ranks_both_ways(t, i, image_of, block=block)
    assert found[0].tolist() == by_text
    assert found[1].tolist() == by_image


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_order_of_images_and_texts_says_nothing(seed: int) -> None:
    t, i, image_of = whole_numbers(seed, 25, 9)
    rng = np.random.default_rng(seed)
    text_order, image_order = rng.permutation(25), rng.permutation(9)
    where = np.argsort(image_order)
    by_text, by_image = ranks_both_ways(t, i, image_of)
    moved = ranks_both_ways(t[text_order], i[image_order], torch.from_numpy(where)[image_of[text_order]])
    assert moved[0].tolist() == by_text[text_order].tolist()
    assert moved[1].tolist() == by_image[image_order].tolist()


@pytest.mark.parametrize("width", [3, 37, 512])
def test_a_constant_scorer_is_last(width: int) -> None:
    rng = np.random.default_rng(width)
    one = torch.from_numpy(random_unit(rng, 1, width))
    texts = torch.from_numpy(random_unit(rng, 203, width))
    image_of = torch.arange(203) % 101
    by_text, _ = ranks_both_ways(texts, one.expand(101, -1).contiguous(), image_of)
    assert (by_text == 101).all()
    images = torch.from_numpy(random_unit(rng, 101, width))
    _, by_image = ranks_both_ways(one.expand(203, -1).contiguous(), images, image_of)
    own = torch.bincount(image_of, minlength=101)
    assert (by_image == 1 + 203 - own).all()


def test_ranks_refuse_what_does_not_fit() -> None:
    t, i, image_of = whole_numbers(0, 5, 4)
    with pytest.raises(ValueError, match="do not share an embedding size"):
        ranks_both_ways(t, i[:, :2], image_of)
    with pytest.raises(ValueError, match="image_of has shape"):
        ranks_both_ways(t, i, image_of[:3])
    with pytest.raises(ValueError, match=r"outside 0\.\.3"):
        ranks_both_ways(t, i, image_of + 4)
    with pytest.raises(ValueError, match="nothing to rank"):
        ranks_both_ways(t[:0], i, image_of[:0])
    t[3, 1] = torch.nan
    with pytest.raises(ValueError, match="embedding of text 3 is not finite"):
        ranks_both_ways(t, i, image_of)


# ---- re-ranking ----------------------------------------------------------------------------------------------------------------


def slow_rerank(plain: np.ndarray, fixed: np.ndarray, image_of: np.ndarray, top: int) -> tuple[list[int], list[int]]:
    by_text, by_image = slow_ranks(plain, image_of)
    m, n = plain.shape
    for t in range(m):
        if by_text[t] <= top:
            edge = sorted(plain[t], reverse=True)[min(top, n) - 1]
            others = [i for i in range(n) if plain[t, i] >= edge and i != image_of[t]]
            by_text[t] = 1 + sum(fixed[t, i] >= fixed[t, image_of[t]] for i in others)
    for i in range(n):
        if 0 < by_image[i] <= top:
            edge = sorted(plain[:, i], reverse=True)[min(top, m) - 1]
            short = [t for t in range(m) if plain[t, i] >= edge]
            best = max(fixed[t, i] for t in short if image_of[t] == i)
            by_image[i] = 1 + sum(fixed[t, i] >= best for t in short if image_of[t] != i)
    return by_text, by_image


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 25), st.integers(1, 10), st.integers(1, 30))
def test_rerank_against_the_plain_loop(seed: int, texts: int, images: int, top: int) -> None:
    t, i, image_of = whole_numbers(seed, texts, images)

    def correction(a: Tensor, b: Tensor) -> Tensor:
        return ((a * 3 + b * 5).sum(1) % 4) - 1

    encoder = LookupEncoder(default=[0.0] * 3, correction=correction)
    prepared = PreparedTexts(t)
    plain = (t @ i.T).numpy()
    fixed = encoder.score(i, prepared).numpy().T
    ranks = ranks_both_ways(t, i, image_of)
    found = rerank_both_ways(encoder, prepared, i, image_of, *ranks, top=top, block=3)
    by_text, by_image = slow_rerank(plain, fixed, image_of.numpy(), top)
    assert found[0].tolist() == by_text
    assert found[1].tolist() == by_image


def test_rerank_without_a_correction_changes_nothing() -> None:
    rng = np.random.default_rng(0)
    t, i = (torch.from_numpy(random_unit(rng, n, 16)) for n in (60, 20))
    image_of = torch.arange(60) % 20
    ranks = ranks_both_ways(t, i, image_of)
    again = rerank_both_ways(LookupEncoder(default=[0.0] * 16), PreparedTexts(t), i, image_of, *ranks, top=5)
    assert all((a == b).all() for a, b in zip(ranks, again, strict=True))
    with pytest.raises(ValueError, match="1 or more"):
        rerank_both_ways(LookupEncoder(default=[0.0] * 16), PreparedTexts(t), i, image_of, *ranks, top=0)
    broken = LookupEncoder(default=[0.0] * 16, correction=lambda a, b: torch.full((len(a),), torch.nan))
    with pytest.raises(ValueError, match="not finite while re-ranking"):
        rerank_both_ways(broken, PreparedTexts(t), i, image_of, *ranks, top=5)


def test_rerank_scores_the_short_lists_only() -> None:
    rng = np.random.default_rng(0)
    seen = []

    def correction(a: Tensor, b: Tensor) -> Tensor:
        seen.append(len(a))
        return torch.zeros(len(a))

    t, i = (torch.from_numpy(random_unit(rng, n, 16)) for n in (200, 100))
    image_of = torch.arange(200) % 100
    encoder = LookupEncoder(default=[0.0] * 16, correction=correction)
    ranks = ranks_both_ways(t, i, image_of)
    rerank_both_ways(encoder, PreparedTexts(t), i, image_of, *ranks, top=4)
    reached = int((ranks[0] <= 4).sum() + ((ranks[1] > 0) & (ranks[1] <= 4)).sum())
    assert sum(seen) == 4 * reached


# ---- the oracle ----------------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 5), st.integers(1, 6))
def test_oracle_against_every_order(seed: int, images: int, captions: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    truth = rng.integers(-1, 2, (images, captions)).astype(np.int8)
    image_of = rng.integers(0, images, captions)
    before = truth.copy()

    def expected(scores: np.ndarray, own: set[int]) -> float:
        """Mean over every order of the gallery that puts true items first."""
        first = [sorted(order, key=lambda j: -scores[j])[:k] for order in permutations(range(len(scores)))]
        return float(np.mean([bool(own & set(head)) for head in first]))

    true = (truth > 0).astype(int)
    true[image_of, np.arange(captions)] = 1
    by_text = np.mean([expected(true[:, j], {int(image_of[j])}) for j in range(captions)])
    by_image = np.mean([expected(true[i], set(np.flatnonzero(image_of == i).tolist())) for i in np.unique(image_of)])
    assert oracle_recall(truth, k, image_of) == pytest.approx(by_text)
    assert oracle_recall(truth, k, image_of, "text") == pytest.approx(by_image)
    np.testing.assert_array_equal(truth, before)


def test_oracle_examples_and_refusals() -> None:
    truth = np.array([[1, 1], [-1, 1], [0, 1]])
    assert oracle_recall(truth, 1) == pytest.approx((1 + 1 / 3) / 2)
    assert oracle_recall(truth, 3) == 1.0
    with pytest.raises(ValueError, match="caption 1 is true of no image"):
        oracle_recall(-truth, 1)
    with pytest.raises(ValueError, match="needs image_of"):
        oracle_recall(truth, 1, direction="text")
    with pytest.raises(ValueError, match="1 or more"):
        oracle_recall(truth, 0)


# ---- reading -------------------------------------------------------------------------------------------------------------------


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def test_reads_lists_of_captions(tmp_path: Path) -> None:
    text = '\ufefffilepath,captions\r\na.jpg,"[\'a cat\', ""a dog\'s bone""]"\r\nb.jpg,"[""no cat""]"\r\na.jpg,"[\'a third\']"\r\n'
    data = read_retrieval(write(tmp_path / "r.csv", text))
    assert data.images == ["a.jpg", "b.jpg"]
    assert data.captions == ["a cat", "a dog's bone", "no cat", "a third"]
    assert data.image_of.tolist() == [0, 0, 1, 0]
    assert data.parse is None


def test_reads_one_caption_a_row(tmp_path: Path) -> None:
    data = read_retrieval(write(tmp_path / "r.csv", 'filepath,title\na.jpg,a cat\nb.jpg,"a dog, a bus"\n'))
    assert data.captions == ["a cat", "a dog, a bus"]


def test_reads_the_parse(tmp_path: Path) -> None:
    parse = '"[{""asserts"": [""cat""], ""denies"": [""dog""]}]"'
    data = read_retrieval(write(tmp_path / "r.csv", f"filepath,captions,parse\na.jpg,\"['a cat, no dog']\",{parse}\n"))
    assert data.parse is not None
    assert (data.parse[0].form, data.parse[0].asserts, data.parse[0].denies) == ("hybrid", ("cat",), ("dog",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file is empty"),
        ("filepath,captions\n", "no rows"),
        ("filepath,words\na,b\n", "no column is called as captions usually are"),
        ("captions\n['a']\n", "there are captions and no images"),
        ("filepath,captions\na.jpg,a cat\n", "line 2: captions is no list of texts"),
        ("filepath,captions\na.jpg,[1]\n", "line 2: captions is no list of texts"),
        ("filepath,captions\na.jpg,[]\n", "line 2: captions is empty"),
        ("filepath,captions\na.jpg,\"['a', ' ']\"\n", "line 2: captions is empty, or one of them is"),
        ("filepath,captions\na.jpg,__import__('os').getcwd()\n", "line 2: captions is no list of texts"),
        ("filepath,captions\na.jpg," + "[" * 5000 + "]" * 5000 + "\n", "line 2: captions is no list of texts"),
        ("filepath,captions\n,['a']\n", "line 2: filepath is empty"),
        ("filepath,title\na.jpg,\n", "line 2: title is empty"),
        ("filepath,captions,parse\na.jpg,['a'],\"[{},{}]\"\n", "line 2: parse must be a list of 1"),
    ],
)
def test_broken_tables_say_where(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"broken\.csv") as caught:
        read_retrieval(write(tmp_path / "broken.csv", content))
    assert message in str(caught.value)


def test_repeats_are_noted(tmp_path: Path) -> None:
    text = "filepath,captions\na.jpg,\"['a cat', 'a cat']\"\na.jpg,\"['a cat', 'a cat']\"\nb.jpg,\"['a cat']\"\n"
    with pytest.warns(TableWarning, match="1 duplicate rows"):
        data = read_retrieval(write(tmp_path / "r.csv", text))
    assert data.captions == ["a cat", "a cat"]
    assert data.image_of.tolist() == [0, 1]
    assert any("3 captions repeated for one image" in note for note in data.notes)
    assert any("1 captions stand under more than one image" in note for note in data.notes)


# ---- evaluation ----------------------------------------------------------------------------------------------------------------


def some_data(rng: np.random.Generator, images: int = 30, each: int = 2) -> tuple[RetrievalData, LookupEncoder, Tensor]:
    vectors = random_unit(rng, images, 16)
    image_of = np.repeat(np.arange(images), each)
    captions = [f"caption {j}" for j in range(len(image_of))]
    texts = vectors[image_of] + rng.normal(0, 0.3, (len(image_of), 16))
    data = RetrievalData([f"{i}.png" for i in range(images)], captions, image_of)
    return data, LookupEncoder(dict(zip(captions, texts, strict=True)), unit=True), torch.from_numpy(vectors)


def test_recall_and_median_from_the_ranks(tmp_path: Path) -> None:
    data, encoder, vectors = some_data(np.random.default_rng(0))
    result = evaluate_retrieval(encoder, data, image_embeddings=vectors)
    scores = (encoder.encode_texts(data.captions) @ vectors.T).numpy()
    by_text, by_image = slow_ranks(scores, data.image_of)
    for k in (1, 5, 10):
        assert result.metrics[f"image_retrieval_recall@{k}"] == pytest.approx(np.mean(np.array(by_text) <= k))
        assert result.metrics[f"text_retrieval_recall@{k}"] == pytest.approx(np.mean(np.array(by_image) <= k))
    assert result.metrics["image_retrieval_median_rank"] == np.median(by_text)
    measure = result.measures()["image_retrieval_recall@1"]
    assert measure.low < measure.value < measure.high
    content = json.loads(result.save(tmp_path / "r.json").read_text())
    assert content["task"] == "zeroshot_retrieval"
    assert content["counts"]["image_retrieval_recall@5"] == 60
    assert content["counts"]["text_retrieval_recall@5"] == 30
    assert content["gallery"] == {"images": 30, "texts": 60}


def test_k_beyond_the_gallery_is_left_out_and_said() -> None:
    data, encoder, vectors = some_data(np.random.default_rng(0), images=5)
    result = evaluate_retrieval(encoder, data, image_embeddings=vectors, ks=(1, 5, 10))
    recalls = {name for name in result.metrics if "recall" in name}
    assert recalls == {"image_retrieval_recall@1", "text_retrieval_recall@1", "text_retrieval_recall@5"}
    assert "image retrieval: R@5, R@10 left out: the gallery has only 5 images" in result.notes
    alone = RetrievalData(["0.png"], ["caption 0"], np.array([0]))
    single = evaluate_retrieval(encoder, alone, image_embeddings=vectors[:1])
    assert single.metrics == {"image_retrieval_median_rank": 1.0, "text_retrieval_median_rank": 1.0}


def test_a_constant_scorer_finds_nothing() -> None:
    data, _, vectors = some_data(np.random.default_rng(0))
    result = evaluate_retrieval(LookupEncoder(default=[1.0] * 16, unit=True), data, image_embeddings=vectors)
    assert result.metrics["text_retrieval_recall@10"] == 0
    flat = evaluate_retrieval(LookupEncoder(default=[1.0] * 16, unit=True), data, image_embeddings=torch.ones(30, 16))
    assert flat.metrics["image_retrieval_recall@10"] == 0
    assert flat.metrics["image_retrieval_median_rank"] == 30


def test_captions_prepared_once_and_images_without_captions() -> None:
    data, encoder, vectors = some_data(np.random.default_rng(0), images=4, each=1)
    shared = RetrievalData(data.images, ["caption 0", "caption 0", "caption 1"], np.array([0, 1, 2]))
    result = evaluate_retrieval(encoder, shared, image_embeddings=vectors, ks=(1,))
    assert encoder.calls["texts"] == 2
    assert result.image_ranks[3] == 0
    assert result.image_ranks[0] >= 2  # its caption ties with image 1's equal one
    assert any("1 images have no caption" in note for note in result.notes)


def test_missing_images_take_their_captions_along() -> None:
    data, encoder, vectors = some_data(np.random.default_rng(0), images=6)
    named = {f"{i}.png": vectors[i] for i in range(6) if i != 2}
    with pytest.raises(FileNotFoundError, match=r"1 of 6 images \(2\.png\) not found among the image embeddings"):
        evaluate_retrieval(encoder, data, image_embeddings=named)
    truth = np.where(np.arange(6)[:, None] == data.image_of, 1, -1)
    result = evaluate_retrieval(encoder, data, image_embeddings=named, on_missing="skip", truth=truth, ks=(1,))
    kept = [j for j in range(12) if data.image_of[j] != 2]
    left = RetrievalData(
        [n for n in data.images if n != "2.png"],
        [data.captions[j] for j in kept],
        np.array([data.image_of[j] - (data.image_of[j] > 2) for j in kept]),
    )
    again = evaluate_retrieval(encoder, left, image_embeddings=named, ks=(1,))
    np.testing.assert_array_equal(result.text_ranks, again.text_ranks)
    assert result.metrics["image_retrieval_oracle_recall@1"] == 1.0
    assert any("1 of 6 images missing: skipped with 2 captions" in note for note in result.notes)


def test_rerank_reaches_the_metrics() -> None:
    data, encoder, vectors = some_data(np.random.default_rng(0))
    before = evaluate_retrieval(encoder, data, image_embeddings=vectors)
    encoder.correction = lambda a, b: 10 * (a * b).sum(1)
    same = evaluate_retrieval(encoder, data, image_embeddings=vectors, rerank=5)
    assert same.metrics == before.metrics
    baseline = RuleProjection(encoder, {})  # a dual encoder whose score is the cosine
    with pytest.raises(ValueError, match=r"rerank orders by a score correction, and lookup \+ rule-based projection"):
        evaluate_retrieval(baseline, data, image_embeddings=vectors, rerank=5)
    encoder.correction = lambda a, b: -10 * (a * b).sum(1)
    worse = evaluate_retrieval(encoder, data, image_embeddings=vectors, rerank=5)
    assert worse.metrics["image_retrieval_recall@1"] < before.metrics["image_retrieval_recall@1"]
    assert worse.metrics["image_retrieval_recall@5"] == before.metrics["image_retrieval_recall@5"]


def test_compare_draws_images() -> None:
    data, encoder, vectors = some_data(np.random.default_rng(0))
    noisy = LookupEncoder(
        {t: np.asarray(v) + np.random.default_rng(1).normal(0, 1, 16) for t, v in encoder.texts.items()}, unit=True
    )
    good, bad = (evaluate_retrieval(e, data, image_embeddings=vectors) for e in (encoder, noisy))
    found = compare(bad, good, samples=300).differences["image_retrieval_recall@1"]
    assert 0 < found.low < found.difference < found.high
    rank = compare(bad, good, samples=300).differences["image_retrieval_median_rank"]
    assert rank.low <= rank.difference <= rank.high < 0
    fewer = evaluate_retrieval(encoder, data, image_embeddings=vectors, ks=(1,))
    with pytest.raises(ValueError, match="different items"):
        compare(bad, fewer)


def test_data_refuse_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="image numbers for 1 captions"):
        RetrievalData(["a"], ["x"], np.array([0, 0]))
    with pytest.raises(ValueError, match=r"outside 0\.\.0"):
        RetrievalData(["a"], ["x"], np.array([1]))
    with pytest.raises(ValueError, match="listed twice"):
        RetrievalData(["a", "a"], ["x"], np.array([1]))
