"""``clipmend data``: what there is to do with data before a model sees it. Each sub-command is a module ``data_NAME``."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import typer

__all__ = ["register"]

SUBCOMMANDS = ("check", "negate", "segments")

EPILOG = """Example:

clipmend data check coco:coco/ --split val2017
"""


def register(app: typer.Typer) -> None:
    """Add the group and those of its commands that are there."""
    group = typer.Typer(help="Look data through, and make data of your own.", epilog=EPILOG, no_args_is_help=True)
    for name in SUBCOMMANDS:
        if find_spec(f"clipmend.cli.data_{name}"):
            import_module(f"clipmend.cli.data_{name}").register(group)
    app.add_typer(group, name="data", epilog=EPILOG)
