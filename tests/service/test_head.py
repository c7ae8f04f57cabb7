"""HEAD: what GET answers, without its body."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
from fastapi import FastAPI
from fastapi.testclient import TestClient
from tests.service.fake_service import searcher_of

from clipmend.service import Settings, create_app

TOKEN = "a-token-of-enough-letters"
URL = "http://localhost"


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    return create_app(searcher_of(tmp_path_factory.mktemp("pictures")), Settings(token=TOKEN))


@pytest.fixture(scope="module")
def client(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, base_url=URL, headers={"Authorization": f"Bearer {TOKEN}"}) as client:
        yield client


def asked(client: TestClient, method: str, address: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """As a server sees it: test clients and servers leave out the body of HEAD by themselves."""
    path, _, query = address.partition("?")
    said: list[dict[str, Any]] = []
    wanted = {"host": "localhost", "authorization": f"Bearer {TOKEN}", **headers}
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in wanted.items() if value],
        "scheme": "http",
        "server": ("localhost", 80),
        "client": ("testclient", 1),
        "root_path": "",
        "http_version": "1.1",
        "asgi": {"version": "3.0"},
    }
    given = dict(scope)

    async def run() -> None:
        received = False

        async def receive() -> dict[str, Any]:
            nonlocal received
            if received:
                await asyncio.Event().wait()
            received = True
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            said.append(dict(message))

        await client.app(scope, receive, send)

    assert client.portal is not None
    client.portal.call(run)
    assert scope["method"] == given["method"]  # the server's own record: it counts the bytes of the body by it
    start, *bodies = said
    assert not bodies[-1].get("more_body", False)
    named = {name.decode().lower(): value.decode() for name, value in start["headers"]}
    return start["status"], named, b"".join(part.get("body", b"") for part in bodies)


ADDRESSES = [
    "/health",
    "/",
    "/page/page.css",
    "/page/none.css",
    "/docs",
    "/openapi.json",
    "/thumbnails/3",
    "/thumbnails/3?size=64",
    "/thumbnails/3?size=1",
    "/thumbnails/999",
    "/images/3",
    "/images/999",
    "/images/x",
    "/api/about",
    "/api/values?field=name",
    "/api/values?field=none",
    "/models",
    "/v1/models",
    "/nowhere",
    "/search",
    "/login",
]


@pytest.mark.parametrize("address", ADDRESSES)
def test_head_is_get_without_its_body(client: TestClient, address: str) -> None:
    status, headers, body = asked(client, "GET", address)
    head_status, head_headers, nothing = asked(client, "HEAD", address)
    assert head_status == status
    assert body
    assert nothing == b""
    assert {k: v for k, v in head_headers.items() if k != "x-request-id"} == {
        k: v for k, v in headers.items() if k != "x-request-id"
    }
    if not address.startswith("/images/3"):  # those are streamed
        assert int(head_headers["content-length"]) == len(body)


def test_every_address_that_is_got_is_among_them(app: FastAPI) -> None:
    """Were a new one added, HEAD of it is compared too."""
    got = {route.path for route in app.routes if "GET" in (getattr(route, "methods", None) or ())}
    tried = {address.partition("?")[0].replace("3", "{id}").replace("page.css", "{name}") for address in ADDRESSES}
    assert got - tried == {"/metrics"}  # whose numbers differ from one request to the next


def test_what_the_browser_has_is_304(client: TestClient) -> None:
    for address in ("/thumbnails/3", "/images/3", "/", "/page/page.css"):
        etag = asked(client, "HEAD", address)[1]["etag"]
        for method in ("GET", "HEAD"):
            status, headers, body = asked(client, method, address, **{"if-none-match": etag})
            assert (status, headers["etag"], body) == (304, etag, b"")


def test_who_may_not_ask_is_told_nothing(client: TestClient) -> None:
    status, headers, body = asked(client, "HEAD", "/images/3", authorization="")
    assert (status, headers["www-authenticate"], body) == (401, "Bearer", b"")
    assert asked(client, "HEAD", "/thumbnails/3", **{"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"})[0] == 403
    assert asked(client, "HEAD", "/health", authorization="")[0] == 200


def test_methods_that_an_address_takes(client: TestClient) -> None:
    assert asked(client, "HEAD", "/search")[:2][1]["allow"] == "POST"
    status, headers, body = asked(client, "POST", "/health")
    assert (status, headers["allow"]) == (405, "GET, HEAD")
    assert json.loads(body)["error"]["message"].endswith("send the request by GET")


def test_before_it_is_ready_and_while_it_ends(tmp_path: Path) -> None:
    with TestClient(create_app(searcher_of(tmp_path)), base_url=URL) as client:
        for status, code in (("starting", 503), ("ending", 503), ("ready", 200)):
            client.app.state.status = status  # type: ignore[attr-defined]
            assert asked(client, "HEAD", "/health", authorization="")[0] == code


def test_the_log_and_the_metrics_call_it_head(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "clipmend.service"):
        asked(client, "HEAD", "/thumbnails/5")
    (line,) = [record.data for record in caplog.records if record.getMessage() == "request"]  # type: ignore[attr-defined]
    assert (line["method"], line["path"], line["status"], line["bytes"]) == ("HEAD", "/thumbnails/5", 200, 0)
    text = asked(client, "GET", "/metrics")[2].decode()
    assert 'clipmend_requests_total{method="HEAD",route="/thumbnails/{id}",status="200"}' in text
    status, headers, body = asked(client, "HEAD", "/metrics")
    assert (status, body) == (200, b"")
    assert headers["content-type"].startswith("text/plain")


def test_a_file_is_not_read_for_nothing(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    from clipmend.service.thumbnails import Thumbnails

    opened: list[Any] = []
    image = Thumbnails.image

    def watched(self: Thumbnails, *arguments: Any) -> Any:
        shown, file = image(self, *arguments)
        opened.append(file)
        return shown, file

    monkeypatch.setattr(Thumbnails, "image", watched)
    from clipmend.service import app as module

    read: list[int] = []
    chunks = module._chunks

    def counted(*arguments: Any) -> Iterator[bytes]:
        for chunk in chunks(*arguments):
            read.append(len(chunk))
            yield chunk

    monkeypatch.setattr(module, "_chunks", counted)
    assert asked(client, "HEAD", "/images/3")[0] == 200
    assert (read, [file.closed for file in opened]) == ([], [True])
    assert len(asked(client, "GET", "/images/3")[2]) == sum(read) > 0
    assert [file.closed for file in opened] == [True, True]


def test_the_description_does_not_name_it(app: FastAPI) -> None:
    assert not [path for path, methods in app.openapi()["paths"].items() if "head" in methods]


def test_one_connection_takes_heads_and_gets_in_turn(tmp_path: Path) -> None:
    """Through a server: a body, or a wrong length, would be taken for the next answer."""
    uvicorn = pytest.importorskip("uvicorn")
    app = create_app(searcher_of(tmp_path), Settings())
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            deadline = time.monotonic() + 20
            while not server.started:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            asks = ["HEAD /health", "GET /health", "HEAD /thumbnails/1", "HEAD /images/1", "HEAD /search", "HEAD /", "GET /health"]
            with socket.create_connection(listening.getsockname(), timeout=20) as wire:
                for number, ask in enumerate(asks):
                    close = "Connection: close\r\n" * (number == len(asks) - 1)
                    wire.sendall(f"{ask} HTTP/1.1\r\nHost: localhost\r\n{close}\r\n".encode())
                answers = b"".join(iter(lambda: wire.recv(65_536), b""))
        finally:
            server.should_exit = True
            thread.join(20)
    heads = answers.split(b"HTTP/1.1 ")[1:]
    assert [int(head[:3]) for head in heads] == [200, 200, 200, 200, 405, 200, 200]
    bodies = [head.partition(b"\r\n\r\n")[2] for head in heads]
    ready = b'{"status": "ready"}'
    assert bodies == [b"", ready, b"", b"", b"", b"", ready]
    assert b"content-length: 19\r\n" in heads[0]
