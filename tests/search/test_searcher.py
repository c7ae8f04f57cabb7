"""``Searcher`` against the plainest way to do the same: full sorts, loops, lists."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from clipmend.data.images import ImageError
from clipmend.search import order, searcher
from clipmend.search.conditions import fulfils
from clipmend.search.gallery import BASE_FIELDS, Condition, GalleryError, Item
from clipmend.search.grammar import Query, QueryError, Term, parse_query
from clipmend.search.order import collapsed, ranks_in
from clipmend.search.searcher import Answer, Found, Searcher, list_images
from search.fakes import DIM, FakeEncoder, FakeMended
from search.memory_gallery import MemoryGallery

FIELDS: Any = {**BASE_FIELDS, "label": "text"}


def make_gallery(count: int = 60, **options: Any) -> MemoryGallery:
    """Ids with gaps, not in the order of the vectors; every tenth image nearly a copy of the one before."""
    rng = np.random.default_rng(7)
    vectors = rng.normal(size=(count, DIM))
    for i in range(9, count, 10):
        vectors[i] = vectors[i - 1] + 0.01 * rng.normal(size=DIM)
    ids = rng.permutation(count) * 3 + 1
    items = [
        Item(
            int(ids[i]),
            f"{'ab'[i % 2]}/{i:03d}.png",
            {"folder": "ab"[i % 2], "name": f"{i:03d}.png", "width": float(i)} | ({"label": "cat"} if i % 3 else {}),
        )
        for i in range(count)
    ]
    return MemoryGallery(items, vectors, fields=FIELDS, **options)


@pytest.fixture(scope="module")
def gallery() -> MemoryGallery:
    return make_gallery()


@pytest.fixture(scope="module")
def plain(gallery: MemoryGallery) -> Searcher:
    return Searcher(gallery, FakeEncoder())


@pytest.fixture(scope="module")
def mended(gallery: MemoryGallery) -> Searcher:
    return Searcher(gallery, FakeEncoder(), FakeMended())


def slow_vector(gallery: MemoryGallery, encoder: FakeEncoder, query: Query) -> np.ndarray:
    total = np.zeros(DIM)
    for term in query.terms:
        if term.kind == "text":
            part = encoder.encode_texts([term.value])[0].numpy()
        elif term.kind == "like":
            part = next(v for v, i in slow_rows(gallery) if str(i.id) == term.value or i.path == term.value)
        else:
            part = encoder.encode_images([term.value])[0].numpy()
        total += term.weight * np.asarray(part, np.float64)
    return total / np.linalg.norm(total)


def slow_rows(gallery: MemoryGallery) -> list[tuple[np.ndarray, Item]]:
    return [(gallery.vectors([i])[0], gallery.items([i])[0]) for block in gallery.ids() for i in block]


def slow_order(gallery: MemoryGallery, encoder: FakeEncoder, query: Query) -> list[tuple[int, float]]:
    """Ids and scores of all images that fulfil the conditions, best first."""
    vector = slow_vector(gallery, encoder, query)
    scored = [(item.id, float(v @ vector)) for v, item in slow_rows(gallery) if fulfils(item.fields, query.where)]
    return sorted(scored, key=lambda pair: (-pair[1], pair[0]))


def ids(found: Sequence[Found]) -> list[int]:
    return [hit.id for hit in found]


QUERIES = [
    "no red",
    "a green thing",
    '"no red" - 0.5 "blue"',
    '"red" + 2 like:a/004.png',
    "like:1 - like:4",
    "no red folder:a",
    '"no red" + "green" width>=20 label:cat',
    "no red label!=dog width<50",
    "no red width<0",
]


@pytest.mark.parametrize("text", QUERIES)
@pytest.mark.parametrize(("k", "offset"), [(5, 0), (7, 9), (100, 0), (3, 1000)])
def test_pages_are_the_slow_orders(gallery: MemoryGallery, mended: Searcher, text: str, k: int, offset: int) -> None:
    query = parse_query(text, FIELDS)
    after, before = slow_order(gallery, FakeMended(), query), slow_order(gallery, FakeEncoder(), query)
    answer = mended.search(text, k, offset, compare=True)
    assert (answer.query, answer.total, answer.offset, answer.exact) == (query, len(after), offset, True)
    assert answer.depth == len(after)
    place = {id: rank for rank, (id, _) in enumerate(after, 1)}
    place_before = {id: rank for rank, (id, _) in enumerate(before, 1)}
    for found, expected in ((answer.hits, after), (answer.before, before)):
        assert ids(found) == [id for id, _ in expected[offset : offset + k]]
        for hit in found:
            assert (hit.rank, hit.rank_before) == (place[hit.id], place_before[hit.id])
            assert hit.score == pytest.approx(dict(after)[hit.id], abs=1e-6)
            assert hit.score_before == pytest.approx(dict(before)[hit.id], abs=1e-6)
            assert hit.item.id == hit.id
            assert (hit.correction, hit.terms, hit.copies, hit.file) == (None, (), (), None)
    alone = mended.search(query, k, offset)
    assert ids(alone.hits) == ids(answer.hits)
    assert [hit.rank for hit in alone.hits] == [hit.rank for hit in answer.hits]
    assert (alone.before, alone.depth) == ([], 0)
    assert all((hit.rank_before, hit.score_before) == (None, None) for hit in alone.hits)


def test_the_patch_changes_the_order(mended: Searcher, plain: Searcher) -> None:
    assert ids(mended.search("no red").hits) != ids(plain.search("no red").hits)
    assert ids(mended.search("red").hits) == ids(plain.search("red").hits)
    assert ids(mended.search("no red", strength=0).hits) == ids(plain.search("no red").hits)


def slow_reranked(gallery: MemoryGallery, query: Query, count: int) -> list[tuple[int, float]]:
    """By cosine, and the first ``count`` again with what ``FakeMended.score`` adds for each text, by its weight in the vector."""
    encoder = FakeMended()
    ordered = slow_order(gallery, encoder, query)
    total = sum(
        term.weight * (encoder.encode_texts([term.value])[0].numpy().astype(np.float64))
        if term.kind == "text"
        else term.weight * gallery.vectors([int(term.value)])[0].astype(np.float64)
        for term in query.terms
    )
    again = []
    for id, score in ordered[:count]:
        image = torch.from_numpy(gallery.vectors([id]))
        for term in query.terms:
            if term.kind == "text":
                text = encoder.encode_texts([term.value])
                added = float(encoder.score(image, [term.value])[0, 0]) - float((image @ text.T)[0, 0])
                score += term.weight / float(np.linalg.norm(total)) * added
        again.append((id, score))
    return sorted(again, key=lambda pair: -pair[1]) + ordered[count:]


@pytest.mark.parametrize("text", ["no red", '"no red" - 0.5 "blue" + like:1', "no red folder:a", "like:4"])
@pytest.mark.parametrize(("k", "offset", "rerank"), [(5, 0, 20), (5, 15, 20), (4, 18, 20), (5, 30, 20), (10, 0, 3), (5, 0, 999)])
def test_rerank(gallery: MemoryGallery, mended: Searcher, text: str, k: int, offset: int, rerank: int) -> None:
    query = parse_query(text, FIELDS)
    expected = slow_reranked(gallery, query, max(k, rerank))
    answer = mended.search(text, k, offset, rerank=rerank, compare=True)
    assert ids(answer.hits) == [id for id, _ in expected[offset : offset + k]]
    for hit, (_, score) in zip(answer.hits, expected[offset:], strict=False):
        assert hit.score == pytest.approx(score, abs=1e-5)
        assert hit.rank == [id for id, _ in expected].index(hit.id) + 1
    assert ids(answer.before) == [id for id, _ in slow_order(gallery, FakeEncoder(), query)[offset : offset + k]]
    assert ids(mended.search(text, k, offset, rerank=rerank).hits) == ids(answer.hits)


def test_one_text_reranked_has_the_encoders_own_score(gallery: MemoryGallery, mended: Searcher) -> None:
    for hit in mended.search("no red", 8, rerank=8).hits:
        own = FakeMended().score(torch.from_numpy(gallery.vectors([hit.id])), ["no red"])
        assert hit.score == pytest.approx(float(own[0, 0]), abs=1e-6)
        assert hit.correction is not None
        assert hit.score == pytest.approx((hit.cosine or 0) + hit.correction, abs=1e-6)


def test_explain(gallery: MemoryGallery, mended: Searcher, plain: Searcher) -> None:
    text = '"no red" - 0.5 "blue" + like:1'
    query = parse_query(text, FIELDS)
    before = dict(slow_order(gallery, FakeEncoder(), query))
    answer = mended.search(text, 4, explain=True)
    assert answer.before == []
    for hit in answer.hits:
        told = hit.explain()
        assert told["backbone_score"] == pytest.approx(before[hit.id], abs=1e-6)
        assert told["mended_score"] == pytest.approx(hit.score, abs=1e-6)
        assert told["rank"] == hit.rank
        assert told["rank_before"] == list(before).index(hit.id) + 1
        assert isinstance(told["correction"], float)
        image = gallery.vectors([hit.id])[0]
        expected = [
            FakeMended().encode_texts(["no red"])[0].numpy() @ image,
            FakeMended().encode_texts(["blue"])[0].numpy() @ image,
            gallery.vectors([1])[0] @ image,
        ]
        assert [t["score"] for t in told["terms"]] == pytest.approx(expected, abs=1e-6)
        assert [(t["weight"], t["kind"], t["value"]) for t in told["terms"]] == [
            (1.0, "text", "no red"),
            (-0.5, "text", "blue"),
            (1.0, "like", "1"),
        ]
    (hit,) = plain.search("red", 1, explain=True).hits
    assert (hit.correction, hit.rank_before, hit.score_before) == (None, 1, pytest.approx(hit.score))


# Near-duplicates


def slow_collapsed(vectors: np.ndarray, threshold: float) -> list[list[int]]:
    groups: list[list[int]] = []
    for row, vector in enumerate(vectors):
        for group in groups:
            if float(vectors[group[0]] @ vector) >= threshold:
                group.append(row)
                break
        else:
            groups.append([row])
    return groups


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 200), st.integers(1, 4), st.floats(0.3, 1.0), st.integers(0, 10**6), st.integers(1, 40))
def test_collapsed_is_the_slow_loop(count: int, width: int, threshold: float, seed: int, most: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.integers(-3, 4, size=(count, width + 1)).astype(np.float32)
    vectors[:, 0] = 1  # no zero vectors; many equal ones
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = vectors @ vectors.T
    if len(cosines) and np.abs(cosines - threshold).min() < 1e-5:
        return  # which side of the threshold rounding puts it on is no matter
    expected = slow_collapsed(vectors, threshold)[:most]
    kept, copies = collapsed(vectors, threshold, most)
    assert [[row, *own] for row, own in zip(kept, copies, strict=True)] == expected


@pytest.mark.parametrize(("k", "offset"), [(5, 0), (5, 5), (10, 20), (60, 0), (5, 58)])
@pytest.mark.parametrize("threshold", [0.6, 0.97, 1.0])
def test_collapse(gallery: MemoryGallery, mended: Searcher, k: int, offset: int, threshold: float) -> None:
    expected = slow_order(gallery, FakeMended(), parse_query("no red", FIELDS))
    groups = slow_collapsed(gallery.vectors([id for id, _ in expected]), threshold)
    answer = mended.search("no red", k, offset, collapse=threshold)
    chosen = groups[offset : offset + k]
    assert ids(answer.hits) == [expected[group[0]][0] for group in chosen]
    assert [hit.rank for hit in answer.hits] == [group[0] + 1 for group in chosen]
    for hit, group in zip(answer.hits, chosen, strict=True):
        own = [expected[row][0] for row in group[1:]]
        assert list(hit.copies) == own[: len(hit.copies)]  # those that the page looked as far as
    if offset + k >= 60:
        assert sum(len(hit.copies) + 1 for hit in answer.hits) == sum(len(group) for group in chosen)
    assert answer.total == 60


def test_collapse_looks_further_until_the_page_is_full() -> None:
    vectors = np.ones((500, DIM)) + 1e-4 * np.random.default_rng(0).normal(size=(500, DIM))
    vectors[450:] = np.random.default_rng(1).normal(size=(50, DIM))
    gallery = MemoryGallery([Item(i, f"{i}.png") for i in range(500)], vectors)
    answer = Searcher(gallery, FakeEncoder()).search("like:3", 4, collapse=0.99)
    assert len(answer.hits) == 4
    assert len(answer.hits[0].copies) == 449
    with pytest.raises(ValueError, match=r"first 2,000 results, not up to 2,001"):
        Searcher(gallery, FakeEncoder()).search("like:3", 1, 2000, collapse=0.99)


@given(st.permutations(range(12)), st.lists(st.integers(0, 20), max_size=8))
def test_ranks_in(order: list[int], wanted: list[int]) -> None:
    expected = [order.index(i) + 1 if i in order else None for i in wanted]
    assert ranks_in(np.array(order), np.array(wanted, np.int64)) == expected
    assert ranks_in(np.empty(0, np.int64), np.array(wanted, np.int64)) == [None] * len(wanted)


# Large galleries


def test_ranks_before_are_known_to_the_depth(gallery: MemoryGallery, mended: Searcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searcher, "EVERYTHING", 60)
    monkeypatch.setattr(searcher, "DEPTH", 20)
    full = slow_order(gallery, FakeEncoder(), parse_query("no red", FIELDS))
    places = {id: rank for rank, (id, _) in enumerate(full, 1)}
    answer = mended.search("no red", 30, compare=True)
    assert answer.depth == 30  # the page itself goes further than the depth
    answer = mended.search("no red", 10, compare=True)
    assert answer.depth == 20
    for hit in answer.hits:
        assert hit.rank_before == (places[hit.id] if places[hit.id] <= 20 else None)
        assert hit.score_before == pytest.approx(dict(full)[hit.id], abs=1e-6)
    assert any(hit.rank_before is None for hit in answer.hits)
    assert any(hit.rank is None for hit in answer.before)
    gallery.asked.clear()
    mended.search("no red", 10, 5)
    assert gallery.asked == [15]  # nothing is fetched that is not needed


def test_an_approximate_search_that_finds_less_ends_the_pages() -> None:
    gallery = make_gallery(approximate=12)
    asked = Searcher(gallery, FakeEncoder())
    answer = asked.search("red", 10, 5)
    assert (len(answer.hits), answer.exact, answer.total) == (7, False, 60)
    assert len(asked.search("red", 10, 5, exact=True).hits) == 10
    assert asked.search("red", 10, 5, exact=True).exact
    assert len(asked.search("red", 20, collapse=0.97).hits) <= 12


# What a query may hold


def test_filters_alone_list_by_id(gallery: MemoryGallery, plain: Searcher) -> None:
    expected = sorted(item.id for _, item in slow_rows(gallery) if item.fields["folder"] == "a")
    answer = plain.search("folder:a", 4, 3)
    assert ids(answer.hits) == expected[3:7]
    assert [hit.rank for hit in answer.hits] == [4, 5, 6, 7]
    assert (answer.total, answer.hint, answer.exact, answer.before) == (30, None, True, [])
    everything = plain.search(Query(()), 100)
    assert ids(everything.hits) == sorted(item.id for _, item in slow_rows(gallery))
    assert ids(plain.search("folder:a", 4, 30).hits) == []
    alone = list_images(gallery, parse_query("folder:a", FIELDS), 4, 3)
    assert (alone.hits, alone.total) == (answer.hits, 30)
    for k, offset in ((0, 0), (1, -1)):
        with pytest.raises(ValueError, match="must be"):
            list_images(gallery, Query(()), k, offset)


def test_an_image_of_the_query(gallery: MemoryGallery, plain: Searcher, tmp_path: Path) -> None:
    red = Image.new("RGB", (5, 5), (255, 0, 0))
    path = tmp_path / "a red one.png"
    red.save(path)
    by_file = plain.search(f'image:"{path}"', 5)
    assert ids(by_file.hits) == [id for id, _ in slow_order(gallery, FakeEncoder(), by_file.query)[:5]]
    uploads = Searcher(gallery, FakeEncoder(), files=False)
    by_upload = uploads.search("image:upload", 5, images={"upload": red})
    assert ids(by_upload.hits) == ids(by_file.hits)
    assert ids(uploads.search('image:upload - 0.3 "blue"', 5, images={"upload": red}).hits) == ids(
        plain.search(f'image:"{path}" - 0.3 "blue"', 5).hits
    )
    with pytest.raises(QueryError, match=r"came with the query \(there are: upload\); files cannot be named here"):
        uploads.search(f'image:"{path}"', images={"upload": red})
    with pytest.raises(QueryError, match="nothing is fetched"):
        plain.search("image:https://example.org/a.jpg")
    with pytest.raises(ImageError, match="no such file"):
        plain.search(f'image:"{tmp_path / "none.png"}"')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("like:2", "neither the id nor the path"),
        ("like:nowhere.png", "neither the id nor the path"),
        (f"like:{10**30}", "neither the id"),
        ('"red" - "red"', "cancel each other out"),
        ('like:1 - like:1 + "red" - "red"', "cancel each other out"),
        ("mood:good", "no field 'mood'"),
        ("", "query is empty"),
    ],
)
def test_queries_that_cannot_be_answered(plain: Searcher, text: str, message: str) -> None:
    with pytest.raises(QueryError, match=message):
        plain.search(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k must be at least 1"),
        ({"offset": -1}, "offset must be 0 or more"),
        ({"rerank": -1}, "rerank must be 0"),
        ({"rerank": 5}, "has none: leave rerank out"),
        ({"collapse": 0.0}, "collapse is a cosine"),
        ({"collapse": float("nan")}, "collapse is a cosine"),
        ({"strength": 0.5}, "belong to a patch"),
        ({"gate": True}, "belong to a patch"),
    ],
)
def test_options_that_do_not_fit(plain: Searcher, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plain.search("red", **options)


def test_strength_of_what_is_no_patch(mended: Searcher) -> None:
    with pytest.raises(ValueError, match="is no Mended encoder"):
        mended.search("red", strength=0.5)


def test_a_condition_made_by_hand_is_checked(plain: Searcher) -> None:
    with pytest.raises(GalleryError, match="does not fit"):
        plain.search(Query((Term(1.0, "text", "red"),), (Condition("width", "like", "x"),)))


def test_an_encoder_of_another_image_side_is_refused(gallery: MemoryGallery) -> None:
    with pytest.raises(GalleryError, match="cannot be compared"):
        Searcher(gallery, FakeEncoder(image="another"))
    with pytest.raises(GalleryError, match="cannot be compared"):
        Searcher(gallery, FakeEncoder(), FakeMended(image="another"))


def test_an_embedding_that_is_no_direction(plain: Searcher) -> None:
    for value in (0.0, float("nan")):
        with pytest.raises(QueryError, match="zero or not finite"):
            plain.search("red", embedder=lambda texts, *_, value=value: np.full((len(texts), DIM), value, np.float32))


def test_hint(plain: Searcher, mended: Searcher) -> None:
    assert "--patch" in (plain.search("no red").hint or "")
    assert "--patch" in (plain.search('"red" - "no blue"').hint or "")
    assert plain.search("red").hint is None
    assert mended.search("no red").hint is None


def test_an_empty_gallery() -> None:
    gallery = MemoryGallery([], np.empty((0, DIM)))
    asked = Searcher(gallery, FakeEncoder(), FakeMended())
    answer = asked.search("no red", compare=True, explain=True, rerank=5)
    assert (answer.hits, answer.before, answer.total) == ([], [], 0)
    assert asked.search("no red", collapse=0.9).hits == []


# Embedding for several at once


def test_embedder_is_asked_for_the_texts(mended: Searcher) -> None:
    asked: list[tuple[list[str], float | None, bool | None]] = []

    def embedder(texts: Sequence[str], strength: float | None, gate: bool | None) -> np.ndarray:
        asked.append((list(texts), strength, gate))
        return mended.embed(texts, strength, gate)

    with_it = mended.search('"no red" - "blue"', 5, compare=True, embedder=embedder)
    assert asked == [(["no red", "blue"], None, None), (["no red", "blue"], 0.0, None)]
    assert ids(with_it.hits) == ids(mended.search('"no red" - "blue"', 5).hits)
    asked.clear()
    mended.search("like:1", 5, compare=True, embedder=embedder)
    assert asked == []


def test_long_texts_are_an_error_where_asked(plain: Searcher) -> None:
    long = "red " * 100
    assert plain.search(long, 1).hits
    with pytest.raises(ValueError, match="longer than 77"):
        plain.search(long, on_long="error")


def test_threads_share_a_searcher(mended: Searcher) -> None:
    texts = [*QUERIES, "red", "no green", "blue"]
    alone = [mended.search(text, 6, compare=True) for text in texts]
    together: list[Answer | None] = [None] * len(texts) * 5

    def ask(number: int) -> None:
        together[number] = mended.search(texts[number % len(texts)], 6, compare=True)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(together))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, answer in enumerate(together):
        assert answer is not None
        assert (answer.hits, answer.before) == (alone[number % len(texts)].hits, alone[number % len(texts)].before)


def test_an_order_is_not_fetched_twice(gallery: MemoryGallery) -> None:
    vector = FakeEncoder().encode_texts(["red"])[0].numpy()
    gallery.asked.clear()
    ordered = order.Order(gallery, vector, (), 60, None)
    assert ordered.reach(20)
    assert not ordered.reach(5)
    assert ordered.reach(1000)
    assert not ordered.reach(2000)
    assert gallery.asked == [20, 60]
