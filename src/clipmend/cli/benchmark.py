"""``clipmend benchmark``: published benchmarks over every model, patch and rival, resumable, with published rows beside."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from clipmend.cli.encoders import MODEL_HELP, PATCH_HELP

__all__ = ["register"]

NEGBENCH = """Example:

clipmend benchmark negbench --models scenes --patches scenes --data negbench/ --image-root val2017/ --out results/

clipmend benchmark negbench --models a b --patches p q --data negbench/ --rivals projection --validation tune/ --out results/
"""
GENERATION = """Example:

clipmend benchmark generation --pipeline kandinsky-community/kandinsky-2-2-decoder --patches my-patch --prompts nouns:100 \\
--judge vqa:Salesforce/blip-vqa-base --out results/
"""
_LISTS = ("--models", "--patches", "--rivals", "--only", "--image-root", "--zeroshot", "--pairs", "--set")


class _Lists(TyperCommand):
    """Options that take several values: ``--models a b`` is read as ``--models a --models b``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _spread(args, _LISTS))


def _spread(args: Sequence[str], names: Sequence[str]) -> list[str]:
    spread: list[str] = []
    name, fresh = "", False
    for arg in args:
        if arg.startswith("-") and arg != "-":
            name, fresh = (arg if arg in names else ""), True
            spread.append(arg)
        elif name and not fresh:
            spread += [name, arg]
        else:
            spread.append(arg)
            fresh = False
    return spread


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    group = typer.Typer(
        no_args_is_help=True,
        help="Run a published benchmark: every table, model, patch and rival; resumable; published rows beside.",
        epilog="Example:\n\nclipmend benchmark negbench --models scenes --patches scenes --data negbench/ --out results/\n",
    )
    group.callback()(_group)  # or the one command would stand in for the group
    group.command(name="negbench", cls=_Lists, epilog=NEGBENCH)(negbench)
    group.command(name="generation", cls=_Lists, epilog=GENERATION)(generation)
    app.add_typer(group, name="benchmark")


def _group() -> None:
    """Benchmarks, each by its name."""


def negbench(
    models: Annotated[list[str], typer.Option("--models", help=f"Models, one or several. {MODEL_HELP}")],
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="Folder with NegBench's CSV files, there or below.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Results; the same command goes on from there.")],
    patches: Annotated[
        list[str] | None, typer.Option("--patches", help=f"Patches, each put on the models it was fitted on. {PATCH_HELP}")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Some tables only: names, parts of names, or kinds (choice).")
    ] = None,
    image_root: Annotated[
        list[Path] | None, typer.Option("--image-root", help="Folders with images, searched in order; then the tables' own.")
    ] = None,
    rivals: Annotated[
        list[str] | None, typer.Option("--rivals", help="Also rivals without training: arithmetic, projection, direction.")
    ] = None,
    validation: Annotated[
        Path | None,
        typer.Option("--validation", metavar="DIR", help="With --rivals: folder to tune them on (clipmend data negate, scenes)."),
    ] = None,
    zeroshot: Annotated[
        list[str] | None, typer.Option("--zeroshot", help="What it costs: image folders with one folder a class, or hf:NAME.")
    ] = None,
    class_names: Annotated[
        Path | None, typer.Option("--class-names", help="With --zeroshot: names of the classes, a line each or JSON.")
    ] = None,
    templates: Annotated[
        Path | None, typer.Option("--templates", help="With --zeroshot: prompts, a line each; {} is the class name.")
    ] = None,
    split: Annotated[str | None, typer.Option("--split", help="With --zeroshot hf:NAME: the split.")] = None,
    pairs: Annotated[
        list[Path] | None,
        typer.Option("--pairs", help="What it costs: tables kind, positive, contrast, image (pairs.csv of scenes)."),
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option("--judge", help="Judge the first hits: a table of what is in which image, or module:object of a detector."),
    ] = None,
    strength: Annotated[float, typer.Option("--strength", min=0.0, help="Multiplies every patch's correction.")] = 1.0,
    scn: Annotated[bool, typer.Option("--scn/--no-scn", help="Let score corrections answer; without, the cosine alone.")] = True,
    at: Annotated[str, typer.Option("--at", help="Cut-offs of recall, separated by commas.")] = "1,5,10",
    frames: Annotated[int, typer.Option("--frames", min=1, help="Frames that a video is averaged over.")] = 4,
    skip_missing: Annotated[
        bool, typer.Option("--skip-missing", help="Leave out images that are missing or cannot be read, counted.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the paired differences' bootstrap.")] = 0,
    device: Annotated[str | None, typer.Option("--device", help="cpu, cuda, mps; default: the best that is there.")] = None,
) -> None:
    """All of NegBench's tables that a folder has, for all models, with and without patches, and with rivals.

    Writes table.md, table.csv, plot.png and results.json (CLIP_benchmark's shape). What is finished is kept under the digests of
    the model, the patch and the table, so that a killed run goes on and a longer one measures only what is new.
    """
    from clipmend.cli.evaluate import cut_offs

    ks = cut_offs(at)
    if strength != 1 and not patches:
        raise ValueError("--strength needs --patches: without a patch there is nothing to change")
    from rich.console import Console

    from clipmend.benchmark import run_negbench

    console = Console(highlight=False, soft_wrap=True)
    run_negbench(
        models,
        patches or (),
        data=data,
        out=out,
        rivals=rivals or (),
        validation=validation,
        only=only or None,
        image_roots=image_root or (),
        zeroshot=zeroshot or (),
        class_names=class_names,
        templates=templates,
        split=split,
        pairs=pairs or (),
        judge=judge,
        strength=strength,
        score_correction=scn,
        ks=ks,
        frames=frames,
        skip_missing=skip_missing,
        seed=seed,
        device=device,
        say=lambda line: console.print(line, markup=False),
        progress=True,
    )
    console.print(f"written: {out / 'table.md'}, table.csv, plot.png, results.json", markup=False)


def generation(
    pipeline: Annotated[str, typer.Option("--pipeline", help="Pipeline of diffusers with a pooled CLIP text input: folder or id.")],
    prompts: Annotated[
        str,
        typer.Option("--prompts", help="Table prompt, asserts, denies; text file, a prompt a line; or nouns:COUNT of each form."),
    ],
    judge: Annotated[
        str,
        typer.Option("--judge", help="Says what an image shows: vqa:MODEL or detector:MODEL of transformers, module:object."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Results; the same command goes on from there.")],
    patches: Annotated[
        list[str] | None, typer.Option("--patches", help=f"Patches fitted on the pipeline's CLIP. {PATCH_HELP}")
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Images a prompt, the same noise for every method.")] = 3,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Arguments of the pipeline's call: num_inference_steps=25 guidance_scale=4.")
    ] = None,
    strength: Annotated[float, typer.Option("--strength", min=0.0, help="Multiplies every patch's correction.")] = 1.0,
    gate: Annotated[
        bool | None, typer.Option("--gate/--no-gate", help="Leave prompts without negation cue exactly as they are (English).")
    ] = None,
    negative_prompt: Annotated[
        bool, typer.Option("--negative-prompt/--no-negative-prompt", help="Also measure negative prompts, where there are such.")
    ] = True,
    threshold: Annotated[float, typer.Option("--threshold", help="A thing is there from this probability of the judge on.")] = 0.5,
    dtype: Annotated[str, typer.Option("--dtype", help="float32, float16 or bfloat16, once patches are checked.")] = "float32",
    allow_mismatch: Annotated[
        bool, typer.Option("--allow-mismatch", help="Try patches that were fitted on another text encoder of the same size.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of nouns:COUNT.")] = 0,
    device: Annotated[str | None, typer.Option("--device", help="cpu, cuda, mps; default: the best that is there.")] = None,
) -> None:
    """The negation score of a real generator: plain, with each patch, and with negative prompts (extra generate).

    Share of images that show what the prompt asks for and nothing that it rules out; the published row (29.2 to 47.6) is beside.
    Writes table.md, table.csv, results.json and sheet.png. Images and the judge's answers are kept, so that a killed run goes on.
    """
    import torch

    from clipmend.generation.benchmark_prompts import prompts_called

    kinds = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
    if dtype not in kinds:
        raise ValueError(f"--dtype {dtype}: choose one of {', '.join(kinds)}")
    own = _settings(settings or ())
    chosen = prompts_called(prompts, seed)
    from rich.console import Console

    from clipmend.generation.benchmark import run_generation

    console = Console(highlight=False, soft_wrap=True)
    report = run_generation(
        pipeline,
        patches or (),
        prompts=chosen,
        judge=judge,
        out=out,
        seeds=range(seeds),
        settings=own,
        negative_prompt=negative_prompt,
        strength=strength,
        gate=gate,
        threshold=threshold,
        allow_mismatch=allow_mismatch,
        dtype=kinds[dtype],
        device=device,
        say=lambda line: console.print(line, markup=False),
        progress=True,
    )
    console.print(report.markdown(), markup=False)
    console.print(f"written: {out / 'table.md'}, table.csv, results.json, sheet.png", markup=False)


def _settings(pairs: Sequence[str]) -> dict[str, Any]:
    """``name=value`` texts, values as JSON where they are, else as text."""
    import json

    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ValueError(f"--set {pair}: write it as name=value, such as num_inference_steps=25")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found
