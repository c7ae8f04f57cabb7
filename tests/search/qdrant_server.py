"""A stand-in for a Qdrant server: the REST paths that the client asks, answered by the client's own local mode.

So the requests are real, with their JSON and their headers, and the answers are Qdrant's own; what a server does otherwise than the
local mode (approximate search, payload indexes, clusters) is not there.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from qdrant_client import QdrantClient, models
from qdrant_client.local.persistence import CollectionPersistence


def without_waiting_for_the_disk() -> None:
    """The local mode commits point by point; what a power cut leaves of its SQLite is not what is tested here."""
    make_table = CollectionPersistence._ensure_table
    if make_table.__name__ == "_ensure_table":

        def quick(self: CollectionPersistence) -> None:
            self.storage.execute("PRAGMA synchronous=OFF")
            make_table(self)

        CollectionPersistence._ensure_table = quick  # type: ignore[method-assign]


without_waiting_for_the_disk()


class StandIn:
    """What the server keeps, and what it was asked."""

    def __init__(self, key: str | None = None, keeps_metadata: bool = True) -> None:
        self.client, self.key, self.keeps_metadata = QdrantClient(":memory:"), key, keeps_metadata
        self.lock = threading.Lock()
        self.indexes: dict[str, dict[str, str]] = {}
        self.created: dict[str, Any] = {}
        self.asked: list[tuple[str, Any]] = []

    def answer(self, method: str, path: str, body: Any) -> Any:
        """The result of a request; ``KeyError`` for a path that is not there."""
        self.asked.append((f"{method} {path}", body))
        if path == "/":
            return {"title": "stand-in", "version": "1.20.0"}
        name, rest = re.fullmatch(r"/collections/([^/]+)(.*)", path).groups()  # type: ignore[union-attr]
        return getattr(self, "_" + (method + rest).lower().replace("/", "_"))(name, body)

    def _get_exists(self, name: str, _: Any) -> Any:
        return {"exists": self.client.collection_exists(name)}

    def _get(self, name: str, _: Any) -> Any:
        info = json.loads(self.client.get_collection(name).model_dump_json())
        info["payload_schema"] = {key: {"data_type": kind, "points": 0} for key, kind in self.indexes[name].items()}
        return info

    def _put(self, name: str, body: dict[str, Any]) -> Any:
        self.created[name], self.indexes[name] = body, {}
        vectors = body["vectors"]
        single = "size" in vectors
        config = models.VectorParams(**vectors) if single else {key: models.VectorParams(**v) for key, v in vectors.items()}
        return self.client.create_collection(name, config, metadata=body.get("metadata") if self.keeps_metadata else None)

    def _put_index(self, name: str, body: dict[str, Any]) -> Any:
        self.indexes[name][body["field_name"]] = body["field_schema"]
        return {"operation_id": 0, "status": "completed"}

    def _put_points(self, name: str, body: dict[str, Any]) -> Any:
        return self.client.upsert(name, [models.PointStruct(**point) for point in body["points"]])

    def _post_points(self, name: str, body: dict[str, Any]) -> Any:
        return self.client.retrieve(name, body["ids"], with_payload=body["with_payload"], with_vectors=body["with_vector"])

    def _post_points_delete(self, name: str, body: dict[str, Any]) -> Any:
        return self.client.delete(name, models.PointIdsList(points=body["points"]))

    def _post_points_count(self, name: str, body: dict[str, Any]) -> Any:
        return self.client.count(name, count_filter=_filter(body), exact=body["exact"])

    def _post_points_scroll(self, name: str, body: dict[str, Any]) -> Any:
        points, after = self.client.scroll(
            name, scroll_filter=_filter(body), limit=body["limit"], offset=body.get("offset"),
            with_payload=body["with_payload"], with_vectors=body["with_vector"],
        )  # fmt: skip
        return {"points": points, "next_page_offset": after}

    def _post_points_query(self, name: str, body: dict[str, Any]) -> Any:
        query = body["query"]
        return self.client.query_points(
            name, query=query["nearest"] if isinstance(query, dict) else query, using=body.get("using"),
            query_filter=_filter(body), limit=body["limit"], with_payload=body["with_payload"],
        )  # fmt: skip

    def _post_facet(self, name: str, body: dict[str, Any]) -> Any:
        return self.client.facet(name, body["key"], limit=body["limit"], exact=True)


def _filter(body: dict[str, Any]) -> models.Filter | None:
    return models.Filter(**body["filter"]) if body.get("filter") else None


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return json.loads(value.model_dump_json()) if hasattr(value, "model_dump_json") else value


@contextmanager
def serving(stand_in: StandIn) -> Iterator[str]:
    """Serve on a free port of this machine; gives the address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize, disable_nagle_algorithm = 1 << 16, True  # one packet an answer

        def answer(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            path = self.path.partition("?")[0]
            if stand_in.key is not None and self.headers.get("api-key") != stand_in.key:
                self.reply(403, {"status": {"error": "Invalid API key"}})
                return
            try:
                with stand_in.lock:
                    result = stand_in.answer(self.command, path, json.loads(data) if data else None)
            except Exception as error:
                self.reply(400, {"status": {"error": f"{type(error).__name__}: {error}"}})
                return
            self.reply(200, result if path == "/" else {"result": _plain(result), "status": "ok", "time": 0.0})

        def reply(self, status: int, content: Any) -> None:
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = answer

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
