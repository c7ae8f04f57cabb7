"""``clipmend scenes``: draw a world with exact ground truth."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import typer


class Split(str, Enum):
    """Which stream of scenes."""

    train = "train"
    test = "test"


_HELP = """Draw scenes and write them to the folder OUT with everything that is said about them: images, what they show, captions,
questions, retrieval captions, exclusion queries, long paragraphs with near-twins, and minimal pairs.

Reserved wordings ("devoid of", "neither ... nor", ...) and denials of reserved kinds are written for the test split alone.

[bold]Example[/bold]

    clipmend scenes world/train --count 2000 --seed 7
    clipmend scenes world/test --count 1000 --seed 8 --split test
"""


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("scenes", help=_HELP)
    def scenes(
        out: Path = typer.Argument(..., metavar="OUT", help="Folder to write."),
        count: int = typer.Option(1000, help="Number of scenes.", min=1),
        size: int = typer.Option(64, help="Side of the images in pixels.", min=16, max=4096),
        seed: int = typer.Option(7, help="Fixes every pixel and every text.", min=0),
        split: Split = typer.Option(Split.train, help="Train and test never share a random stream."),
        overwrite: bool = typer.Option(False, "--overwrite", help="Replace OUT if it is not empty."),
    ) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        from clipmend.data.scenes.tables import write_scenes

        console = Console(stderr=True)
        columns = (TextColumn("drawing scenes"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
            task = progress.add_task("scenes", total=count)
            written = write_scenes(
                out, count, size, seed, split.value, overwrite, advance=lambda step: progress.advance(task, step)
            )
        for note in written.notes:
            console.print(f"[yellow]note:[/] {note}", highlight=False)
        typer.echo(f"{written.folder}: " + ", ".join(f"{rows} {name}" for name, rows in written.rows.items()))
