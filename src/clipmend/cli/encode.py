"""``clipmend encode``: texts or images to vectors in a file."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from clipmend.cli.encoders import MAX_PIXELS_HELP, MODEL_HELP, PATCH_HELP, load_encoder, pixel_limit, refuse_without_patch

if TYPE_CHECKING:
    import numpy as np

    from clipmend.backbones import DualEncoder
    from clipmend.search.vectors import Rows

__all__ = ["register"]

EPILOG = """Example:

clipmend encode openai/clip-vit-base-patch32 texts queries.txt --patch my-patch/ -o queries.npy

clipmend encode scenes images pictures/ -o pictures.npy

echo "a street with no car" | clipmend encode scenes texts - --patch scenes -o query.npy

clipmend encode scenes texts captions.csv --column caption -o captions.parquet
"""

MAX_PIXELS = 100_000_000
SHOWN = 5  # skipped images named on standard error


class What(str, Enum):
    texts = "texts"
    images = "images"


class OnLongText(str, Enum):
    warn = "warn"
    error = "error"
    truncate = "truncate"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(name="encode", epilog=EPILOG)(encode)


def encode(
    model: str = typer.Argument(..., help=MODEL_HELP),
    what: What = typer.Argument(..., help="What INPUT holds."),
    source: str = typer.Argument(
        ...,
        metavar="INPUT",
        help="Text file (one a line), .csv or .tsv, '-' for standard input; for images also a folder or one image.",
    ),
    out: Path = typer.Option(..., "--out", "-o", help="NAME.npy (with NAME.ids.jsonl beside it) or NAME.parquet."),
    patch: str | None = typer.Option(None, "--patch", help=PATCH_HELP + " For texts: it never changes images."),
    strength: float = typer.Option(1.0, "--strength", min=0, help="How strongly the patch corrects; 0 is not at all."),
    gate: bool | None = typer.Option(
        None, "--gate/--no-gate", help="Leave texts without a negation cue exactly as they are; default: as the patch says."
    ),
    column: str | None = typer.Option(None, "--column", help="Column of a .csv or .tsv with the texts or paths."),
    id_column: str | None = typer.Option(
        None, "--id-column", help="Column with the ids; default: the row's number, or the image's path."
    ),
    skip_empty: bool = typer.Option(False, "--skip-empty", help="Leave out empty lines; otherwise they are an error."),
    normalize: bool = typer.Option(True, "--normalize/--no-normalize", help="L2-normalise the vectors."),
    on_long: OnLongText = typer.Option(
        OnLongText.warn, "--on-long", help="What to do with texts over the encoder's context length."
    ),
    batch_size: int = typer.Option(32, "--batch-size", min=1, help="Texts or images a forward pass."),
    max_pixels: int = typer.Option(MAX_PIXELS, "--max-pixels", min=0, help=MAX_PIXELS_HELP),
    device: str | None = typer.Option(None, "--device", help="cpu, cuda, mps; default: the best that is there."),
) -> None:
    """Embed texts or images into a file of float32 vectors, L2-normalised, ready for a vector index you already have.

    With --patch, texts get mended vectors for the same, unchanged index of images.
    """
    from rich.console import Console

    from clipmend.data.images import display_path
    from clipmend.search.vectors import check_output, list_images, read_rows, write_vectors

    refuse_without_patch(patch, strength=strength != 1, gate=gate is not None)
    if what is What.texts and max_pixels != MAX_PIXELS:
        raise ValueError("--max-pixels is for images")
    if what is What.images and patch is not None:
        raise ValueError("--patch is for texts: a patch never changes images, so their vectors are the same without; leave it out")
    if what is What.images and on_long is not OnLongText.warn:
        raise ValueError("--on-long is for texts")
    check_output(out)
    read = read_rows if what is What.texts else list_images
    rows = read(source, column=column, id_column=id_column, skip_empty=skip_empty)
    _, encoder = load_encoder(model, device, patch, strength, gate)
    about = {"model": model, "patch": patch or "", "normalized": str(normalize).lower()}
    if what is What.texts:
        vectors = encoder.encode_texts(
            rows.values, batch_size=batch_size, normalize=normalize, on_long=on_long.value, progress=True
        ).numpy()
        files = write_vectors(out, vectors, rows.ids, rows.values, **about)
    else:
        kept, vectors = _encode_images(encoder, rows, out, batch_size, max_pixels, normalize)
        files = write_vectors(out, vectors, kept, **about)
    names = " and ".join(display_path(file) for file in files)
    Console(highlight=False, soft_wrap=True).print(f"{names}: {len(vectors):,} vectors of {vectors.shape[1]}", markup=False)


def _encode_images(
    encoder: DualEncoder, rows: Rows, out: Path, batch_size: int, max_pixels: int, normalize: bool
) -> tuple[list[str], np.ndarray]:
    """Ids and vectors of the images that can be read; the others are reported, and listed in ``NAME.skipped.json``."""
    import json

    from rich.console import Console

    from clipmend.data.images import display_path
    from clipmend.search import embed_files
    from clipmend.search.store import write_atomically

    result = embed_files(
        encoder, rows.values, batch_size=batch_size, max_pixels=pixel_limit(max_pixels), normalize=normalize, progress=True
    )
    listing = out.with_name(out.stem + ".skipped.json")
    if result.skipped:
        told = [{"id": rows.ids[i], "path": rows.values[i], "reason": reason} for i, reason in result.skipped]
        if not result.kept:
            raise ValueError(
                f"none of the {len(told):,} images can be read; the first: {display_path(told[0]['path'])} {told[0]['reason']}"
            )
        listing.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(listing, (json.dumps(told, indent=2) + "\n").encode("ascii"))
        console = Console(stderr=True, highlight=False, soft_wrap=True)
        console.print(
            f"{len(told):,} of {len(rows.ids):,} images skipped, listed in {display_path(listing)}", style="yellow", markup=False
        )
        for row in told[:SHOWN]:
            console.print(f"  skipped {display_path(row['path'])}: {row['reason']}", markup=False)
        if len(told) > SHOWN:
            console.print(f"  ... and {len(told) - SHOWN:,} more", markup=False)
    else:
        listing.unlink(missing_ok=True)  # of an earlier run, no longer true
    return [rows.ids[i] for i in result.kept], result.vectors
