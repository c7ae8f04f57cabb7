"""Progress bars: shown when asked for, and on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

__all__ = ["track", "training_bar"]

T = TypeVar("T")

Show = Callable[[int, dict[str, float]], None]


def track(items: Iterable[T], total: int, description: str, show: bool) -> Iterable[T]:
    """``items``, with a bar on standard error if ``show`` and standard error is a terminal."""
    if not show or not sys.stderr.isatty():
        return items
    from rich.console import Console
    from rich.progress import track as rich_track

    return rich_track(items, total=total, description=description, console=Console(stderr=True), transient=True)


@contextmanager
def training_bar(description: str, total: int, show: bool, start: int = 0) -> Iterator[Show]:
    """Yield ``tell(step, losses)``, which drives a bar with smoothed losses if ``show`` and standard error is a terminal."""
    if not show or not sys.stderr.isatty():
        yield lambda step, losses: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn(description), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[losses]}")
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total, completed=start, losses="")
        smooth: dict[str, float] = {}

        def tell(step: int, losses: dict[str, float]) -> None:
            for name, value in losses.items():
                smooth[name] = value if name not in smooth else 0.95 * smooth[name] + 0.05 * value
            bar.update(task, completed=step, losses="  ".join(f"{name} {value:.3f}" for name, value in smooth.items()))

        yield tell
