"""``clipmend data segments``: parts of images with the sentences that fit them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from clipmend.cli.encoders import MODEL_HELP

__all__ = ["register"]

EPILOG = """Example:

clipmend data segments photos/ -o photos/parts.json --match openai/clip-vit-base-patch32

clipmend data segments docci:docci/ -o docci/parts.json --by facebook/sam-vit-base --match openai/clip-vit-large-patch14-336

clipmend data segments photos/ -o photos/parts.json --by skimage --set scale=500 --match open_clip:ViT-B-32/laion2b_s34b_b79k

clipmend finetune clip-248 --data goal:photos/parts.json --recipe goal -o clip-goal
"""


def register(app: typer.Typer) -> None:
    """Add the command to the group."""
    app.command(name="segments", epilog=EPILOG)(segments)


def segments(
    data: str = typer.Argument(..., metavar="DATA", help="Images with captions, as 'clipmend finetune --data' takes them."),
    out: Path = typer.Option(..., "--out", "-o", metavar="FILE", help="JSON to write, best beside the images."),
    by: str = typer.Option(
        "grid", "--by", help="grid; skimage or slic (scikit-image); or a mask-generation model of transformers, such as SAM."
    ),
    match: str = typer.Option(..., "--match", metavar="MODEL", help="Encoder that matches sentences with crops. " + MODEL_HELP),
    cells: int = typer.Option(3, "--cells", min=1, help="Cells of the grid, a side."),
    least: float = typer.Option(0.01, "--least", min=0, max=1, help="Least share of the image that a segment covers."),
    most: float = typer.Option(0.8, "--most", min=0, max=1, help="Most share of the image that a segment covers."),
    whole: bool = typer.Option(True, "--whole/--parts-only", help="Let a sentence also fit the whole image."),
    set_: list[str] = typer.Option([], "--set", metavar="NAME=VALUE", help="Option of the segmenter; repeatable."),
    split: str | None = typer.Option(None, "--split", help="Part of the data; default: train."),
    image_root: Path | None = typer.Option(None, "--image-root", help="Folder that image names start from."),
    option: list[str] = typer.Option([], "--option", metavar="NAME=VALUE", help="Any other option of the reader; repeatable."),
    skip_broken: bool = typer.Option(False, "--skip-broken", help="Leave out rows and images that cannot be used, and name them."),
    batch_size: int = typer.Option(32, "--batch-size", min=1, help="Crops a forward pass."),
    workers: int | None = typer.Option(None, "--workers", min=1, help="Threads that read images; default: one a core, at most 8."),
    device: str | None = typer.Option(None, "--device", help="cpu, cuda, mps; default: what is there."),
) -> None:
    """Cut images into parts and give each sentence of a caption to the part that fits it best, for the recipes goal and structxlip.

    The file is in GOAL's format. While it grows it is FILE.part, and the same command goes on after a kill.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    import clipmend
    from clipmend.cli.data_check import reader_options
    from clipmend.cli.finetune import _fields
    from clipmend.data.images import display_path
    from clipmend.dense.pairs import open_pairs
    from clipmend.dense.segments import make_segmenter, write_segments

    if out.exists():
        raise FileExistsError(f"{out} is there already: choose another file, or delete it")
    named: dict[str, Any] = {"split": split, "image_root": image_root, **reader_options(option)}
    pairs = open_pairs(data, skip_broken=skip_broken, **{key: value for key, value in named.items() if value is not None})
    options = _fields(set_)
    segmenter = make_segmenter(by, cells=cells, least=least, most=most, device=device, **options)
    encoder = clipmend.load(match, device=device)
    progress_console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=progress_console, disable=not progress_console.is_terminal, transient=True) as progress:
        task = progress.add_task("images", total=len(pairs.images))
        written = write_segments(
            pairs, out, encoder, segmenter, name=f"{by} {cells} {least} {most} {sorted(options.items())}", whole=whole,
            batch_size=batch_size, workers=workers, skip_broken=skip_broken,
            advance=lambda done, _: progress.update(task, completed=done),
        )  # fmt: skip
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"{display_path(out)}: {written.segments:,} sentences of {written.pairs:,} captions matched, {written.whole:,} of them "
        "with the whole image",
        markup=False,
    )
    if written.resumed:
        console.print(f"{written.resumed:,} captions were done before", markup=False)
    for note in (*pairs.notes, *written.notes):
        console.print(f"note: {display_path(note)}", markup=False)
