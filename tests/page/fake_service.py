"""A service that answers as ``clipmend serve`` does, but ranks by arithmetic: quick, and it fails, waits and refuses when told to.

The page's tests of what goes wrong run against this one; those of what it shows run against the service itself.
"""

from __future__ import annotations

import io
import json
import threading
from dataclasses import dataclass, field
from functools import lru_cache
from http.cookies import SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from PIL import Image

POLICY = "default-src 'self'; img-src 'self' blob:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
TYPES = {"html": "text/html; charset=utf-8", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


class Refusal(Exception):
    """An answer with an error's status."""

    def __init__(self, status: int, message: str, kind: str = "invalid_request", param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.param = status, message, kind, param


@dataclass
class FakeService:
    """Its knobs may be turned while it runs.

    Args:
        count: number of images; image ``i`` is a square of its own hue in folder ``warm`` or ``cold``.
        patch: as ``/api/about`` tells it, or none. With one, strength turns the order round by that many twelfths.
        token: refuse whoever does not bring it.
        failures: statuses and messages for the next searches, the first at once.
        hint: what the answers hint at.
        missing: ids without a thumbnail.
        outside: ids whose file is a link to elsewhere, which is found when it is asked for.
        files: whether it is known where the images are.
        labels: values of a text field ``label`` with their counts; none: there is no such field.
        held: searches for this wait until the gate is open.
        gate: see ``held``.
        raw: what searches are answered with in place of an answer.
    """

    count: int = 60
    patch: dict[str, Any] | None = field(default_factory=lambda: {"name": "fake", "strength": 1.0, "corrects_scores": True})
    token: str = ""
    failures: list[tuple[int, str]] = field(default_factory=list)
    hint: str | None = None
    missing: frozenset[int] = frozenset()
    outside: frozenset[int] = frozenset()
    files: bool = True
    labels: dict[str, int] = field(default_factory=dict)
    held: str = "\0"
    gate: threading.Event = field(default_factory=threading.Event)
    raw: bytes | None = None
    requests: list[dict[str, Any]] = field(default_factory=list)
    uploads: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._server: ThreadingHTTPServer | None = None

    def about(self) -> dict[str, Any]:
        """``GET /api/about``."""
        half = self.count // 2
        return {
            "name": "squares",
            "count": self.count,
            "model": "fake",
            "patch": self.patch,
            "files": self.files,
            "fields": {
                "folder": "folder",
                "name": "text",
                "date": "time",
                "size": "size",
                "width": "number",
                "height": "number",
                **({"label": "text"} if self.labels else {}),
            },
            "folders": [["warm", self.count - half], ["cold", half]] if self.count else [],
            "examples": ["squares without blue", '"warm" - 0.5 "cold"', "folder:cold"],
            "embed_dim": 8,
            "version": "0",
        }

    def thumbnail(self, id: int) -> bytes:
        """``GET /thumbnails/ID``: PNG."""
        if id in self.missing:
            raise Refusal(404, f"there is no file of image {id} on this machine", "not_found")
        if id in self.outside:
            raise Refusal(404, f"the file of image {id} is a link to outside the indexed folder; it is not shown", "outside")
        return _square(id, self.count)

    def order(self, request: dict[str, Any], strength: float) -> list[int]:
        """All ids, best first: by number, turned round by the strength, twelve places a unit."""
        ids = [i for i in range(self.count) if "folder:cold" not in request["query"] or i % 2]
        turn = round(12 * strength) % len(ids) if ids else 0
        return ids[turn:] + ids[:turn]

    def search(self, request: dict[str, Any]) -> dict[str, Any]:
        """``POST /search``."""
        self.requests.append(request)
        if self.held in request.get("query", ""):
            self.gate.wait(30)
        if self.failures:
            raise Refusal(*self.failures.pop(0))
        query = request.get("query", "")
        strength = request.get("strength")
        if strength is None:
            strength = self.patch["strength"] if self.patch else 0.0
        after, before = self.order(request, strength), self.order(request, 0.0)
        now, then = ({id: rank for rank, id in enumerate(ids, 1)} for ids in (after, before))
        offset, k = request.get("offset", 0), request.get("k", 24)
        words = [word for word in query.split() if ":" not in word]
        bare = bool(words)
        mended = None if self.patch is None else "plain" not in words  # as a gate would leave what denies nothing

        def hit(id: int, rank: int) -> dict[str, Any]:
            return {
                "id": id,
                "key": str(id),
                "path": f"{'cold' if id % 2 else 'warm'}/{id:03d}.png",
                "rank": rank,
                "score": round(0.4 - now[id] / 500, 4) if bare else None,
                "rank_before": then[id],
                "score_before": round(0.4 - then[id] / 500, 4) if bare else None,
                "correction": None,
                "width": 64,
                "height": 64,
                "fields": {"folder": "cold" if id % 2 else "warm", "name": f"{id:03d}.png", "size": 300.0 + id, "date": 1.7e9 + id},
                "copies": [],
                "thumbnail": None if id in self.missing else f"/thumbnails/{id}",
            }

        answer: dict[str, Any] = {
            "query": query,
            "terms": [{"weight": 1.0, "kind": "text", "value": query, "mended": mended}] if bare else [],
            "where": [
                {"field": field, "op": "under" if field == "folder" else "=", "value": value}
                for field, _, value in (word.partition(":") for word in query.split())
                if value and field in ("folder", "label")
            ],
            "total": len(after),
            "offset": offset,
            "exact": True,
            "depth": len(after),
            "hint": self.hint,
            "edition": None,
            "milliseconds": 1.5,
            "hits": [hit(id, offset + n) for n, id in enumerate(after[offset : offset + k], 1)],
        }
        if request.get("compare"):
            answer["before"] = [hit(id, now[id]) for id in before[:k]]
        return answer

    def search_image(self, image: bytes, request: dict[str, Any]) -> dict[str, Any]:
        """``POST /search/image``."""
        self.uploads.append(image)
        try:
            Image.open(io.BytesIO(image)).load()
        except OSError:
            raise Refusal(422, "“broken.png” is not an image that can be read", "invalid_image", "image") from None
        return self.search(request)

    def start(self, port: int = 0) -> str:
        """Serve in a thread; gives the address."""
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_address[1]}/"

    def stop(self) -> None:
        """Answer nothing any more; calling it twice does no harm."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


def _handler(service: FakeService) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self.answer(self.get)

        def do_POST(self) -> None:
            self.answer(self.post)

        def answer(self, method: Any) -> None:
            if service._server is None:  # stopped: connections that are still open end without an answer
                self.close_connection = True
                return
            try:
                method(urlsplit(self.path).path)
            except Refusal as refusal:
                param = {} if refusal.param is None else {"param": refusal.param}
                self.json({"error": {"message": refusal.message, "type": refusal.kind, **param}}, refusal.status)

        def get(self, path: str) -> None:
            if path == "/":
                self.page("index.html")
            elif path.startswith("/page/"):
                self.page(path.removeprefix("/page/"))
            else:
                self.authorise()
                if path == "/api/about":
                    self.json(service.about())
                elif path == "/api/values":
                    self.json({"field": "label", "values": list(service.labels.items()), "more": False})
                elif path.startswith(("/thumbnails/", "/images/")):
                    self.send(200, "image/png", service.thumbnail(int(path.rpartition("/")[2])))
                else:
                    raise Refusal(404, f"{path} is not here", "not_found")

        def post(self, path: str) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if path == "/login":
                if json.loads(body).get("token") != service.token:
                    raise Refusal(401, "that is not the token of this service", "unauthorized")
                cookie = f"clipmend={service.token}; HttpOnly; SameSite=Strict; Path=/"
                self.send(204, "text/plain", b"", {"Set-Cookie": cookie})
                return
            self.authorise()
            if path == "/search" and service.raw is not None:
                self.send(200, "text/html", service.raw)
            elif path == "/search":
                self.json(service.search(json.loads(body)))
            elif path == "/search/image":
                parts = _multipart(self.headers["Content-Type"], body)
                self.json(service.search_image(parts["image"], json.loads(parts["request"])))
            else:
                raise Refusal(404, f"{path} is not here", "not_found")

        def authorise(self) -> None:
            cookie = SimpleCookie(self.headers.get("Cookie", ""))
            brought = self.headers.get("Authorization", "").removeprefix("Bearer ")
            if "clipmend" in cookie:
                brought = brought or cookie["clipmend"].value
            if service.token and brought != service.token:
                raise Refusal(401, "this service asks for a token", "unauthorized")

        def page(self, name: str) -> None:
            there = {file.name: file for file in (files("clipmend") / "service" / "page").iterdir()}
            if name not in there:
                raise Refusal(404, f"no file {name} in the page", "not_found")
            self.send(200, TYPES[name.rpartition(".")[2]], there[name].read_bytes(), {"Content-Security-Policy": POLICY})

        def json(self, value: Any, status: int = 200) -> None:
            self.send(status, "application/json", json.dumps(value).encode())

        def send(self, status: int, kind: str, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            if status != 204:
                self.send_header("Content-Length", str(len(body)))
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            if status != 204:
                self.wfile.write(body)

    return Handler


def _multipart(kind: str, body: bytes) -> dict[str, bytes]:
    mark = b"--" + kind.partition("boundary=")[2].strip('"').encode()
    parts = {}
    for part in body.split(mark)[1:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        name = head.partition(b'name="')[2].partition(b'"')[0].decode()
        parts[name] = content.removesuffix(b"\r\n")
    return parts


@lru_cache(maxsize=256)
def _square(id: int, count: int) -> bytes:
    image = Image.new("HSV", (64, 64), (round(255 * id / max(count, 1)), 150, 210)).convert("RGB")
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
