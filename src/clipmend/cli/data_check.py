"""``clipmend data check``: count what is wrong with images and captions before any work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from clipmend.cli.encoders import MODEL_HELP

__all__ = ["reader_options", "register"]

EPILOG = """Example:

clipmend data check coco:coco/ --split val2017

clipmend data check negbench/COCO_val_retrieval.csv --image-root coco/val2017 -o report.json

clipmend data check pairs.parquet --image-column image --caption-column text --model scenes

clipmend data check "webdataset:shards/{000..010}.tar" --limit 10000 --strict
"""


def register(app: typer.Typer) -> None:
    """Add the command to the group."""
    app.command(name="check", epilog=EPILOG)(check)


def check(
    source: str = typer.Argument(
        ..., metavar="SOURCE", help="A file or folder, or READER:PATH (see the list of readers in the documentation)."
    ),
    image_root: Path | None = typer.Option(None, "--image-root", help="Folder that image names start from."),
    split: str | None = typer.Option(None, "--split", help="Part of the data: val2017, test, train, ..."),
    image_column: str | None = typer.Option(None, "--image-column", help="Column with the images."),
    caption_column: str | None = typer.Option(None, "--caption-column", help="Column with the captions."),
    option: list[str] = typer.Option([], "--option", metavar="NAME=VALUE", help="Any other option of the reader; repeatable."),
    model: str | None = typer.Option(None, "--model", help="Count the captions this encoder would truncate. " + MODEL_HELP),
    decode: bool = typer.Option(True, "--decode/--no-decode", help="Decode every image, or only look whether it is there."),
    limit: int | None = typer.Option(None, "--limit", min=1, help="Look at the first rows only."),
    examples: int = typer.Option(5, "--examples", min=0, help="Most examples kept of each finding (the table shows three)."),
    workers: int | None = typer.Option(None, "--workers", min=1, help="Threads that decode; default: one a core, at most 8."),
    out: Path | None = typer.Option(None, "--out", "-o", help="Also write the report as JSON."),
    strict: bool = typer.Option(False, "--strict", help="Leave with exit code 1 if anything is wrong."),
) -> None:
    """Count missing, unreadable and duplicated images and empty, duplicated and truncated captions, and show the first of each.

    Reads NegBench, CC12M-NegCap and -NegMCQ, COCO, Pascal VOC, CSV, TSV, JSON lines, Parquet, image folders with .txt files,
    WebDataset and Hugging Face data sets. Nothing is changed.
    """
    from rich.console import Console

    from clipmend.data.images import display_path
    from clipmend.data.preflight import preflight
    from clipmend.data.readers import read

    named = {"image_root": image_root, "split": split, "image_column": image_column, "caption_column": caption_column}
    options: dict[str, Any] = {name: value for name, value in named.items() if value is not None} | reader_options(option)
    data = read(source, on_error="skip", **options)
    encoder = None
    if model is not None:
        from clipmend.cli.encoders import load_encoder

        encoder, _ = load_encoder(model, None)
    report = preflight(data, encoder, decode=decode, limit=limit, examples=examples, workers=workers, progress=True)
    console = Console(highlight=False)
    console.print(report.table())
    for note in report.notes:
        console.print(f"note: {display_path(note)}", markup=False, soft_wrap=True)
    if out is not None:
        report.write_json(out)
        console.print(f"{display_path(out)}: the report as JSON", markup=False, soft_wrap=True)
    if strict and not report.ok:
        raise typer.Exit(1)


def reader_options(pairs: list[str]) -> dict[str, Any]:
    """``NAME=VALUE`` of ``--option``: true, false and whole numbers are taken as such.

    Raises:
        ValueError: not of that form, or a name that is no reader's to take.
    """
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"--option {pair}: write it as NAME=VALUE")
        if name.strip().replace("-", "_") in ("source", "reader", "on_error"):
            raise ValueError(f"--option {pair}: no option of a reader; write SOURCE as READER:PATH to choose the reader")
        whole = value.isascii() and value.isdigit()
        known = {"true": True, "false": False}
        options[name.strip().replace("-", "_")] = int(value) if whole else known.get(value.lower(), value)
    return options
