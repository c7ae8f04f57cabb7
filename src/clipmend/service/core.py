"""What the service does, apart from HTTP: searches, embeddings and what it says of itself, each a call that blocks."""

from __future__ import annotations

import base64
import io
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from PIL import Image

from clipmend import __version__
from clipmend.data.images import ImageError, display_path, open_image
from clipmend.search.answers import answer_json
from clipmend.search.conditions import check_conditions
from clipmend.search.gallery import Gallery, GalleryError
from clipmend.search.grammar import Query, Term, parse_query
from clipmend.search.query import negation_hint
from clipmend.search.searcher import Answer, Found, Searcher
from clipmend.search.spelling import plain
from clipmend.service.batching import TextBatcher
from clipmend.service.current import Current, Opened, knows_files
from clipmend.service.errors import ServiceError
from clipmend.service.metrics import Metrics
from clipmend.service.requests import EmbeddingsRequest, SearchRequest
from clipmend.service.settings import Settings
from clipmend.service.thumbnails import without_bytes

__all__ = ["NO_FILES", "OUTDATED", "UPLOAD", "Service", "knows_files"]

log = logging.getLogger("clipmend.service")

Result = TypeVar("Result")

UPLOAD = "upload"
"""The name by which a query speaks of the image that came with it: ``image:upload``."""

NO_FILES = "it is not known where these images are: name their folder with --images DIR"

OUTDATED = "the index has changed and cannot be used as it is now, so the state before is served; the log says why"

_EXAMPLES = ("a beach without people", "a street with no cars", '"a beach" - "people"')
_DRAWN_EXAMPLES = ("a picture without a tree", "a red car and no dog", '"a beach" - "a boat"')
_VALUES = 200
_NAME = 100  # characters of an upload's name that are repeated
_COUNT_AGAIN = 60.0  # seconds


class Service:
    """A searcher, asked by many threads.

    Args:
        searcher: whose ``files`` is False: a query must not open files of this machine.
        settings: limits.
        metrics: told of every forward pass.
        owned: whether the searcher's gallery is to be closed here.

    Attributes:
        current: the gallery that is there now.

    Raises:
        ValueError: the searcher would open files.
    """

    def __init__(self, searcher: Searcher, settings: Settings, metrics: Metrics, owned: bool = False) -> None:
        if searcher.files:
            raise ValueError("a service must not open files that a query names: make its Searcher with files=False")
        self.settings = settings
        self.current = Current(searcher, settings.reload, owned, metrics)
        self._embed_dim = searcher.gallery.embed_dim
        observe = metrics.batch_texts.observe
        self.batcher = TextBatcher(self._embed, settings.max_batch, lambda count: observe(count), settings.timeout)
        self.model = plain(settings.model or searcher.encoder.name)

    @property
    def searcher(self) -> Searcher:
        """For its encoders; its gallery may be exchanged, see :attr:`current`."""
        return self.current.searcher

    def open(self) -> None:
        """Start; then embed and search once, so that the first client does not pay for what is made on first use."""
        self.batcher.open()
        self.current.open()
        with self.current.use() as opened:
            opened.searcher.search("a picture", k=1, embedder=self.batcher)

    def close(self, patience: float | None = None) -> None:
        """End the batching thread, waiting for it so many seconds; a gallery that is its owner's is left open."""
        self.current.close()
        self.batcher.close(patience)

    def models(self) -> list[str]:
        """The names that embeddings can be asked of: the encoder, and the encoder with its patch."""
        return [self.model] if self.searcher.mended is None else [self.model, f"{self.model}+patch"]

    def about(self) -> dict[str, Any]:
        """What the page needs to know."""
        return self.current.answer(self._about)

    def _about(self, opened: Opened) -> dict[str, Any]:
        gallery = opened.gallery
        mended = self.searcher.mended
        patch = None
        if mended is not None:
            patch = {
                "name": plain(self.settings.patch),
                "strength": float(getattr(mended, "strength", 1.0)),
                "corrects_scores": mended.corrects_scores,
            }
        return {
            "name": plain(self.settings.name or gallery.name),
            "count": len(gallery),
            "files": opened.files,
            "model": self.model,
            "patch": patch,
            "fields": {plain(name): kind for name, kind in gallery.fields.items()},
            "folders": self._folders(opened),
            "examples": [plain(example) for example in self.settings.examples or self._own_examples()],
            "embed_dim": gallery.embed_dim,
            "version": __version__,
        }

    def _own_examples(self) -> Sequence[str]:
        return _DRAWN_EXAMPLES if self.searcher.encoder.name == "scenes" else _EXAMPLES

    def _folders(self, opened: Opened) -> list[tuple[str, int]]:
        """The largest folders with their counts."""
        return self._values(opened, "folder")[:_VALUES] if opened.gallery.fields.get("folder") == "folder" else []

    def _values(self, opened: Opened, field: str) -> list[tuple[str, int]]:
        """Counted once a minute at most, for of a million images that takes a while; one more than are told."""
        now = time.monotonic()
        counted = opened.counted.get(field)
        if counted is None or now - counted[0] > _COUNT_AGAIN:
            counted = (now, [(plain(name), count) for name, count in opened.gallery.values(field, _VALUES + 1)])
            opened.counted[field] = counted
        return counted[1]

    def values(self, field: str) -> dict[str, Any]:
        """The most frequent values of a field of texts or folders.

        Raises:
            ServiceError: 422, there is no such field.
        """
        return self.current.answer(lambda opened: self._values_of(opened, field))

    def _values_of(self, opened: Opened, field: str) -> dict[str, Any]:
        known = [name for name, kind in opened.gallery.fields.items() if kind in ("text", "folder")]
        if field not in known:
            message = f"there is no field {field[:100]!r} of texts here; there is {', '.join(known) or 'none'}"
            raise ServiceError(422, "invalid_request", plain(message), "field")
        found = self._values(opened, field)
        return {"field": plain(field), "values": found[:_VALUES], "more": len(found) > _VALUES}

    def search(self, request: SearchRequest, upload: bytes | None = None, name: str | None = None) -> dict[str, Any]:
        """Answer a search.

        Args:
            request: checked already.
            upload: an image that came with it.
            name: of its file, for what is said of it.

        Raises:
            ServiceError: 422, with the reason.
        """
        images: dict[str, Image.Image] = {}
        if upload is not None:
            images[UPLOAD] = self._decoded(upload, name)
        known: dict[tuple[tuple[str, ...], float | None, bool | None], np.ndarray] = {}

        def embedder(texts: Sequence[str], strength: float | None, gate: bool | None) -> np.ndarray:
            # Once, also where the gallery changes meanwhile and is asked again: it is the encoder that takes time.
            key = (tuple(texts), strength, gate)
            if key not in known:
                known[key] = self._embedded(texts, strength, gate)
            return known[key]

        def work(opened: Opened) -> tuple[Answer, str]:
            try:
                query = self._read(opened.gallery, request.query, images)
                answer = opened.searcher.search(
                    query,
                    request.k,
                    request.offset,
                    strength=request.strength,
                    gate=request.gate,
                    rerank=request.rerank,
                    collapse=request.collapse,
                    compare=request.compare,
                    exact=request.exact,
                    images=images,
                    on_long="error",
                    embedder=embedder,
                )
            except GalleryError:  # conditions were checked, so this is damage: no fault of the client's, and none of its business
                raise
            except ValueError as error:
                raise ServiceError(422, "invalid_query", plain(str(error)), "query") from error
            return answer, opened.gallery.edition

        answer, edition = self.current.answer(work)
        if self.settings.log_queries:
            log.info("query", extra={"data": {"query": request.query, "total": answer.total, "hits": len(answer.hits)}})
        return answer_json(answer, request.query, _more) | {"hint": self._advice(answer), "edition": edition or None}

    def of_an_image(self, work: Callable[..., Result], edition: str | None, *rest: Any) -> Result:
        """Do some work with the gallery that is there now and one of its images.

        Args:
            work: takes the gallery, and ``rest``.
            edition: of the answer that the image's id is out of, where the client says so.

        Raises:
            ServiceError: 404, the id is out of another index.
        """

        def checked(opened: Opened) -> Result:
            there = opened.gallery.edition
            if edition and there and edition.partition(".")[0] != there.partition(".")[0]:
                raise ServiceError(404, "not_found", "this image is of an index that another one has replaced; search again", "of")
            return work(opened.gallery, *rest)

        return self.current.answer(checked, whole=False)

    def embeddings(self, request: EmbeddingsRequest) -> dict[str, Any]:
        """Embed texts, in OpenAI's shape.

        Raises:
            ServiceError: 404, a model that is not here; 422, what cannot be embedded.
        """
        texts = [request.input] if isinstance(request.input, str) else request.input
        limits = self.settings
        models = self.models()
        if request.model not in models:
            shown = request.model[:100]
            raise ServiceError(
                404, "model_not_found", f"there is no model {shown!r} here; there is {' and '.join(models)}", "model"
            )
        if request.dimensions not in (None, self._embed_dim):
            message = f"the model has {self._embed_dim} dimensions, and its vectors cannot be shortened"
            raise ServiceError(422, "invalid_request", message, "dimensions")
        if len(texts) > limits.max_texts:
            raise ServiceError(422, "invalid_request", f"{len(texts)} texts; at most {limits.max_texts} a request", "input")
        for row, text in enumerate(texts):
            if len(text) > limits.max_text:
                message = f"text {row} has {len(text):,} characters; at most {limits.max_text:,}"
                raise ServiceError(422, "invalid_request", message, "input")
            if not text.strip():
                raise ServiceError(422, "invalid_request", f"text {row} is empty", "input")
        patched = request.model != models[0]
        if not patched and (request.strength or request.gate):
            raise ServiceError(422, "invalid_request", f"strength and gate belong to a patch: ask {self.model}+patch", "strength")
        try:
            tokens = self._tokens(texts)
            vectors = self.batcher(texts, request.strength if patched else 0.0, request.gate if patched else None)
        except ValueError as error:
            raise ServiceError(422, "invalid_request", plain(str(error)), "input") from error
        rows = np.ascontiguousarray(vectors, "<f4")
        as_text = request.encoding_format == "base64"
        data = [
            {
                "object": "embedding",
                "index": index,
                "embedding": base64.b64encode(row.tobytes()).decode() if as_text else row.tolist(),
            }
            for index, row in enumerate(rows)
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "data": data, "model": request.model, "usage": usage}

    def _embedded(self, texts: Sequence[str], strength: float | None, gate: bool | None) -> np.ndarray:
        self._tokens(texts)
        return self.batcher(texts, strength, gate)

    def _embed(self, texts: list[str], strength: float | None, gate: bool | None) -> np.ndarray:
        # A text that would be cut is an error here: its end would be passed over without a word otherwise.
        return self.searcher.embed(texts, strength, gate, on_long="error")

    def _read(self, gallery: Gallery, text: str, images: Mapping[str, Image.Image]) -> Query:
        """The query; no words at all mean every image, or the image that was sent."""
        query = parse_query(text, gallery.fields) if text.strip() else Query(())
        try:
            check_conditions(query.where, gallery.fields, gallery.name)
        except GalleryError as error:
            raise ServiceError(422, "invalid_query", plain(str(error)), "query") from None
        named = {term.value for term in query.terms if term.kind == "image"}
        if images and not query.terms:
            return Query((Term(1.0, "image", UPLOAD),), query.where, query.text, query.fields)
        if images and UPLOAD not in named:
            message = f'the query does not name the image that was sent: add it as image:{UPLOAD}, say image:{UPLOAD} - "people"'
            raise ServiceError(422, "invalid_query", message, "query")
        if named - set(images):
            missing = sorted(named - set(images))[0]
            message = f"no image called {missing!r} came with the query; send one to /search/image"
            if "://" in missing:
                message = f"image:{missing} is an address, and addresses are never fetched: send the image itself to /search/image"
            raise ServiceError(422, "invalid_query", plain(message), "query")
        return query

    def _decoded(self, upload: bytes, name: str | None) -> Image.Image:
        try:
            return open_image(io.BytesIO(upload), max_pixels=self.settings.max_pixels)
        except ImageError as error:
            called = f"“{display_path(name[:_NAME])}”" if name else "the image"
            raise ServiceError(422, "invalid_image", f"{called} {without_bytes(error.reason)}", "image") from None

    def _advice(self, answer: Answer) -> str | None:
        """The answer's hint; of a patch that is missing, in words for who asks a service and has no command line."""
        if answer.hint is None or not answer.hits:
            return answer.hint
        name = self.searcher.encoder.name
        told = (negation_hint(text, self.searcher.mended is not None, name, served=True) for text in answer.query.texts)
        return next((hint for hint in told if hint), answer.hint)

    def _tokens(self, texts: Sequence[str]) -> int:
        """Tokens, special ones included; of an encoder without a text tower of ours, words.

        Also where a text that is too long is found out, before it meets those of others.
        """
        tower = getattr(self.searcher.encoder, "tower", None)
        if tower is None:
            return sum(len(text.split()) for text in texts)
        return sum(len(ids) for ids in tower.tokenise(texts, "error").ids)


def _more(found: Found) -> dict[str, Any]:
    return {"thumbnail": None if found.file is None else f"/thumbnails/{found.id}"}
