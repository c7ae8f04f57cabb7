"""``clipmend stretch``: a CLIP that reads longer texts."""

from __future__ import annotations

from pathlib import Path

import typer

__all__ = ["register"]

EPILOG = """Example:

clipmend stretch openai/clip-vit-base-patch32 -o clip-248 --captions captions.txt

clipmend stretch open_clip:ViT-B-16/laion2b_s34b_b88k -o clip-512 --length 512 --keep 20

clipmend stretch openai/clip-vit-base-patch16::longclip-B.pt -o longclip-base
"""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(name="stretch", epilog=EPILOG)(stretch)


def stretch(
    model: str = typer.Argument(
        ..., help="Hub id or folder of a CLIP, or 'open_clip:ARCH/TAG'; MODEL::FILE takes the weights from a file, Long-CLIP's too."
    ),
    out: Path = typer.Option(..., "--out", "-o", help="New or empty folder to write the model to."),
    length: int = typer.Option(248, "--length", min=1, help="Most tokens of a text, special tokens included."),
    keep: int = typer.Option(20, "--keep", min=0, help="First positions that stay as they are; texts within them embed as before."),
    captions: Path | None = typer.Option(
        None, "--captions", help="Captions, one a line, or a .csv or .tsv: say how many are truncated, before and after."
    ),
    column: str | None = typer.Option(None, "--column", help="Column of a .csv or .tsv with the captions."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace OUT if it is not empty."),
) -> None:
    """Give a CLIP more text positions (77 to 248, or any other length) and write it as an ordinary model of its own library.

    The first positions are kept, the others stretched by interpolation, as Long-CLIP does. The folder opens in plain transformers
    or open_clip at the new length: model, config and tokenizer. The new positions are untrained: fine-tune on long captions. A
    checkpoint in Long-CLIP's own .pt layout becomes an ordinary model, unchanged.
    """
    from rich.console import Console

    from clipmend.data.images import display_path
    from clipmend.dense.longer import write_longer
    from clipmend.search.vectors import read_rows

    if column is not None and captions is None:
        raise ValueError("--column is a column of --captions; without --captions it has no effect")
    texts = None if captions is None else read_rows(str(captions), column=column, skip_empty=True).values
    written = write_longer(model, out, length=length, keep=keep, captions=texts, overwrite=overwrite)
    done, console = written.stretched, Console(highlight=False, soft_wrap=True)
    where = display_path(out) if written.library == "transformers" else f"open_clip's local-dir:{display_path(out)}"
    console.print(f"{where}: texts of {done.length:,} tokens, {done.before:,} before", markup=False)
    if done.length == done.before:
        console.print(f"all {done.before:,} positions are as they were: the model has that length already", markup=False)
    else:
        console.print(
            f"positions: {done.keep:,} kept, {done.length - done.keep:,} new from {done.before - done.keep:,} "
            f"({done.factor:.4g} for each); the new ones are untrained",
            markup=False,
        )
    if written.cut is not None:
        cut = written.cut
        console.print(
            f"truncated of {cut.captions:,} captions: {cut.before:,} ({cut.share(cut.before):.1f}%) at {done.before:,} tokens, "
            f"{cut.after:,} ({cut.share(cut.after):.1f}%) at {done.length:,}",
            markup=False,
        )
