"""``clipmend evaluate positions``: the position lens, recall of dense captions changed sentence by sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from clipmend.cli.data_check import reader_options
from clipmend.cli.dense_inputs import SkipRows, read_test, set_options, without_set
from clipmend.cli.encoders import MODEL_HELP
from clipmend.cli.evaluate import Device, Json, Skip, cut_offs

__all__ = ["add_commands"]

POSITIONS = """Example:

clipmend evaluate positions scenes --set scenes --data scenes-test/ --plot positions.png

clipmend evaluate positions openai/clip-vit-base-patch16 clip-docci --set docci --data DOCCI/ --json positions.json
"""


def add_commands(group: typer.Typer) -> None:
    """Add the command to the group ``evaluate``."""
    group.command(name="positions", epilog=POSITIONS)(positions)


def positions(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help=f"One or several. {MODEL_HELP}")],
    data: Annotated[Path, typer.Option("--data", help="Folder or file of the set.")],
    name: Annotated[str | None, typer.Option("--set", help="The set, as for clipmend evaluate dense.")] = None,
    split: Annotated[str | None, typer.Option("--split", help="Split, several joined by +, or all.")] = None,
    image_root: Annotated[Path | None, typer.Option("--image-root", help="Folder that image names start from.")] = None,
    option: Annotated[
        list[str], typer.Option("--option", metavar="NAME=VALUE", help="Any other option of the set (caption=both); repeatable.")
    ] = [],  # noqa: B006 (typer reads it and never changes it)
    change: Annotated[
        list[str],
        typer.Option(
            "--change",
            help="Only these: swapped, first-and-fourth, fourth, shuffled, no-first, first, last; repeatable. Default: all.",
        ),
    ] = [],  # noqa: B006
    fillers: Annotated[
        str | None,
        typer.Option(
            "--fillers", help="How many filler sentences go in front: 1,3 looks at both. Default: 1,3; none with --change."
        ),
    ] = None,
    filler: Annotated[list[str], typer.Option("--filler", help="A filler sentence; several are taken in turn.")] = [  # noqa: B006
        "This is a photo."
    ],
    at: Annotated[str, typer.Option("--at", help="Cut-offs of recall, separated by commas.")] = "1,5",
    json: Json = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw the changes of recall to this .png, .svg or .pdf.")] = None,
    skip_missing: Skip = False,
    skip_rows: SkipRows = False,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Images and texts a forward pass.")] = 32,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the random order and of the intervals.")] = 0,
    device: Device = None,
) -> None:
    """Is a caption read to its end? Recall with filler in front, sentences swapped, moved or gone, against the plain captions."""
    from clipmend.evaluation.caption_changes import position_changes

    ks = cut_offs(at)
    counts = cut_offs(fillers, "--fillers") if fillers is not None else () if change else (1, 3)
    changes = position_changes(change or None, fillers=counts, filler=filler)
    if plot is not None and plot.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ValueError(f"--plot {plot}: the picture is a .png, .svg or .pdf")
    from rich.console import Console

    import clipmend
    from clipmend.evaluation.position_lens import evaluate_positions, plot_positions
    from clipmend.evaluation.results import write_json

    if name is None:
        raise without_set([data])
    console = Console(highlight=False)
    options = set_options(reader_options(option), [name]).get(name, {})
    test = read_test(name, data, split, image_root, skip_rows, skip_missing, options)
    settings: dict[str, Any] = {"on_missing": "skip" if skip_missing else "error", "batch_size": batch_size}
    lenses = []
    for model in models:
        encoder = clipmend.load(model, device=device)
        lens = evaluate_positions(
            encoder,
            test.data,
            changes=changes,
            ks=ks,
            digests=test.digests,
            text_batch_size=batch_size,
            seed=seed,
            progress=True,
            **settings,
        )
        console.print(lens.table())
        lenses.append(lens)
    if json is not None:
        written = [lens.to_dict() for lens in lenses]
        console.print(f"written: {write_json(json, written[0] if len(written) == 1 else written)}", soft_wrap=True, markup=False)
    if plot is not None:
        console.print(f"written: {plot_positions(lenses, plot)}", soft_wrap=True, markup=False)
