"""``clipmend index``: make an image index, or bring it up to date."""

from __future__ import annotations

from pathlib import Path

import typer

from clipmend.cli.encoders import MAX_PIXELS_HELP, MODEL_HELP, load_encoder, pixel_limit

__all__ = ["register"]

EPILOG = """Example:

clipmend index photos pictures/ -o pictures.index

clipmend index photos pictures/ scans/ -o pictures.index --columns labels.csv

clipmend index openai/clip-vit-base-patch32 pictures/ -o pictures.index --batch-size 64 --device cuda
"""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(name="index", epilog=EPILOG)(index)


def index(
    model: str = typer.Argument(..., help=MODEL_HELP),
    folders: list[Path] | None = typer.Argument(
        None,
        metavar="[DIR]...",
        help="Folders of images; sub-folders are searched, hidden files left out. Default: those the index is of.",
        show_default=False,
    ),
    out: Path = typer.Option(..., "--out", "-o", metavar="INDEX", help="The index, a folder; made, or updated if it is one."),
    batch_size: int = typer.Option(32, "--batch-size", min=1, help="Most images a forward pass."),
    max_pixels: int = typer.Option(100_000_000, "--max-pixels", min=0, help=MAX_PIXELS_HELP),
    half: bool = typer.Option(
        False, "--half", help="Store vectors as float16: half the size, cosines to about 0.001. New indexes only."
    ),
    approximate: bool | None = typer.Option(
        None,
        "--approximate/--exact",
        help="Keep a graph for approximate search, or none; default: from 50,000 images on.",
        show_default=False,
    ),
    columns: Path | None = typer.Option(
        None,
        "--columns",
        metavar="TABLE",
        help="Also take fields to filter by from a table: .csv, .tsv, .jsonl or .parquet, one row an image.",
    ),
    key: str = typer.Option("path", "--key", help="With --columns: the column that names the image."),
    verify: bool = typer.Option(False, "--verify", help="First read the whole index and compare it with its digests."),
    workers: int | None = typer.Option(None, "--workers", min=1, help="Threads that read images; default: one a core, at most 8."),
    device: str | None = typer.Option(None, "--device", help="cpu, cuda, mps; default: the best that is there."),
) -> None:
    """Embed the images of folders into an index on disk, for 'clipmend search'.

    Run it again after adding, changing, moving or deleting images: only new contents are embedded. A run that was killed is
    resumed by the same command. Files that cannot be read are counted, and listed with the reason in INDEX/skipped.json.
    """
    from rich.console import Console

    from clipmend.data.images import display_path
    from clipmend.search import ImageIndex, ImageIndexError, build_index

    chosen = list(folders or ())
    for folder in chosen:
        if not folder.is_dir():
            raise NotADirectoryError(f"{display_path(folder)} is not a folder; give the folder of images")
    if columns is not None and not columns.is_file():
        raise FileNotFoundError(f"{display_path(columns)}: no such file")
    if verify or not chosen:
        with ImageIndex.open(out, verify=verify) as opened:
            chosen = chosen or list(opened.roots.values())
        if not chosen:
            raise ImageIndexError(f"the index {display_path(out)} is not of a folder; give one: clipmend index MODEL DIR -o INDEX")
    encoder, _ = load_encoder(model, device)
    report = build_index(
        encoder,
        chosen,
        out,
        batch_size=batch_size,
        max_pixels=pixel_limit(max_pixels),
        dtype="float16" if half else None,
        workers=workers,
        approximate=approximate,
        progress=True,
    )
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{display_path(out)}: {report}", markup=False)
    for number, (path, reason) in enumerate(report.skipped.items()):
        if number == 5:
            console.print(f"  ... and {len(report.skipped) - 5:,} more: {display_path(out / 'skipped.json')}", markup=False)
            break
        console.print(f"  skipped {display_path(path)}: {reason}", markup=False)
    if columns is not None:
        with ImageIndex.open(out) as opened:
            console.print(f"{display_path(columns)}: {opened.import_columns(columns, key)}", markup=False)
