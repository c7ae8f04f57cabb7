"""Shapes of requests and answers: what OpenAPI says of the service."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "About",
    "EmbeddingsAnswer",
    "EmbeddingsRequest",
    "ErrorAnswer",
    "Health",
    "ImageSearchRequest",
    "LoginRequest",
    "Models",
    "SearchAnswer",
    "SearchRequest",
    "Values",
    "responses",
]

MAX_QUERY = 2_000
MAX_ID = 2**63 - 1


class SearchRequest(BaseModel):
    """A search. Fields that are not known are refused: a misspelt one would be passed over otherwise."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"query": "a street with no car", "k": 12}]})

    query: str = Field(max_length=MAX_QUERY, description="Words, quoted terms with + and -, filters; empty: all images.")
    k: int = Field(24, ge=1, le=200, strict=True, description="Results of a page.")
    offset: int = Field(0, ge=0, le=10_000, strict=True, description="Results to pass over.")
    strength: float | None = Field(None, ge=0, le=3, strict=True, allow_inf_nan=False, description="Of the patch; 0 is not at all.")
    gate: bool | None = Field(
        None, strict=True, description="Leave texts without a negation cue as they are; null: as the service was started."
    )
    rerank: int = Field(0, ge=0, le=1_000, strict=True, description="Order the best N again by the patch's score correction.")
    collapse: float | None = Field(
        None, gt=0, le=1, strict=True, allow_inf_nan=False, description="Show one of images more alike than this cosine."
    )
    compare: bool = Field(False, strict=True, description="Also give the first page without the patch.")
    exact: bool | None = Field(None, strict=True, description="True: compare every image; null: as the gallery thinks best.")


class ImageSearchRequest(SearchRequest):
    """A search with an image; without a query it is for the image alone."""

    query: str = Field("", max_length=MAX_QUERY)


class QueryTerm(BaseModel):
    weight: float
    kind: Literal["text", "image", "like"]
    value: str
    mended: bool | None = Field(None, description="Whether the patch corrected it; null of images, and without a patch.")


class QueryCondition(BaseModel):
    field: str
    op: str
    value: str | float


class SearchHit(BaseModel):
    id: int
    key: str = Field(description="The id as text, for languages whose numbers are exact up to 2^53 only, such as JavaScript.")
    path: str
    rank: int | None
    score: float | None = Field(description="Null where nothing was ranked, for a query of filters alone.")
    rank_before: int | None = Field(description="Rank without the patch; null beyond the depth that was looked at.")
    score_before: float | None
    correction: float | None = Field(description="What the patch's score correction added.")
    width: int | None
    height: int | None
    fields: dict[str, str | float]
    copies: list[int] = Field(description="Near-duplicates that stand behind this one.")
    thumbnail: str | None


class SearchAnswer(BaseModel):
    query: str
    terms: list[QueryTerm]
    where: list[QueryCondition]
    total: int = Field(description="Images that fulfil the filters.")
    offset: int
    exact: bool
    depth: int = Field(description="How far ranks without the patch were looked at.")
    hint: str | None = Field(description="Advice: why nothing was found, or what would serve the query better.")
    edition: str | None = Field(
        description="Of the gallery: where page 2 has another than page 1, images changed between them. Names the index and, "
        "after a point, its last change; null where nothing tells."
    )
    milliseconds: float
    hits: list[SearchHit]
    before: list[SearchHit]


class PatchAbout(BaseModel):
    name: str
    strength: float
    corrects_scores: bool


class About(BaseModel):
    name: str
    count: int
    files: bool = Field(description="Whether it is known where the images are; if not, there are no thumbnails.")
    model: str
    patch: PatchAbout | None
    fields: dict[str, str]
    folders: list[tuple[str, int]]
    examples: list[str]
    embed_dim: int
    version: str


class Values(BaseModel):
    field: str
    values: list[tuple[str, int]] = Field(description="The most frequent ones with how many images have each, at most 200.")
    more: bool = Field(description="Whether there are others.")


Text = Annotated[str, Field(min_length=1)]


class EmbeddingsRequest(BaseModel):
    """As OpenAI's ``/v1/embeddings`` takes it, with the patch's ``strength`` and ``gate`` besides."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"input": ["a street with no car"], "model": "scenes+patch"}]})

    input: Text | Annotated[list[Text], Field(min_length=1, max_length=2_048)] = Field(
        description="Texts; token ids are not taken."
    )
    model: str = Field(max_length=1_000, description="A name out of /models.")
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1, le=1_000_000, strict=True, description="The model's own width, or left out.")
    strength: float | None = Field(None, ge=0, le=3, strict=True, allow_inf_nan=False)
    gate: bool | None = Field(None, strict=True)


class Embedding(BaseModel):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str = Field(description="Numbers, or base64 of little-endian float32.")


class Usage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(BaseModel):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage


class Model(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class Models(BaseModel):
    object: Literal["list"]
    data: list[Model]


class Health(BaseModel):
    status: Literal["ready", "starting", "ending"]
    hint: str | None = Field(None, description="What is amiss though it can be asked; left out where nothing is.")


class LoginRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    token: str = Field(max_length=4_096)


class Error(BaseModel):
    message: str
    type: str
    param: str | None = None


class ErrorAnswer(BaseModel):
    error: Error


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What OpenAPI says of errors."""
    said = {
        400: "Not JSON, or a host or origin that is not allowed",
        401: "The token is missing or wrong",
        403: "Asked for by a page of another site, or by another machine where there is no token",
        404: "No such thing",
        408: "The request's body did not arrive in time",
        413: "The request's body is too large",
        415: "The request's body is of another media type",
        422: "A value that cannot be used; the message says which and why",
        429: "Too many requests are waiting; ask again after Retry-After seconds",
        503: "No answer in time, or the service is ending",
    }
    return {status: {"model": ErrorAnswer, "description": said[status]} for status in statuses}
