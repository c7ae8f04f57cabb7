"""``clipmend export``: a mended text side as ONNX files."""

from __future__ import annotations

from pathlib import Path

import typer

from clipmend.cli.encoders import MODEL_HELP, PATCH_HELP

__all__ = ["register"]

EPILOG = """Example:

clipmend export openai/clip-vit-base-patch32 --patch my-patch/ -o onnx/ --int8

clipmend export scenes --patch scenes -o scenes-onnx
"""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(name="export", epilog=EPILOG)(export)


def export(
    model: str = typer.Argument(..., help=MODEL_HELP),
    patch: str = typer.Option(..., "--patch", help=PATCH_HELP),
    out: Path = typer.Option(..., "--out", "-o", help="New or empty folder, or one with an earlier export, which is replaced."),
    int8: bool = typer.Option(False, "--int8", help="Also write the text side with 8-bit weights, and say how near it comes."),
    strength: float = typer.Option(1.0, "--strength", min=0, help="How strongly the patch corrects; 0 is not at all."),
    normalize: bool = typer.Option(
        True, "--normalize/--no-normalize", help="Unit vectors; otherwise each at the length of its plain embedding."
    ),
    texts: Path | None = typer.Option(
        None, "--texts", help="Captions to compare 8-bit and float32 by, one a line; default: plain and negated ones, built in."
    ),
) -> None:
    """Write the text side with the patch on it, and the patch's score correction, as ONNX files: for services without PyTorch.

    The files are checked against PyTorch before they get their name. The image side is not touched: an index stays as it is. Beside
    them lie the tokenizer and a README.md with the few lines that use them. Needs the extra "onnx".
    """
    from rich.console import Console

    import clipmend
    from clipmend.data.images import display_path
    from clipmend.negation import PeakPatch
    from clipmend.search.vectors import read_rows

    if texts is not None and not int8:
        raise ValueError("--texts is what --int8 is compared by; without --int8 it has no effect")
    sample = None if texts is None else read_rows(str(texts), column=None, id_column=None, skip_empty=True).values
    found = PeakPatch.from_pretrained(patch)
    encoder = clipmend.load(model, device="cpu")
    with Console(stderr=True).status("exporting; this takes a minute"):
        report = found.export_onnx(encoder, out, strength=strength, normalize=normalize, int8=int8, texts=sample)
    console = Console(highlight=False, soft_wrap=True)
    for name, size in report.files.items():
        console.print(f"{display_path(report.folder / name)}: {size / 1e6:,.1f} MB", markup=False)
    scores = "" if report.scores is None else f", scores {report.scores:.1e}"
    console.print(f"from PyTorch, at most: embeddings {report.text_embeds:.1e}{scores}", markup=False)
    if report.cosine_min is not None:
        console.print(
            f"int8 to float32 on {report.texts:,} captions: cosine {report.cosine_mean:.5f} (minimum {report.cosine_min:.5f}); of "
            f"what the patch changes {report.change_cosine_mean:.4f} (minimum {report.change_cosine_min:.4f})",
            markup=False,
        )
