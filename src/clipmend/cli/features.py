"""``clipmend features``: features of a whole data set, on one process or many machines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from clipmend.cli.data_check import reader_options
from clipmend.cli.encode import OnLongText
from clipmend.cli.encoders import MAX_PIXELS_HELP, MODEL_HELP, pixel_limit

__all__ = ["register"]

EPILOG = """Example:

clipmend features photos --data pictures/ -o work --workers 2

clipmend features openai/clip-vit-base-patch32 --data "webdataset:shards/{000..010}.tar" -o work --ray auto

clipmend features scenes --data drawn/ -o work && clipmend fit scenes --data drawn/ --work work -o my-patch
"""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(name="features", epilog=EPILOG)(features)


def features(
    model: str = typer.Argument(..., help=MODEL_HELP),
    data: str = typer.Option(
        ..., "--data", metavar="SOURCE", help="A file or folder, READER:PATH, or a folder made for 'clipmend fit'."
    ),
    out: Path = typer.Option(..., "--out", "-o", metavar="DIR", help="Where the features go; a folder for 'clipmend fit --work'."),
    images: bool = typer.Option(True, "--images/--no-images", help="Make embeddings of the images."),
    texts: bool = typer.Option(True, "--texts/--no-texts", help="Make text features of the captions."),
    workers: int | None = typer.Option(
        None, "--workers", min=1, help="Processes (default 1; with --ray one a processor of the cluster). Over 1: extra 'cluster'."
    ),
    ray: str | None = typer.Option(None, "--ray", metavar="ADDRESS", help="Work on this Ray cluster: HOST:PORT, or auto."),
    threads: int = typer.Option(1, "--threads", min=1, help="Threads of each process; their number shows in the last bits."),
    readers: int | None = typer.Option(
        None, "--readers", min=1, help="Threads of each process that read and decode images; default: one a core, at most 8."
    ),
    image_root: Path | None = typer.Option(None, "--image-root", help="Folder that image names start from."),
    split: str | None = typer.Option(None, "--split", help="Part of the data: val2017, test, train, ..."),
    image_column: str | None = typer.Option(None, "--image-column", help="Column with the images."),
    caption_column: str | None = typer.Option(None, "--caption-column", help="Column with the captions."),
    option: list[str] = typer.Option([], "--option", metavar="NAME=VALUE", help="Any other option of the reader; repeatable."),
    peak: int | None = typer.Option(None, "--peak", min=1, help="Layer a fit is to read (default: suggested by a diagnosis)."),
    anchor: int | None = typer.Option(None, "--anchor", min=1, help="Earlier layer it reads besides."),
    image_batch: int = typer.Option(32, "--image-batch", min=1, help="Images a forward pass."),
    text_batch: int = typer.Option(64, "--text-batch", min=1, help="Captions a forward pass."),
    image_unit: int = typer.Option(512, "--image-unit", min=1, help="Images a unit of work: what a kill costs at most."),
    text_unit: int = typer.Option(4096, "--text-unit", min=1, help="Captions a unit of work."),
    max_pixels: int = typer.Option(100_000_000, "--max-pixels", min=0, help=MAX_PIXELS_HELP),
    draft: bool = typer.Option(
        False, "--draft", help="Decode large JPEGs at 1/2, 1/4 or 1/8 of their size: faster; embeddings differ a little."
    ),
    on_long: OnLongText = typer.Option(
        OnLongText.warn, "--on-long", help="What to do with captions over the encoder's context length."
    ),
    device: str | None = typer.Option(None, "--device", help="cpu, cuda, mps; default: the best that is there."),
) -> None:
    """Make the features of every image and caption of a data set once: image embeddings, and the text states that a fit reads.

    The work is cut into units that are fixed beforehand. A run that was killed is resumed by the same command, and the bytes do not
    depend on the number of processes or machines. Images that cannot be used are counted, and named in DIR/features/skipped.jsonl.
    """
    from rich.console import Console

    from clipmend.data.images import display_path
    from clipmend.features import make_features
    from clipmend.negation import PeakPatchConfig

    named = {"image_root": image_root, "split": split, "image_column": image_column, "caption_column": caption_column}
    options: dict[str, Any] = {name: str(value) for name, value in named.items() if value is not None} | reader_options(option)
    if not texts and (peak is not None or anchor is not None):
        raise ValueError("--peak and --anchor are for text features, which --no-texts leaves out")
    report = make_features(
        model, data, out, images=images, texts=texts, config=PeakPatchConfig(peak=peak, anchor=anchor), workers=workers, ray=ray,
        threads=threads, readers=readers, image_batch=image_batch, text_batch=text_batch, image_unit=image_unit,
        text_unit=text_unit, max_pixels=pixel_limit(max_pixels), draft=draft, on_long=on_long.value, device=device, progress=True,
        **options,
    )  # fmt: skip
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{display_path(out)}: {report}", markup=False)
    for number, skip in enumerate(report.skipped):
        if number == 5:
            listing = display_path(out / "features" / "skipped.jsonl")
            console.print(f"  ... and {len(report.skipped) - 5:,} more: {listing}", markup=False)
            break
        console.print(
            f"  skipped {display_path(skip.image)}: {skip.reason}" if skip.image else f"  skipped {skip.reason}", markup=False
        )
