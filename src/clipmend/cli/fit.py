"""``clipmend fit``: train a patch for an encoder."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from clipmend.cli.config import read_config
from clipmend.cli.encoders import MODEL_HELP

__all__ = ["register"]

EPILOG = """Example:

clipmend fit openai/clip-vit-base-patch32 --text-only -o my-patch

clipmend scenes drawn/ --count 4000 --seed 1 && clipmend fit scenes --data drawn/ -o my-patch --steps 300
"""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(name="fit", epilog=EPILOG)(fit)


def fit(
    model: str = typer.Argument(..., help=MODEL_HELP),
    out: Path = typer.Option(..., "--out", "-o", metavar="PATCH", help="The patch, a new folder."),
    data: Path | None = typer.Option(
        None, "--data", metavar="DIR", help="Folder made by 'clipmend scenes' or 'clipmend data negate'."
    ),
    text_only: bool = typer.Option(
        False, "--text-only", help="Fit from nouns alone, without any image; the first thing to try with your own CLIP."
    ),
    images_only: bool = typer.Option(False, "--images-only", help="With --data: leave out the noun sets that are mixed in."),
    nouns: Path | None = typer.Option(
        None, "--nouns", metavar="FILE", help="Your own nouns for text-only training, one a line; default: a list of common nouns."
    ),
    index: Path | None = typer.Option(
        None, "--index", metavar="INDEX", help="With --text-only: an index of this encoder's images, to tell where they lie."
    ),
    config: Path | None = typer.Option(
        None,
        "--config",
        metavar="FILE.json",
        help="Hyper-parameters (fields of PeakPatchConfig); options given here come first.",
    ),
    sets: int | None = typer.Option(
        None,
        "--sets",
        min=1,
        help="Noun sets made for text-only pairs (default 4,800: some 45,000 texts to run once, minutes on a CPU).",
    ),
    objective: str | None = typer.Option(None, "--objective", help="truthful, or released: the published one."),
    steps: int | None = typer.Option(None, "--steps", min=1, help="Optimiser steps (default: the config's epochs)."),
    hidden: int | None = typer.Option(None, "--hidden", min=1, help="Width of the correction network (default 1024)."),
    peak: int | None = typer.Option(None, "--peak", min=2, help="Layer to read (default: suggested by a diagnosis)."),
    anchor: int | None = typer.Option(None, "--anchor", min=1, help="Earlier, stable layer to read besides."),
    no_scn: bool = typer.Option(False, "--no-scn", help="No score correction: embeddings only."),
    gate: bool = typer.Option(False, "--gate", help="Leave captions without any negation word exactly as they are (English)."),
    seed: int | None = typer.Option(None, "--seed", min=0, help="Seed of weights, batches and split."),
    work: Path | None = typer.Option(
        None,
        "--work",
        metavar="DIR",
        help="Features and checkpoints; the same command resumes from there (default: PATCH.work).",
    ),
    allow_reserved: bool = typer.Option(
        False, "--allow-reserved", help="Train on captions with reserved wordings all the same; tests with them then mean nothing."
    ),
    half: bool = typer.Option(False, "--half", help="Store the patch as float16: half the size."),
    device: str | None = typer.Option(None, "--device", help="cpu, cuda, mps; default: the best that is there."),
) -> None:
    """Train a patch that puts "no", "without" and their like back into an encoder's text embeddings.

    The encoder's weights and every image embedding stay as they are. The text side is run once over the training captions; training
    itself reads the stored features. With --data, noun sets are mixed in unless --images-only says otherwise. A run that was killed
    is resumed by the same command.
    """
    from dataclasses import replace

    from rich.console import Console

    import clipmend
    from clipmend.negation import PeakPatch, PeakPatchConfig
    from clipmend.negation.training import LOSSES

    if (data is None) != text_only:
        raise ValueError(
            "give --data DIR to fit on images, or --text-only to fit without any"
            if data is None
            else "--data and --text-only exclude each other"
        )
    if images_only and data is None:
        raise ValueError("--images-only needs --data")
    if allow_reserved and data is None:
        raise ValueError("--allow-reserved is about the captions of --data")
    if sets is not None and images_only:
        raise ValueError("--sets is for noun sets, which --images-only leaves out")
    if index is not None and data is not None:
        raise ValueError("--index belongs to --text-only; with --data the images themselves tell where they lie")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(f"{out} exists already; choose a new folder for the patch, or delete it")
    if work is not None and work.exists() and not work.is_dir():
        raise NotADirectoryError(f"{work} is a file; --work wants a folder")
    values = {}
    if config is not None:
        values = read_config(config, "PeakPatchConfig")
    chosen = PeakPatchConfig.from_dict(values, source=str(config or "config"))
    given: dict[str, Any] = {
        "objective": objective, "steps": steps, "hidden": hidden, "peak": peak, "anchor": anchor, "seed": seed,
        "text_only_sets": sets, "use_scn": False if no_scn else None, "gate": True if gate else None,
        "text_only_weight": 0.0 if images_only else None,
    }  # fmt: skip
    chosen = replace(chosen, **{name: value for name, value in given.items() if value is not None})
    if nouns is not None and data is not None and (chosen.objective == "released" or not chosen.text_only_weight):
        raise ValueError(
            "--nouns has no use in a fit from images alone, which --images-only, a text_only_weight of 0 and the objective "
            "'released' ask for; leave it out"
        )
    known = None
    if data is not None:
        from clipmend.data.purpose import check_for_fit
        from clipmend.data.scenes import negation_data_from_folder

        for note in check_for_fit(data, chosen.objective, allow_reserved=allow_reserved):
            Console(stderr=True, highlight=False, soft_wrap=True).print(f"note: {note}", style="yellow", markup=False)
        known = negation_data_from_folder(data)
    if steps is not None:
        chosen = replace(chosen, epochs=None)  # which would come before the steps
    words = None
    if nouns is not None:
        words = _words(nouns)
    opened = None
    if index is not None:
        from clipmend.search import ImageIndex

        opened = ImageIndex.open(index)
    console = Console(highlight=False, soft_wrap=True)
    encoder = clipmend.load(model, device=device)
    images = None
    if opened is not None:
        import numpy as np
        import torch

        opened.check(encoder)
        if not len(opened):
            raise ValueError(f"the index {index} is empty, so it does not tell where images lie")
        images = torch.from_numpy(opened.embeddings(np.unique(np.linspace(0, len(opened) - 1, 20_000).astype(np.int64))))
    if sys.stderr.isatty():
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"the bar shows weighted losses; {LOSSES}", markup=False)
    folder = work or out.with_name(f"{out.name}.work")
    patch: PeakPatch = clipmend.fit(
        encoder, known, chosen, nouns=words, image_embeddings=images, directory=folder, progress=True,
        on_validation=_Lines(lambda line: console.print(line, markup=False)),
    )  # fmt: skip
    patch.command = shlex.join(["clipmend", *sys.argv[1:]])
    if half:
        import torch

        patch.save_pretrained(out, dtype=torch.float16)
    else:
        patch.save_pretrained(out)
    if work is None:
        _clear(folder)
    done = patch.metrics
    console.print(f"{out}: kept the state of step {done['best_step']} of {done['steps']}, {done['seconds']:.0f} s", markup=False)
    console.print(f"use it: clipmend search INDEX QUERY --patch {out}", markup=False)


def _clear(folder: Path) -> None:
    """Delete what the fit kept in its own work folder, and the folder unless it holds anything else."""
    import shutil
    from contextlib import suppress

    shutil.rmtree(folder / "features", ignore_errors=True)
    (folder / "checkpoint.pt").unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


def _words(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}") from error
    words = [line.strip() for line in text.splitlines() if line.strip()]
    if len(set(words)) < 8:
        raise ValueError(f"{path} holds {len(set(words))} different nouns, one a line; 8 are needed, a few hundred are better")
    return words


class _Lines:
    """A line for each validation, and before the first what its numbers are, or why there are none."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say, self.told = say, False

    def __call__(self, step: int, metrics: dict[str, float]) -> None:
        from clipmend.negation.validation import legend_of

        if not self.told:
            told = legend_of(metrics)
            if "score" not in metrics:
                told = "no scores: too few images or noun sets to hold any out (--data, --sets); the last state is kept, unmeasured"
            self.say(told)
            self.told = True
        if "score" in metrics:
            self.say(f"step {step}: " + "  ".join(f"{name} {value:.3f}" for name, value in metrics.items()))
