"""What a service may be asked for and how much of it: every limit in one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clipmend.data.images import DEFAULT_MAX_PIXELS

__all__ = ["MIN_TOKEN", "Settings"]

MIN_TOKEN = 16
"""Fewest characters of a token: shorter ones can be guessed."""


@dataclass(frozen=True)
class Settings:
    """Limits and behaviour of the service.

    Attributes:
        token: the bearer token that requests must carry; ``None``: none is asked for, which is for this machine alone.
        hosts: names (without port) under which the service may be asked where no token protects it: a page of another site
            cannot reach it by a name of its own that leads to this machine. ``"*"`` allows any.
        examples: queries that the page offers.
        name: of the gallery, for the page; default: its own.
        patch: name of the patch, for the page.
        model: name of the encoder in ``/models``; default: the encoder's own name.
        max_body: bytes of a request's body, for all but uploads.
        max_upload: bytes of a request's body with an image.
        max_pixels: pixels of an uploaded image, and of a file that a thumbnail is made of.
        max_text: characters of one text for ``/embeddings``; a query has the grammar's own limit of 2,000.
        max_texts: texts of one request for ``/embeddings``; 2,048 are what clients made for OpenAI's may send.
        concurrency: searches and embeddings worked on at a time; those beyond wait.
        uploads: searches with an image that is sent worked on at a time: a decoded image may take hundreds of megabytes.
        waiting: requests that may wait for their turn; those beyond are refused with 429.
        timeout: seconds within which an answer is there, waiting included; then it is 503.
        body_timeout: seconds within which a request's body must have arrived; then it is 408.
        shutdown_timeout: seconds that running requests are given when the service is told to end.
        max_batch: texts that are embedded in one forward pass; concurrent requests share it.
        thumbnail_cache: bytes of thumbnails kept in memory.
        thumbnail_threads: thumbnails and image files made or read at a time.
        follow_links: also show files that a symbolic link inside an indexed folder leads to outside of it.
        log_queries: write queries and their number of results into the log.
        reload: seconds between looks whether the index has changed on the disk, for then it is opened again; ``None``: never.
    """

    token: str | None = None
    hosts: Sequence[str] = ("localhost", "127.0.0.1", "::1")
    examples: Sequence[str] = ()
    name: str | None = None
    patch: str = "patch"
    model: str | None = None
    max_body: int = 1 << 20
    max_upload: int = 32 << 20
    max_pixels: int = DEFAULT_MAX_PIXELS
    max_text: int = 8_000
    max_texts: int = 2_048
    concurrency: int = 32
    uploads: int = 4
    waiting: int = 256
    timeout: float = 30.0
    body_timeout: float = 30.0
    shutdown_timeout: float = 10.0
    max_batch: int = 32
    thumbnail_cache: int = 64 << 20
    thumbnail_threads: int = 4
    follow_links: bool = False
    log_queries: bool = False
    reload: float | None = 1.0

    def __post_init__(self) -> None:
        if self.token is not None and len(self.token) < MIN_TOKEN:
            raise ValueError(f"the token has {len(self.token)} characters; use at least {MIN_TOKEN}, or it can be guessed")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and " " not in self.token):
            raise ValueError("the token may hold visible ASCII characters only: it travels in a header")
        for name in (
            "max_body",
            "max_upload",
            "max_pixels",
            "max_text",
            "max_texts",
            "concurrency",
            "uploads",
            "max_batch",
            "thumbnail_threads",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1 (got {getattr(self, name)})")
        for name in ("timeout", "body_timeout", "shutdown_timeout", "reload"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise ValueError(f"{name} must be over 0 seconds (got {getattr(self, name)})")
        for name in ("waiting", "thumbnail_cache"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more (got {getattr(self, name)})")
