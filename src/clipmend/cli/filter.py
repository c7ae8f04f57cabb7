"""``clipmend filter``: keep the images of a data set that fit a query."""

from __future__ import annotations

from pathlib import Path

import typer

from clipmend.cli.encoders import (
    MAX_PIXELS_HELP,
    MODEL_HELP,
    PATCH_HELP,
    check_corrects_scores,
    load_encoder,
    pixel_limit,
    refuse_without_patch,
)

__all__ = ["register"]

EPILOG = """Example:

clipmend filter openai/clip-vit-base-patch32 crawl/ "no watermark" --patch my-patch --labelled sample.csv -o kept.csv

clipmend filter scenes photos.index "no cat" "no dog" --patch scenes --quantile 0.5 -o scores.parquet
"""

MAX_PIXELS = 100_000_000


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(name="filter", epilog=EPILOG)(filter_)


def filter_(
    model: str = typer.Argument(..., help=MODEL_HELP),
    data: str = typer.Argument(
        ..., metavar="DATA", help="A folder of images, an index, a list or table that names images, or READER:PATH."
    ),
    queries: list[str] = typer.Argument(..., metavar="QUERY...", help="What is to be kept, in words; several must all fit."),
    out: Path = typer.Option(..., "--out", "-o", help="NAME.csv or NAME.parquet: image, score, rank, kept; best first."),
    patch: str | None = typer.Option(None, "--patch", help=PATCH_HELP),
    labelled: Path | None = typer.Option(
        None,
        "--labelled",
        metavar="FILE.csv",
        help="Labelled sample: image,label (1 fits, 0 does not; several queries: also query).",
    ),
    precision: float | None = typer.Option(
        None, "--precision", help="With --labelled: keep as many as possible while this share of the kept fits."
    ),
    recall: float | None = typer.Option(
        None, "--recall", help="With --labelled: keep as few as possible while this share of what fits is kept. Default: best F1."
    ),
    sure: bool = typer.Option(False, "--sure", help="Reach it with 95 % confidence, not only on the sample."),
    quantile: float | None = typer.Option(None, "--quantile", help="Without a sample: keep this share, the best by rank."),
    match_any: bool = typer.Option(False, "--any", help="Keep what fits any of the queries, instead of all."),
    scn: bool = typer.Option(False, "--scn", help="Score with the patch's score correction, instead of by cosine."),
    listing: Path | None = typer.Option(None, "--list", metavar="FILE", help="Also write the names of what is kept, one a line."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace the files of an earlier run."),
    column: str | None = typer.Option(None, "--column", help="Column of a table with the images."),
    image_root: Path | None = typer.Option(None, "--image-root", help="Folder that names of a list or table start from."),
    strength: float = typer.Option(1.0, "--strength", min=0, help="How strongly the patch corrects; 0 is not at all."),
    gate: bool | None = typer.Option(
        None, "--gate/--no-gate", help="Leave queries without a negation cue exactly as they are; default: as the patch says."
    ),
    batch_size: int = typer.Option(32, "--batch-size", min=1, help="Images a forward pass."),
    max_pixels: int = typer.Option(MAX_PIXELS, "--max-pixels", min=0, help=MAX_PIXELS_HELP),
    seed: int = typer.Option(0, "--seed", min=0, help="Seed of the cross-validation."),
    device: str | None = typer.Option(None, "--device", help="cpu, cuda, mps; default: the best that is there."),
) -> None:
    """Score every image of a data set for a query, and keep those above a threshold chosen on a labelled sample.

    Without a sample there are ranks only, since a score says which of two images fits better and not whether one does. Scores are
    kept in the file, beside it NAME.filter.json says how it was made, and NAME.skipped.json lists images that cannot be read. For a
    large folder make an index first ('clipmend index'): that resumes, and filtering an index takes seconds.
    """
    from rich.console import Console

    from clipmend.data.images import display_path
    from clipmend.search.calibrate import Aim, describe
    from clipmend.search.collection import open_collection
    from clipmend.search.filter import filter_images, read_labels
    from clipmend.search.filter_files import check_filter_output
    from clipmend.search.query import negation_hint
    from clipmend.search.store import write_atomically

    if not all(query.strip() for query in queries):  # before a model is loaded
        raise ValueError("a query is empty; say what is to be kept")
    refuse_without_patch(patch, strength=strength != 1, gate=gate is not None, scn=scn)
    if labelled is None and (precision is not None or recall is not None or sure):
        raise ValueError("--precision, --recall and --sure need --labelled: only a labelled sample tells what a threshold gives")
    if match_any and len(queries) == 1:
        raise ValueError("--any is for several queries")
    if listing is not None and labelled is None and quantile is None:
        raise ValueError("--list needs --labelled or --quantile: without, nothing says what is kept")
    check_filter_output(out, listing, [data, *([] if labelled is None else [labelled])], overwrite=overwrite)
    aim = Aim(precision, recall, sure) if labelled is not None else None
    labels = read_labels(labelled, queries) if labelled is not None else None
    images = open_collection(data, column=column, image_root=image_root)
    plain, encoder = load_encoder(model, device, patch, strength, gate)
    if scn:
        check_corrects_scores(encoder, "--scn")
    result = filter_images(
        encoder,
        images,
        queries,
        labels=labels,
        label_root=image_root if image_root is not None else None if labelled is None else labelled.parent,
        aim=aim,
        quantile=quantile,
        match_any=match_any,
        score_correction=scn,
        batch_size=batch_size,
        max_pixels=pixel_limit(max_pixels),
        seed=seed,
        progress=True,
    )
    result.about = {"model": model, "patch": patch, "data": display_path(data), "strength": strength, "score_correction": scn}
    files = result.write(out, overwrite=overwrite)
    if listing is not None and result.kept is not None:
        listing.parent.mkdir(parents=True, exist_ok=True)
        kept = [name for name, keep in zip(result.names, result.kept, strict=True) if keep]
        write_atomically(listing, "".join(f"{name}\n" for name in kept).encode("utf-8", "surrogateescape"))
        files.append(listing)
    console = Console(highlight=False, soft_wrap=True)
    for number, query in enumerate(queries):
        if result.calibrations:
            console.print(f"{query!r}:", markup=False)
            for line in describe(result.calibrations[number : number + 1]):
                console.print(f"  {line}", markup=False)
        hint = negation_hint(query, patch is not None, plain.name)
        if hint:
            console.print(f"hint: {hint}", markup=False)
    if result.kept is not None:
        count = int(result.kept.sum())
        console.print(f"kept {count:,} of {len(result.names):,} images ({count / len(result.names):.1%})", markup=False)
    for note in result.notes:
        console.print(f"note: {note}", markup=False)
    if result.skipped:
        first = ", ".join(f"{display_path(name)} {reason}" for name, reason in result.skipped[:2])
        told = f"{len(result.skipped):,} images could not be read ({first}{', ...' if len(result.skipped) > 2 else ''})"
        Console(stderr=True, highlight=False, soft_wrap=True).print(told, style="yellow", markup=False)
    console.print("written: " + ", ".join(display_path(file) for file in files), markup=False)
