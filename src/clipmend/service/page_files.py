"""The page's own files, read once; and the page about the interface, written from its OpenAPI description."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader

__all__ = ["PageFile", "api_page", "page_files"]

_MEDIA = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".webmanifest": "application/manifest+json",
}


@dataclass(frozen=True)
class PageFile:
    body: bytes
    media_type: str
    etag: str


def page_files() -> dict[str, PageFile]:
    """Every file of the page by its name. Requests are looked up here: no name that a client sends ever reaches the disk."""
    found = {}
    for entry in sorted((resources.files("clipmend.service") / "page").iterdir(), key=lambda entry: entry.name):
        media = _MEDIA.get("." + entry.name.rpartition(".")[2])
        if entry.is_file() and media is not None:
            body = entry.read_bytes()
            found[entry.name] = PageFile(body, media, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
    return found


def api_page(openapi: dict[str, Any]) -> tuple[bytes, str]:
    """The page about the interface, without script or anything from elsewhere, and the policy that its style needs."""
    environment = Environment(loader=PackageLoader("clipmend.service", "."), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["pretty"] = lambda value: json.dumps(value, indent=2, ensure_ascii=False)
    style = (resources.files("clipmend.service") / "api.css").read_text(encoding="utf-8")
    html = environment.get_template("api.html.j2").render(api=openapi, style=style)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    return html.encode(), policy
