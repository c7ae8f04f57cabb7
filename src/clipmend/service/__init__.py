"""The search as a service: :func:`create_app` makes it, ``clipmend serve`` runs it. Extra ``serve``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clipmend.service.settings import Settings

if TYPE_CHECKING:
    from clipmend.service.app import create_app

__all__ = ["Settings", "create_app"]


def __getattr__(name: str) -> Any:
    if name == "create_app":  # FastAPI is wanted by those alone who make an application
        from clipmend.service.app import create_app

        return create_app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
