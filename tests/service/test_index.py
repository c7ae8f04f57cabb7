"""The service over an index on disk, as ``clipmend index`` makes it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
from fastapi.testclient import TestClient
from PIL import Image
from tests.search.fakes import FakeEncoder, FakeMended, colour_folder

from clipmend.search.index import ImageIndex
from clipmend.search.searcher import Searcher
from clipmend.service import create_app

URL = "http://localhost"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two folders of images, one with a link to outside of both, and their index."""
    place = tmp_path_factory.mktemp("place")
    colour_folder(place / "summer", 12, seed=1)
    colour_folder(place / "winter", 9, seed=2)
    Image.new("RGB", (6, 5), "red").save(place / "elsewhere.png")
    (place / "winter/a/linked.png").symlink_to(place / "elsewhere.png")
    with ImageIndex.build(FakeEncoder(), [place / "summer", place / "winter"], place / "both.index"):
        pass
    return place


@pytest.fixture(scope="module")
def client(place: Path) -> Iterator[TestClient]:
    with (
        ImageIndex.open(place / "both.index") as index,
        TestClient(create_app(Searcher(index, FakeEncoder(), FakeMended(), files=False)), base_url=URL) as client,
    ):
        yield client


def test_every_image_is_found_and_shown(client: TestClient, place: Path) -> None:
    found = client.post("/search", json={"query": "no red", "k": 200, "compare": True}).json()
    assert found["total"] == len(found["hits"]) == 22
    assert {hit["path"].split("/")[0] for hit in found["hits"]} == {"summer", "winter"}
    for hit in found["hits"]:
        shown, file = client.get(hit["thumbnail"]), client.get(f"/images/{hit['id']}")
        if hit["path"].endswith("linked.png"):  # found, for it is among the images; but where it leads is none of them
            assert (shown.status_code, file.status_code) == (404, 404)
            continue
        assert shown.status_code == 200
        assert file.content == (place / hit["path"]).read_bytes()
        assert (hit["width"], hit["height"]) == (6, 5)


def test_filters_and_folders(client: TestClient) -> None:
    folders = dict(client.get("/api/about").json()["folders"])
    assert sum(folders.values()) == 22
    folder = next(name for name in folders if "winter" in name)
    found = client.post("/search", json={"query": f'red folder:"{folder}"', "k": 200}).json()
    assert found["total"] == folders[folder]
    assert client.post("/search", json={"query": "size>1GB"}).json()["total"] == 0


def test_many_threads_search_and_look_at_once(client: TestClient) -> None:
    """SQLite's connections belong to threads; every thread of the service gets right answers."""
    alone = {n: client.post("/search", json={"query": f"no {n}", "k": 5, "offset": n}).json()["hits"] for n in range(12)}

    def both(n: int) -> bool:
        found = client.post("/search", json={"query": f"no {n}", "k": 5, "offset": n}).json()["hits"]
        shown = [client.get(f"{hit['thumbnail']}?size=64").status_code for hit in found]
        return [hit["id"] for hit in found] == [hit["id"] for hit in alone[n]] and set(shown) <= {200, 404}

    with ThreadPoolExecutor(12) as pool:
        assert all(pool.map(both, list(range(12)) * 4))


def test_a_file_that_went_away(client: TestClient, place: Path) -> None:
    hit = client.post("/search", json={"query": "folder:summer/b", "k": 1}).json()["hits"][0]
    (place / hit["path"]).rename(place / "away.png")
    try:
        assert client.get(hit["thumbnail"]).status_code == 404
        assert client.post("/search", json={"query": f"like:{hit['id']}", "k": 1}).json()["hits"][0]["id"] == hit["id"]
    finally:
        (place / "away.png").rename(place / hit["path"])
    (place / hit["path"]).write_bytes(b"no image any more")
    assert client.get(hit["thumbnail"]).status_code == 422
