"""Queries in words, re-ranking, before and after a patch, and the hint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from clipmend.search import Hit, ImageIndex, ImageIndexError, negation_hint, search
from search.fakes import FakeEncoder, FakeMended, colour_folder


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> ImageIndex:
    root = tmp_path_factory.mktemp("query")
    colour_folder(root / "photos", 15)
    for name in ("red", "green", "blue"):
        Image.new("RGB", (4, 4), name if name != "green" else (0, 255, 0)).save(root / "photos" / f"{name}.png")
    return ImageIndex.build(FakeEncoder(), root / "photos", root / "index")


def test_the_right_colour_first(index: ImageIndex) -> None:
    for colour in ("red", "green", "blue"):
        hits = search(index, FakeEncoder(), f"something {colour}", k=3)
        assert [hit.rank for hit in hits] == [1, 2, 3]
        assert hits[0].path.name == f"{colour}.png"
        assert hits[0].score > hits[1].score >= hits[2].score
        assert isinstance(hits[0], Hit)


def test_hits_are_the_brute_force_order(index: ImageIndex) -> None:
    encoder = FakeEncoder()
    scores = encoder.encode_images(index.paths) @ encoder.encode_texts(["a thing"])[0]
    hits = search(index, encoder, "a thing", k=100)
    assert len(hits) == len(index) == 18
    assert [hit.path for hit in hits] == [index.path(int(i)) for i in scores.argsort(descending=True, stable=True)]


def test_rerank_orders_the_top_by_the_encoders_own_score(index: ImageIndex) -> None:
    mended = FakeMended()  # its score is minus the cosine
    plain = search(index, mended, "red", k=18)
    assert [h.path for h in search(index, mended, "red", k=6, rerank=6)] == [h.path for h in plain[:6]][::-1]
    both = search(index, mended, "red", k=2, rerank=6)
    assert [h.path for h in both] == [plain[5].path, plain[4].path]
    assert both[0].score == pytest.approx(-plain[5].score, abs=1e-6)
    everything = search(index, mended, "red", k=18, rerank=3)  # at least k are scored again
    assert [h.path for h in everything] == [h.path for h in plain][::-1]


def test_the_index_is_untouched(index: ImageIndex) -> None:
    before = {p.name: p.read_bytes() for p in index.directory.iterdir()}
    search(index, FakeMended(), "no red", k=3, rerank=10)
    assert {p.name: p.read_bytes() for p in index.directory.iterdir()} == before


def test_a_patch_changes_texts_only(index: ImageIndex) -> None:
    assert torch.equal(FakeEncoder().encode_images(index.paths), FakeMended().encode_images(index.paths))


def test_what_is_refused(index: ImageIndex) -> None:
    for query in ("", "  \n\t"):
        with pytest.raises(ValueError, match="query is empty"):
            search(index, FakeEncoder(), query)
    with pytest.raises(ValueError, match="k must be"):
        search(index, FakeEncoder(), "red", k=0)
    with pytest.raises(ValueError, match="fake has none"):
        search(index, FakeEncoder(), "red", rerank=5)
    with pytest.raises(ValueError, match="rerank must be"):
        search(index, FakeEncoder(), "red", rerank=-1)
    with pytest.raises(ImageIndexError, match="cannot be compared"):
        search(index, FakeEncoder(image="other"), "red")


def test_an_index_of_nothing_answers_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None is made any more, but earlier versions made one of a folder in which nothing can be read."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "bad.png").write_bytes(b"no")
    with pytest.raises(ValueError, match="none of the 1 images"):
        ImageIndex.build(FakeEncoder(), tmp_path / "photos", tmp_path / "index")
    monkeypatch.setattr("clipmend.search.build._Run.refuse_nothing", lambda run, count: None)
    empty = ImageIndex.build(FakeEncoder(), tmp_path / "photos", tmp_path / "index")
    assert len(empty) == 0
    assert search(empty, FakeMended(), "red", rerank=5) == []
    assert empty.scores(np.ones((2, 8))).shape == (2, 0)
    with pytest.raises(ImageIndexError, match="empty"):
        empty.mean_embedding()


def test_strange_queries_work(index: ImageIndex) -> None:
    for query in ("🐈", "日本", "word " * 500, "no"):
        assert len(search(index, FakeEncoder(), query, k=2)) == 2


def test_the_hint_is_for_negated_queries_without_a_patch() -> None:
    assert "--patch" in str(negation_hint("a street with no car", patched=False))
    assert "the bundled patch mends that: --patch photos" in str(negation_hint("a street with no car", False, "photos"))
    assert "bundled" not in str(negation_hint("a street with no car", False, "openai/clip-vit-base-patch32"))
    assert negation_hint("a street with no car", patched=True) is None
    assert negation_hint("a street with a car", patched=False) is None
