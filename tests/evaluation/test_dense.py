"""Dense retrieval against plain lines, ties, twins, the unseen part, and what is refused."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data import dense_made as made
from tests.evaluation.fakes import LookupEncoder, random_unit

from clipmend.backbones.base import LongTextsWarning
from clipmend.data.dense import DenseData, read_dense
from clipmend.evaluation import compare
from clipmend.evaluation.dense import dense_retrieval, evaluate_dense
from clipmend.evaluation.dense_overlap import find_overlap, read_ids, read_twins
from clipmend.evaluation.dense_tables import published_dense


def slow(scores: np.ndarray, owner: list[int], ks: tuple[int, ...], queries: list[int]) -> dict[str, float]:
    """Plain lines: scores ``[texts, images]``; the right item must beat every wrong one."""
    found: dict[str, float] = {}
    ranks = [1 + sum(row[i] >= row[own] for i in range(len(row)) if i != own) for row, own in zip(scores, owner, strict=True)]
    ranks = [rank for rank, own in zip(ranks, owner, strict=True) if own in queries]
    backward = []
    for image in sorted(set(owner) & set(queries)):
        best = max(scores[t][image] for t in range(len(owner)) if owner[t] == image)
        backward.append(1 + sum(scores[t][image] >= best for t in range(len(owner)) if owner[t] != image))
    for name, values, gallery in (("image", ranks, scores.shape[1]), ("text", backward, len(owner))):
        for k in ks:
            if k < gallery and values:
                found[f"{name}_retrieval_recall@{k}"] = sum(rank <= k for rank in values) / len(values)
        if values:
            found[f"{name}_retrieval_median_rank"] = float(np.median(values))
    return found


@st.composite
def galleries(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Small whole-number vectors, so that ties are many and exact; several captions an image, some images without one."""
    images = draw(st.integers(1, 7))
    owner = draw(st.lists(st.integers(0, images - 1), min_size=1, max_size=10))
    corners = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [-1, 0, 0]], np.float32)
    pick = st.lists(st.integers(0, 3), min_size=images, max_size=images)
    texts = st.lists(st.integers(0, 3), min_size=len(owner), max_size=len(owner))
    return corners[draw(pick)], corners[draw(texts)], owner


@settings(max_examples=150, deadline=None)
@given(data=galleries(), block=st.integers(1, 4), known=st.lists(st.booleans(), min_size=7, max_size=7))
def test_equals_plain_lines(data: tuple[np.ndarray, np.ndarray, list[int]], block: int, known: list[bool]) -> None:
    images, texts, owner = data
    ks = (1, 2, 5)
    seen = np.array(known[: len(images)])
    result = dense_retrieval(images, texts, owner, ks=ks, block=block, seen=seen)
    everyone = list(range(len(images)))
    scores = texts @ images.T
    assert {n: v for n, v in result.metrics.items() if "/" not in n} == pytest.approx(slow(scores, owner, ks, everyone))
    for part, chosen in (("unseen", np.flatnonzero(~seen)), ("seen", np.flatnonzero(seen))):
        expected = {n: v for n, v in slow(scores, owner, ks, chosen.tolist()).items() if "recall" in n and seen.any()}
        assert {n.removeprefix(f"{part}/"): v for n, v in result.metrics.items() if n.startswith(f"{part}/")} == pytest.approx(
            expected
        )
    there = np.flatnonzero(~seen)
    rows = [t for t, own in enumerate(owner) if not seen[own]]
    alone = {n.removeprefix("unseen_gallery/"): v for n, v in result.metrics.items() if n.startswith("unseen_gallery/")}
    if rows and seen.any():
        place = {int(image): k for k, image in enumerate(there)}
        expected = slow(scores[np.ix_(rows, there)], [place[owner[t]] for t in rows], ks, list(range(len(there))))
        assert alone == pytest.approx({n: v for n, v in expected.items() if "recall" in n})
    else:
        assert not alone


def test_a_constant_encoder_gets_nothing() -> None:
    same = np.ones((6, 4), np.float32)
    result = dense_retrieval(same, same, twins=[(0, 1), (2, 3, 4)])
    assert {v for n, v in result.metrics.items() if "recall" in n or "twins" in n} == {0.0}
    assert result.metrics["image_retrieval_median_rank"] == 6


def test_a_perfect_encoder_gets_everything_and_intervals_hold_it() -> None:
    rows = random_unit(np.random.default_rng(0), 60, 32)
    result = dense_retrieval(rows, 3 * rows, twins=[(0, 1)])  # normalised here
    measures = result.measures()
    for k in (1, 5, 10, 25, 50):
        for direction in ("image", "text"):
            measure = measures[f"{direction}_retrieval_recall@{k}"]
            assert (measure.value, measure.high, measure.count) == (1.0, 1.0, 60)
            assert 0.9 < measure.low < 1
    assert {measures[f"twins/{name}"].value for name in ("image_by_text", "text_by_image", "group")} == {1.0}


def test_cut_offs_beyond_the_gallery_are_left_out_and_said() -> None:
    rows = random_unit(np.random.default_rng(1), 8, 16)
    result = dense_retrieval(rows, rows)
    assert [n for n in result.metrics if "recall" in n] == [
        "image_retrieval_recall@1", "image_retrieval_recall@5", "text_retrieval_recall@1", "text_retrieval_recall@5",
    ]  # fmt: skip
    assert "text → image: R@10, R@25, R@50 left out: the gallery has only 8 images" in result.notes
    one = dense_retrieval(rows[:1], rows[:1])
    assert one.metrics == {"image_retrieval_median_rank": 1.0, "text_retrieval_median_rank": 1.0}
    assert one.table().row_count == 2


def test_what_is_refused() -> None:
    rows = random_unit(np.random.default_rng(2), 4, 8)
    bad = rows.copy()
    bad[2, 1] = np.nan
    with pytest.raises(ValueError, match="embedding of image 2 is not finite"):
        dense_retrieval(bad, rows)
    with pytest.raises(ValueError, match="embedding of text 2 is not finite"):
        dense_retrieval(rows, bad)
    with pytest.raises(ValueError, match="3 texts for 4 images: give image_of"):
        dense_retrieval(rows, rows[:3])
    with pytest.raises(ValueError, match="outside 0"):
        dense_retrieval(rows, rows, [0, 1, 2, 4])
    with pytest.raises(ValueError, match="not at"):
        dense_retrieval(rows, rows, ks=(0, 1))
    with pytest.raises(ValueError, match="seen must be true or false"):
        dense_retrieval(rows, rows, seen=[1, 0])
    with pytest.raises(ValueError, match="group of twins"):
        dense_retrieval(rows, rows, twins=[(0, 9)])
    with pytest.raises(ValueError, match="group of twins"):
        dense_retrieval(rows, rows, twins=[(1, 1)])
    with pytest.raises(ValueError, match="must be"):
        dense_retrieval(rows[0], rows)


def test_float16_and_whole_numbers_are_scored_in_float32() -> None:
    rows = torch.randn(20, 64, generator=torch.Generator().manual_seed(0))
    exact = dense_retrieval(rows, rows + 0.5)
    assert dense_retrieval(rows.double(), rows + 0.5).metrics == exact.metrics
    large = (rows * 10000).half()  # its products overflow float16, and so does its norm
    assert dense_retrieval(large, rows + 0.5, ks=(1,)).metrics["image_retrieval_recall@1"] > 0


def test_twins_by_plain_lines() -> None:
    rng = np.random.default_rng(3)
    images, texts = random_unit(rng, 9, 6), random_unit(rng, 14, 6)
    owner = [*range(9), 0, 0, 4, 5, 8]
    groups = [(0, 1), (4, 5, 6), (8, 2)]
    result = dense_retrieval(images, texts, owner, twins=groups)
    scores = texts @ images.T
    by_text, by_image, whole = [], [], []
    for group in groups:
        texts_right = [
            all(scores[t][owner[t]] > scores[t][i] for i in group if i != owner[t]) for t in range(14) if owner[t] in group
        ]
        images_right = [
            max(scores[t][i] for t in range(14) if owner[t] == i)
            > max(scores[t][i] for t in range(14) if owner[t] in group and owner[t] != i)
            for i in group
        ]
        by_text += texts_right
        by_image += images_right
        whole.append(all(texts_right) and all(images_right))
    found = result.metrics
    assert found["twins/image_by_text"] == pytest.approx(np.mean(by_text))
    assert found["twins/text_by_image"] == pytest.approx(np.mean(by_image))
    assert found["twins/group"] == pytest.approx(np.mean(whole))
    assert result.measures()["twins/image_by_text"].count == len(by_text)


def test_intervals_draw_twins_together() -> None:
    rng = np.random.default_rng(5)
    images = random_unit(rng, 200, 64)
    texts = images.copy()
    wrong = rng.choice(100, 30, replace=False)
    texts[np.concatenate([wrong, wrong + 100])] = random_unit(rng, 60, 64)  # both of a pair, or neither
    pairs = [(k, k + 100) for k in range(100)]
    alone, together = dense_retrieval(images, texts), dense_retrieval(images, texts, twins=pairs)
    one, two = (result.measures()["image_retrieval_recall@1"] for result in (alone, together))
    assert one.value == two.value
    assert 1.2 < (two.high - two.low) / (one.high - one.low) < 1.6  # half the independent queries: about 1.41
    whole = dense_retrieval(images, images, twins=pairs).measures()["image_retrieval_recall@1"]
    assert (whole.value, whole.high) == (1.0, 1.0)
    assert 0.95 < whole.low < dense_retrieval(images, images).measures()["image_retrieval_recall@1"].low


def test_paired_differences_of_every_part() -> None:
    rng = np.random.default_rng(4)
    images = random_unit(rng, 30, 8)
    worse, better = images + rng.normal(size=(30, 8)), images + 0.3 * rng.normal(size=(30, 8))
    options: dict[str, Any] = {"seen": np.arange(30) < 10, "twins": [(k, k + 1) for k in range(0, 30, 2)]}
    one, two = dense_retrieval(images, worse, **options), dense_retrieval(images, better, **options)
    found = compare(one, two, samples=200).differences
    assert set(found) == set(one.metrics)
    for name in ("image_retrieval_recall@1", "unseen_gallery/text_retrieval_recall@1", "twins/group"):
        assert found[name].low <= found[name].difference <= found[name].high
        assert found[name].difference == pytest.approx(two.metrics[name] - one.metrics[name])


def test_printed_rows_as_printed() -> None:
    shown = {(row.dataset, row.method, row.trained_on): row.shown for row in published_dense()}
    assert shown["docci", "HN-CLIP", "dci"] == "85.00/83.14"
    assert shown["long-dci", "StructXLIP", ""] == "75.34/72.30"
    assert shown["urban1k", "HN-CLIP", ""] == "91.1/90.3"
    assert len(shown) == len(published_dense())
    assert {row.dataset for row in published_dense()} == {"docci", "dci", "long-dci", "urban1k"}
    assert published_dense("scenes") == []


# With an encoder


def pictures(folder: Path, count: int, names: str = "sa_{}.png") -> DenseData:
    for k in range(count):
        made.picture(folder / names.format(k), k)
    ids = [Path(names.format(k)).stem for k in range(count)]
    return DenseData(
        "drawn", "test", [folder / names.format(k) for k in range(count)], [f"caption {k}" for k in range(count)],
        np.arange(count), ids, [f"{own}#0" for own in ids], known_as=[own if own.startswith("sa_") else "" for own in ids],
    )  # fmt: skip


def encoder(count: int, names: str = "sa_{}.png", **changes: list[float]) -> LookupEncoder:
    rows = np.eye(count, dtype=np.float32).tolist()
    texts = {f"caption {k}": rows[k] for k in range(count)} | changes
    return LookupEncoder(texts, {names.format(k): rows[k] for k in range(count)})


class Cutting(LookupEncoder):
    """Reports two texts as cut, and something else."""

    def encode_texts(self, texts: Any, **options: Any) -> torch.Tensor:
        warnings.warn(LongTextsWarning("2 texts cut", 2), stacklevel=2)
        warnings.warn("a word of warning", UserWarning, stacklevel=2)
        return super().encode_texts(texts, **options)


def test_an_evaluation_says_what_it_was_on(tmp_path: Path) -> None:
    data = pictures(tmp_path, 4)
    data.twins = [(0, 1)]
    rows = np.eye(4, dtype=np.float32).tolist()
    cutting = Cutting({f"caption {k}": rows[k] for k in range(4)}, {f"sa_{k}.png": rows[k] for k in range(4)})
    with pytest.warns(UserWarning, match="a word of warning") as caught:
        result = evaluate_dense(cutting, data, ks=(1,))
    assert not [entry for entry in caught if issubclass(entry.category, LongTextsWarning)]
    written = result.to_dict()
    assert written["truncation"] == {"context_length": 77, "distinct_captions": 4, "truncated": 2, "share": 0.5}
    assert written["gallery"]["sha256"] == data.gallery_digest(data.digests())
    assert written["metrics"]["twins/group"] == 1.0
    assert written["task"] == "dense_retrieval"
    assert result.table().row_count == 5


def test_missing_images_are_an_error_or_left_out(tmp_path: Path) -> None:
    data = pictures(tmp_path, 4)
    data.images[1].unlink()
    with pytest.raises(FileNotFoundError, match=r"1 of 4 images have no file: .*sa_1\.png"):
        evaluate_dense(encoder(4), data)
    overlap = find_overlap(data, ids=["sa_0", "sa_1"])
    result = evaluate_dense(encoder(4), data, on_missing="skip", overlap=overlap, ks=(1,))
    assert any("1 of 4 images have no file" in note for note in result.notes)
    assert result.measures()["unseen/image_retrieval_recall@1"].count == 2
    for path in data.images:
        path.unlink(missing_ok=True)
    with pytest.raises(ValueError, match="no image with a caption is left"):
        evaluate_dense(encoder(4), data, on_missing="skip")


def test_embeddings_that_are_not_finite_are_named_by_their_row(tmp_path: Path) -> None:
    data = replace(pictures(tmp_path, 3), where=["t.csv: line 2", "t.csv: line 3", "t.csv: line 4"])
    with pytest.raises(ValueError, match=r"caption of t\.csv: line 3 is not finite"):
        evaluate_dense(encoder(3, **{"caption 1": [math.nan, 0.0, 0.0]}), data)
    broken = encoder(3)
    broken.images["sa_2.png"] = [math.inf, 0.0, 0.0]
    with pytest.raises(ValueError, match=r"image .*sa_2\.png is not finite"):
        evaluate_dense(broken, data)


def test_equal_files_and_equal_captions_are_noted_and_tie(tmp_path: Path) -> None:
    data = pictures(tmp_path, 3)
    data.images[2].write_bytes(data.images[1].read_bytes())
    same = encoder(3)
    same.images["sa_2.png"] = same.images["sa_1.png"]
    result = evaluate_dense(same, data, ks=(1,))
    assert any("1 images have the bytes of another one" in note for note in result.notes)
    assert result.metrics["image_retrieval_recall@1"] == pytest.approx(1 / 3)


# What training has seen


def test_seen_by_id_by_content_by_caption(tmp_path: Path) -> None:
    test = pictures(tmp_path / "test", 6)
    training = pictures(tmp_path / "training", 6, "other_{}.png")
    for k, path in enumerate(training.images):
        made.picture(path, 100 + k)
    training.captions = [f"another caption {k}" for k in range(6)]
    assert not find_overlap(test, training).seen.any()
    training.known_as[0] = "sa_3"
    training.images[1].write_bytes(test.images[4].read_bytes())
    training.captions[2] = "caption 5"
    overlap = find_overlap(test, training)
    assert np.flatnonzero(overlap.seen).tolist() == [3, 4, 5]
    assert (overlap.by_id, overlap.by_content, overlap.by_caption) == (1, 1, 1)
    assert "3 of 6 images seen in training on drawn (test)" in str(overlap)
    with pytest.raises(ValueError, match="give a training set, or the ids"):
        find_overlap(test)


def test_names_alone_say_nothing(tmp_path: Path) -> None:
    test, training = pictures(tmp_path / "a", 3, "{}.png"), pictures(tmp_path / "b", 3, "{}.png")
    for k, path in enumerate(training.images):
        made.picture(path, 100 + k)
    training.captions = ["x", "y", "z"]
    assert not find_overlap(test, training).seen.any()


def test_listed_ids_in_any_spelling(tmp_path: Path) -> None:
    test = pictures(tmp_path, 5)
    file = made.write(tmp_path / "ids.txt", "\ufeffsa_0\r\n\r\nphotos/sa_1.png\r\nC:\\them\\sa_2.jpg\r\n")
    overlap = find_overlap(test, ids=read_ids(file))
    assert np.flatnonzero(overlap.seen).tolist() == [0, 1, 2]
    assert overlap.compared == 3
    with pytest.raises(ValueError, match="holds no ids"):
        read_ids(made.write(tmp_path / "none.txt", "\n"))
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="not UTF-8"):
        read_ids(tmp_path / "bad.txt")


def test_long_dci_is_seen_by_whoever_trained_on_dci(tmp_path: Path) -> None:
    dci = read_dense("dci", made.dci(tmp_path / "dci"), split="train")
    long = read_dense("long-dci", made.long_dci(tmp_path / "long"))
    overlap = find_overlap(long, dci)
    assert overlap.seen.tolist() == [True, False, False]


def test_groups_of_twins_from_a_file(tmp_path: Path) -> None:
    data = pictures(tmp_path, 6)
    file = made.write(tmp_path / "twins.txt", "sa_0, sa_1.png\n\nsa_1,sa_4\nsa_2\tsa_5\n")
    assert read_twins(file, data) == [(0, 1, 4), (2, 5)]
    for text, message in (
        ("sa_0\n", "line 1: a group of twins needs two"),
        ("\nsa_0,sa_9\n", "line 2: 'sa_9' is no image of drawn"),
        ("sa_0,sa_0.png\n", "line 1: a group of twins needs two"),
        ("\n", "holds no groups"),
    ):
        with pytest.raises(ValueError, match=message):
            read_twins(made.write(file, text), data)


def test_fractions_are_no_images() -> None:
    with pytest.raises(ValueError, match="image_of must be whole numbers, not float64"):
        dense_retrieval(np.eye(3), np.eye(3), [0.5, 1, 2])
