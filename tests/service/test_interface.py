"""The service against its own OpenAPI description: Schemathesis makes requests that fit it, and requests that do not."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("schemathesis")
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.core.parameters import ParameterLocation
from tests.service.fake_service import searcher_of

from clipmend.service import Settings, create_app

TOKEN = "a-token-of-enough-letters"
QUICK, THOROUGH = 25, 400
IMAGES = 30
seen: dict[tuple[str, str], set[int]] = {}

# A text may fit the description and still say nothing that can be searched: a query's grammar, a model's name and the content of an
# image are not a schema's to describe. Such a request is 422, or 404 for a model.
ACCEPTED = ["2xx", "304", "401", "404", "422"]
# What may be said to a request that breaks it: each status with which the service refuses, and 503 where it is busy.
REFUSED = ["400", "401", "403", "404", "408", "413", "415", "422", "429", "503"]


def described(folder: Path) -> Any:
    app = create_app(searcher_of(folder), Settings(token=TOKEN, max_texts=2_048))
    config = schemathesis.Config.from_dict(
        {
            "checks": {
                "positive_data_acceptance": {"expected-statuses": ACCEPTED},
                "negative_data_rejection": {"expected-statuses": REFUSED},
            },
            "generation": {"database": "none"},
        }
    )
    return schemathesis.openapi.from_asgi("/openapi.json", app, config=config)


_folder = tempfile.TemporaryDirectory()  # goes with the process
interface_schema = described(Path(_folder.name))  # here, as there is one test for each operation of it
checked = settings(deadline=None, suppress_health_check=list(HealthCheck))


@interface_schema.hook
def map_path_parameters(_: Any, path_parameters: Any) -> Any:
    """Three ids of four are of an image, or the requests would all be for images that are not there."""
    id = (path_parameters or {}).get("id")
    if type(id) is int and 0 <= id < 1 << 63 and id % 4:  # what is wrong stays wrong
        path_parameters["id"] = id % IMAGES
    return path_parameters


@interface_schema.hook
def map_body(_: Any, body: Any) -> Any:
    """Likewise the names of models."""
    if isinstance(body, dict) and isinstance(body.get("model"), str) and len(body["model"]) <= 1_000 and len(body["model"]) % 4:
        body["model"] = "fake" if len(body["model"]) % 2 else "fake+patch"
    return body


def ask(case: Any) -> None:
    # A request whose fault is the header that it lacks is left as it is: with it, it would be a good one.
    faulty = case.meta is not None and case.meta.is_negative_at(ParameterLocation.HEADER)
    answer = case.call_and_validate(headers={} if faulty else {"Authorization": f"Bearer {TOKEN}"})
    seen.setdefault((case.method.upper(), case.path), set()).add(answer.status_code)


@interface_schema.parametrize()
@settings(checked, max_examples=QUICK, derandomize=True)
def test_requests_out_of_the_description(case: Any) -> None:
    ask(case)


@pytest.mark.slow
@interface_schema.parametrize()
@settings(checked, max_examples=THOROUGH)
def test_many_requests_out_of_the_description(case: Any) -> None:
    ask(case)


def test_good_and_bad_requests_were_among_them() -> None:
    if not seen:
        pytest.skip("the requests were not asked for")
    for path in ("/search", "/embeddings", "/v1/embeddings"):
        assert {200, 422} <= seen["POST", path]
    for path in ("/thumbnails/{id}", "/images/{id}"):
        assert {200, 404, 422} <= seen["GET", path]


def test_every_address_of_the_application_is_described_or_a_page(tmp_path: Path) -> None:
    app = create_app(searcher_of(tmp_path))
    routes = {route.path for route in app.routes if hasattr(route, "path")}
    assert routes - set(app.openapi()["paths"]) == {"/openapi.json", "/docs", "/", "/page/{name}"}
