"""Bodies, queues, times and batches: what is bounded stays so, and what one client does is not another's trouble."""

from __future__ import annotations

import asyncio
import io
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi")
from fastapi.testclient import TestClient
from PIL import Image
from tests.service.fake_service import SlowEncoder, searcher_of

from clipmend.service import Settings, create_app
from clipmend.service.batching import TextBatcher
from clipmend.service.errors import ServiceError
from clipmend.service.limits import Crew
from clipmend.service.metrics import Metrics
from clipmend.service.thumbnails import _Cache

URL = "http://localhost"


# ---- batches


class Recorder:
    """Embeds a text as its length; the first call waits until it is let go."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], float | None, bool | None]] = []
        self.go, self.busy = threading.Event(), threading.Event()

    def __call__(self, texts: list[str], strength: float | None, gate: bool | None) -> np.ndarray:
        self.calls.append((texts, strength, gate))
        if len(self.calls) == 1:
            self.busy.set()
            assert self.go.wait(10)
        if "bad" in texts:
            raise ValueError(f"bad among {len(texts)}")
        return np.array([[len(text), strength or 0.0] for text in texts], np.float32)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def ask_all(batcher: TextBatcher, recorder: Recorder, asked: list[tuple[Any, ...]]) -> list[Any]:
    """Ask while the encoder is busy with a first text, in this order, each from a thread of its own; errors come as values."""

    def one(arguments: tuple[Any, ...]) -> Any:
        try:
            return batcher(*arguments)
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(asked) + 1) as pool:
        first = pool.submit(one, (["first"],))
        assert recorder.busy.wait(10)
        answers = []
        for number, arguments in enumerate(asked, 1):
            answers.append(pool.submit(one, arguments))
            deadline = time.monotonic() + 10
            while len(batcher._queue) < number and time.monotonic() < deadline:
                time.sleep(0.001)
        recorder.go.set()
        assert first.result()[0, 0] == 5
        return [answer.result() for answer in answers]


def test_what_waits_goes_together_each_with_its_own_answer(recorder: Recorder) -> None:
    seen: list[int] = []
    batcher = TextBatcher(recorder, 8, seen.append)
    answers = ask_all(batcher, recorder, [(["a" * n],) for n in range(1, 7)])
    assert [answer[0, 0] for answer in answers] == [1, 2, 3, 4, 5, 6]
    assert [len(texts) for texts, *_ in recorder.calls] == [1, 6]
    assert seen == [1, 6]
    batcher.close()


def test_other_strengths_are_other_batches_and_places_are_kept(recorder: Recorder) -> None:
    batcher = TextBatcher(recorder, 8)
    asked = [(["a"], None), (["bb"], 2.0), (["ccc"], None), (["dddd"], 2.0), (["e"], 2.0, True)]
    answers = ask_all(batcher, recorder, asked)
    assert [answer[0].tolist() for answer in answers] == [[1, 0], [2, 2], [3, 0], [4, 2], [1, 2]]
    assert recorder.calls[1:] == [(["a", "ccc"], None, None), (["bb", "dddd"], 2.0, None), (["e"], 2.0, True)]
    batcher.close()


def test_a_batch_has_its_size(recorder: Recorder) -> None:
    batcher = TextBatcher(recorder, 4)
    answers = ask_all(batcher, recorder, [(["a"] * 3,), (["b"] * 3,), (["c"],), (["d"] * 10,)])
    assert [len(answer) for answer in answers] == [3, 3, 1, 10]
    assert [len(texts) for texts, *_ in recorder.calls] == [1, 4, 3, 4, 4, 2]
    batcher.close()


def test_a_bad_text_is_its_own_trouble(recorder: Recorder) -> None:
    batcher = TextBatcher(recorder, 8)
    answers = ask_all(batcher, recorder, [(["a"],), (["bad"],), (["ccc"],)])
    assert answers[0][0, 0] == 1
    assert str(answers[1]) == "bad among 1"
    assert answers[2][0, 0] == 3
    with pytest.raises(ValueError, match="bad among 2"):
        batcher(["x", "bad"])
    assert batcher(["still"])[0, 0] == 5  # the thread lives on
    batcher.close()


def test_one_bad_text_costs_its_neighbours_little(recorder: Recorder) -> None:
    batcher = TextBatcher(recorder, 32)
    answers = ask_all(batcher, recorder, [(["bad" if n == 20 else "a" * n],) for n in range(1, 33)])
    assert [isinstance(answer, ValueError) for answer in answers] == [n == 20 for n in range(1, 33)]
    assert all(answer[0, 0] == n for n, answer in enumerate(answers, 1) if n != 20)
    assert len(recorder.calls) <= 1 + 1 + 2 * 5  # the first, all of them, and down by halves
    batcher.close()


def test_who_has_many_texts_waits_for_who_has_few(recorder: Recorder) -> None:
    batcher = TextBatcher(recorder, 4)
    answers = ask_all(batcher, recorder, [([str(n) for n in range(12)],), (["small"], 2.0)])
    assert [len(answer) for answer in answers] == [12, 1]
    assert [texts for texts, *_ in recorder.calls[1:3]] == [["0", "1", "2", "3"], ["small"]]
    batcher.close()


def test_what_nobody_waits_for_is_not_worked_out(recorder: Recorder) -> None:
    batcher = TextBatcher(recorder, 1, patience=0.1)
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(batcher, [text]) for text in ("one", "two", "three")]
        assert recorder.busy.wait(10)
        time.sleep(0.3)
        recorder.go.set()
        errors = [answer.exception(10) for answer in asked]
    assert sorted(type(error).__name__ for error in errors) == ["NoneType", "TimeoutError", "TimeoutError"]
    assert len(recorder.calls) == 1
    assert batcher(["again"])[0, 0] == 5
    batcher.close()


@pytest.mark.parametrize("failure", [SystemExit("ends"), KeyboardInterrupt(), MemoryError(), "too few"], ids=range(4))
def test_an_encoder_that_fails_in_an_odd_way(failure: Any) -> None:
    """Whatever it does, who asks next must not wait for ever."""

    def embed(texts: list[str], *_: Any) -> np.ndarray:
        if "bad" in texts and isinstance(failure, BaseException):
            raise failure
        return np.ones((len(texts) - ("bad" in texts), 2), np.float32)

    batcher = TextBatcher(embed)
    with pytest.raises((RuntimeError, MemoryError)):
        batcher(["bad", "a"])
    assert batcher(["good"]).shape == (1, 2)
    batcher.close()


def test_closing_finishes_what_was_asked(recorder: Recorder) -> None:
    batcher = TextBatcher(recorder, 1)
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(batcher, ["a" * n]) for n in (1, 2, 3)]
        assert recorder.busy.wait(10)
        while len(batcher._queue) < 2:
            time.sleep(0.001)
        closing = pool.submit(batcher.close)
        recorder.go.set()
        closing.result(10)
        assert sorted(float(answer.result(10)[0, 0]) for answer in asked) == [1, 2, 3]
    with pytest.raises(RuntimeError, match="ending"):
        batcher(["more"])


def test_concurrent_searches_share_forward_passes(tmp_path: Path) -> None:
    encoder = SlowEncoder(0.05)
    searcher = searcher_of(tmp_path, encoder, patched=False)
    with TestClient(create_app(searcher), base_url=URL) as client:
        queries = [f"red {n}" for n in range(24)]
        with ThreadPoolExecutor(24) as pool:
            answers = list(pool.map(lambda query: client.post("/search", json={"query": query, "k": 3}).json(), queries))
        assert len(encoder.calls) < 12
        assert sum(map(len, encoder.calls[1:])) == 24  # the first warmed up
        for query, answer in zip(queries, answers, strict=True):
            alone = searcher.search(query, k=3)
            assert answer["query"] == query
            assert [hit["id"] for hit in answer["hits"]] == [hit.id for hit in alone.hits]


def test_an_unspeakable_query_among_others(tmp_path: Path) -> None:
    encoder = SlowEncoder(0.02)
    with TestClient(create_app(searcher_of(tmp_path, encoder, patched=False)), base_url=URL) as client:
        queries = ["unspeakable" if n % 4 == 0 else f"red {n}" for n in range(16)]
        with ThreadPoolExecutor(16) as pool:
            statuses = list(pool.map(lambda query: client.post("/search", json={"query": query}).status_code, queries))
    assert statuses == [422 if query == "unspeakable" else 200 for query in queries]


# ---- threads, queue, time


def test_a_crew_refuses_what_is_too_much() -> None:
    crew, go = Crew("x", 2, 1, 10, Metrics()), threading.Event()
    crew.open()

    async def run() -> list[Any]:
        running = [asyncio.ensure_future(crew.run(lambda: go.wait(10))) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(ServiceError) as refused:
            await crew.run(int)
        assert (refused.value.status, refused.value.headers) == (429, {"Retry-After": "1"})
        go.set()
        return await asyncio.gather(*running)

    assert asyncio.run(run()) == [True] * 3
    assert crew.pending == 0
    crew.close()


def test_a_crew_keeps_time_and_counts_what_outlives_it() -> None:
    crew, go = Crew("x", 1, 5, 0.05, Metrics()), threading.Event()
    crew.open()
    begun: list[str] = []

    def work(name: str) -> None:
        begun.append(name)
        go.wait(10)

    async def run() -> None:
        for name in ("long", "behind it"):
            with pytest.raises(ServiceError) as refused:
                await crew.run(work, name)
            assert refused.value.status == 503
        assert crew.pending == 1  # the thread is still at it; what waited was dropped

    asyncio.run(run())
    go.set()
    crew.close()
    assert begun == ["long"]
    assert crew.pending == 0

    async def after() -> None:
        with pytest.raises(ServiceError, match="ending"):
            await crew.run(int)

    asyncio.run(after())


def test_a_crew_passes_errors_on() -> None:
    crew = Crew("x", 1, 1, 5, Metrics())
    crew.open()

    async def run() -> None:
        with pytest.raises(ZeroDivisionError):
            await crew.run(lambda: 1 // 0)
        with pytest.raises(TimeoutError):  # the work's own, not the crew's
            await crew.run(_raise, TimeoutError("mine"))

    asyncio.run(run())
    crew.close()


def _raise(error: Exception) -> None:
    raise error


def test_a_full_service_says_so_and_recovers(tmp_path: Path) -> None:
    encoder = SlowEncoder(0.3)
    settings = Settings(concurrency=2, waiting=2, max_batch=1)
    with TestClient(create_app(searcher_of(tmp_path, encoder, patched=False), settings), base_url=URL) as client:
        with ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(lambda n: client.post("/search", json={"query": f"red {n}"}), range(12)))
        statuses = [answer.status_code for answer in answers]
        assert statuses.count(200) >= 4
        assert set(statuses) == {200, 429}
        assert all(answer.headers["retry-after"] == "1" for answer in answers if answer.status_code == 429)
        assert client.post("/search", json={"query": "red"}).status_code == 200
        assert client.get("/health").status_code == 200


def test_few_uploads_at_a_time(tmp_path: Path) -> None:
    """A decoded image is large: many clients that send one each must not have them all in memory."""
    encoder, lock = SlowEncoder(), threading.Lock()
    now, most = 0, 0

    def embed(images: Any, **_: Any) -> Any:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.05)
        with lock:
            now -= 1
        return type(encoder).encode_images(encoder, images)

    searcher = searcher_of(tmp_path, encoder, patched=False)
    encoder.encode_images = embed  # type: ignore[method-assign]
    with TestClient(create_app(searcher, Settings(uploads=2)), base_url=URL) as client, ThreadPoolExecutor(10) as pool:
        sent = pool.map(lambda _: client.post("/search/image", files={"image": png(5, 5)}).status_code, range(10))
        assert list(sent) == [200] * 10
    assert most == 2


def test_a_slow_answer_is_503(tmp_path: Path) -> None:
    encoder = SlowEncoder()
    app = create_app(searcher_of(tmp_path, encoder, patched=False), Settings(timeout=0.2))
    with TestClient(app, base_url=URL) as client:
        encoder.seconds = 0.6
        answer = client.post("/search", json={"query": "red"})
        assert answer.status_code == 503
        assert answer.json()["error"]["type"] == "timeout"
        encoder.seconds = 0
        time.sleep(0.7)
        assert client.post("/search", json={"query": "red"}).status_code == 200


# ---- bodies


@pytest.fixture
def small(tmp_path: Path) -> Iterator[TestClient]:
    settings = Settings(max_body=2_000, max_upload=20_000, max_pixels=10_000, body_timeout=0.3)
    with TestClient(create_app(searcher_of(tmp_path), settings), base_url=URL) as client:
        yield client


def png(width: int, height: int, noise: bool = False) -> bytes:
    file = io.BytesIO()
    image = Image.new("RGB", (width, height))
    if noise:
        image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8))
    image.save(file, "PNG")
    return file.getvalue()


def test_bodies_have_a_size(small: TestClient) -> None:
    json = {"Content-Type": "application/json"}
    for path in ("/search", "/embeddings", "/v1/embeddings", "/login"):
        for body in (b" " * 2_001, (b" " * 500 for _ in range(5)), (b" " for _ in range(2_001))):
            answer = small.post(path, content=body, headers=json)
            assert answer.status_code == 413
            assert answer.json()["error"]["type"] == "too_large"
    assert small.post("/search", content=b'{"query": "red"}' + b" " * 1_984, headers=json).status_code == 200
    lied = small.build_request("POST", "/search", content=(b" " * 500 for _ in range(50)), headers={**json, "Content-Length": "5"})
    assert small.send(lied).status_code == 413  # a server would not let this pass; counted all the same


def test_who_has_no_token_yet_sends_little(tmp_path: Path) -> None:
    """What is held at once is shared: many who log in must not take it from those who did."""
    with TestClient(create_app(searcher_of(tmp_path), Settings(token="x" * 16)), base_url=URL) as client:
        assert client.post("/login", json={"token": "y" * 4_096}).status_code == 401
        longest = "\U0001f512" * 4_096  # 12 bytes a letter, as escapes
        assert client.post("/login", json={"token": longest}).status_code == 401
        assert client.post("/login", json={"token": "y" * 70_000}).status_code == 413


def test_uploads_have_a_size_and_pixels(small: TestClient) -> None:
    def send(image: bytes) -> Any:
        return small.post("/search/image", files={"image": image})

    assert send(png(100, 100)).status_code == 200
    error = send(png(101, 100)).json()["error"]
    assert error["param"] == "image"
    assert "pixels" in error["message"]
    assert send(png(30_000, 30_000 // 30_000 * 10)).status_code == 422  # few bytes, many pixels
    assert send(png(100, 99, noise=True)).status_code == 413  # many bytes, few pixels
    big = small.post("/search/image", files={"image": png(5, 5)}, data={"request": '{"query": "' + "x" * 17_000 + '"}'})
    assert big.status_code == 422


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--b",
        b"--b\r\n\r\n",
        b"--b\r\nContent-Disposition: form-data; name=image; filename=a\r\n\r\nx",
        b'--b\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\nx\r\n--b--',
        b'--b\r\nContent-Disposition: form-data; name="image"\r\n\r\nno file\r\n--b--\r\n',
        b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--\r\n",
        b"--b\r\n" + b"X-Header: y\r\n" * 500 + b"\r\nx\r\n--b--\r\n",
        b"\x00\xff" * 500,
        b"".join(b'--b\r\nContent-Disposition: form-data; name="f%d"\r\n\r\nx\r\n' % n for n in range(150)) + b"--b--\r\n",
    ],
    ids=range(10),
)
def test_malformed_forms(small: TestClient, body: bytes) -> None:
    answer = small.post("/search/image", content=body, headers={"Content-Type": "multipart/form-data; boundary=b"})
    assert answer.status_code in (400, 422), answer.text
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize("boundary", ["", ";", "; boundary=", "; boundary=" + "b" * 500, "; boundary=\x7f", "; charset=utf-7"])
def test_malformed_boundaries(small: TestClient, boundary: str) -> None:
    answer = small.post("/search/image", content=b"--b--", headers={"Content-Type": f"multipart/form-data{boundary}"})
    assert answer.status_code in (400, 422), answer.text


@pytest.mark.parametrize(
    "media", [None, "", "text/plain", "application/x-www-form-urlencoded", "application/jsonx", "multipart/form-data"]
)
def test_media_types(small: TestClient, media: str | None) -> None:
    headers = {} if media is None else {"Content-Type": media}
    assert small.post("/search", content=b'{"query": "red"}', headers=headers).status_code == 415
    assert small.post("/search/image", json={}).status_code == 415


def test_a_body_that_does_not_come_is_given_up(small: TestClient) -> None:
    sent: list[Any] = []
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/search",
        "raw_path": b"/search",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
    }

    async def never() -> Any:
        await asyncio.sleep(30)

    async def drips() -> Any:
        await asyncio.sleep(0.05)
        return {"type": "http.request", "body": b" ", "more_body": True}

    async def leaves() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    for receive, status in ((never, 408), (drips, 408), (leaves, 400)):
        sent.clear()
        began = time.monotonic()
        asyncio.run(small.app(dict(scope), receive, send))  # type: ignore[arg-type]
        assert sent[0]["status"] == status
        assert time.monotonic() - began < 5


def test_what_is_held_at_once_is_bounded(tmp_path: Path) -> None:
    """Ten clients that each send all but the end of a large body: some are told to come again, and nothing stays held."""
    app = create_app(searcher_of(tmp_path), Settings(max_body=1_000, max_upload=1_000, body_timeout=0.5))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/search",
        "raw_path": b"/search",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
    }

    async def one() -> int:
        parts = iter([b" " * 990])
        statuses: list[int] = []

        async def receive() -> Any:
            part = next(parts, None)
            if part is None:
                await asyncio.sleep(30)
            return {"type": "http.request", "body": part, "more_body": True}

        async def send(message: Any) -> None:
            if "status" in message:
                statuses.append(message["status"])

        await app(dict(scope), receive, send)
        return statuses[0]

    async def all_of_them() -> list[int]:
        return await asyncio.gather(*(one() for _ in range(10)))

    for _ in range(2):  # and again: what was held is free
        assert sorted(asyncio.run(all_of_them())) == [408] * 8 + [429] * 2


# ---- cache


def test_the_cache_forgets_what_was_used_least_recently() -> None:
    cache = _Cache(100)
    for name in "abc":
        cache.put(name, name.encode() * 33)
    assert cache.get("a")
    cache.put("d", b"d" * 33)
    assert cache.get("b") is None
    assert cache.get("a")
    cache.put("large", b"x" * 101)
    assert cache.get("large") is None
    assert sum(len(cache.get(name) or b"") for name in "abcd") <= 100


# ---- settings


@pytest.mark.parametrize(
    "change", [{"concurrency": 0}, {"waiting": -1}, {"timeout": 0}, {"timeout": float("nan")}, {"max_body": 0}]
)
def test_limits_that_are_none(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        Settings(**change)
