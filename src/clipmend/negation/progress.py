"""A progress bar with the losses of the last steps, on a terminal only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["training_progress"]

Show = Callable[[int, dict[str, float]], None]


@contextmanager
def training_progress(total: int, on: bool, start: int = 0) -> Iterator[Show]:
    """Yield ``show(step, losses)``; with ``on`` it drives a bar on standard error with smoothed losses."""
    if not on:
        yield lambda step, losses: None
        return
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[losses]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("training", total=total, completed=start, losses="")
        smooth: dict[str, float] = {}

        def show(step: int, losses: dict[str, float]) -> None:
            for name, value in losses.items():
                smooth[name] = value if name not in smooth else 0.95 * smooth[name] + 0.05 * value
            bar.update(task, completed=step, losses="  ".join(f"{name} {value:.3f}" for name, value in smooth.items()))

        yield show
