"""Progress bars: shown when asked for, and on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TypeVar

__all__ = ["track"]

T = TypeVar("T")


def track(items: Iterable[T], total: int, description: str, show: bool) -> Iterable[T]:
    """``items``, with a bar on standard error if ``show`` and standard error is a terminal."""
    if not show or not sys.stderr.isatty():
        return items
    from rich.console import Console
    from rich.progress import track as rich_track

    return rich_track(items, total=total, description=description, console=Console(stderr=True), transient=True)
