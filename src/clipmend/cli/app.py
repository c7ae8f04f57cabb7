"""Assemble the command line. Each command is one module of this package with a function ``register(app)``."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec

import typer

COMMANDS = (
    "demo",
    "diagnose",
    "fit",
    "encode",
    "features",
    "evaluate",
    "benchmark",
    "index",
    "search",
    "scenes",
    "data",
    "reproduce",
    "filter",
    "export",
    "stretch",
    "finetune",
    "dense-stats",
)


app = typer.Typer(
    name="clipmend",
    help="Make CLIP-like image-text encoders say what they know: find where negation is lost, mend it, search with it.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _version(show: bool) -> None:
    if show:
        from clipmend import __version__

        typer.echo(f"clipmend {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version and exit."),
) -> None:
    """Options of the command itself; the work is in its sub-commands."""


for _module in (f"clipmend.cli.{_command.replace('-', '_')}" for _command in COMMANDS):
    if find_spec(_module):
        import_module(_module).register(app)


def main() -> None:
    """Run the command line.

    What the library refuses is one clear line on standard error and exit status 1. What no command was run for (an unknown option,
    a number out of its range, a missing argument) is Click's: its usage message and exit status 2.
    """
    try:
        app()
    except (ValueError, OSError, ImportError) as error:
        from rich.console import Console

        Console(stderr=True, highlight=False, soft_wrap=True, emoji=False).print(f"[bold red]error:[/] {_escaped(error)}")
        sys.exit(1)


def _escaped(error: BaseException) -> str:
    from rich.markup import escape

    said = str(error)
    if isinstance(error, OSError) and error.filename and error.strerror:  # without Python's "[Errno 2]"
        said = f"{error.filename}: {error.strerror}"
    return escape(" ".join(said.split()) or type(error).__name__)
