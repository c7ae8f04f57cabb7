"""``clipmend diagnose``: at which layer does a text encoder lose a distinction?"""

from __future__ import annotations

from pathlib import Path

import typer

__all__ = ["register"]

EPILOG = """Example:

clipmend diagnose scenes -o diagnosis/

clipmend diagnose openai/clip-vit-base-patch32 --kind negation,attribute -o diagnosis/

clipmend diagnose scenes --pairs data/pairs.csv --images data/ -o diagnosis/
"""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(name="diagnose", epilog=EPILOG)(diagnose)


def diagnose(
    model: str = typer.Argument(
        ..., help="Hub id or folder of a CLIP, SigLIP or text encoder, 'open_clip:ARCH/TAG', 'scenes' or 'photos'."
    ),
    out: Path = typer.Option(..., "--out", "-o", help="Folder for diagnosis.json and diagnosis.png; made if it is not there."),
    pairs: Path | None = typer.Option(
        None, "--pairs", help="Table of pairs (CSV or TSV): positive, contrast, and if you have them kind, object, frame, image."
    ),
    columns: str | None = typer.Option(
        None,
        "--columns",
        metavar="PLAIN,CONTRAST",
        help="With --pairs: the two columns of texts, where they are not called positive and contrast.",
    ),
    kind: str | None = typer.Option(
        None,
        "--kind",
        help="Kinds of pair, separated by commas: negation, attribute, relation, order, count, or those of your table. "
        "Default: negation; with --pairs, every kind in the table.",
    ),
    images: Path | None = typer.Option(None, "--images", help="Folder with the images that the table of pairs names."),
    bootstrap: int = typer.Option(1000, "--bootstrap", min=0, help="Resamples for the 95% intervals; 0 for none."),
    probes: bool = typer.Option(True, "--probes/--no-probes", help="Train linear probes for negation at every layer."),
    seed: int = typer.Option(0, "--seed", min=0, help="Seed of the resamples and of the probes."),
    batch_size: int = typer.Option(64, "--batch-size", min=1, help="Texts a forward pass."),
    device: str | None = typer.Option(None, "--device", help="cpu, cuda, mps; default: the best that is there."),
) -> None:
    """Find the layer at which a text encoder loses negation (or an attribute, an order, a count), and the layers to mend it from.

    Writes diagnosis.json (every number, with intervals) and diagnosis.png (the curves), and prints table and suggestion.
    """
    kinds = None if kind is None else [name.strip() for name in kind.split(",") if name.strip()]
    if images is not None and pairs is None:
        raise ValueError("--images needs --pairs: a table whose column image names the files")
    if columns is not None and pairs is None:
        raise ValueError("--columns needs --pairs: it says which columns of that table hold the texts")
    chosen = None if columns is None else tuple(name.strip() for name in columns.split(","))
    if chosen is not None and (len(chosen) != 2 or not all(chosen)):
        raise ValueError(f"--columns wants two names with a comma between, not {columns!r}")
    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"{out}: is a file; -o wants a folder")

    from rich.console import Console

    from clipmend import load
    from clipmend.negation.diagnosis import diagnose as run
    from clipmend.negation.pairs import read_pairs

    default_kind = kinds[0] if kinds is not None and len(kinds) == 1 else "negation"
    # Before the model is loaded: a bad table fails at once.
    table = None if pairs is None else read_pairs(pairs, kind=default_kind, columns=chosen)
    result = run(
        load(model, device=device),
        table,
        images,
        kinds=kinds,
        bootstrap=bootstrap,
        seed=seed,
        probes=probes,
        batch_size=batch_size,
        progress=True,
    )
    out.mkdir(parents=True, exist_ok=True)
    result.to_json(out / "diagnosis.json")
    result.plot(out / "diagnosis.png")
    console = Console(highlight=False)
    for name in result.kinds:
        console.print(result.table(name))
        collapse = result.kinds[name].collapse
        if collapse is not None:
            console.print(f"last layer / peak, relative LCD: {collapse}\n", markup=False)
    for note in result.notes:
        console.print(f"note: {note}", markup=False)
    console.print(
        f"peak {result.peak}, anchor {result.anchor}, score correction {list(result.scn_layers)}", markup=False, style="bold"
    )
    console.print(result.reason, markup=False)
    console.print(f"written: {out / 'diagnosis.json'}, {out / 'diagnosis.png'}", markup=False)
