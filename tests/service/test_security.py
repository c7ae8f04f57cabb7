"""Who may ask, what is shown, and that nothing outside the gallery ever is."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest

pytest.importorskip("fastapi")
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.search.fakes import FakeEncoder
from tests.search.memory_gallery import MemoryGallery
from tests.service.fake_service import PictureGallery, searcher_of

from clipmend.search.gallery import Item
from clipmend.search.searcher import Searcher
from clipmend.service import Settings, create_app
from clipmend.service.security import check_bind, is_loopback
from clipmend.service.server import bind, read_token
from clipmend.service.thumbnails import media_type

URL = "http://localhost"
TOKEN = "a-token-of-enough-letters"
SECRET = b"what nobody may read"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    app = create_app(searcher_of(tmp_path_factory.mktemp("pictures")), Settings(token=TOKEN))
    with TestClient(app, base_url="http://any.name.example") as client:
        yield client


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with TestClient(create_app(searcher_of(tmp_path_factory.mktemp("pictures"))), base_url=URL) as client:
        yield client


def ask(client: TestClient, path: str, method: str = "GET") -> tuple[int, bytes]:
    """What a server would hand to the application: the path as it was sent. Clients tidy it up before they send it."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b'{"query": "red"}', "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(client.app(scope, receive, send))  # type: ignore[arg-type]
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)


# ---- token


CLOSED = (
    ("GET", "/api/about"),
    ("GET", "/api/values"),
    ("POST", "/search"),
    ("POST", "/search/image"),
    ("POST", "/embeddings"),
    ("POST", "/v1/embeddings"),
    ("GET", "/models"),
    ("GET", "/v1/models"),
    ("GET", "/thumbnails/1"),
    ("GET", "/images/1"),
    ("GET", "/metrics"),
)


def test_the_list_of_closed_addresses_is_whole(guarded: TestClient) -> None:
    described = guarded.get("/openapi.json").json()["paths"]
    there = {(method.upper(), path.replace("{id}", "1")) for path, methods in described.items() for method in methods}
    assert there - set(CLOSED) == {("GET", "/health"), ("POST", "/login"), ("POST", "/logout")}
    secured = {
        (method.upper(), path.replace("{id}", "1"))
        for path, methods in described.items()
        for method, operation in methods.items()
        if operation.get("security")
    }
    assert secured == set(CLOSED)


@pytest.mark.parametrize(("method", "path"), CLOSED)
def test_without_the_token_nothing_is_told(guarded: TestClient, method: str, path: str) -> None:
    wrong = (
        {},
        {"Authorization": TOKEN},
        {"Authorization": "Bearer"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Bearer {TOKEN[:-1]}"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": "Bearer \xff"},
        {"Cookie": f"clipmend_session={TOKEN}"},
        {"Cookie": "clipmend_session="},
        {"Cookie": "=;;;\x01"},
    )
    for headers in wrong:
        raw = {name: value.encode("latin-1") for name, value in headers.items()}
        answer = guarded.request(method, path, headers=raw)
        assert answer.status_code == 401, headers
        assert answer.headers["www-authenticate"] == "Bearer"
    answer = guarded.request(method, path, headers={"Authorization": f"bearer {TOKEN}"})
    assert answer.status_code != 401


@pytest.mark.parametrize("path", ["/search/", "//search", "/search/../search", "/page/../search", "/page/%2e%2e/search", "/SEARCH"])
def test_another_spelling_is_no_way_in(guarded: TestClient, path: str) -> None:
    for method in ("GET", "POST"):
        status, body = ask(guarded, path, method)
        assert status in (401, 404, 405)
        assert b"hits" not in body


def test_the_page_is_open_and_logs_in(guarded: TestClient) -> None:
    assert guarded.get("/").status_code == 200
    assert guarded.get("/health").status_code == 200
    wrong = guarded.post("/login", json={"token": "wrong"})
    assert wrong.status_code == 401
    assert "set-cookie" not in wrong.headers
    right = guarded.post("/login", json={"token": TOKEN})
    assert right.status_code == 204
    cookie = right.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert "secure" not in cookie.lower()  # asked by http
    assert TOKEN not in cookie
    with_cookie = {"Cookie": cookie.split(";")[0]}
    assert guarded.get("/thumbnails/1", headers=with_cookie).status_code == 200
    assert guarded.get("/api/about", headers=with_cookie).status_code == 200
    guarded.cookies.clear()
    assert guarded.get("/thumbnails/1").status_code == 401
    out = guarded.post("/logout", headers=with_cookie)
    assert 'clipmend_session="";' in out.headers["set-cookie"]


def test_a_cookie_over_https_is_for_https_alone(tmp_path: Path) -> None:
    with TestClient(create_app(searcher_of(tmp_path), Settings(token=TOKEN)), base_url="https://a.example") as client:
        assert "secure" in client.post("/login", json={"token": TOKEN}).headers["set-cookie"].lower()


def test_another_token_makes_a_cookie_worthless(guarded: TestClient, tmp_path: Path) -> None:
    cookie = guarded.post("/login", json={"token": TOKEN}).headers["set-cookie"].split(";")[0]
    guarded.cookies.clear()
    with TestClient(create_app(searcher_of(tmp_path), Settings(token=TOKEN + "2")), base_url=URL) as other:
        assert other.get("/api/about", headers={"Cookie": cookie}).status_code == 401


@pytest.mark.parametrize("token", ["short", "with a space in it all", "zeilenumbruch\nzeilenumbruch", "schlüsselschlüssel", ""])
def test_tokens_that_are_none(token: str) -> None:
    with pytest.raises(ValueError, match="token"):
        Settings(token=token)


def test_token_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(b"\xef\xbb\xbf" + TOKEN.encode() + b"\r\n")
    file.chmod(0o600)
    assert read_token(file) == TOKEN
    for text in ("", "\n", "two words"):
        file.write_text(text)
        with pytest.raises(ValueError, match="one line"):
            read_token(file)
    with pytest.raises(FileNotFoundError):
        read_token(tmp_path / "none")


# ---- where it listens, who asks


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "::1", "[::1]"])
def test_loopback_needs_no_token(host: str) -> None:
    assert is_loopback(host)
    check_bind(host, None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org", "", "127.0.0.1.example.org", "2130706433"])
def test_anything_else_needs_one(host: str) -> None:
    with pytest.raises(ValueError, match="token"):
        check_bind(host, None)
    check_bind(host, TOKEN)


def test_a_port_in_use_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"port {port}.*--port"):
            bind("127.0.0.1", port, None)
    with bind("127.0.0.1", 0, None) as made:
        assert made.getsockname()[0] == "127.0.0.1"
    with pytest.raises(ValueError, match="token"):
        bind("0.0.0.0", 0, None)


@pytest.mark.parametrize("host", ["localhost", "localhost:8765", "127.0.0.1:1", "[::1]:8765", "LocalHost"])
def test_own_names(client: TestClient, host: str) -> None:
    assert client.get("/api/about", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "localhost.evil.example", "192.168.1.7", "", "[::2]", "@"])
def test_a_name_that_someone_points_here_is_refused(client: TestClient, host: str) -> None:
    for path in ("/api/about", "/", "/thumbnails/1"):
        answer = client.get(path, headers={"Host": host})
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "bad_host"


def test_names_may_be_allowed(tmp_path: Path) -> None:
    for hosts, allowed in ((("my.name",), "my.name:80"), (("*",), "any.thing")):
        with TestClient(create_app(searcher_of(tmp_path), Settings(hosts=hosts)), base_url=URL) as client:
            assert client.get("/health", headers={"Host": allowed}).status_code == 200


def test_pages_of_other_sites_get_nothing_done(client: TestClient) -> None:
    foreign = ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"})
    for headers in foreign:
        for path in ("/search", "/embeddings", "/login", "/logout"):
            answer = client.post(path, json={"query": "red"}, headers=headers)
            assert answer.status_code == 403, (headers, path)
        assert client.post("/search/image", files={"image": b"x"}, headers=headers).status_code == 403
    own = {"Origin": "http://localhost:8765", "Sec-Fetch-Site": "same-origin"}
    assert client.post("/search", json={"query": "red"}, headers=own).status_code == 200
    assert "access-control-allow-origin" not in client.get("/api/about", headers={"Origin": "https://evil.example"}).headers


@pytest.mark.parametrize("site", ["same-site", "cross-site"])
def test_a_browser_says_whose_page_asks(client: TestClient, site: str) -> None:
    """Another port of this machine is the same site, and its name without the port is ours."""
    for path in ("/search", "/embeddings", "/login", "/logout"):
        headers = {"Sec-Fetch-Site": site, "Origin": "http://localhost:3000"}
        assert client.post(path, json={"query": "red"}, headers=headers).status_code == 403
    embedded = (
        {"Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
        {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
    )
    followed = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    for path in ("/", "/images/1", "/thumbnails/1", "/api/about"):
        for headers in embedded:
            assert client.get(path, headers={"Sec-Fetch-Site": site, **headers}).json()["error"]["type"] == "foreign_site"
        assert client.get(path, headers=followed).status_code == 200  # a link
    assert client.post("/search", json={"query": "red"}, headers=followed).status_code == 403  # a form


def test_a_proxy_may_call_it_by_another_name(guarded: TestClient) -> None:
    """A browser that speaks to a proxy knows that the page is the proxy's; the name that the proxy uses here is its own."""
    headers = {"Authorization": f"Bearer {TOKEN}", "Host": "127.0.0.1:8765", "Origin": "https://search.example"}
    assert guarded.post("/search", json={"query": "red"}, headers=headers).status_code == 403
    headers["Sec-Fetch-Site"] = "same-origin"
    assert guarded.post("/search", json={"query": "red"}, headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("address", "elsewhere"),
    [
        ("192.168.1.7", True),
        ("10.0.0.1", True),
        ("fe80::1", True),
        ("::ffff:10.0.0.1", True),
        ("127.0.0.1", False),
        ("127.9.9.9", False),
        ("::1", False),
        ("::ffff:127.0.0.1", False),
        ("", False),
        ("testclient", False),
    ],
)
def test_another_machine_that_says_localhost(tmp_path: Path, address: str, elsewhere: bool) -> None:
    """The application behind a server that listens to every address."""
    for limits, refused in (
        (Settings(), elsewhere),
        (Settings(token=TOKEN), False),
        (Settings(hosts=("localhost", "a.b")), False),
    ):
        app = create_app(searcher_of(tmp_path / str(refused), count=3), limits)
        with TestClient(app, base_url=URL, client=(address, 1)) as client:
            answer = client.get("/api/about", headers={"Authorization": f"Bearer {TOKEN}"})
            assert answer.status_code == (403 if refused else 200)


@pytest.mark.parametrize("prefix", ["/clip", "/page/clip", "/search"])
def test_mounted_in_another_application(tmp_path: Path, prefix: str) -> None:
    """Its limits and its token hold wherever it is mounted, and no prefix opens it."""
    app = create_app(searcher_of(tmp_path), Settings(token=TOKEN, max_body=100))
    outer = FastAPI(lifespan=app.router.lifespan_context)
    outer.mount(prefix, app)
    outer.state = app.state
    told = {"Authorization": f"Bearer {TOKEN}"}
    with TestClient(outer, base_url=URL) as client:
        for path in ("/api/about", "/thumbnails/1", "/images/1", "/metrics"):
            assert client.get(prefix + path).status_code == 401
            assert client.get(prefix + path, headers=told).status_code == 200
        for path in ("/", "/page/page.js", "/health"):
            assert client.get(prefix + path).status_code == 200
        assert client.post(prefix + "/login", json={"token": TOKEN}).status_code == 204
        client.cookies.clear()
        assert client.post(prefix + "/search", json={"query": "red"}).status_code == 401
        assert client.post(prefix + "/search", json={"query": "red"}, headers=told).status_code == 200
        assert client.post(prefix + "/search", json={"query": "r" * 200}, headers=told).status_code == 413
        assert client.post(prefix + "/search", content=b'{"query": "red"}', headers=told).status_code == 415


@pytest.mark.parametrize("path", ["/", "/api/about", "/thumbnails/1", "/images/1", "/nothing", "/docs", "/thumbnails/99999"])
def test_every_answer_keeps_the_browser_in_bounds(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "public" not in headers["cache-control"]
    assert "uvicorn" not in headers.get("server", "")


# ---- files


def served(client: TestClient, id: int) -> tuple[Any, Any]:
    return client.get(f"/thumbnails/{id}"), client.get(f"/images/{id}")


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[tuple[TestClient, Path]]:
    """A gallery whose items point to what must not be served; each by its id."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    Image.new("RGB", (9, 9), "red").save(root / "good.png")
    Image.new("RGB", (9, 9), "blue").save(outside / "secret.png")
    (outside / "secret.txt").write_bytes(SECRET)
    (root / "text.png").write_bytes(SECRET)
    (root / "page.png").write_bytes(b"<html><script>alert(1)</script>" + SECRET)
    (root / "draw.svg").write_bytes(b"<svg xmlns='http://www.w3.org/2000/svg'><script/></svg>")
    (root / "link.png").symlink_to(outside / "secret.png")
    (root / "linked").symlink_to(outside)
    (root / "circle.png").symlink_to(root / "circle.png")
    (root / "inside.png").symlink_to(root / "good.png")
    os.mkfifo(root / "pipe.png")
    (root / "folder.png").mkdir()
    (root / "empty.png").touch()
    Image.new("L", (5000, 5000)).save(root / "huge.png")
    names = [
        "good.png",  # 0
        "link.png",
        "linked/secret.png",
        "../outside/secret.png",
        str(outside / "secret.png"),
        "circle.png",  # 5
        "pipe.png",
        "folder.png",
        "gone.png",
        "text.png",
        "page.png",  # 10
        "draw.svg",
        "empty.png",
        "huge.png",
        "inside.png",
        "../../../../../../etc/passwd",  # 15
        "nul\0.png",
        "x" * 5000,
        "",
        ".",
    ]
    gallery = MemoryGallery([Item(i, name) for i, name in enumerate(names)], [[1.0] * 8] * len(names), root=root)
    gallery.values = lambda name, limit=100: []  # type: ignore[method-assign]
    app = create_app(Searcher(gallery, FakeEncoder(), files=False), Settings(max_pixels=1_000_000))
    with TestClient(app, base_url=URL) as client:
        yield client, root


def test_nothing_from_outside_is_served(hostile: tuple[TestClient, Path]) -> None:
    client, _ = hostile
    for id in (0, 14):
        thumbnail, image = served(client, id)
        assert (thumbnail.status_code, image.status_code) == (200, 200), id
    for id in (1, 2, 3, 4, 5, 6, 7, 8, 15, 16, 17, 18, 19):
        for answer in served(client, id):
            assert answer.status_code == 404, (id, answer.text)
    for id in (9, 10, 11, 12, 13):
        thumbnail, image = served(client, id)
        assert thumbnail.status_code == 422, id
        assert image.status_code == (200 if id == 13 else 422), id  # a huge picture is a picture; it is not decoded here
        assert SECRET not in image.content
        assert SECRET not in thumbnail.content
    for id in range(20):
        for answer in served(client, id):
            assert "/outside" not in answer.text[:500]


def test_links_are_followed_where_that_is_wanted(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "elsewhere.png")
    (root / "link.png").symlink_to(tmp_path / "elsewhere.png")
    gallery = MemoryGallery([Item(0, "link.png")], [[1.0] * 8], root=root)
    for follow, status in ((False, 404), (True, 200)):
        app = create_app(Searcher(gallery, FakeEncoder(), files=False), Settings(follow_links=follow))
        with TestClient(app, base_url=URL) as client:
            assert client.get("/thumbnails/0").status_code == status


def test_a_gallery_without_files_shows_none(tmp_path: Path) -> None:
    gallery = MemoryGallery([Item(0, "http://localhost/a.png")], [[1.0] * 8])
    with TestClient(create_app(Searcher(gallery, FakeEncoder(), files=False)), base_url=URL) as client:
        assert [answer.status_code for answer in served(client, 0)] == [404, 404]
        assert client.post("/search", json={"query": "red"}).json()["hits"][0]["thumbnail"] is None


TRAVERSALS = (
    "/thumbnails/../../etc/passwd",
    "/thumbnails/..%2f..%2fetc%2fpasswd",
    "/thumbnails/%2e%2e/%2e%2e/etc/passwd",
    "/thumbnails/1%00.png",
    "/thumbnails/-1",
    "/thumbnails/1e3",
    "/thumbnails/9223372036854775808",
    "/thumbnails/" + "9" * 5000,
    "/thumbnails/%D9%A1x",
    "/images/../page/index.html",
    "/images//etc/passwd",
    "/page/../app.py",
    "/page/%2e%2e/app.py",
    "/page/..%2fapp.py",
    "/page/..%5capp.py",
    "/page//etc/passwd",
    "/page/%2fetc%2fpasswd",
    "/page/index.html%00.js",
    "/page/__init__.py",
    "/page/",
    "/page",
)


@pytest.mark.parametrize("path", TRAVERSALS)
def test_paths_that_would_lead_out(client: TestClient, path: str) -> None:
    status, body = ask(client, path)
    assert status in (404, 422)
    assert b"root:" not in body
    assert b"import" not in body


@settings(max_examples=200, deadline=None)
@given(name=st.text(max_size=40) | st.from_regex(r"(\.\.?[/\\]){1,5}[a-z./]{1,20}", fullmatch=True))
def test_any_name_of_a_page_file(client: TestClient, name: str) -> None:
    answer = client.get(f"/page/{quote(name, safe='')}")
    assert answer.status_code in (200, 404)
    if answer.status_code == 200:
        assert answer.headers["etag"]
        assert "/" not in name


# ---- thumbnails


def test_thumbnails(tmp_path: Path) -> None:
    Image.new("RGB", (600, 300), "red").save(tmp_path / "wide.jpg")
    transparent = Image.new("RGBA", (300, 900), (0, 0, 0, 0))
    transparent.save(tmp_path / "tall.png")
    turned = Image.new("RGB", (200, 100), "blue")
    exif = Image.Exif()
    exif[0x0112] = 6
    turned.save(tmp_path / "turned.jpg", exif=exif)
    names = ["wide.jpg", "tall.png", "turned.jpg"]
    gallery = MemoryGallery([Item(i, name) for i, name in enumerate(names)], [[1.0] * 8] * 3, root=tmp_path)
    with TestClient(create_app(Searcher(gallery, FakeEncoder(), files=False)), base_url=URL) as client:

        def shown(path: str) -> Image.Image:
            import io

            answer = client.get(path)
            assert answer.headers["content-type"] == "image/webp"
            return Image.open(io.BytesIO(answer.content)).convert("RGB")

        assert shown("/thumbnails/0").size == (256, 128)
        assert shown("/thumbnails/0?size=64").size == (64, 32)
        assert shown("/thumbnails/0?size=1024").size == (600, 300)
        assert min(shown("/thumbnails/1").getpixel((40, 100))) > 250  # on white
        assert shown("/thumbnails/2").size == (100, 200)  # upright
        for size in ("63", "1025", "x", "", "-1", "1e2"):
            assert client.get(f"/thumbnails/0?size={size}").status_code == 422
        first = client.get("/thumbnails/0")
        for known in (first.headers["etag"], f"W/{first.headers['etag']}", f'"x", {first.headers["etag"]}', "*"):
            again = client.get("/thumbnails/0", headers={"If-None-Match": known})
            assert again.status_code == 304
            assert not again.content
        assert client.get("/thumbnails/0?size=300", headers={"If-None-Match": first.headers["etag"]}).status_code == 200
        Image.new("RGB", (600, 600), "green").save(tmp_path / "wide.jpg")
        changed = client.get("/thumbnails/0", headers={"If-None-Match": first.headers["etag"]})
        assert changed.status_code == 200
        assert changed.headers["etag"] != first.headers["etag"]


def test_the_file_itself(client: TestClient, tmp_path: Path) -> None:
    answer = client.get("/images/4")
    assert answer.headers["content-type"] == "image/png"
    assert answer.content == (PictureGallery.of(tmp_path).root / "b/004.png").read_bytes()  # type: ignore[operator]
    assert client.get("/images/4", headers={"If-None-Match": answer.headers["etag"]}).status_code == 304


@pytest.mark.parametrize(
    ("ending", "kind"), [("JPEG", "image/jpeg"), ("PNG", "image/png"), ("GIF", "image/gif"), ("WEBP", "image/webp")]
)
def test_media_types_by_content(ending: str, kind: str, tmp_path: Path) -> None:
    Image.new("RGB", (5, 5)).save(tmp_path / "x", ending)
    assert media_type((tmp_path / "x").read_bytes()[:16]) == kind
    assert media_type(b"<svg ") is None
    assert media_type(b"") is None
