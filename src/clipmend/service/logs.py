"""One JSON object a line on standard error, for requests and for what the server says."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import IO, Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clipmend.service.errors import ServiceError, error_response
from clipmend.service.metrics import Metrics

__all__ = ["AccessLog", "JsonLines", "json_log", "log_to"]

log = logging.getLogger("clipmend.service")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Clients may make up others, and a counter each would be as many as they like."""
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class JsonLines(logging.Formatter):
    """A record as one line of JSON: ``time`` (UTC), ``level``, ``event``, and what the record brings as ``extra={"data": ...}``."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, Any] = {"time": when, "level": record.levelname.lower(), "event": record.getMessage()}
        line |= getattr(record, "data", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)  # escapes keep a line one line, whatever a path holds


_OURS = ("clipmend.service", "uvicorn", "uvicorn.error")


def log_to(stream: IO[str] | None = None, level: int = logging.INFO) -> logging.Handler:
    """Send what the service and the server under it say to a stream as JSON lines (default: standard error)."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    for name in _OURS:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [], False
        logger.setLevel(level)
    for name in ("clipmend.service", "uvicorn"):
        logging.getLogger(name).addHandler(handler)
    logging.getLogger("uvicorn.error").propagate = True  # up to "uvicorn", once
    return handler


@contextmanager
def json_log(level: int = logging.INFO, stream: IO[str] | None = None) -> Iterator[None]:
    """While it lasts, standard error gets JSON lines alone: also what Python warns of, and what other libraries log.

    Args:
        level: of what the service and the server say.
        stream: in place of standard error.
    """
    known = [logger for logger in logging.root.manager.loggerDict.values() if isinstance(logger, logging.Logger)]
    others = [logger for logger in known if logger.name not in _OURS and any(map(_prints, logger.handlers))]
    changed = [logging.root, *map(logging.getLogger, _OURS), *others]
    before = [(logger, logger.handlers, logger.propagate, logger.level) for logger in changed]
    showing = warnings.showwarning
    handler = log_to(stream, level)
    logging.root.handlers = [*(one for one in logging.root.handlers if not _prints(one)), handler]
    for logger in others:  # transformers prints by itself, for one
        logger.handlers = [one for one in logger.handlers if not _prints(one)]
        logger.propagate = True
    warnings.showwarning = _log_warning
    try:
        yield
    finally:
        warnings.showwarning = showing
        for logger, handlers, propagate, was in before:
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(was)


def _prints(handler: logging.Handler) -> bool:
    return isinstance(handler, logging.StreamHandler) and handler.stream in (sys.stderr, sys.__stderr__)


def _log_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    log.warning("%s", message, extra={"data": {"warning": category.__name__}})


class AccessLog:
    """Gives each request an id, measures it, writes its line and counts it.

    The id is the client's own ``X-Request-ID`` where that is plain, else a new one; answers carry it. A line holds no query, no
    text, no token: method, path, status, milliseconds, bytes; the path of a search says nothing of it.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        began = time.perf_counter()
        status, sent = 0, 0

        async def passing(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                message.setdefault("headers", [])
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            elif message["type"] == "http.response.body":
                sent += len(message.get("body", b""))
            await send(message)

        data: dict[str, Any] = {"id": request_id, "method": scope["method"], "path": scope["path"]}
        try:
            await self._app(scope, receive, passing)
        except Exception:
            log.exception("request failed", extra={"data": data})
            if status:  # an answer was on its way: all that is left is to break off
                raise
            failure = ServiceError(500, "internal_error", "the service failed at this; its log says more")
            await error_response(failure)(scope, receive, passing)
        finally:
            seconds = time.perf_counter() - began
            route = getattr(scope.get("route"), "path", None) or scope["state"].get("route", "other")
            method = scope["method"] if route != "other" and scope["method"] in _METHODS else "other"
            self._metrics.requests.labels(route, method, status).inc()
            self._metrics.seconds.labels(route).observe(seconds)
            data |= {"status": status, "milliseconds": round(1000 * seconds, 2), "bytes": sent}
            data |= scope["state"].get("log", {})
            log.info("request", extra={"data": data})
