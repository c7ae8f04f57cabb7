"""``create_app``: a searcher as an HTTP service, with its page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import cache
from typing import IO, Annotated, Any, Literal

try:
    import python_multipart as _  # noqa: F401 (FastAPI asks for it when an upload is declared)
    from fastapi import FastAPI, File, Form, Header, Path, Query, Request, UploadFile
    from fastapi.openapi.utils import get_openapi
    from fastapi.responses import Response, StreamingResponse
    from pydantic import ValidationError
except ImportError as error:  # pragma: no cover (the tests have it)
    raise ImportError(f"the service needs FastAPI and its like ({error}): pip install 'clipmend[serve]'") from None

from clipmend import __version__
from clipmend.search.searcher import Searcher
from clipmend.service import errors, requests
from clipmend.service.core import OUTDATED, Service
from clipmend.service.errors import ServiceError
from clipmend.service.head import Head, is_head
from clipmend.service.limits import BodyLimit, Crew, Leaving
from clipmend.service.logs import AccessLog
from clipmend.service.metrics import CONTENT_TYPE, Metrics
from clipmend.service.page_files import PageFile, api_page, page_files
from clipmend.service.requests import responses
from clipmend.service.security import COOKIE, PAGE_POLICY, Guard, Headers, session_value, token_fits
from clipmend.service.settings import Settings
from clipmend.service.thumbnails import Thumbnails

__all__ = ["create_app"]

_CHUNK = 1 << 18
_SECURED: dict[str, Any] = {"security": [{"bearer": []}]}
_IMAGE_ID = Annotated[int, Path(ge=0, le=requests.MAX_ID, description="Of an image, out of a search.")]
_OF = Annotated[
    str | None,
    Query(max_length=100, description="The edition of the answer that the id is out of: 404 where another index has replaced it."),
]
_KNOWN = Annotated[str | None, Header(alias="If-None-Match", max_length=1_000)]


class _Json(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def create_app(searcher: Searcher, settings: Settings | None = None, *, owned: bool = False) -> FastAPI:
    """An application for any ASGI server. The searcher and its gallery stay their owner's, to be closed after it has ended.

    Args:
        searcher: what is searched; made with ``files=False``, so that no query opens a file of this machine. An index that is
            written anew is opened again beside it, and asked in its stead (``settings.reload``).
        settings: limits, token and names; by default for this machine alone.
        owned: the gallery is the application's, which closes it: when an index that was written anew has taken its place, or at the
            end.

    Returns:
        the application, with ``app.state.service``, ``.metrics``, ``.status`` (``"starting"``, ``"ready"`` or ``"ending"``),
        ``.expire()``, which a server may call in its event loop when it is ending and will wait no longer, and ``.busy()``, how
        many threads have outlived that: while there are any, the gallery is in use.

    Raises:
        ImportError: the extra ``serve`` is missing.
        ValueError: the searcher would open files.

    Example::

        searcher = Searcher(open_gallery("my.index"), encoder, mended, files=False)
        uvicorn.run(create_app(searcher), host="127.0.0.1", port=8765)
    """
    settings = settings or Settings()
    metrics = Metrics()
    service = Service(searcher, settings, metrics, owned)
    thumbnails = Thumbnails(
        max_pixels=settings.max_pixels,
        cache=settings.thumbnail_cache,
        follow_links=settings.follow_links,
    )
    work = Crew("searches", settings.concurrency, settings.waiting, settings.timeout, metrics)
    uploads = Crew("uploads", min(settings.uploads, settings.concurrency), settings.waiting, settings.timeout, metrics)
    pictures = Crew("thumbnails", settings.thumbnail_threads, max(settings.waiting, 256), settings.timeout, metrics)
    crews = (work, uploads, pictures)
    files = page_files()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await asyncio.to_thread(service.open)
        for crew in crews:
            crew.open()
        app.state.status = "ready"
        try:
            yield
        finally:
            app.state.status = "ending"
            # Crews first: what they still do may need the batcher.
            for crew in crews:
                await asyncio.to_thread(crew.close)
            await asyncio.to_thread(service.close, 1.0 if busy() else None)

    app = FastAPI(
        title="clipmend",
        version=__version__,
        description="Search images in words that may say what must not be there.",
        docs_url=None,  # FastAPI's own pages load their scripts from elsewhere
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.state.service, app.state.metrics, app.state.status = service, metrics, "starting"

    def expire() -> None:
        for crew in crews:
            crew.expire()
        service.batcher.drop()

    def busy() -> int:
        return sum(crew.pending for crew in crews)

    app.state.expire, app.state.busy = expire, busy
    errors.install(app)
    # The last one added is the outermost.
    app.add_middleware(Leaving, metrics=metrics)
    app.add_middleware(BodyLimit, settings=settings, metrics=metrics)
    app.add_middleware(Guard, settings=settings)
    app.add_middleware(Head)
    app.add_middleware(AccessLog, metrics=metrics)
    app.add_middleware(Headers)

    # ---- search -------------------------------------------------------------------------------------------------------------

    @app.get("/api/about", response_model=requests.About, responses=responses(400, 401, 403, 429, 503), openapi_extra=_SECURED)
    async def about() -> Response:
        """What can be searched, by which model and patch."""
        return _Json(await work.run(service.about))

    @app.get(
        "/api/values", response_model=requests.Values, responses=responses(400, 401, 403, 422, 429, 503), openapi_extra=_SECURED
    )
    async def values(field: Annotated[str, Query(max_length=200, description="Of texts or folders.")]) -> Response:
        """The values of a field, most frequent first."""
        return _Json(await work.run(service.values, field))

    @app.post(
        "/search",
        response_model=requests.SearchAnswer,
        responses=responses(400, 401, 403, 408, 413, 415, 422, 429, 503),
        openapi_extra=_SECURED,
    )
    async def search(request: requests.SearchRequest) -> Response:
        """Find the images that fit a query best."""
        return _Json(await work.run(service.search, request))

    @app.post(
        "/search/image",
        response_model=requests.SearchAnswer,
        responses=responses(400, 401, 403, 408, 413, 415, 422, 429, 503),
        openapi_extra=_SECURED,
    )
    async def search_image(
        image: Annotated[UploadFile, File(description="An image; the query speaks of it as image:upload.")],
        request: Annotated[str, Form(max_length=16_384, description="The JSON that /search takes; {} for the image alone.")] = "{}",
    ) -> Response:
        """Find images by one that is sent, alone or with words."""
        try:
            wanted = requests.ImageSearchRequest.model_validate_json(request)
        except ValidationError as error:
            first = error.errors()[0]
            param = ".".join(["request", *(str(part)[:100] for part in first["loc"])])
            raise ServiceError(422, "invalid_request", f"{param}: {first['msg']}", param) from None
        return _Json(await uploads.run(service.search, wanted, await image.read(), image.filename))

    # ---- images -------------------------------------------------------------------------------------------------------------

    @app.get(
        "/thumbnails/{id}",
        response_class=Response,
        responses={
            200: {"content": {"image/webp": {}}, "description": "The thumbnail"},
            304: {"description": "The browser's own is as new"},
            **responses(400, 401, 403, 404, 422, 429, 503),
        },
        openapi_extra=_SECURED,
    )
    async def thumbnail(
        id: _IMAGE_ID, size: Annotated[int, Query(ge=64, le=1024)] = 256, of: _OF = None, known: _KNOWN = None
    ) -> Response:
        """An image, made small."""
        shown, cached = await pictures.run(service.of_an_image, thumbnails.thumbnail, of, id, size, known)
        metrics.thumbnails.labels("yes" if cached else "no").inc()
        kept = {"ETag": shown.etag, "Cache-Control": "private, max-age=60"}
        if shown.body is None:
            return Response(status_code=304, headers=kept)
        return Response(shown.body, headers=kept, media_type=shown.media_type)

    @app.get(
        "/images/{id}",
        response_class=Response,
        responses={
            200: {"content": {"image/*": {}}, "description": "The file"},
            304: {"description": "The browser's own is as new"},
            **responses(400, 401, 403, 404, 422, 429, 503),
        },
        openapi_extra=_SECURED,
    )
    async def image(request: Request, id: _IMAGE_ID, of: _OF = None, known: _KNOWN = None) -> Response:
        """The file of an image, if it is a JPEG, PNG, GIF, WebP, AVIF or BMP."""
        shown, file = await pictures.run(service.of_an_image, thumbnails.image, of, id, known)
        kept = {"ETag": shown.etag, "Cache-Control": "private, max-age=60", "Content-Disposition": "inline"}
        if file is None:
            return Response(status_code=304, headers=kept)
        return StreamingResponse(_chunks(file, 0 if is_head(request.scope) else None), headers=kept, media_type=shown.media_type)

    # ---- embeddings ---------------------------------------------------------------------------------------------------------

    async def embeddings(request: requests.EmbeddingsRequest) -> Response:
        """Vectors of texts, in OpenAI's shape: by the encoder, or by the encoder with its patch."""
        return _Json(await work.run(service.embeddings, request))

    async def models() -> Response:
        """The names that /embeddings takes."""
        listed = [{"id": name, "object": "model", "created": 0, "owned_by": "clipmend"} for name in service.models()]
        return _Json({"object": "list", "data": listed})

    for prefix, named in (("", ""), ("/v1", "_v1")):
        app.post(
            f"{prefix}/embeddings",
            operation_id=f"embeddings{named}",
            response_model=requests.EmbeddingsAnswer,
            responses=responses(400, 401, 403, 404, 408, 413, 415, 422, 429, 503),
            openapi_extra=_SECURED,
        )(embeddings)
        app.get(
            f"{prefix}/models",
            operation_id=f"models{named}",
            response_model=requests.Models,
            responses=responses(400, 401, 403),
            openapi_extra=_SECURED,
        )(models)

    # ---- the service itself -------------------------------------------------------------------------------------------------

    @app.get("/health", response_model=requests.Health, responses={**responses(400, 403), 503: {"model": requests.Health}})
    async def health() -> Response:
        """Whether it can be asked."""
        status: Literal["ready", "starting", "ending"] = app.state.status
        said = {"status": status} | ({"hint": OUTDATED} if service.current.outdated else {})
        return Response(json.dumps(said), 200 if status == "ready" else 503, media_type="application/json")

    @app.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}, "description": "Prometheus' text format"}, **responses(400, 401, 403)},
        openapi_extra=_SECURED,
    )
    async def numbers() -> Response:
        """Counters, for Prometheus."""
        # In a thread: the number of images may have to be asked of a database.
        return Response(await asyncio.to_thread(metrics.text), headers={"Content-Type": CONTENT_TYPE})

    @app.post(
        "/login",
        status_code=204,
        response_class=Response,
        responses={204: {"description": "The cookie is set"}, **responses(400, 401, 403, 408, 413, 415, 422)},
    )
    async def login(given: requests.LoginRequest, request: Request) -> Response:
        """Exchange the token for a cookie, for pages: an <img> cannot send a header."""
        answer = Response(status_code=204)
        if settings.token is None:
            return answer
        if not token_fits(given.token, settings.token):
            raise ServiceError(401, "unauthorized", "the token is wrong", "token", {"WWW-Authenticate": "Bearer"})
        secure = request.url.scheme == "https"
        answer.set_cookie(COOKIE, session_value(settings.token), httponly=True, samesite="strict", secure=secure, path="/")
        return answer

    @app.post("/logout", status_code=204, response_class=Response, responses={**responses(400, 403)})
    async def logout() -> Response:
        """Take the cookie back."""
        answer = Response(status_code=204)
        answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
        return answer

    # ---- pages --------------------------------------------------------------------------------------------------------------

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            bearer = {"type": "http", "scheme": "bearer", "description": "Where the service was given a token."}
            schema["components"]["securitySchemes"] = {"bearer": bearer}
            schema["components"]["schemas"]["EmbeddingsRequest"]["properties"]["model"]["examples"] = service.models()
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]

    # Made once: they are open to anybody, and take a while.
    described_as_json = cache(lambda: _Json(described()).body)
    described_as_page = cache(lambda: api_page(described()))

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        return Response(described_as_json(), media_type="application/json")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        html, policy = described_as_page()
        return Response(html, headers={"Content-Security-Policy": policy}, media_type="text/html")

    def page_file(file: PageFile | None, known: str | None) -> Response:
        if file is None:
            raise ServiceError(404, "not_found", "the page has no such file")
        kept = {"ETag": file.etag, "Cache-Control": "no-cache", "Content-Security-Policy": PAGE_POLICY}
        if known == file.etag:
            return Response(status_code=304, headers=kept)
        return Response(file.body, headers={**kept, "Content-Type": file.media_type})

    @app.get("/", include_in_schema=False)
    async def page(known: _KNOWN = None) -> Response:
        return page_file(files.get("index.html"), known)

    @app.get("/page/{name}", include_in_schema=False)
    async def page_part(name: str, known: _KNOWN = None) -> Response:
        return page_file(files.get(name), known)

    return app


def _chunks(file: IO[bytes], most: int | None = None) -> Iterator[bytes]:
    with file:
        while most != 0 and (chunk := file.read(_CHUNK)):
            yield chunk
