"""``clipmend index``: make an image index, or bring it up to date."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from clipmend.cli.encoders import MAX_PIXELS_HELP, MODEL_HELP, load_encoder, pixel_limit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clipmend.backbones import DualEncoder
    from clipmend.search.gallery import FieldType

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
    types: list[str] | None = typer.Option(
        None,
        "--type",
        metavar="COLUMN:TYPE",
        help="With --columns: what a column is to be taken for (text, number, time), where its values do not say; repeatable.",
        show_default=False,
    ),
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
    from clipmend.search import ImageIndex, ImageIndexError, build_index, migrate, store
    from clipmend.search.columns import look_at
    from clipmend.search.report import told_others

    chosen = list(folders or ())
    for folder in chosen:
        if not folder.exists():
            raise FileNotFoundError(f"there is no folder {display_path(folder)}; check how it is spelled, and from where")
        if not folder.is_dir():
            raise NotADirectoryError(f"{display_path(folder)} is a file, not a folder; give the folder that holds the images")
    stated = _types(types or ())
    if columns is not None:
        if not columns.is_file():
            raise FileNotFoundError(f"{display_path(columns)}: no such file")
        look_at(columns, key, stated)  # before hours of embedding
    elif stated:
        raise ValueError("--type says what columns are taken for, and needs --columns TABLE")
    if verify or not chosen:
        with ImageIndex.open(out, verify=verify) as opened:
            chosen = chosen or list(opened.roots.values())
        if not chosen:
            raise ImageIndexError(f"the index {display_path(out)} is not of a folder; give one: clipmend index MODEL DIR -o INDEX")

    def load() -> DualEncoder:
        return load_encoder(model, device)[0]

    # The model that made the index is loaded only if there is anything to embed; another is compared with it in any case.
    same = store.exists(out) and migrate.current(out).backbone["name"] == model
    report = build_index(
        load if same or not store.exists(out) else load(),
        chosen,
        out,
        batch_size=batch_size,
        max_pixels=pixel_limit(max_pixels),
        dtype="float16" if half else None,
        workers=workers,
        approximate=approximate,
        progress=True,
    )
    console = Console(highlight=False, soft_wrap=True, emoji=False)
    listed = f"; those skipped are listed in {display_path(out / 'skipped.json')}" if report.skipped else ""
    console.print(f"{display_path(out)}: {report}{listed}", markup=False)
    if report.others:
        console.print(f"  {told_others(report.others)}", markup=False)
    for number, (path, reason) in enumerate(report.newly_skipped.items()):
        if number == 5:
            console.print(f"  ... and {len(report.newly_skipped) - 5:,} more", markup=False)
            break
        console.print(f"  skipped {display_path(path)}: {reason}", markup=False)
    if columns is not None:
        with ImageIndex.open(out) as opened:
            console.print(f"{display_path(columns)}: {opened.import_columns(columns, key, stated)}", markup=False)


def _types(stated: Sequence[str]) -> dict[str, FieldType]:
    """``COLUMN:TYPE`` as given; the last colon parts them."""
    types: dict[str, FieldType] = {}
    for text in stated:
        name, _, type_ = text.rpartition(":")
        if not name or type_ not in ("text", "number", "time"):
            raise ValueError(f"--type {text}: write COLUMN:TYPE, where TYPE is text, number or time")
        types[name] = type_  # type: ignore[assignment]
    return types
