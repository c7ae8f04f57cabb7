"""How much a client may send, and how much is worked on at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clipmend.service.errors import ServiceError, error_response
from clipmend.service.metrics import Metrics
from clipmend.service.security import address_of
from clipmend.service.settings import Settings

__all__ = ["BodyLimit", "Crew", "Leaving"]

Result = TypeVar("Result")

_JSON, _FORM = "application/json", "multipart/form-data"
_MEDIA = {
    "/search": _JSON,
    "/search/image": _FORM,
    "/embeddings": _JSON,
    "/v1/embeddings": _JSON,
    "/login": _JSON,
}
"""The media type of each address that takes a body. A page of another site cannot send JSON unasked."""

_LAST = 1.0
"""Seconds that a busy thread is still given when the time for an orderly end is over."""

_LOGIN = 1 << 16
"""Bytes of a body that anybody may send, who has no token yet: they share what is held at once with who has. The longest token that
the description allows fits, also where each of its letters is written as two escapes of 6 bytes."""

_UPLOADS_AT_A_TIME = 8
"""So many of the largest uploads are held in memory at once, over all clients."""


class BodyLimit:
    """Reads the body before the application does: within its size, within its time, of its media type."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self._app, self._settings, self._metrics = app, settings, metrics
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        address = address_of(scope) if scope["type"] == "http" and scope["method"] == "POST" else ""
        media = _MEDIA.get(address)
        if media is None:
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        limit = self._settings.max_upload if media == _FORM else self._settings.max_body
        if address == "/login":
            limit = min(limit, _LOGIN)
        parts: list[bytes] = []
        held = 0

        async def read() -> None:
            nonlocal held
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ServiceError(400, "bad_request", "the body broke off")
                body = message.get("body", b"")
                held += len(body)
                self._held += len(body)
                if held > limit:
                    raise self._too_large(limit)
                if self._held > _UPLOADS_AT_A_TIME * max(self._settings.max_upload, self._settings.max_body):
                    raise ServiceError(429, "busy", "too much is being sent at once; try again", headers={"Retry-After": "1"})
                parts.append(body)
                if not message.get("more_body", False):
                    return

        try:
            try:
                if headers.get("content-type", "").partition(";")[0].strip().lower() != media:
                    raise ServiceError(415, "media_type", f"the body must be {media}")
                length = headers.get("content-length", "")
                if length.isdecimal() and int(length) > limit:
                    raise self._too_large(limit)
                await asyncio.wait_for(read(), self._settings.body_timeout)
            except (TimeoutError, asyncio.TimeoutError):
                error = ServiceError(408, "timeout", "the body did not arrive in time", headers={"Connection": "close"})
                await self._refuse(error, scope, receive, send)
                return
            except ServiceError as error:
                await self._refuse(error, scope, receive, send)
                return
            whole, delivered = b"".join(parts), False
            parts.clear()

            async def replay() -> Message:
                nonlocal delivered
                if delivered:
                    return await receive()  # the client's going away
                delivered = True
                return {"type": "http.request", "body": whole, "more_body": False}

            await self._app(scope, replay, send)
        finally:
            self._held -= held

    async def _refuse(self, error: ServiceError, scope: Scope, receive: Receive, send: Send) -> None:
        self._metrics.refused.labels(error.type).inc()
        scope.setdefault("state", {})["route"] = address_of(scope)  # one of _MEDIA: it has not come to the router
        await error_response(error)(scope, receive, send)

    def _too_large(self, limit: int) -> ServiceError:
        return ServiceError(413, "too_large", f"the body is larger than {limit:,} bytes", headers={"Connection": "close"})


class Leaving:
    """Innermost: what a client asked for that has gone is not begun any more. Counted and logged with nginx's status 499."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        first, delivered, answering = await receive(), False, False

        async def left() -> None:
            message = first
            while message["type"] == "http.request" and message.get("more_body", False):
                message = await receive()  # a body where none is asked for
            if (await receive())["type"] != "http.disconnect":
                await asyncio.Event().wait()

        leaving = asyncio.ensure_future(left())

        async def replay() -> Message:
            nonlocal delivered
            if delivered:
                await asyncio.shield(leaving)
                return {"type": "http.disconnect"}
            delivered = True
            return first

        async def passing(message: Message) -> None:
            nonlocal answering
            answering = True
            await send(message)

        work = asyncio.ensure_future(self._app(scope, replay, passing))
        try:
            await asyncio.wait((work, leaving), return_when=asyncio.FIRST_COMPLETED)
            if work.done() or answering:
                await work
                return
            work.cancel()
            await asyncio.wait((work,))
            if not work.cancelled():
                await work  # it had an end of its own just then
            elif not answering:
                self._metrics.refused.labels("gone").inc()
                await error_response(ServiceError(499, "gone", "the client has gone"))(scope, receive, send)
        finally:
            leaving.cancel()
            work.cancel()


class Crew:
    """Threads that do the work, with a bounded queue before them.

    Args:
        name: of the threads.
        threads: at work at a time.
        waiting: most that wait; those beyond are refused at once.
        timeout: seconds within which an answer is there, waiting included.
        metrics: told what is refused.
    """

    def __init__(self, name: str, threads: int, waiting: int, timeout: float, metrics: Metrics) -> None:
        self._name, self._threads = name, threads
        self._limit, self._timeout, self._metrics = threads + waiting, timeout, metrics
        self._lock = threading.Condition()
        self._pool: ThreadPoolExecutor | None = None
        self._awaited: set[asyncio.Future[Any]] = set()
        self._expired = False
        self.pending = 0
        metrics.gauge(f"{name}_pending", f"Requests for {name} that are worked on or wait", lambda: self.pending)

    def open(self) -> None:
        """Start; also again, after :meth:`close`."""
        with self._lock:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix=f"clipmend-{self._name}")
            self._expired = False

    async def run(self, work: Callable[..., Result], *args: Any) -> Result:
        """Do it in a thread.

        What outlives its time goes on in its thread (a thread cannot be stopped) and counts as pending until it ends, so that the
        load stays bounded; what had not begun is dropped.

        Raises:
            ServiceError: 429, too many wait; 503, no answer in time, or the service is starting or ending.
        """
        with self._lock:
            if self._pool is None:
                raise self._refused(503, "ending", "the service is starting or ending")
            if self.pending >= self._limit:
                raise self._refused(429, "busy", "too many requests are waiting; try again")
            future: Future[Result] = self._pool.submit(work, *args)
            self.pending += 1
        future.add_done_callback(self._done)
        awaited = asyncio.wrap_future(future)
        self._awaited.add(awaited)
        try:
            return await asyncio.wait_for(awaited, self._timeout)
        except asyncio.CancelledError:
            if not self._expired:
                raise  # the request's own task was cancelled
            raise self._refused(503, "ending", "the service is ending") from None
        except (TimeoutError, asyncio.TimeoutError):
            if future.done() and not future.cancelled() and future.exception() is not None:
                raise  # the work's own
            raise self._refused(503, "timeout", f"no answer within {self._timeout:g} seconds") from None
        finally:
            self._awaited.discard(awaited)

    def expire(self) -> None:
        """Answer whoever still waits with 503, in the event loop's thread: the time for an orderly end is over."""
        with self._lock:
            self._expired = True
            self._lock.notify_all()
        for awaited in list(self._awaited):
            awaited.cancel()

    def close(self) -> None:
        """Finish what has begun, drop what waits, take nothing more; after :meth:`expire` busy threads are left to themselves."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is None:
            return
        pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._lock.wait_for(lambda: self.pending == 0 or self._expired)
            ended = self._lock.wait_for(lambda: self.pending == 0, _LAST)
        pool.shutdown(wait=ended)

    def _done(self, _: Future[Any]) -> None:
        with self._lock:
            self.pending -= 1
            self._lock.notify_all()

    def _refused(self, status: int, reason: str, message: str) -> ServiceError:
        self._metrics.refused.labels(reason).inc()
        return ServiceError(status, reason, message, headers={"Retry-After": "1"})
