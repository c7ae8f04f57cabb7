"""``clipmend demo``: the main job from start to end, with a report."""

from __future__ import annotations

from pathlib import Path

import typer

__all__ = ["register"]

EPILOG = """Example:

clipmend demo

clipmend demo --photos ~/pictures --out my-demo
"""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(name="demo", epilog=EPILOG)(demo)


def demo(
    out: Path = typer.Option(Path("demo"), "--out", "-o", metavar="DIR", help="Where patch, index, results and report go."),
    photos: Path | None = typer.Option(
        None, "--photos", metavar="DIR", help="Search your own photographs, not the installed ones."
    ),
    train: int = typer.Option(1100, "--train", min=60, help="Drawn scenes to fit on."),
    test: int = typer.Option(400, "--test", min=60, help="Held-out scenes to measure and search."),
    steps: int = typer.Option(160, "--steps", min=1, help="Optimiser steps of the fit."),
    sets: int = typer.Option(0, "--sets", min=0, help="Noun sets mixed into the fit; 0: images alone, which takes fewer steps."),
    seed: int = typer.Option(0, "--seed", min=0, help="Seed of scenes and fit."),
) -> None:
    """See an image-text encoder fail at "no", see where the signal dies, mend it, and search an unchanged image index.

    Takes minutes on two cores; needs no GPU and no network (extra "demo"). Writes patch/, index/, results.json and report.html.
    """
    from rich.console import Console

    from clipmend.demo import DemoOptions, run_demo

    if photos is not None and not photos.is_dir():
        raise NotADirectoryError(f"{photos} is not a folder of photographs")
    console = Console(highlight=False)
    options = DemoOptions(train=train, test=test, sets=sets, steps=steps, seed=seed, photos=photos)
    run_demo(out, options, say=console.print, progress=console.is_terminal)
