"""Published benchmarks, run on a machine that has their files: every model, patch and rival, resumable, published rows beside.

The names are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_PUBLIC = {
    "Method": "methods",
    "PublishedRow": "published",
    "Report": "report",
    "published_rows": "published",
    "run_negbench": "negbench",
}

if TYPE_CHECKING:
    from clipmend.benchmark.methods import Method
    from clipmend.benchmark.negbench import run_negbench
    from clipmend.benchmark.published import PublishedRow, published_rows
    from clipmend.benchmark.report import Report

__all__ = ["Method", "PublishedRow", "Report", "published_rows", "run_negbench"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
