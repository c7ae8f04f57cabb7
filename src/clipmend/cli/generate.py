"""``clipmend generate``: draw a prompt's scenes, before and after a patch."""

from __future__ import annotations

import math
import os
from enum import Enum
from pathlib import Path

import typer

from clipmend.cli.encoders import PATCH_HELP, load_encoder, refuse_without_patch


class Steps(str, Enum):
    """How a step is taken."""

    euler = "euler"
    heun = "heun"


_HELP = """Draw scenes for PROMPT with the small generator of the drawn world, and write a sheet: with a patch, the upper row of
each pair is drawn from the plain embedding and the lower from the mended one, with the same noise.

The bundled generator knows a part of the drawn world ('clipmend scenes') alone: one or two large objects. Extra:
pip install 'clipmend\\[generate]'.

[bold]Example[/bold]

    clipmend generate "a red cup on a beach, but no cat" --patch scenes -o sheet.png
"""


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("generate", help=_HELP)
    def generate(
        prompt: str = typer.Argument(..., metavar="PROMPT", help="What to draw."),
        out: Path = typer.Option(..., "--out", "-o", metavar="FILE", help="The sheet: a .png or .jpg file."),
        model: str = typer.Option("scenes", "--model", help="Backbone; the generator is of its embeddings."),
        generator: str = typer.Option("scenes", "--generator", help="The bundled 'scenes', or the folder of one that you trained."),
        patch: str | None = typer.Option(None, "--patch", help=PATCH_HELP),
        strength: float = typer.Option(1.0, "--strength", min=0, help="How strongly the patch corrects; 0 is not at all."),
        gate: bool | None = typer.Option(
            None,
            "--gate/--no-gate",
            help="Leave a prompt without a negation cue as it is; default: as the patch says (the bundled one: --no-gate).",
        ),
        count: int = typer.Option(8, "--count", "-n", min=1, max=256, help="Images before, and as many after; eight in a row."),
        seed: int = typer.Option(0, "--seed", min=0, max=2**63 - 1 - 256, help="Of the first image; the others count on from it."),
        steps: int = typer.Option(16, "--steps", min=1, max=1000, help="Steps from noise to image."),
        method: Steps = typer.Option(Steps.heun, "--method", help="How a step is taken; heun is slower and closer."),
        guidance: float = typer.Option(3.5, "--guidance", min=0, help="How strongly the prompt leads; 1 is as trained."),
        device: str | None = typer.Option(None, "--device", help="cpu, cuda, mps; default: the best that is there."),
        overwrite: bool = typer.Option(False, "--overwrite", help="Replace FILE if it is there."),
    ) -> None:
        if not prompt.strip():
            raise ValueError("the prompt is empty; say what to draw")
        if out.suffix.lower() not in (".png", ".jpg", ".jpeg") and not out.is_dir():
            raise ValueError(f"{out} must end in .png or .jpg")
        _check_place(out, overwrite)
        if not math.isfinite(guidance):
            raise ValueError(f"--guidance must be a number, not {guidance:g}")
        refuse_without_patch(patch, strength=strength != 1, gate=gate is not None)
        from PIL import Image

        from clipmend.data.sheets import contact_sheet
        from clipmend.generation.sampling import load_generator
        from clipmend.negation.gate import has_negation

        load_generator(generator)  # read before the model, which takes longer: a broken one is told of at once
        plain, mended = load_encoder(model, device, patch, strength, gate)
        drawer = load_generator(generator, plain.device)
        if patch is not None and not gate and strength and not has_negation(prompt):
            typer.echo(
                "note: no negation cue (English) in the prompt: what changes is a side effect of the patch, which --gate avoids",
                err=True,
            )
        seeds = list(range(seed, seed + count))
        encoders = [plain] if patch is None else [plain, mended]
        drawn = [
            drawer.draw(encoder, [prompt], seeds, steps=steps, method=method.value, guidance=guidance, progress=True)
            for encoder in encoders
        ]
        columns = min(count, 8)
        images, captions = [], []
        for start in range(0, count, columns):
            for label, row in zip(("before", "after"), drawn, strict=False):
                shown = row[start : start + columns]
                images += shown
                captions += [f"{label if patch is not None else 'seed'} {number}" for number in seeds[start : start + len(shown)]]
                images += [Image.new("RGB", (64, 64), "white")] * (columns - len(shown))  # so that rows stay in pairs
                captions += [""] * (columns - len(shown))
        sheet = contact_sheet(images, captions, columns, prompt, tile=128)
        out.parent.mkdir(parents=True, exist_ok=True)
        part = out.with_name(f".{out.name}.part{out.suffix}")
        try:
            try:
                sheet.save(part)
            except OSError as error:  # a full disk, say: name the file that was asked for
                raise OSError(f"{out} cannot be written: {error.strerror or error}") from error
            part.replace(out)
        finally:
            part.unlink(missing_ok=True)
        typer.echo(
            f"written: {out} ({count} {'image' if count == 1 else 'images'}{', before and after' if patch is not None else ''})"
        )


def _check_place(out: Path, overwrite: bool) -> None:
    """Before anything is drawn: can a sheet be written to ``out``?"""
    if out.is_dir():
        raise IsADirectoryError(f"{out} is a folder; name a file in it: {out / 'sheet.png'}")
    if out.exists() and not overwrite:
        raise ValueError(f"{out} is there already; choose another file, or replace it with --overwrite")
    there = next(folder for folder in out.absolute().parents if folder.exists())
    if not there.is_dir():
        raise NotADirectoryError(f"{there} is a file, so that there can be no {out}; choose another folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(f"the folder {there} cannot be written to; choose another one for {out.name}")
