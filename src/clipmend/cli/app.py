"""Assemble the command line. Each command is one module of this package with a function ``register(app)``."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.util import find_spec

import typer

PANELS = {
    "Start here": ("demo", "scenes"),
    "Negation": ("diagnose", "fit", "generate", "export", "reproduce"),
    "Long captions": ("stretch", "finetune", "dense-stats"),
    "Search": ("index", "info", "search", "serve", "copy", "filter", "encode"),
    "Measure": ("evaluate", "benchmark"),
    "Data": ("data", "features"),
}
"""The commands as ``clipmend --help`` groups them."""

COMMANDS = tuple(command for commands in PANELS.values() for command in commands)


app = typer.Typer(
    name="clipmend",
    help="Make CLIP-like image-text encoders say what they know: find where negation is lost, mend it, search with it; "
    "fine-tune on long captions with a margin that tells near-twins apart.",
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


for _panel, _commands in PANELS.items():
    for _command in _commands:
        _module = f"clipmend.cli.{_command.replace('-', '_')}"
        if find_spec(_module):
            import_module(_module).register(app)
            for _single in app.registered_commands:
                if _single.name == _command:
                    _single.rich_help_panel = _panel
            for _group in app.registered_groups:
                if _group.name == _command:
                    _group.rich_help_panel = _panel


def main() -> None:
    """Run the command line.

    What the library refuses is one clear line on standard error and exit status 1. What no command was run for (an unknown option,
    a number out of its range, a missing argument) is Click's: its usage message and exit status 2. What Python warns of is one
    line, without the place in the code, which says nothing to who runs a command.
    """
    warnings.showwarning = _warn
    try:
        app()
    except (ValueError, OSError, ImportError) as error:
        from rich.console import Console

        Console(stderr=True, highlight=False, soft_wrap=True, emoji=False).print(f"[bold red]error:[/] {_escaped(error)}")
        sys.exit(1)


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    from rich.console import Console

    console = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)
    console.print(f"warning: {' '.join(str(message).split())}", style="yellow", markup=False)


def _escaped(error: BaseException) -> str:
    from rich.markup import escape

    said = str(error)
    if isinstance(error, OSError) and error.filename and error.strerror:  # without Python's "[Errno 2]"
        said = f"{error.filename}: {error.strerror}"
    return escape(" ".join(said.split()) or type(error).__name__)
