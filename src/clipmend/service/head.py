"""HEAD: what GET would answer, without its body, for load balancers, link checkers and browsers."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["Head", "is_head"]


class Head:
    """Asks the application by GET and leaves the body out: whatever takes GET takes HEAD, with the same status and headers.

    The application sees a copy of the request, for servers count the bytes that they send by the method of their own.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        scope.setdefault("state", {})["head"] = True
        asked = {**scope, "method": "GET"}

        async def without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        try:
            await self._app(asked, receive, without_body)
        finally:  # for the log and the metrics, which stand outside
            if "route" in asked:
                scope["route"] = asked["route"]


def is_head(scope: Scope) -> bool:
    """Whether nobody will see the body, so that it need not be read from a disk."""
    return bool(scope.get("state", {}).get("head"))
