"""Every error as ``{"error": {"message", "type", "param"}}``, whatever raised it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

__all__ = ["ServiceError", "error_body", "error_response", "install"]

_SHOWN = 100
"""Characters of a field's name that an error repeats: it is the client's and may be as long as a body."""
_TOKENS = "token ids are not taken: send texts (LangChain's OpenAIEmbeddings does so with check_embedding_ctx_length=False)"
_TYPES = {400: "bad_request", 401: "unauthorized", 403: "forbidden", 404: "not_found", 405: "method_not_allowed"}


class ServiceError(Exception):
    """An error that a client is told.

    Args:
        status: HTTP status.
        type: one word for programs.
        message: for people.
        param: the field of the request that it is about.
        headers: of the answer.
    """

    def __init__(
        self, status: int, type: str, message: str, param: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.type, self.message, self.param = status, type, message, param
        self.headers = dict(headers or {})


def error_body(message: str, type: str, param: str | None = None) -> dict[str, Any]:
    """The JSON of an error."""
    return {"error": {"message": message, "type": type, **({} if param is None else {"param": param})}}


def error_response(error: ServiceError) -> Response:
    """An answer out of an error; a message with what UTF-8 cannot hold is escaped."""
    body = json.dumps(error_body(error.message, error.type, error.param), ensure_ascii=True).encode()
    return Response(body, error.status, error.headers, media_type="application/json")


def _tells_most(found: Sequence[Any]) -> Any:
    """Of what was wrong with each of the shapes that a value may have, the deepest, and rather its value than its type."""
    alike = [one for one in found if one["loc"][:2] == found[0]["loc"][:2]]
    return max(alike, key=lambda one: (len(one["loc"]), not one["type"].endswith("_type")))


def install(app: FastAPI) -> None:
    """Give an application the handlers."""

    @app.exception_handler(ServiceError)
    async def told(_: Request, error: ServiceError) -> Response:
        return error_response(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        # The value itself is left out: it may be large, and it may be what the log must not hold.
        first = _tells_most(error.errors())
        place = [str(part)[:_SHOWN] for part in first["loc"]]
        if first["type"] == "json_invalid":
            return error_response(ServiceError(400, "invalid_json", f"the body is not JSON: {first['ctx']['error']}"))
        names = [part for part in place[1:] if not part.startswith(("constrained-", "list[", "function-"))]
        param = ".".join(names) or place[0]
        if names[:1] == ["input"] and isinstance(first["input"], (int, list)) and first["type"] == "string_type":
            return error_response(ServiceError(422, "invalid_request", f"{param}: {_TOKENS}", param))
        return error_response(ServiceError(422, "invalid_request", f"{param}: {first['msg']}", param))

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> Response:
        if error.status_code == 400 and "parsing the body" in str(error.detail):
            return JSONResponse(error_body("the body cannot be read as what its media type says", "bad_request"), 400)
        message = {404: "there is nothing at this address", 405: "this address does not take this method"}.get(
            error.status_code, str(error.detail)
        )
        headers = dict(error.headers or {})
        if error.status_code == 405 and (wanted := headers.get("Allow")):
            message += f": send the request by {wanted}"
            headers["Allow"] = "GET, HEAD" if wanted == "GET" else wanted
        kind = _TYPES.get(error.status_code, "error")
        return JSONResponse(error_body(message, kind), error.status_code, headers)
