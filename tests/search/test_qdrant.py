"""Collections of Qdrant that other programs made, what is kept of ours, and what a server may say."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest

pytest.importorskip("qdrant_client")
from qdrant_client import QdrantClient, models

from clipmend.search.gallery import Condition, GalleryError, Item
from clipmend.search.opening import create_gallery, is_there, open_gallery
from clipmend.search.qdrant import QdrantGallery
from search.fakes import FakeEncoder
from search.qdrant_server import StandIn, serving


def unit(count: int, width: int = 8, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(count, width))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


VECTORS = unit(12)


@pytest.fixture
def client() -> Iterator[QdrantClient]:
    made = QdrantClient(":memory:")
    yield made
    made.close()


def collection(client: QdrantClient, points: list[Any], vectors: Any = None, name: str = "c") -> None:
    client.create_collection(name, vectors or models.VectorParams(size=8, distance=models.Distance.COSINE))
    if points:
        client.upsert(name, points)


def points(**payload: Any) -> list[Any]:
    return [
        models.PointStruct(id=i, vector=v.tolist(), payload={"image_path": f"p/{i}.jpg", **payload}) for i, v in enumerate(VECTORS)
    ]


# Collections of other programs


def test_a_collection_that_another_program_filled(client: QdrantClient) -> None:
    collection(client, points(label="cat", price=3))
    gallery = QdrantGallery(client, "c", backbone="scenes", fields={"label": "text", "price": "number"})
    assert (len(gallery), gallery.embed_dim, gallery.backbone, gallery.image_digest) == (12, 8, "scenes", "")
    assert gallery.nearest(VECTORS[5], 1).ids.tolist() == [[5]]
    assert gallery.items([5]) == [Item(5, "p/5.jpg", {"label": "cat", "price": 3.0})]
    assert gallery.find("p/6.jpg") == 6
    assert gallery.count([Condition("price", "=", 3.0), Condition("label", "like", "C?T")]) == 12
    gallery.check(FakeEncoder())  # of which only the width is known


def test_fields_of_such_a_collection_are_its_indexed_keys(client: QdrantClient) -> None:
    stand_in = StandIn()
    with serving(stand_in) as address:
        collection(stand_in.client, points(label="cat", price=3, seen=True))
        stand_in.indexes["c"] = {"image_path": "keyword", "label": "keyword", "price": "integer", "text": "text", "seen": "bool"}
        with open_gallery(f"qdrant:{address}/c", model="scenes") as gallery:
            assert dict(gallery.fields) == {"label": "text", "price": "number"}
            assert gallery.items([3]) == [Item(3, "p/3.jpg", {"label": "cat", "price": 3.0})]
            assert gallery.backbone == "scenes"


def test_points_numbered_by_uuids(client: QdrantClient) -> None:
    rng = np.random.default_rng(5)
    names = [str(UUID(bytes=rng.bytes(16), version=4)) for _ in range(12)]
    collection(
        client, [models.PointStruct(id=n, vector=v.tolist(), payload={"url": n}) for n, v in zip(names, VECTORS, strict=True)]
    )
    gallery = QdrantGallery(client, "c")
    ids = np.concatenate(list(gallery.ids(block=5)))
    assert ids.tolist() == sorted(UUID(name).int >> 65 for name in names)
    for name, vector in zip(names, VECTORS, strict=True):
        (id_,) = gallery.nearest(vector, 1).ids[0].tolist()
        assert id_ == UUID(name).int >> 65
        assert gallery.items([id_])[0].path == name
        np.testing.assert_allclose(gallery.vectors([id_])[0], vector, atol=1e-6)
    for absent in (0, int(ids[3]) + 1, 2**63 - 1):
        with pytest.raises(GalleryError, match=str(absent)):
            gallery.items([absent])
    with pytest.raises(GalleryError, match="UUIDs"):
        gallery.add([Item(1, "a")], VECTORS[:1])
    assert gallery.remove(ids[:2]) == 2
    assert len(gallery) == 10


def test_uuids_that_share_their_beginning(client: QdrantClient) -> None:
    twins = [str(UUID(int=(7 << 65) + i)) for i in range(2)]
    collection(client, [models.PointStruct(id=t, vector=v.tolist()) for t, v in zip(twins, VECTORS[:2], strict=True)])
    with pytest.raises(GalleryError, match="share their first 63 bits"):
        QdrantGallery(client, "c").items([7])


def test_points_of_both_kinds(client: QdrantClient) -> None:
    mixed = [
        models.PointStruct(id=1, vector=VECTORS[0].tolist()),
        models.PointStruct(id=str(UUID(int=1 << 70)), vector=VECTORS[1].tolist()),
    ]
    collection(client, mixed)
    with pytest.raises(GalleryError, match="some points by integers, others by UUIDs"):
        QdrantGallery(client, "c").nearest(VECTORS[1], 2)


def test_several_named_vectors(client: QdrantClient) -> None:
    size = models.VectorParams(size=8, distance=models.Distance.COSINE)
    named = [models.PointStruct(id=i, vector={"image": v.tolist(), "text": (-v).tolist()}) for i, v in enumerate(VECTORS)]
    collection(client, named, {"image": size, "text": size})
    with pytest.raises(GalleryError, match=r"several vectors \(image, text\)"):
        QdrantGallery(client, "c")
    with pytest.raises(GalleryError, match="no vector 'audio'"):
        QdrantGallery(client, "c", vector="audio")
    gallery = QdrantGallery(client, "c", vector="image")
    assert gallery.nearest(VECTORS[4], 1).ids.tolist() == [[4]]
    np.testing.assert_allclose(gallery.vectors([4]), VECTORS[4:5], atol=1e-6)
    assert QdrantGallery(client, "c", vector="text").nearest(-VECTORS[4], 1).ids.tolist() == [[4]]
    collection(client, [models.PointStruct(id=1, vector={"only": VECTORS[1].tolist()})], {"only": size}, "one")
    assert QdrantGallery(client, "one").nearest(VECTORS[1], 1).ids.tolist() == [[1]]


def test_other_distances(client: QdrantClient) -> None:
    dot = models.VectorParams(size=8, distance=models.Distance.DOT)
    collection(client, points(), dot)
    assert QdrantGallery(client, "c").nearest(VECTORS[4], 1).ids.tolist() == [[4]]
    long = [models.PointStruct(id=i, vector=(v * (i + 1)).tolist()) for i, v in enumerate(VECTORS)]
    collection(client, long, dot, "long")
    with pytest.raises(GalleryError, match="not of length 1"):
        QdrantGallery(client, "long")
    collection(client, points(), models.VectorParams(size=8, distance=models.Distance.EUCLID), "far")
    with pytest.raises(GalleryError, match="Euclid"):
        QdrantGallery(client, "far")
    many = models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)
    collection(client, [], models.VectorParams(size=8, distance=models.Distance.COSINE, multivector_config=many), "many")
    with pytest.raises(GalleryError, match="multivectors"):
        QdrantGallery(client, "many")


def test_ids_beyond_ours(client: QdrantClient) -> None:
    collection(client, [models.PointStruct(id=2**63 + 5, vector=VECTORS[0].tolist())])
    with pytest.raises(GalleryError, match=r"beyond 2\^63"):
        list(QdrantGallery(client, "c").ids())


def test_a_pattern_among_too_many_values(client: QdrantClient, monkeypatch: pytest.MonkeyPatch) -> None:
    from clipmend.search import qdrant_filters

    collection(client, [models.PointStruct(id=i, vector=v.tolist(), payload={"label": f"{i}"}) for i, v in enumerate(VECTORS)])
    gallery = QdrantGallery(client, "c", fields={"label": "text"})
    assert gallery.count([Condition("label", "like", "1*")]) == 3
    monkeypatch.setattr(qdrant_filters, "MOST_VALUES", 5)
    with pytest.raises(GalleryError, match="more than 5 values"):
        gallery.count([Condition("label", "like", "1*")])


def test_values_that_look_like_uuids(client: QdrantClient) -> None:
    """Qdrant tells such values with hyphens, however they are kept."""
    plain = UUID(int=12345 << 70).hex
    collection(client, [models.PointStruct(id=0, vector=VECTORS[0].tolist(), payload={"label": plain})])
    assert QdrantGallery(client, "c", fields={"label": "text"}).count([Condition("label", "like", "*")]) == 1


def test_many_equal_scores(client: QdrantClient) -> None:
    same = [models.PointStruct(id=i, vector=VECTORS[0].tolist()) for i in np.random.default_rng(0).permutation(200).tolist()]
    collection(client, same)
    assert QdrantGallery(client, "c").nearest(VECTORS[0], 7).ids.tolist() == [list(range(7))]


# Ours


ABOUT: dict[str, Any] = {"embed_dim": 8, "backbone": "fake", "image_digest": "image-side"}


def test_what_a_point_carries(tmp_path: Path) -> None:
    """Others read it too: each field under its own name, and the rest under one."""
    fields: dict[str, Any] = {"folder": "folder", "name": "text", "size": "size"}
    with create_gallery(f"qdrant:{tmp_path}/c", fields=fields, **ABOUT) as made:
        made.add([Item(3, "a/b/\udcff.jpg", {"folder": "a/b", "name": "\udcff.jpg", "size": 5.0}, "0" * 64)], VECTORS[:1])
    client = QdrantClient(path=str(tmp_path))
    (point,) = client.retrieve("c", [3])
    about = client.get_collection("c").config.metadata
    client.close()
    assert point.payload == {
        "path": "a/b/\\udcff.jpg", "folder": "a/b", "name": "\\udcff.jpg", "size": 5.0, "sha256": "0" * 64,
        "clipmend": {"under": {"folder": ["a", "a/b"]}, "bytes": {"path": "YS9iL+2zvy5qcGc=", "name": "7bO/LmpwZw=="}},
    }  # fmt: skip
    assert about == {"clipmend": {"format": 1, "backbone": "fake", "image_digest": "image-side", "fields": fields}}


def test_a_server_is_told_what_to_index_and_how_to_spread(tmp_path: Path) -> None:
    stand_in = StandIn()
    fields: dict[str, Any] = {"folder": "folder", "label": "text", "date": "time", "a b": "number"}
    with serving(stand_in) as address:
        options = {"shard_number": 6, "replication_factor": 2, "on_disk_payload": True}
        with create_gallery(f"qdrant:{address}/c", fields=fields, **ABOUT, **options) as made:
            made.nearest(np.ones(8), 3)
            made.add([Item(1, "a")], VECTORS[:1])
            made.nearest(np.ones(8), 3)
            made.nearest(np.ones(8), 3, exact=False)
    created = stand_in.created["c"]
    assert {key: created[key] for key in options} == options
    assert created["vectors"]["distance"] == "Cosine"
    assert stand_in.indexes["c"] == {
        "path": "keyword", "folder": "keyword", "clipmend.under.folder": "keyword", "label": "keyword", "date": "float",
        '"a b"': "float",
    }  # fmt: skip
    searches = [body["params"]["exact"] for path, body in stand_in.asked if path.endswith("points/query")]
    assert searches == [True, True, False]


def test_whether_a_search_was_exact() -> None:
    with serving(StandIn()) as address, create_gallery(f"qdrant:{address}/c", **ABOUT) as made:
        made.add([Item(1, "a")], VECTORS[:1])
        assert made.nearest(VECTORS[0], 1).exact  # few: every one is compared
        assert not made.nearest(VECTORS[0], 1, exact=False).exact
        assert made.nearest(VECTORS[0], 1, exact=True).exact


def test_a_server_that_keeps_no_metadata() -> None:
    with serving(StandIn(keeps_metadata=False)) as address:
        with pytest.warns(UserWarning, match="keeps no metadata"):
            made = create_gallery(f"qdrant:{address}/c", fields={"label": "text"}, **ABOUT)
        with made:
            made.add([Item(1, "a", {"label": "x"})], VECTORS[:1])
            assert made.items([1]) == [Item(1, "a", {"label": "x"})]
        with open_gallery(f"qdrant:{address}/c") as again:
            assert (again.backbone, again.items([1])[0].path) == ("", "a")


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = StandIn(key="the-secret")
    with serving(stand_in) as address:
        collection(stand_in.client, points())
        stand_in.indexes["c"] = {}
        monkeypatch.delenv("QDRANT_API_KEY", raising=False)
        with pytest.raises(GalleryError, match=r"refuses: 403 .*QDRANT_API_KEY"):
            open_gallery(f"qdrant:{address}/c")
        monkeypatch.setenv("QDRANT_API_KEY", "the-secret")
        with pytest.warns(UserWarning, match="insecure"), open_gallery(f"qdrant:{address}/c") as gallery:
            assert len(gallery) == 12
        with pytest.raises(GalleryError, match="environment") as told:
            open_gallery("qdrant:https://user:the-secret@host:6333/c")
        assert "the-secret" not in str(told.value)


def test_no_answer() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]  # bound, and nobody listens
        with pytest.raises(GalleryError, match="no answer from Qdrant"):
            open_gallery(f"qdrant:http://127.0.0.1:{port}/c", timeout=2)


def test_a_server_that_says_no(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = StandIn()
    with serving(stand_in) as address:
        with pytest.raises(GalleryError, match="no collection 'c'"):
            open_gallery(f"qdrant:{address}/c")
        assert not is_there(f"qdrant:{address}/c")
        with create_gallery(f"qdrant:{address}/c", **ABOUT) as made:
            assert is_there(f"qdrant:{address}/c")
            with pytest.raises(GalleryError, match="already"):
                create_gallery(f"qdrant:{address}/c", **ABOUT)

            def broken(*_: Any) -> None:
                raise RuntimeError("no disk space")

            monkeypatch.setattr(stand_in, "_put_points", broken)
            with pytest.raises(GalleryError, match=r"400 .*no disk space"):
                made.add([Item(1, "a")], VECTORS[:1])


@pytest.mark.parametrize("spec", ["qdrant:", "qdrant:c", "qdrant:http://host:6333", "qdrant:http:///c", "qdrant:ftp://host/c"])
def test_addresses_that_are_none(spec: str) -> None:
    with pytest.raises(GalleryError, match="qdrant:"):
        open_gallery(spec)


def test_folders_of_local_mode(tmp_path: Path) -> None:
    with pytest.raises(GalleryError, match="no folder of Qdrant's local mode"):
        open_gallery(f"qdrant:{tmp_path}/none/c")
    assert not (tmp_path / "none").exists()
    assert not is_there(f"qdrant:{tmp_path}/none/c")
    with (
        create_gallery(f"qdrant:{tmp_path}/store/c", **ABOUT),
        pytest.raises(GalleryError, match="open in another process"),
    ):
        open_gallery(f"qdrant:{tmp_path}/store/c")
    open_gallery(f"qdrant:{tmp_path}/store/c").close()  # let go of
    with pytest.raises(GalleryError, match="no collection 'd'"):
        open_gallery(f"qdrant:{tmp_path}/store/d")
    open_gallery(f"qdrant:{tmp_path}/store/c").close()  # also after an error


@pytest.mark.parametrize("name", ["path", "sha256", "clipmend", 'a"b', ""])
def test_fields_that_cannot_be_kept(tmp_path: Path, name: str) -> None:
    with pytest.raises(GalleryError, match="cannot be called"):
        create_gallery(f"qdrant:{tmp_path}/c", fields={name: "text"}, **ABOUT)


def test_a_later_format_is_refused(client: QdrantClient) -> None:
    size = models.VectorParams(size=8, distance=models.Distance.COSINE)
    client.create_collection("c", size, metadata={"clipmend": {"format": 2}})
    with pytest.raises(GalleryError, match="another version"):
        QdrantGallery(client, "c")


def test_the_stand_in_says_what_it_does_not_know() -> None:
    stand_in = StandIn()
    with pytest.raises(AttributeError):
        stand_in.answer("POST", "/collections/c/points/recommend", {})
    assert json.dumps(stand_in.answer("GET", "/", None))


def test_texts_that_could_be_read_as_uuids_are_found_as_they_are_written(tmp_path: Path) -> None:
    """Names of files are often MD5 digests."""
    names = ["550E8400E29B41D4A716446655440000", "550e8400-e29b-41d4-a716-446655440000", "d41d8cd98f00b204e9800998ecf8427e", "b"]
    with create_gallery(f"qdrant:{tmp_path}/q/c", embed_dim=8, fields={"name": "text"}) as gallery:
        gallery.add([Item(i, f"{i}.png", {"name": name}) for i, name in enumerate(names)], VECTORS[:4])
        for pattern, wanted in {"*": 4, "*B*": 4, "550e8400E*": 1, "*-*": 1, "d41d8cd98f*": 1}.items():
            assert gallery.count([Condition("name", "like", pattern)]) == wanted, pattern
        assert sorted(gallery.values("name")) == sorted((name, 1) for name in names)
