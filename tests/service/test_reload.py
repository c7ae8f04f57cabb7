"""An index that is written, replaced or broken while it is served."""

from __future__ import annotations

import gc
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi")
from fastapi.testclient import TestClient
from PIL import Image
from tests.search.fakes import FakeEncoder, FakeMended, colour_folder
from tests.service.fake_service import searcher_of
from torch import Tensor

from clipmend.search import ImageIndex, build_index, maintain
from clipmend.search.searcher import Searcher
from clipmend.service import Settings, create_app

URL = "http://localhost"
NEVER_BY_ITSELF = Settings(reload=1000.0)
"""Requests look; the watching thread does not within a test's life."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    colour_folder(tmp_path / "pictures", 12, seed=1)
    build_index(FakeEncoder(), tmp_path / "pictures", tmp_path / "my.index")
    return tmp_path


@contextmanager
def served(place: Path, settings: Settings = NEVER_BY_ITSELF, encoder: FakeEncoder | None = None) -> Iterator[TestClient]:
    index = ImageIndex.open(place / "my.index")
    app = create_app(Searcher(index, encoder or FakeEncoder(), FakeMended(), files=False), settings, owned=True)
    with TestClient(app, base_url=URL) as client:
        yield client


def search(client: TestClient, query: str = "red", **request: Any) -> dict[str, Any]:
    answer = client.post("/search", json={"query": query, "k": 200, **request})
    assert answer.status_code == 200, answer.text
    return answer.json()


def paths(answer: dict[str, Any]) -> set[str]:
    return {hit["path"] for hit in answer["hits"]}


def on_disk(place: Path) -> set[str]:
    return {str(file.relative_to(place / "pictures")) for file in (place / "pictures").rglob("*.png")}


def draw(file: Path, colour: tuple[int, int, int]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.part")  # whole or not at all: a half-written file is rightly answered with 422
    Image.new("RGB", (6, 5), colour).save(part, "PNG")
    part.replace(file)


def update(place: Path, **options: Any) -> None:
    build_index(FakeEncoder(), place / "pictures", place / "my.index", **options)


def metric(client: TestClient, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)), 0.0)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# ---- an index that is brought up to date


def test_the_next_request_sees_what_was_indexed(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    with served(place) as client, caplog.at_level(logging.INFO, "clipmend.service"):
        before = search(client)
        assert paths(before) == on_disk(place)
        (place / "pictures/a/000.png").unlink()
        (place / "pictures/b/001.png").rename(place / "pictures/moved.png")
        draw(place / "pictures/new/one.png", (255, 0, 0))
        draw(place / "pictures/c/002.png", (0, 255, 0))
        assert search(client)["edition"] == before["edition"]  # nothing is indexed yet
        update(place)
        after = search(client)
        assert paths(after) == on_disk(place)
        assert after["hits"][0]["path"] == "new/one.png"
        assert after["edition"] != before["edition"]
        assert after["edition"].partition(".")[0] == before["edition"].partition(".")[0]
        ids = {hit["path"]: hit["id"] for hit in before["hits"]}
        now = {hit["path"]: hit["id"] for hit in after["hits"]}
        assert now["moved.png"] == ids["b/001.png"]
        assert client.get("/api/about").json()["count"] == 12
        assert dict(client.get("/api/about").json()["folders"])["new"] == 1
        assert client.get(f"/images/{now['new/one.png']}").content == (place / "pictures/new/one.png").read_bytes()
        assert client.get(f"/images/{now['moved.png']}").content == (place / "pictures/moved.png").read_bytes()
        assert client.get(f"/thumbnails/{ids['a/000.png']}").status_code == 404
        assert metric(client, 'clipmend_gallery_reloads_total{result="done"}') == 1
        assert metric(client, "clipmend_gallery_images") == 12
        assert client.get("/health").json() == {"status": "ready"}
    (told,) = [record.data for record in caplog.records if "opened again" in record.getMessage()]  # type: ignore[attr-defined]
    assert (told["images"], told["images_before"]) == (12, 12)


def test_whatever_is_asked_first_sees_it(place: Path) -> None:
    """Each of the addresses, as the first after an update."""
    with served(place) as client:
        asks: list[Callable[[], Any]] = [
            lambda: client.get("/api/about").json()["count"],
            lambda: len(client.get("/api/values?field=name").json()["values"]),
            lambda: search(client, "")["total"],
            lambda: client.post("/search/image", files={"image": (place / "pictures/a/000.png").read_bytes()}).json()["total"],
        ]
        for number, ask in enumerate(asks):
            draw(place / f"pictures/n/{number}.png", (number, 0, 7))
            update(place)
            assert ask() == 13 + number
        draw(place / "pictures/n/last.png", (200, 0, 7))
        update(place)
        newest = max(entry.id for entry in ImageIndex.open(place / "my.index").entries)
        assert client.get(f"/thumbnails/{newest}").status_code == 200


def test_it_is_noticed_without_any_request(place: Path) -> None:
    with served(place, Settings(reload=0.05)) as client:
        first = client.app.state.service.current.searcher.gallery  # type: ignore[attr-defined]
        draw(place / "pictures/one.png", (1, 2, 3))
        update(place)
        until(lambda: client.app.state.service.current.searcher.gallery is not first)  # type: ignore[attr-defined]
        assert client.app.state.metrics.reloads.labels("done")._value.get() == 1  # type: ignore[attr-defined]
        until(lambda: first._connections._closed)
        assert search(client)["total"] == 13


def test_new_columns_can_be_asked_for(place: Path) -> None:
    (place / "stars.csv").write_text("path,stars\na/000.png,5\n")
    with served(place) as client:
        assert client.post("/search", json={"query": "stars=5"}).status_code == 422
        with ImageIndex.open(place / "my.index") as index:
            index.import_columns(place / "stars.csv")
        assert paths(search(client, "stars=5")) == {"a/000.png"}
        assert client.get("/api/about").json()["fields"]["stars"] == "number"


def test_a_new_graph_is_used(place: Path) -> None:
    with served(place) as client:
        search(client)
        update(place, approximate=True)  # no image changed, and no row of the database
        search(client)
        assert metric(client, 'clipmend_gallery_reloads_total{result="done"}') == 1
        search(client)
        assert metric(client, 'clipmend_gallery_reloads_total{result="done"}') == 1


def test_an_update_that_changes_nothing_opens_nothing(place: Path) -> None:
    with served(place) as client:
        first = search(client)["edition"]
        update(place)
        os.utime(place / "my.index/manifest.json")
        assert search(client)["edition"] == first
        assert metric(client, "clipmend_gallery_reloads_total") == 0


def test_it_can_be_switched_off(place: Path) -> None:
    with served(place, Settings(reload=None)) as client:
        before = search(client)
        draw(place / "pictures/one.png", (1, 2, 3))
        update(place)
        time.sleep(0.2)
        assert paths(search(client)) == paths(before)
        assert "clipmend-watch" not in {thread.name for thread in threading.enumerate()}


def test_seconds_that_cannot_be() -> None:
    for seconds in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="reload"):
            Settings(reload=seconds)


def test_galleries_that_nobody_writes_are_left_alone(tmp_path: Path) -> None:
    searcher = searcher_of(tmp_path)
    with TestClient(create_app(searcher, Settings(reload=0.01)), base_url=URL) as client:
        time.sleep(0.1)
        assert search(client)["edition"] is None
        assert client.app.state.service.current.searcher is searcher  # type: ignore[attr-defined]


# ---- whose the gallery is


def test_a_gallery_of_its_owners_is_never_closed(place: Path) -> None:
    with ImageIndex.open(place / "my.index") as index:
        app = create_app(Searcher(index, FakeEncoder(), files=False), NEVER_BY_ITSELF)
        for count in (12, 13, 14):  # the application starts again, with what is there then
            with TestClient(app, base_url=URL) as client:
                assert search(client)["total"] == count
                draw(place / f"pictures/{count}.png", (count, 2, 3))
                update(place)
                assert search(client)["total"] == count + 1
                used = app.state.service.current.searcher.gallery
                assert used is not index
            assert used._connections._closed
        assert len(index.items([0])) == 1


def test_nothing_of_the_old_ones_is_held(place: Path) -> None:
    """Neither files nor memory maps, also of those that are deleted; the number of updates does not tell."""

    def held() -> tuple[int, int]:
        gc.collect()
        maps = Path("/proc/self/maps").read_text() if Path("/proc/self/maps").exists() else ""
        opened = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
        return opened, sum(str(place) in line and "(deleted)" in line for line in maps.splitlines())

    with served(place) as client:
        for number in range(3):
            draw(place / f"pictures/{number}.png", (number, 2, 3))
            update(place)
            search(client)
        before = held()
        for number in range(10):
            shutil.rmtree(place / "my.index")
            draw(place / f"pictures/more {number}.png", (number, 2, 3))
            update(place)
            assert search(client)["total"] == 16 + number
        after = held()
        assert after[1] == 0
        assert after[0] <= before[0] + 2


# ---- requests that run meanwhile


class Waiting(FakeEncoder):
    """Texts wait until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go = threading.Event(), threading.Event()
        self.go.set()
        self.texts: list[str] = []

    def encode_texts(self, texts: Sequence[str], **options: Any) -> Tensor:
        self.texts += texts
        self.asked.set()
        assert self.go.wait(30)
        return super().encode_texts(texts, **options)


@pytest.mark.parametrize("change", ["updated", "compacted", "replaced", "replaced by another encoder's"])
def test_a_request_that_runs_is_finished(place: Path, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one state altogether, and embedded once."""
    encoder = Waiting()
    with served(place, encoder=encoder) as client, ThreadPoolExecutor(1) as pool:
        first = client.app.state.service.current.searcher.gallery  # type: ignore[attr-defined]
        before = search(client, "like:0")
        encoder.texts.clear()
        encoder.asked.clear()
        encoder.go.clear()
        running = pool.submit(search, client, "bright red", strength=0)
        assert encoder.asked.wait(30)
        for name in ("a/000.png", "b/001.png", "c/002.png", "a/003.png", "b/004.png", "c/005.png", "a/006.png"):
            (place / "pictures" / name).unlink()
        draw(place / "pictures/new.png", (255, 0, 0))
        if change == "compacted":
            monkeypatch.setattr(maintain, "LEAST_DEAD", 0)
        elif change.startswith("replaced"):
            shutil.rmtree(place / "my.index")
        other = FakeEncoder(image="another") if change.endswith("encoder's") else FakeEncoder()
        build_index(other, place / "pictures", place / "my.index")
        client.app.state.service.current.look()  # type: ignore[attr-defined]
        exchanged = client.app.state.service.current.searcher.gallery is not first  # type: ignore[attr-defined]
        assert exchanged != change.endswith("encoder's")
        assert not first._connections._closed  # in use
        encoder.go.set()
        answer = running.result(30)
        assert answer["total"] == len(answer["hits"])
        assert paths(answer) == (on_disk(place) if exchanged else paths(before))
        assert encoder.texts == ["bright red"]
        if exchanged:
            assert answer["hits"][0]["path"] == "new.png"
            until(lambda: first._connections._closed)


@pytest.mark.parametrize("steps", [8, pytest.param(32, marks=pytest.mark.slow)])
def test_answers_are_of_one_state_whatever_happens(place: Path, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Clients that never pause, and an index that is never left alone: added to, taken from, moved in, compacted, made again."""
    monkeypatch.setattr(maintain, "LEAST_DEAD", 0)
    encoder = FakeEncoder()
    rng = np.random.default_rng(0)
    states: list[dict[str, tuple[int, int, int]]] = []
    colours: dict[str, tuple[int, int, int]] = {}
    for name in on_disk(place):
        with Image.open(place / "pictures" / name) as image:
            colours[name] = image.getpixel((0, 0))  # type: ignore[assignment]
    states.append(dict(colours))
    query = encoder.encode_texts(["red"])[0].numpy()

    def score(colour: tuple[int, int, int]) -> float:
        vector = encoder.embed(Image.new("RGB", (6, 5), colour)).numpy()
        return float(vector @ query / np.linalg.norm(vector))

    def fits(answer: dict[str, Any], state: dict[str, tuple[int, int, int]]) -> bool:
        return (
            answer["total"] == len(answer["hits"]) == len(state)
            and paths(answer) == set(state)
            and all(abs(hit["score"] - score(state[hit["path"]])) < 1e-5 for hit in answer["hits"])
            and all(hit["path"] == f"{hit['fields']['folder']}/{hit['fields']['name']}".lstrip("/") for hit in answer["hits"])
        )

    over = threading.Event()
    answers: list[dict[str, Any]] = []

    def ask(client: TestClient) -> None:
        while not over.is_set():
            answers.append(search(client, "red", strength=0))
            shown = client.get(answers[-1]["hits"][0]["thumbnail"] + f"?of={answers[-1]['edition']}")
            assert shown.status_code in (200, 404)  # its file may be gone, or its index

    with served(place, Settings(reload=0.01, concurrency=4)) as client, ThreadPoolExecutor(4) as pool:
        running = [pool.submit(ask, client) for _ in range(4)]
        try:
            for step in range(steps):
                names = sorted(colours)
                chosen = [names[i] for i in rng.choice(len(names), 3, replace=False)]
                if step % 3 == 0:  # other pictures at the same place
                    for name in chosen:
                        colours[name] = tuple(int(v) for v in rng.integers(0, 256, 3))  # type: ignore[assignment]
                        draw(place / "pictures" / name, colours[name])
                elif step % 3 == 1:  # places exchanged, and new ones
                    for name in chosen:
                        (place / "pictures" / name).rename(place / "pictures" / f"{step} {name.replace('/', ' ')}")
                        colours[f"{step} {name.replace('/', ' ')}"] = colours.pop(name)
                    for number in range(3):
                        colours[f"{step}/{number}.png"] = (step, number, int(rng.integers(256)))
                        draw(place / f"pictures/{step}/{number}.png", colours[f"{step}/{number}.png"])
                else:
                    for name in chosen:
                        del colours[name]
                        (place / "pictures" / name).unlink()
                states.append(dict(colours))
                if step % 8 == 7:
                    shutil.rmtree(place / "my.index")
                update(place)
                if step % 8 == 7:  # it may have been looked at half made, and then it is not tried again at once
                    until(lambda: fits(search(client, "red", strength=0), colours))
                assert fits(search(client, "red", strength=0), colours)
        finally:
            over.set()
        for one in running:
            one.result(30)
        assert client.app.state.service.current.outdated is False  # type: ignore[attr-defined]
    assert len({answer["edition"] for answer in answers}) > steps // 3
    mixed = [answer for answer in answers if not any(fits(answer, state) for state in states)]
    assert not mixed


# ---- an index that cannot be opened any more


def break_manifest(place: Path) -> None:
    (place / "my.index/manifest.json").write_text("{")


def take_away(place: Path) -> None:
    shutil.rmtree(place / "my.index")


def of_another_encoder(place: Path) -> None:
    shutil.rmtree(place / "my.index")
    build_index(FakeEncoder(image="another"), place / "pictures", place / "my.index")


def never_finished(place: Path) -> None:
    shutil.rmtree(place / "my.index")

    def stop(embedded: int) -> None:
        if embedded >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_index(FakeEncoder(before_batch=stop), place / "pictures", place / "my.index", batch_size=2)


def lose_a_shard(place: Path) -> None:
    os.rename(place / "my.index", place / "kept")
    shutil.copytree(place / "kept", place / "my.index")
    for shard in (place / "my.index").glob("vectors-*.npy"):
        shard.unlink()


def nan_in_a_vector(place: Path) -> None:
    os.rename(place / "my.index", place / "kept")
    shutil.copytree(place / "kept", place / "my.index")
    shard = next((place / "my.index").glob("vectors-*.npy"))
    vectors = np.load(shard)
    vectors[3] = np.nan
    np.save(shard, vectors)


BREAKS = [break_manifest, take_away, of_another_encoder, never_finished, lose_a_shard, nan_in_a_vector]


@pytest.mark.parametrize("damage", BREAKS)
def test_what_cannot_be_opened_is_not_gone_over_to(
    place: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    with served(place, Settings(reload=0.02)) as client, caplog.at_level(logging.INFO, "clipmend.service"):
        before, about = search(client), client.get("/api/about").json()
        damage(place)
        until(lambda: "hint" in client.get("/health").json())
        answer = client.get("/health")
        assert (answer.status_code, answer.json()["status"]) == (200, "ready")  # it can be asked: nobody is to take it away
        assert str(place) not in answer.text
        with ThreadPoolExecutor(16) as pool:  # threads that never asked before too
            again = list(pool.map(lambda _: search(client), range(32)))
            shown = list(pool.map(lambda hit: client.get(hit["thumbnail"]).status_code, before["hits"]))
        for found in again:
            assert {k: v for k, v in found.items() if k != "milliseconds"} == {
                k: v for k, v in before.items() if k != "milliseconds"
            }
        assert set(shown) == {200}
        assert client.get("/api/about").json() == about
        assert metric(client, "clipmend_gallery_outdated") == 1
        assert metric(client, 'clipmend_gallery_reloads_total{result="failed"}') >= 1
        time.sleep(0.3)
        told = [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert 1 <= len(told) <= 2  # not with every look; a folder is first empty and then half made
        assert "served on" in told[-1].getMessage()
        assert told[-1].data["reason"]  # type: ignore[attr-defined]
        shutil.rmtree(place / "my.index", ignore_errors=True)
        draw(place / "pictures/one.png", (1, 2, 3))
        update(place)
        until(lambda: client.get("/health").json() == {"status": "ready"})
        assert search(client)["total"] == 13
        assert metric(client, "clipmend_gallery_outdated") == 0


def test_what_is_whole_again_is_said(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    with served(place) as client, caplog.at_level(logging.INFO, "clipmend.service"):
        kept = (place / "my.index/manifest.json").read_bytes()
        break_manifest(place)
        search(client)
        assert "hint" in client.get("/health").json()
        (place / "my.index/manifest.json").write_bytes(kept)
        search(client)
        assert client.get("/health").json() == {"status": "ready"}
        assert any("as it was again" in record.getMessage() for record in caplog.records)


def test_an_index_that_lacks_nothing_but_a_part_written_later(place: Path) -> None:
    """A shard that the new state names is lost: what was served goes on, with what the database now says of its images."""
    with served(place) as client:
        before = search(client)
        known = set((place / "my.index").glob("vectors-*.npy"))
        draw(place / "pictures/one.png", (1, 2, 3))
        update(place)
        for shard in set((place / "my.index").glob("vectors-*.npy")) - known:
            shard.unlink()
        after = search(client)
        assert paths(after) == paths(before)
        assert "hint" in client.get("/health").json()


# ---- an index that another one replaces


@pytest.mark.parametrize("how", ["made again", "renamed over", "by a link"])
def test_another_index_at_the_same_place(place: Path, how: str) -> None:
    if how == "by a link":
        os.rename(place / "my.index", place / "first.index")
        (place / "my.index").symlink_to("first.index")
    with served(place) as client:
        before = search(client)
        ids = {hit["path"]: hit["id"] for hit in before["hits"]}
        (place / "pictures/a/000.png").unlink()  # the others' numbers change by it
        if how == "made again":
            shutil.rmtree(place / "my.index")
            update(place)
        else:
            build_index(FakeEncoder(), place / "pictures", place / "second.index")
            if how == "renamed over":
                os.rename(place / "my.index", place / "old.index")
                os.rename(place / "second.index", place / "my.index")
            else:
                (place / "link").symlink_to("second.index")
                os.replace(place / "link", place / "my.index")
        name = "c/011.png"
        old = client.get(f"/images/{ids[name]}?of={before['edition']}")
        assert old.status_code == 404  # and not another image's
        assert "search again" in old.json()["error"]["message"]
        after = search(client)
        now = {hit["path"]: hit["id"] for hit in after["hits"]}
        assert now[name] != ids[name]
        assert after["edition"].partition(".")[0] != before["edition"].partition(".")[0]
        for address in (f"/images/{now[name]}?of={after['edition']}", f"/images/{now[name]}"):
            assert client.get(address).content == (place / "pictures" / name).read_bytes()
        shown = client.get(f"/thumbnails/{now[name]}?size=64&of={after['edition']}")
        assert shown.status_code == 200


def test_a_page_that_turns_says_so(place: Path) -> None:
    """Page 2 is of what is there then: its edition is another than page 1's."""
    with served(place) as client:
        one = search(client, k=5)
        for name in paths(one):
            (place / "pictures" / name).unlink()
        same = search(client, k=5, offset=5)
        assert same["edition"] == one["edition"]
        update(place)
        two = search(client, k=5, offset=5)
        assert two["edition"] != one["edition"]
        assert two["total"] == 7
        assert [hit["rank"] for hit in two["hits"]] == [6, 7]


def test_the_log_is_fit_for_programs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from clipmend.service.logs import json_log

    with json_log(), served(place) as client:
        break_manifest(place)
        search(client)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    (told,) = [line for line in lines if line["level"] == "error"]
    assert "my.index" in told["reason"]
    assert "manifest.json" in told["reason"]
