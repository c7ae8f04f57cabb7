"""One suite for every store: the same images in each, and the same answers, those of a plain loop over all of them."""

from __future__ import annotations

import atexit
import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clipmend.search.arrays import ArrayGallery
from clipmend.search.conditions import fulfils
from clipmend.search.gallery import (
    BASE_FIELDS,
    Condition,
    FieldType,
    Gallery,
    GalleryError,
    Item,
    Nearest,
    Operator,
    WritableGallery,
)
from clipmend.search.index import ImageIndex
from clipmend.search.opening import create_gallery, open_gallery
from search.fakes import FakeEncoder

DIM = 8
FIELDS: dict[str, FieldType] = {**BASE_FIELDS, "label": "text", "a b": "number"}
FOLDERS = ["", "2024", "2024/holiday", "2024/holidays", "2025/été"]
LABELS = ["cat", "Dog", "50%", "a*b", None]


def make(count: int = 90, seed: int = 0) -> tuple[list[Item], np.ndarray]:
    """Items with gaps in their ids, missing values and odd names; every third vector is that of the item before."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(count, DIM)).astype(np.float32)
    vectors[2::3] = vectors[1::3][: len(vectors[2::3])]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    items = []
    for i in range(count):
        folder = FOLDERS[i % len(FOLDERS)]
        name = {7: "b\udcffyte.jpg", 8: 'quo"te.PNG', 9: "Ünï.jpg"}.get(i, f"{i:03d}.{'jpg' if i % 2 else 'PNG'}")
        fields: dict[str, str | float] = {"folder": folder, "name": name, "date": 1.7e9 + 86_400.5 * i, "size": float(1000 * i)}
        if i % 4:
            fields |= {"width": float(i % 7 * 100), "height": 600.0, "a b": i / 4 - 5}
        if (label := LABELS[i % len(LABELS)]) is not None:
            fields["label"] = label
        path = f"{folder}/{name}".lstrip("/")
        items.append(Item(i * 3 if i < 60 else 2**62 + i, path, fields, f"{i:064x}" if i % 5 else ""))
    return items, vectors


ITEMS, VECTORS = make()
BY_ID = {item.id: row for row, item in enumerate(ITEMS)}
ABOUT = {"embed_dim": DIM, "backbone": "fake", "image_digest": "image-side"}
STORES = ["index", "array", "qdrant", "qdrant by http"]
WRITABLE = [store for store in STORES if store != "array"]


@lru_cache
def server() -> str:
    """One stand-in for a server, for the whole run."""
    pytest.importorskip("qdrant_client")
    from search.qdrant_server import StandIn, serving

    context = serving(StandIn())
    address = context.__enter__()
    atexit.register(context.__exit__, None, None, None)
    return address


def spec_of(store: str, folder: Path) -> str:
    """How a filled store is opened again."""
    if store == "qdrant by http":
        return f"qdrant:{server()}/{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"
    return f"qdrant:{folder / 'store'}/pictures" if store == "qdrant" else str(folder / "store")


def empty(store: str, folder: Path) -> WritableGallery:
    if store != "index":
        pytest.importorskip("qdrant_client")
        import search.qdrant_server  # noqa: F401 (which makes local mode quick)
    return create_gallery(spec_of(store, folder), fields=FIELDS, **ABOUT)  # type: ignore[arg-type]


def filled(store: str, folder: Path) -> Gallery:
    if store == "array":
        return ArrayGallery(VECTORS, ITEMS, fields=FIELDS, backbone="fake", image_digest="image-side")
    made = empty(store, folder)
    made.add(ITEMS[:50], VECTORS[:50])
    made.add(ITEMS[50:], VECTORS[50:])
    return made


@pytest.fixture(scope="module", params=STORES)
def gallery(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gallery]:
    with filled(request.param, tmp_path_factory.mktemp(request.param.replace(" ", "-"))) as made:
        yield made


@pytest.fixture(params=WRITABLE)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WritableGallery]:
    with empty(request.param, tmp_path) as made:
        yield made


def tie_key(gallery: Gallery) -> Callable[[Item], object]:
    """Equal scores are ordered by the gallery's own order: an index's by path, the others' by id."""
    if isinstance(gallery, ImageIndex):
        return lambda item: item.path.encode("utf-8", "surrogateescape")
    return lambda item: item.id


def check_order(gallery: Gallery, found: Nearest, query: np.ndarray, k: int, where: Sequence[Condition] = ()) -> None:
    """The best of a plain loop in float64, equal scores in the gallery's order.

    Where one vector lies in two files, the last bit of its score may depend on its neighbours: what differs by that alone may
    stand in either order.
    """
    scores = VECTORS.astype(np.float64) @ query
    kept = sorted((-scores[row], item.id) for row, item in enumerate(ITEMS) if fulfils(item.fields, where))[:k]
    ids = found.ids[0].tolist()
    assert len(set(ids)) == len(ids) == len(kept)
    assert all(fulfils(ITEMS[BY_ID[id_]].fields, where) for id_ in ids)
    np.testing.assert_allclose(scores[[BY_ID[id_] for id_ in ids]], [-score for score, _ in kept], atol=1e-6)
    np.testing.assert_allclose(found.scores[0], [-score for score, _ in kept], atol=1e-5)
    key = tie_key(gallery)
    ranked = [(-score, key(ITEMS[BY_ID[id_]])) for score, id_ in zip(found.scores[0].tolist(), ids, strict=True)]
    assert ranked == sorted(ranked)  # type: ignore[type-var]


def unit(seed: int) -> np.ndarray:
    vector = np.random.default_rng(seed).normal(size=DIM)
    return vector / np.linalg.norm(vector)


CONDITIONS = [
    Condition("folder", "=", "2024"),
    Condition("folder", "=", ""),
    Condition("folder", "!=", "2024/holiday"),
    Condition("folder", "under", "2024"),
    Condition("folder", "under", "2024/holiday"),
    Condition("folder", "under", "2025/été"),
    Condition("folder", "under", ""),
    Condition("folder", "under", "20"),
    Condition("folder", "like", "*HOLIDAY?"),
    Condition("name", "like", "*.jpg"),
    Condition("name", "like", "ünï.JPG"),
    Condition("name", "like", "0?[0-9].*"),
    Condition("name", "=", "ünï.jpg"),
    Condition("name", "=", 'quo"te.PNG'),
    Condition("name", "=", "b\udcffyte.jpg"),
    Condition("name", "like", "b\udcff*"),
    Condition("label", "=", "cat"),
    Condition("label", "=", "dog"),
    Condition("label", "!=", "cat"),
    Condition("label", "like", "a*b"),
    Condition("label", "like", "%"),
    Condition("label", "like", "*"),
    Condition("width", "=", 300.0),
    Condition("width", "!=", 300.0),
    Condition("width", ">=", 300.0),
    Condition("height", "<", 600.0),
    Condition("size", "<=", 20_000.0),
    Condition("size", ">", 20_000.0),
    Condition("date", ">=", 1.7e9 + 86_400.5 * 30),
    Condition("date", "<", 1.7e9 + 86_400.5 * 30),
    Condition("a b", "=", 2.25),
    Condition("a b", "<", 0.0),
]


def test_what_it_says_of_itself(gallery: Gallery) -> None:
    assert (gallery.backbone, gallery.image_digest, gallery.embed_dim) == ("fake", "image-side", DIM)
    assert {name: gallery.fields[name] for name in FIELDS} == FIELDS
    assert len(gallery) == gallery.count() == len(ITEMS)
    assert gallery.name


def test_items_come_back_as_they_were(gallery: Gallery) -> None:
    asked = [item.id for item in ITEMS[::-1]]
    for item, found in zip(ITEMS[::-1], gallery.items(asked), strict=True):
        assert (found.id, found.path, found.sha256) == (item.id, item.path, item.sha256)
        assert dict(found.fields) == dict(item.fields)
    assert gallery.items([]) == []


def test_vectors_come_back_in_the_order_asked_for(gallery: Gallery) -> None:
    rows = [5, 3, 5, 88]
    found = gallery.vectors([ITEMS[row].id for row in rows])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, VECTORS[rows], atol=1e-6)
    assert gallery.vectors(np.empty(0, np.int64)).shape == (0, DIM)


@pytest.mark.parametrize("ids", [[1], [3, 10**12], [-3]])
def test_an_id_that_is_not_there(gallery: Gallery, ids: list[int]) -> None:
    with pytest.raises(GalleryError, match=str(ids[-1])):
        gallery.items(ids)
    with pytest.raises(GalleryError, match=str(ids[-1])):
        gallery.vectors(ids)


@pytest.mark.parametrize("block", [1, 7, 4096])
def test_ids_ascend_in_blocks(gallery: Gallery, block: int) -> None:
    blocks = list(gallery.ids(block=block))
    assert all(1 <= len(part) <= block and part.dtype == np.int64 for part in blocks)
    assert np.concatenate(blocks).tolist() == sorted(item.id for item in ITEMS)


@pytest.mark.parametrize("k", [1, 4, 5, 90, 1000])
def test_nearest_is_what_a_plain_loop_finds(gallery: Gallery, k: int) -> None:
    for seed in range(4):
        query = unit(seed)
        found = gallery.nearest(query * 7, k, exact=True)
        assert found.exact
        assert found.ids.dtype == np.int64
        assert found.scores.dtype == np.float32
        assert found.ids.shape == found.scores.shape == (1, min(k, len(ITEMS)))
        check_order(gallery, found, query, k)


def test_equal_scores_keep_one_order_wherever_the_page_ends(gallery: Gallery) -> None:
    query = VECTORS[4]  # items 4 and 5 share it
    everything = gallery.nearest(query, 90).ids[0].tolist()
    for k in range(1, 12):
        assert gallery.nearest(query, k).ids[0].tolist() == everything[:k]


def test_several_queries_at_once(gallery: Gallery) -> None:
    queries = np.stack([unit(seed) for seed in range(5)])
    together = gallery.nearest(queries, 6)
    for query, ids in zip(queries, together.ids, strict=True):
        assert ids.tolist() == gallery.nearest(query, 6).ids[0].tolist()


@pytest.mark.parametrize("where", CONDITIONS, ids=lambda c: f"{c.field}{c.op}{c.value!a}")
def test_a_condition_means_the_same_everywhere(gallery: Gallery, where: Condition) -> None:
    wanted = sorted(item.id for item in ITEMS if fulfils(item.fields, [where]))
    assert gallery.count([where]) == len(wanted)
    found = list(gallery.ids([where], block=10))
    assert (np.concatenate(found).tolist() if found else []) == wanted
    query = unit(9)
    check_order(gallery, gallery.nearest(query, 5, where=[where]), query, 5, [where])


def test_conditions_hold_together(gallery: Gallery) -> None:
    for several in itertools.combinations(CONDITIONS[::3], 2):
        assert gallery.count(several) == sum(fulfils(item.fields, several) for item in ITEMS)


NUMBERS = st.integers(-10, 90_000).map(float) | st.floats(-100, 1e10)


@st.composite
def conditions(draw: st.DrawFn) -> Condition:
    name = draw(st.sampled_from(sorted(FIELDS)))
    kind = FIELDS[name]
    if kind in ("text", "folder"):
        known = [item.fields[name] for item in ITEMS if name in item.fields]
        value = draw(st.sampled_from(known) | st.text("aA*?%_.2/0é\\'\"", max_size=6))
        ops: list[Operator] = ["=", "!=", "like", *(["under"] if kind == "folder" else [])]  # type: ignore[list-item]
        return Condition(name, draw(st.sampled_from(ops)), value)
    value = draw(NUMBERS | st.sampled_from([item.fields[name] for item in ITEMS if name in item.fields]))
    return Condition(name, draw(st.sampled_from(["=", "!=", "<", "<=", ">", ">="])), value)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(conditions(), min_size=1, max_size=3))
def test_any_conditions_mean_what_the_plain_rule_says(gallery: Gallery, where: list[Condition]) -> None:
    wanted = sorted(item.id for item in ITEMS if fulfils(item.fields, where))
    assert gallery.count(where) == len(wanted)
    assert [id_ for part in gallery.ids(where) for id_ in part.tolist()] == wanted


@pytest.mark.parametrize(
    "where",
    [
        Condition("colour", "=", "red"),
        Condition("width", "like", "3*"),
        Condition("width", "=", "300"),
        Condition("label", "<", "cat"),
        Condition("label", "under", "cat"),
        Condition("label", "=", 3.0),
        Condition("size", ">", float("nan")),
    ],
)
def test_conditions_that_cannot_be_answered(gallery: Gallery, where: Condition) -> None:
    for ask in (gallery.count, lambda w: list(gallery.ids(w)), lambda w: gallery.nearest(unit(0), 1, where=w)):
        with pytest.raises(GalleryError, match=where.field):
            ask([where])


@pytest.mark.parametrize(
    ("query", "k", "message"),
    [
        (np.ones(DIM + 1), 3, "dimensions"),
        (np.ones((2, 2, DIM)), 3, "dimensions"),
        (np.zeros(DIM), 3, "zero"),
        (np.full(DIM, np.nan), 3, "NaN"),
        (np.full(DIM, np.inf), 3, "NaN or infinity"),
        (np.ones(DIM), 0, "at least 1"),
    ],
)
def test_queries_that_are_none(gallery: Gallery, query: np.ndarray, k: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gallery.nearest(query, k)


def test_a_query_may_be_a_tensor(gallery: Gallery) -> None:
    import torch

    assert gallery.nearest(torch.from_numpy(unit(1)), 3).ids[0].tolist() == gallery.nearest(unit(1), 3).ids[0].tolist()


def test_nothing_fulfils_them(gallery: Gallery) -> None:
    nowhere = [Condition("label", "=", "elephant")]
    assert gallery.count(nowhere) == 0
    assert list(gallery.ids(nowhere)) == []
    found = gallery.nearest(np.ones((2, DIM)), 5, where=nowhere)
    assert found.ids.shape == found.scores.shape == (2, 0)


def test_find_by_path(gallery: Gallery) -> None:
    for item in ITEMS[:12]:
        assert gallery.find(item.path) == item.id
    assert gallery.find("2024/none.jpg") is None
    assert gallery.find("") is None


def test_values_are_counted(gallery: Gallery) -> None:
    assert gallery.values("label") == [("50%", 18), ("Dog", 18), ("a*b", 18), ("cat", 18)]
    assert gallery.values("label", 2) == [("50%", 18), ("Dog", 18)]
    assert dict(gallery.values("folder")) == dict.fromkeys(FOLDERS, 18)
    for name in ("width", "colour"):
        with pytest.raises(GalleryError, match=name):
            gallery.values(name)


def test_another_encoder_is_refused(gallery: Gallery) -> None:
    gallery.check(FakeEncoder())
    with pytest.raises(GalleryError, match="cannot be compared"):
        gallery.check(FakeEncoder(image="another"))


def test_threads_get_the_same_answers(gallery: Gallery) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def ask(seed: int) -> list[int]:
        where = [CONDITIONS[seed % len(CONDITIONS)]]
        ids = gallery.nearest(unit(seed), 5, where=where).ids[0].tolist()
        assert [item.id for item in gallery.items(ids)] == ids
        return ids

    alone = [ask(seed) for seed in range(24)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(24))) == alone


# Stores that can be added to


def test_an_empty_store(store: WritableGallery) -> None:
    assert len(store) == store.count([Condition("label", "=", "cat")]) == 0
    assert list(store.ids()) == []
    assert store.nearest(np.ones(DIM), 3).ids.shape == (1, 0)
    assert store.find("a.jpg") is None
    assert store.values("label") == []
    assert store.remove([1, 2]) == 0
    store.add([], np.empty((0, DIM), np.float32))
    assert len(store) == 0
    with pytest.raises(GalleryError, match="7"):
        store.items([7])


def test_what_is_added_is_normalised_and_replaced(store: WritableGallery) -> None:
    store.add(ITEMS[:6], VECTORS[:6] * 5)
    np.testing.assert_allclose(store.vectors([ITEMS[2].id]), VECTORS[2:3], atol=1e-6)
    changed = Item(ITEMS[2].id, "new/path.jpg", {"folder": "new", "name": "path.jpg", "label": "new", "unknown": 3.0}, "f" * 64)
    store.add([changed], VECTORS[40:41])
    assert len(store) == 6
    (found,) = store.items([changed.id])
    assert (found.path, found.sha256) == ("new/path.jpg", "f" * 64)
    kept = {name: value for name, value in found.fields.items() if name in FIELDS}  # a store may take up a new field, or not
    assert kept == {"folder": "new", "name": "path.jpg", "label": "new"}
    assert set(found.fields) <= set(store.fields)
    np.testing.assert_allclose(store.vectors([changed.id]), VECTORS[40:41], atol=1e-6)
    assert store.count([Condition("label", "=", "new")]) == 1
    assert store.find(ITEMS[2].path) is None
    assert store.nearest(VECTORS[40], 1).ids[0].tolist() == [changed.id]


@pytest.mark.parametrize(
    ("items", "vectors", "message"),
    [
        (ITEMS[:2], np.ones((2, DIM + 1)), r"\(got \(\d, \d\)\)"),
        (ITEMS[:2], np.ones((3, DIM)), r"\(got \(\d, \d\)\)"),
        (ITEMS[:2], np.stack([np.ones(DIM), np.full(DIM, np.nan)]), "NaN"),
        (ITEMS[:2], np.stack([np.ones(DIM), np.full(DIM, np.inf)]), "infinity"),
        (ITEMS[:2], np.stack([np.ones(DIM), np.zeros(DIM)]), "zero"),
        ([ITEMS[1], ITEMS[1]], np.ones((2, DIM)), "several|twice"),
        ([Item(-1, "a")], np.ones((1, DIM)), "-1"),
    ],
)
def test_nothing_is_added_where_something_is_wrong(
    store: WritableGallery, items: list[Item], vectors: np.ndarray, message: str
) -> None:
    store.add(ITEMS[10:12], VECTORS[10:12])
    with pytest.raises(ValueError, match=message):
        store.add(items, vectors.astype(np.float32))
    assert len(store) == 2


def test_removed_images_are_gone(store: WritableGallery) -> None:
    store.add(ITEMS[:20], VECTORS[:20])
    assert store.remove([ITEMS[3].id, ITEMS[4].id, 10**9]) == 2
    assert len(store) == 18
    assert ITEMS[3].id not in np.concatenate(list(store.ids()))
    assert ITEMS[4].id not in store.nearest(VECTORS[4], 18).ids
    with pytest.raises(GalleryError):
        store.items([ITEMS[3].id])
    assert store.remove([ITEMS[3].id]) == 0
    store.add(ITEMS[3:4], VECTORS[3:4])
    assert len(store) == 19


@pytest.mark.parametrize("kind", WRITABLE)
def test_opened_again_it_is_the_same(kind: str, tmp_path: Path) -> None:
    with filled(kind, tmp_path) as made:
        before = made.nearest(unit(3), 20).ids.tolist()
    with open_gallery(spec_of(kind, tmp_path)) as again:
        assert (again.backbone, again.image_digest, again.embed_dim) == ("fake", "image-side", DIM)
        assert {name: again.fields[name] for name in FIELDS} == FIELDS
        assert again.nearest(unit(3), 20).ids.tolist() == before
        assert dict(again.items([ITEMS[8].id])[0].fields) == dict(ITEMS[8].fields)
