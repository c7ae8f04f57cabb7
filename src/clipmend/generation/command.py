"""What the modules of this package that are run with ``python -m`` share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from PIL import Image

__all__ = ["print_if", "run_main", "save_png"]


def print_if(show: bool, text: str) -> None:
    """Print at once, so that a log can be followed."""
    if show:
        print(text, flush=True)


def save_png(picture: Image.Image, path: Path) -> None:
    """Write a picture beside its place and rename it into it."""
    part = path.with_name(f"{path.name}.part")
    picture.save(part, "PNG")
    part.replace(path)


def run_main(main: Callable[[], None]) -> None:
    """Run a module's command line: what the library refuses is one line on standard error and exit status 1."""
    try:
        main()
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(1)
