"""Searches, embeddings and what the service says of itself."""

from __future__ import annotations

import base64
import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi")
from fastapi.testclient import TestClient
from PIL import Image
from tests.search.fakes import FakeEncoder, FakeMended
from tests.search.memory_gallery import MemoryGallery
from tests.service.fake_service import PictureGallery, SlowEncoder, searcher_of, unit

from clipmend.data.images import display_path
from clipmend.search.arrays import UnnormalisedWarning
from clipmend.search.gallery import BASE_FIELDS, GalleryError, Item
from clipmend.search.searcher import Searcher
from clipmend.service import Settings, create_app
from clipmend.service.core import knows_files
from clipmend.service.requests import About, EmbeddingsAnswer, Models, SearchAnswer, Values

URL = "http://localhost"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pictures")


@pytest.fixture(scope="module")
def searcher(folder: Path) -> Searcher:
    return searcher_of(folder)


@pytest.fixture(scope="module")
def client(searcher: Searcher) -> Iterator[TestClient]:
    with TestClient(create_app(searcher), base_url=URL) as client:
        yield client


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[TestClient]:
    with TestClient(create_app(searcher_of(tmp_path, patched=False)), base_url=URL) as client:
        yield client


def search(client: TestClient, **request: Any) -> dict[str, Any]:
    answer = client.post("/search", json=request)
    assert answer.status_code == 200, answer.text
    SearchAnswer.model_validate(answer.json())
    return answer.json()


def refused(answer: Any, status: int, kind: str | None = None) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) <= {"message", "type", "param"}
    assert error["message"]
    if kind is not None:
        assert error["type"] == kind
    return error


# ---- search


def test_a_search_is_the_searchers(client: TestClient, searcher: Searcher) -> None:
    expected = searcher.search("no red", 5, 2, compare=True)
    found = search(client, query="no red", k=5, offset=2, compare=True)
    assert [hit["id"] for hit in found["hits"]] == [hit.id for hit in expected.hits]
    assert [hit["rank"] for hit in found["hits"]] == [3, 4, 5, 6, 7]
    assert [hit["rank_before"] for hit in found["hits"]] == [hit.rank_before for hit in expected.hits]
    assert [hit["id"] for hit in found["before"]] == [hit.id for hit in expected.before]
    np.testing.assert_allclose([hit["score"] for hit in found["hits"]], [hit.score for hit in expected.hits], atol=1e-6)
    assert (found["total"], found["offset"], found["exact"], found["depth"]) == (30, 2, True, 30)
    assert found["terms"] == [{"weight": 1.0, "kind": "text", "value": "no red", "mended": True}]
    first = found["hits"][0]
    assert first["thumbnail"] == f"/thumbnails/{first['id']}"
    assert first["key"] == str(first["id"])
    assert (first["width"], first["height"]) == (6, 5)
    assert first["path"] == f"{first['fields']['folder']}/{first['fields']['name']}"


def test_arithmetic_and_filters(client: TestClient) -> None:
    found = search(client, query='"red" - 0.5 "blue" folder:b date<2024-05-15', k=200)
    assert [(term["weight"], term["value"]) for term in found["terms"]] == [(1.0, "red"), (-0.5, "blue")]
    assert {condition["field"] for condition in found["where"]} == {"folder", "date"}
    assert found["total"] == len(found["hits"]) == 5  # of 30 images every third lies in b, and 14 are from before
    assert {hit["fields"]["folder"] for hit in found["hits"]} == {"b"}


def test_no_words_list_every_image(client: TestClient) -> None:
    found = search(client, query="  ", k=3, offset=4)
    assert [hit["id"] for hit in found["hits"]] == [4, 5, 6]
    assert found["total"] == 30


def test_an_image_of_the_gallery_as_the_query(client: TestClient) -> None:
    assert search(client, query="like:7", k=1)["hits"][0]["id"] == 7


def test_ids_of_any_size(tmp_path: Path) -> None:
    """Other stores number by hashes; 2^63 - 1 is the largest id there may be."""
    largest = 2**63 - 1
    gallery = MemoryGallery([Item(largest, "a.png"), Item(2**53 + 1, "b.png")], np.eye(8)[:2], root=tmp_path)
    gallery.values = lambda name, limit=100: []  # type: ignore[method-assign]
    Image.new("RGB", (5, 5)).save(tmp_path / "a.png")
    with TestClient(create_app(Searcher(gallery, FakeEncoder(), files=False)), base_url=URL) as client:
        found = search(client, query=f"like:{largest}")["hits"]
        assert [hit["key"] for hit in found] == [str(largest), str(2**53 + 1)]
        assert client.get(found[0]["thumbnail"]).status_code == 200


def test_strength_nought_is_the_backbones_order(client: TestClient) -> None:
    compared = search(client, query="no red", compare=True)
    plain = search(client, query="no red", strength=0)
    assert [hit["id"] for hit in plain["hits"]] == [hit["id"] for hit in compared["before"]]
    assert plain["hits"] != compared["hits"]


def test_a_negation_without_a_patch_gets_a_hint(plain: TestClient) -> None:
    hint = search(plain, query="a street with no car")["hint"]
    assert hint.endswith("start the service with a patch: clipmend serve INDEX --patch PATCH")  # and no option without its command
    assert search(plain, query="a street")["hint"] is None
    refused(plain.post("/search", json={"query": "red", "strength": 2}), 422, "invalid_query")
    refused(plain.post("/search", json={"query": "red", "rerank": 10}), 422, "invalid_query")


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"k": 0}, "k"),
        ({"k": 201}, "k"),
        ({"k": "3"}, "k"),
        ({"k": True}, "k"),
        ({"offset": 10_001}, "offset"),
        ({"strength": 3.5}, "strength"),
        ({"strength": -1}, "strength"),
        ({"rerank": 1001}, "rerank"),
        ({"collapse": 1.5}, "collapse"),
        ({"compare": "yes"}, "compare"),
        ({"kk": 3}, "kk"),
        ({"query": "x" * 2001}, "query"),
        ({"query": None}, "query"),
        ({"query": 'a "beach'}, "query"),
        ({"query": "colour:red"}, "query"),
        ({"query": "date>=soon"}, "query"),
        ({"query": "like:999"}, "query"),
        ({"query": '"red" - "red"'}, "query"),
        ({"query": "word " * 100}, "query"),
    ],
)
def test_what_cannot_be_used_is_named(client: TestClient, change: dict[str, Any], param: str) -> None:
    assert refused(client.post("/search", json={"query": "red", **change}), 422)["param"] == param


def test_a_missing_query_is_named(client: TestClient) -> None:
    assert refused(client.post("/search", json={}), 422)["param"] == "query"
    refused(client.post("/search", json=[1]), 422)
    refused(client.post("/search", content=b"{", headers={"Content-Type": "application/json"}), 400, "invalid_json")
    refused(client.post("/search", content=b'{"query": "\xff"}', headers={"Content-Type": "application/json"}), 400)
    for number in (b"NaN", b"Infinity", b"1e999"):
        body = b'{"query": "red", "strength": ' + number + b"}"
        refused(client.post("/search", content=body, headers={"Content-Type": "application/json"}), 422)
    deep = b'{"query": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert client.post("/search", content=deep, headers={"Content-Type": "application/json"}).status_code in (400, 422)


def test_damage_is_the_services_fault_and_its_words_stay_here(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    searcher = searcher_of(tmp_path)
    with TestClient(create_app(searcher), base_url=URL) as client:

        def damaged(*_: Any, **__: Any) -> Any:
            raise GalleryError("the index /secret/place is damaged")

        searcher.gallery.nearest = damaged  # type: ignore[method-assign]
        answer = client.post("/search", json={"query": "red"})
    assert "secret" not in answer.text
    refused(answer, 500, "internal_error")
    assert any("/secret/place" in (record.exc_text or "") or record.exc_info for record in caplog.records)


# ---- an image that is sent


def send(client: TestClient, image: bytes, request: dict[str, Any] | None = None, name: str = "a.png") -> Any:
    data = {} if request is None else {"request": json.dumps(request)}
    return client.post("/search/image", files={"image": (name, image, "image/png")}, data=data)


def test_an_image_alone_finds_itself(client: TestClient, folder: Path) -> None:
    for id, name in ((4, "b/004.png"), (11, "c/011.png")):
        found = send(client, (folder / name).read_bytes()).json()
        assert found["hits"][0]["id"] == id
        assert found["terms"] == [{"weight": 1.0, "kind": "image", "value": "upload", "mended": None}]


def test_an_upload_that_is_no_image_is_called_by_its_name(client: TestClient) -> None:
    for name in ("my cat.png", "\u202egnp.exe", "a" * 500):
        message = refused(send(client, b"no image at all", name=name), 422, "invalid_image")["message"]
        assert message.endswith("” is not an image that can be read")
        assert message.isprintable()
        assert len(message) < 200
        assert "b'" not in message
    assert message.startswith("“aaaa")
    assert "starts as a PNG does" in refused(send(client, b"\x89PNG\r\n\x1a\n"), 422)["message"]


def test_an_image_with_words_and_filters(client: TestClient, folder: Path) -> None:
    image = (folder / "b/004.png").read_bytes()
    assert send(client, image, {"query": "folder:c", "k": 50}).json()["total"] == 10
    away = send(client, image, {"query": '"red" - 100 image:upload', "k": 30}).json()
    assert away["hits"][-1]["id"] == 4
    error = refused(send(client, image, {"query": "red"}), 422, "invalid_query")
    assert "image:upload" in error["message"]
    refused(send(client, image, {"query": "image:upload + image:other.png"}), 422, "invalid_query")


def test_what_is_no_image_is_refused(client: TestClient) -> None:
    for body in (b"", b"\0" * 100, b"GIF89a", b"\xff\xd8\xff\xe0broken", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%!PS"):
        assert refused(send(client, body), 422)["param"] == "image"
    refused(client.post("/search/image", data={"request": "{}"}, files={"other": b"x"}), 422)
    for request in ("{", "[]", '{"k": 0}', '{"nonsense": 1}', "null", "\x00"):
        answer = client.post("/search/image", files={"image": b"x"}, data={"request": request})
        assert refused(answer, 422)["param"].startswith("request")


def test_a_query_opens_no_file_and_fetches_nothing(client: TestClient, folder: Path) -> None:
    for value in (str(folder / "b/004.png"), "b/004.png", "/etc/passwd", "http://localhost/x.png", "file:///etc/passwd", "upload"):
        refused(client.post("/search", json={"query": f'image:"{value}"'}), 422, "invalid_query")
    with pytest.raises(ValueError, match="files=False"):
        create_app(Searcher(PictureGallery.of(folder), FakeEncoder()))


@pytest.mark.parametrize("address", ["http://localhost/x.png", "HTTPS://a.example/x", "file:///etc/passwd"])
def test_an_address_in_a_query_is_never_fetched(client: TestClient, address: str) -> None:
    error = refused(client.post("/search", json={"query": f'image:"{address}"'}), 422, "invalid_query")
    never = "is an address, and addresses are never fetched: send the image itself to /search/image"
    assert error["message"] == f"image:{address} {never}"


def test_a_wrong_method_is_told_the_right_one(client: TestClient) -> None:
    answer = client.get("/search?query=red")
    assert refused(answer, 405)["message"] == "this address does not take this method: send the request by POST"
    assert answer.headers["allow"] == "POST"


# ---- embeddings


def test_embeddings_have_openais_shape(client: TestClient) -> None:
    answer = client.post("/v1/embeddings", json={"input": ["no red", "a dog"], "model": "fake"}).json()
    EmbeddingsAnswer.model_validate(answer)
    assert [row["index"] for row in answer["data"]] == [0, 1]
    expected = FakeEncoder().encode_texts(["no red", "a dog"]).numpy()
    np.testing.assert_allclose([row["embedding"] for row in answer["data"]], expected, atol=1e-6)
    assert answer["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
    packed = client.post("/embeddings", json={"input": "no red", "model": "fake+patch", "encoding_format": "base64"}).json()
    vector = np.frombuffer(base64.b64decode(packed["data"][0]["embedding"]), "<f4")
    np.testing.assert_allclose(vector, FakeMended().encode_texts(["no red"])[0].numpy(), atol=1e-6)
    assert abs(float((vector * expected[0]).sum())) > 0.9  # turned around by the patch
    assert float((vector * expected[0]).sum()) < 0


def test_as_many_texts_as_clients_of_openai_send(client: TestClient, tmp_path: Path) -> None:
    texts = [f"red {n}" for n in range(2_048)]
    data = client.post("/v1/embeddings", json={"input": texts, "model": "fake", "encoding_format": "base64"}).json()["data"]
    assert [row["index"] for row in data] == list(range(2_048))
    for n in (0, 31, 32, 2_047):
        alone = client.post("/v1/embeddings", json={"input": texts[n], "model": "fake"}).json()["data"][0]["embedding"]
        assert np.frombuffer(base64.b64decode(data[n]["embedding"]), "<f4").tolist() == pytest.approx(alone, abs=1e-6)
    with TestClient(create_app(searcher_of(tmp_path), Settings(max_texts=3)), base_url=URL) as small:
        error = refused(small.post("/embeddings", json={"input": ["a"] * 4, "model": "fake"}), 422)
        assert error["message"] == "4 texts; at most 3 a request"


def test_a_search_by_an_embedding_is_the_search(client: TestClient, searcher: Searcher) -> None:
    vector = client.post("/embeddings", json={"input": "no red", "model": "fake+patch"}).json()["data"][0]["embedding"]
    nearest = searcher.gallery.nearest(unit(vector), 5)
    assert nearest.ids[0].tolist() == [hit["id"] for hit in search(client, query="no red", k=5)["hits"]]


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"model": "other"}, 404, "model"),
        ({"dimensions": 4}, 422, "dimensions"),
        ({"input": []}, 422, None),
        ({"input": ["a", " "]}, 422, "input"),
        ({"input": ""}, 422, None),
        ({"input": [1, 2, 3]}, 422, None),
        ({"input": ["a"] * 2_049}, 422, "input"),
        ({"input": "x" * 9_000}, 422, "input"),
        ({"input": "word " * 100}, 422, "input"),
        ({"encoding_format": "hex"}, 422, "encoding_format"),
        ({"strength": 1}, 422, "strength"),
    ],
)
def test_embeddings_that_cannot_be(client: TestClient, change: dict[str, Any], status: int, param: str | None) -> None:
    error = refused(client.post("/embeddings", json={"input": "a", "model": "fake", **change}), status)
    assert param is None or error["param"] == param


@pytest.mark.parametrize(
    ("input", "words"),
    [
        ([1, 2, 3], "input.0: token ids are not taken"),
        ([[1, 2], [3]], "input.0: token ids are not taken"),
        (["a", 5], "input.1: token ids are not taken"),
        (["a", ""], "input.1: String should have at least 1 character"),
        ([], "input: List should have at least 1 item"),
        (["a"] * 2_049, "input: List should have at most 2048 items"),
        ("", "input: String should have at least 1 character"),
        ({"a": 1}, "input: Input should be a valid string"),
    ],
    ids=range(8),
)
def test_of_several_shapes_the_error_is_about_the_one_that_was_meant(client: TestClient, input: Any, words: str) -> None:
    error = refused(client.post("/v1/embeddings", json={"input": input, "model": "fake"}), 422)
    assert error["message"].startswith(words)
    assert error["param"].startswith("input")
    assert ("check_embedding_ctx_length=False" in error["message"]) == ("token ids" in words)


def test_a_text_that_is_too_long_is_found_out_before_it_is_embedded(tmp_path: Path) -> None:
    """By its place in the request, not in a batch of it; it meets no text of others."""
    from types import SimpleNamespace

    from clipmend.backbones.tokens import TextTokens

    class Words(TextTokens):
        context_length, pad_id = 9, 0

        def _ids(self, texts: list[str]) -> tuple[list[list[int]], list[int]]:
            ids = [[1] * len(text.split()) for text in texts]
            return ids, [row for row, words in enumerate(ids) if len(words) > 9]

        def describe(self) -> dict[str, Any]:
            return {}

    encoder = SlowEncoder()
    encoder.tower = SimpleNamespace(tokenise=Words())  # type: ignore[attr-defined]
    with TestClient(create_app(searcher_of(tmp_path, encoder, patched=False)), base_url=URL) as client:
        before = len(encoder.calls)
        texts = ["short"] * 40 + ["word " * 10]
        error = refused(client.post("/embeddings", json={"input": texts, "model": "fake"}), 422)
        assert "text 40" in error["message"]
        refused(client.post("/search", json={"query": "word " * 10}), 422)
        assert len(encoder.calls) == before
        usage = client.post("/embeddings", json={"input": ["a b", "c"], "model": "fake"}).json()["usage"]
        assert usage == {"prompt_tokens": 3, "total_tokens": 3}


def test_an_error_does_not_repeat_what_is_long(client: TestClient) -> None:
    for answer in (
        client.post("/search", json={"query": "red", "x" * 100_000: 1}),
        client.post("/search/image", files={"image": b"x"}, data={"request": '{"' + "x" * 10_000 + '": 1}'}),
    ):
        assert refused(answer, 422)["param"].endswith("x" * 50)
        assert len(answer.content) < 1_000


def test_names_that_are_no_text(tmp_path: Path) -> None:
    """A patch or a model in a folder whose name is no UTF-8."""
    settings = Settings(patch="p\udcff", model="m\udcff", examples=("e\udcff",))
    with TestClient(create_app(searcher_of(tmp_path), settings), base_url=URL) as client:
        about = client.get("/api/about")
        assert about.status_code == 200
        assert about.json()["model"] == "m\\xff"
        assert client.get("/models").status_code == 200
        for path in ("/openapi.json", "/docs"):
            assert client.get(path).status_code == 200


def test_models(client: TestClient, plain: TestClient) -> None:
    for path in ("/models", "/v1/models"):
        answer = client.get(path).json()
        Models.model_validate(answer)
        assert [model["id"] for model in answer["data"]] == ["fake", "fake+patch"]
    assert [model["id"] for model in plain.get("/models").json()["data"]] == ["fake"]


# ---- the service itself


def test_about(client: TestClient, plain: TestClient) -> None:
    about = client.get("/api/about").json()
    About.model_validate(about)
    assert about["count"] == 30
    assert about["patch"] == {"name": "patch", "strength": 1.0, "corrects_scores": True}
    assert sorted(about["folders"]) == [["a", 10], ["b", 10], ["c", 10]]
    assert about["fields"]["date"] == "time"
    assert plain.get("/api/about").json()["patch"] is None


def test_values_of_a_field(client: TestClient) -> None:
    answer = client.get("/api/values?field=folder").json()
    Values.model_validate(answer)
    assert answer["field"] == "folder"
    assert sorted(answer["values"]) == [["a", 10], ["b", 10], ["c", 10]]
    assert answer["more"] is False
    for field in ("date", "nonsense", ""):
        error = refused(client.get("/api/values", params={"field": field}), 422)
        assert error["param"] == "field"
        assert "folder, name" in error["message"]
    refused(client.get("/api/values"), 422)


def test_values_are_told_up_to_a_limit(tmp_path: Path) -> None:
    with TestClient(create_app(searcher_of(tmp_path, count=205)), base_url=URL) as client:
        answer = client.get("/api/values?field=name").json()
        assert len(answer["values"]) == 200
        assert answer["more"] is True


def test_whether_files_are_known(client: TestClient, tmp_path: Path) -> None:
    assert client.get("/api/about").json()["files"] is True
    gallery = MemoryGallery([Item(0, "a.png"), Item(1, "b.png")], np.eye(8)[:2])
    empty = MemoryGallery([], np.zeros((0, 8)), root=tmp_path)
    assert not knows_files(gallery)
    assert knows_files(empty)
    gallery.values = lambda name, limit=100: []  # type: ignore[method-assign]
    with TestClient(create_app(Searcher(gallery, FakeEncoder(), files=False)), base_url=URL) as blind:
        assert blind.get("/api/about").json()["files"] is False
        assert search(blind, query="red")["hits"][0]["thumbnail"] is None


def test_a_path_that_is_no_text_is_spelled_as_elsewhere(tmp_path: Path) -> None:
    path = os.fsdecode(b"caf\xe9/\xff.png")
    gallery = MemoryGallery([Item(0, path, {"folder": os.fsdecode(b"caf\xe9"), "name": "x"})], np.eye(8)[:1], fields=BASE_FIELDS)
    gallery.values = lambda name, limit=100: [(os.fsdecode(b"caf\xe9"), 1)]  # type: ignore[method-assign]
    with TestClient(create_app(Searcher(gallery, FakeEncoder(), files=False)), base_url=URL) as client:
        hit = search(client, query="red")["hits"][0]
        assert (hit["path"], hit["fields"]["folder"]) == (display_path(path), "caf\\xe9")
        assert client.get("/api/about").json()["folders"] == [["caf\\xe9", 1]]
        assert client.get("/api/values?field=folder").json()["values"] == [["caf\\xe9", 1]]


def test_without_words_there_is_no_score(client: TestClient) -> None:
    assert {hit["score"] for hit in search(client, query="folder:b")["hits"]} == {None}
    assert None not in {hit["score"] for hit in search(client, query="red folder:b")["hits"]}


def test_ready_only_between_start_and_end(tmp_path: Path) -> None:
    searcher = searcher_of(tmp_path)
    app = create_app(searcher)
    outside = TestClient(app, base_url=URL)
    assert outside.get("/health").status_code == 503
    refused(outside.post("/search", json={"query": "red"}), 503, "ending")
    for _ in range(2):  # an application may be started again
        with TestClient(app, base_url=URL) as client:
            assert client.get("/health").json() == {"status": "ready"}
            search(client, query="red")
        assert outside.get("/health").json() == {"status": "ending"}
        refused(outside.post("/search", json={"query": "red"}), 503, "ending")
    assert not searcher.gallery.closed  # type: ignore[attr-defined]


def test_metrics_count(tmp_path: Path) -> None:
    encoder = SlowEncoder()
    with TestClient(create_app(searcher_of(tmp_path, encoder)), base_url=URL) as client:
        for _ in range(3):
            search(client, query="no red", strength=0)
        client.post("/search", json={"query": ""}, headers={"Content-Type": "text/plain"})
        client.get("/thumbnails/2")
        client.get("/thumbnails/2")
        client.get("/no/such/" + "x" * 50)
        for method in ("XXX1", "XXX2", "xxx3", "DELETE"):
            assert client.request(method, "/search").status_code == 405
        text = client.get("/metrics").text
    assert 'clipmend_requests_total{method="POST",route="/search",status="200"} 3.0' in text
    assert 'clipmend_refused_total{reason="media_type"} 1.0' in text
    assert 'clipmend_thumbnails_total{cached="yes"} 1.0' in text
    assert 'route="/thumbnails/{id}"' in text
    assert 'clipmend_requests_total{method="POST",route="/search",status="415"} 1.0' in text
    assert 'route="other",status="404"' in text
    assert "_created" not in text
    assert "xxx" not in text.lower()  # an address or a method that a client made up is no label
    assert 'clipmend_requests_total{method="other",route="/search",status="405"} 3.0' in text
    assert "clipmend_gallery_images 30.0" in text
    assert "clipmend_batch_texts_count 4.0" in text  # the first one warms up


def test_interface_pages_load_nothing_from_elsewhere(client: TestClient) -> None:
    described = client.get("/openapi.json").json()
    assert {"/search", "/search/image", "/embeddings", "/v1/embeddings", "/models", "/metrics"} <= set(described["paths"])
    page = client.get("/docs")
    assert "/thumbnails/{id}" in page.text
    assert "http://" not in page.text
    assert "https://" not in page.text
    assert "<script" not in page.text
    assert page.headers["content-security-policy"].startswith("default-src 'none'; style-src 'sha256-")


def test_the_page_and_its_files(client: TestClient) -> None:
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert client.get("/", headers={"If-None-Match": page.headers["etag"]}).status_code == 304
    for name, kind in (("page.css", "text/css"), ("page.js", "text/javascript")):
        part = client.get(f"/page/{name}")
        assert part.headers["content-type"].startswith(kind)
        assert part.headers["cache-control"] == "no-cache"


# ---- logs


def test_logs_hold_no_query_unless_asked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("clipmend.service").propagate = True
    for asked, settings in ((False, Settings()), (True, Settings(log_queries=True))):
        caplog.clear()
        with (
            caplog.at_level(logging.INFO, "clipmend.service"),
            TestClient(create_app(searcher_of(tmp_path), settings), base_url=URL) as client,
        ):
            search(client, query="my secret wish")
            client.post("/embeddings", json={"input": "my secret wish", "model": "fake"})
            client.post("/search", json={"query": "my secret wish", "k": 0})
            client.get("/thumbnails/1?size=99")
        data = [record.data for record in caplog.records if hasattr(record, "data")]
        assert [(line["method"], line["path"], line["status"]) for line in data if "path" in line] == [
            ("POST", "/search", 200),
            ("POST", "/embeddings", 200),
            ("POST", "/search", 422),
            ("GET", "/thumbnails/1", 200),
        ]
        assert ("secret" in str([vars(record) for record in caplog.records])) is asked


def test_a_log_line_is_json_whatever_it_holds() -> None:
    import io

    from clipmend.service.logs import JsonLines

    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    try:
        raise ValueError("bad\nluck \udcff")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "a %s", ("line\nbreak",), exc_info=__import__("sys").exc_info())
    record.data = {"path": "/a\n\udcff", "when": Path("x")}
    handler.emit(record)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 1
    read = json.loads(lines[0])
    assert read["event"] == "a line\nbreak"
    assert read["path"] == "/a\n\udcff"
    assert "luck" in read["exception"]


def test_what_python_and_others_say_is_json_too() -> None:
    import io

    from clipmend.service.logs import json_log

    other = logging.getLogger("some.library")
    printing = logging.StreamHandler(sys.stderr)
    other.addHandler(printing)
    other.propagate = False
    ours = logging.getLogger("clipmend.service")

    def state() -> object:
        return warnings.showwarning, list(logging.root.handlers), list(ours.handlers), ours.propagate, ours.level, other.handlers

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        before, stream = state(), io.StringIO()
        with json_log(stream=stream):
            warnings.warn(UnnormalisedWarning("of another\nlength"), stacklevel=1)
            other.warning("too long")
            ours.info("served")
        assert state() == before
    other.removeHandler(printing)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["of another\nlength", "too long", "served"]
    assert lines[0]["warning"] == "UnnormalisedWarning"
    assert __file__ not in stream.getvalue()


def test_request_ids(client: TestClient) -> None:
    assert client.get("/health", headers={"X-Request-ID": "abc-1.2"}).headers["x-request-id"] == "abc-1.2"
    made = client.get("/health", headers={"X-Request-ID": "no spaces; please"}).headers["x-request-id"]
    assert len(made) == 32
    assert made != client.get("/health").headers["x-request-id"]
