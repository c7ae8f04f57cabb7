"""The way to Qdrant: its client, a collection's vectors, what a point carries, and errors in one line (extra ``qdrant``)."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from clipmend.data.images import display_path
from clipmend.search.gallery import FieldType, GalleryError, Item
from clipmend.search.qdrant_filters import OWN, written

try:
    import qdrant_client
    from qdrant_client import models
    from qdrant_client.local.qdrant_local import QdrantLocal
except ImportError as error:
    raise ImportError("Qdrant needs its client: pip install 'clipmend[qdrant]'") from error

__all__ = ["API_KEY", "PREFIX", "asking", "connect", "exactly", "has_collection", "is_local", "models", "payload_of", "vector_of"]

PREFIX = "qdrant:"
API_KEY = "QDRANT_API_KEY"
"""The environment variable with the server's key."""


@contextmanager
def asking(name: str) -> Iterator[None]:
    """What goes wrong between here and Qdrant, in one line."""
    from qdrant_client.common.client_exceptions import QdrantException
    from qdrant_client.http.exceptions import ApiException, UnexpectedResponse

    try:
        yield
    except UnexpectedResponse as error:
        hint = f" (the key is read from {API_KEY})" if error.status_code in (401, 403) else ""
        content = error.content.decode("utf-8", "replace")[:300]
        raise GalleryError(f"{name}: Qdrant refuses: {error.status_code} {error.reason_phrase}{hint} {content}".strip()) from error
    except (ApiException, QdrantException, ConnectionError) as error:
        raise GalleryError(f"{name}: no answer from Qdrant ({' '.join(str(error).split()) or type(error).__name__})") from error


def connect(spec: str, timeout: int, client: Mapping[str, Any] | None, *, make: bool) -> tuple[Any, str, str]:
    """The client, the collection's name, and what to call it in messages."""
    place = spec.removeprefix(PREFIX)
    base, _, collection = place.rstrip("/").rpartition("/")
    example = f"{PREFIX}http://localhost:6333/COLLECTION, or {PREFIX}FOLDER/COLLECTION"
    if not base or not collection or base.endswith(":/"):
        raise GalleryError(f"{spec}: say where and which collection: {example}")
    if "://" in base:
        parts = urlsplit(base)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise GalleryError(f"{spec}: a server's address begins with http:// or https:// : {example}")
        if parts.username or parts.password or parts.query:
            raise GalleryError(f"the address of {parts.hostname} holds a secret; give the key in the environment: {API_KEY}")
        # without the check of versions, which is a request of its own, and warns where nobody answers: the first one says so
        options = {"timeout": timeout, "api_key": os.environ.get(API_KEY) or None, "check_compatibility": False, **(client or {})}
        with asking(spec):
            return qdrant_client.QdrantClient(url=base, **options), collection, spec
    folder = Path(base)
    if not make and not (folder / "meta.json").is_file():
        raise GalleryError(f"{display_path(folder)} is no folder of Qdrant's local mode; a server is {PREFIX}http://HOST:6333/NAME")
    try:
        # a service answers from several threads; they are kept apart by a lock here
        connection = qdrant_client.QdrantClient(path=str(folder), force_disable_check_same_thread=True, **dict(client or {}))
    except RuntimeError as error:
        raise GalleryError(f"{display_path(folder)} is open in another process; local mode serves one at a time") from error
    return connection, collection, spec


def is_local(client: Any) -> bool:
    """Whether a client keeps its collections itself, in a folder or in memory."""
    return isinstance(client._client, QdrantLocal)  # the client has no public way to tell


def vector_of(name: str, vectors: Any, wanted: str | None) -> tuple[str | None, Any]:
    """Name (``None`` for the unnamed one) and parameters of the vector to search by."""
    if not isinstance(vectors, Mapping):
        if wanted is not None or vectors is None:
            raise GalleryError(f"{name} has no vector called {wanted!r}" if wanted else f"{name} has no dense vectors")
        chosen, parameters = None, vectors
    else:
        told = ", ".join(vectors) or "none"
        if wanted is None and len(vectors) != 1:
            raise GalleryError(f"{name} has several vectors ({told}): choose one with vector=")
        chosen = wanted if wanted is not None else next(iter(vectors))
        if chosen not in vectors:
            raise GalleryError(f"{name} has no vector {chosen!r}; it has {told}")
        parameters = vectors[chosen]
    if getattr(parameters, "multivector_config", None) is not None:
        raise GalleryError(f"{name} keeps several vectors a point (multivectors); clipmend compares one an image")
    return chosen, parameters


def payload_of(item: Item, fields: Mapping[str, FieldType]) -> dict[str, Any]:
    """The payload of an image's point."""
    payload: dict[str, Any] = {}
    own: dict[str, Any] = {}
    texts = {"path": item.path}
    for name, type_ in fields.items():
        value = item.fields.get(name)
        if value is None:
            continue
        if type_ in ("text", "folder"):
            texts[name] = str(value)
        else:
            payload[name] = float(value)
        if type_ == "folder":
            parts = written(str(value)).split("/")
            own.setdefault("under", {})[name] = ["/".join(parts[: depth + 1]) for depth in range(len(parts))]
    payload |= {name: written(text) for name, text in texts.items()}
    exact = {name: base64.b64encode(text.encode("utf-8", "surrogatepass")).decode() for name, text in texts.items()
             if written(text) != text}  # fmt: skip
    if exact:
        own["bytes"] = exact
    if item.sha256:
        payload["sha256"] = item.sha256
    if own:
        payload[OWN] = own
    return payload


def exactly(exact: Any, name: str, value: str) -> str:
    """The text of a payload as it was, where its bytes are kept."""
    held = exact.get(name) if isinstance(exact, dict) else None
    return value if held is None else base64.b64decode(held).decode("utf-8", "surrogatepass")


def has_collection(spec: str) -> bool:
    """Whether the collection is there.

    Raises:
        GalleryError: no answer.
    """
    try:
        connection, collection, name = connect(spec, 60, None, make=False)
    except GalleryError:
        if "://" in spec:
            raise
        return False
    try:
        with asking(name):
            return bool(connection.collection_exists(collection))
    finally:
        connection.close()
