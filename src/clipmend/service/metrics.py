"""What ``/metrics`` says, in Prometheus' text format."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_CREATED = re.compile(rb"^(?:# (?:HELP|TYPE) )?clipmend_\w+_created[ {].*\n", re.MULTILINE)
"""When a counter began, which the client library adds to each: series that nobody asks for."""

_SECONDS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10, 30)


class Metrics:
    """Counters of one application; two applications in one process do not share any.

    Attributes:
        requests: by route, method and status.
        seconds: by route; the whole request.
        refused: requests turned away, by reason.
        batch_texts: texts a forward pass.
        thumbnails: asked for, by ``cached``: ``yes`` or ``no``.
        reloads: of the gallery because it had changed, by ``result``: ``done`` or ``failed``.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        told: dict[str, Any] = {"registry": self._registry, "namespace": "clipmend"}
        self.requests = Counter("requests", "Requests answered", ("route", "method", "status"), **told)
        self.seconds = Histogram("request_seconds", "Seconds a request", ("route",), buckets=_SECONDS, **told)
        self.refused = Counter("refused", "Requests turned away", ("reason",), **told)
        self.batch_texts = Histogram("batch_texts", "Texts a forward pass", buckets=(1, 2, 4, 8, 16, 32, 64), **told)
        self.thumbnails = Counter("thumbnails", "Thumbnails asked for", ("cached",), **told)
        self.reloads = Counter("gallery_reloads", "Times the gallery had changed and was opened again", ("result",), **told)
        ProcessCollector(registry=self._registry)

    def gauge(self, name: str, help: str, value: Callable[[], float]) -> None:
        """A number that is looked up whenever the metrics are asked for."""
        Gauge(name, help, namespace="clipmend", registry=self._registry).set_function(value)

    def text(self) -> bytes:
        """All of them."""
        return _CREATED.sub(b"", generate_latest(self._registry))
