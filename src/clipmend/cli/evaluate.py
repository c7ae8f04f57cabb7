"""``clipmend evaluate``: multiple choice, retrieval, exclusion, or all that a folder has tables for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clipmend.cli.encoders import MODEL_HELP, PATCH_HELP, check_corrects_scores, load_encoder, refuse_without_patch

if TYPE_CHECKING:
    from clipmend.backbones import DualEncoder
    from clipmend.evaluation import Result

__all__ = ["cut_offs", "patch_label", "register", "run"]

CHOICE = """Example:

clipmend evaluate choice openai/clip-vit-base-patch32 --patch my-patch --data COCO_val_mcq.csv --image-root val2017

clipmend evaluate choice scenes --data scenes-test/choice.csv --json choice.json
"""
RETRIEVAL = """Example:

clipmend evaluate retrieval scenes --patch scenes --data scenes-test/negated_retrieval.csv --json negated.json

clipmend evaluate retrieval openai/clip-vit-base-patch32 --data COCO_val_retrieval.csv --image-root val2017 --at 1,5,10
"""
EXCLUSION = """Example:

clipmend evaluate exclusion scenes --patch scenes --data scenes-test/exclusion.csv --json exclusion.json

clipmend evaluate exclusion MODEL --data queries.csv --presence labels.csv --image-root photos/
"""
ALL = """Example:

clipmend evaluate all scenes --patch scenes --data scenes-test/ --json results.json

clipmend evaluate all scenes --patch scenes --data scenes-test/ --baselines scenes-validation/ --json results.json
"""

Model = Annotated[str, typer.Argument(help=MODEL_HELP)]
Patch = Annotated[str | None, typer.Option("--patch", help=PATCH_HELP)]
Data = Annotated[Path, typer.Option("--data", help="Table (CSV) to evaluate on.")]
Root = Annotated[Path | None, typer.Option("--image-root", help="Folder that image names start from. Default: the table's own.")]
ImageColumn = Annotated[str | None, typer.Option("--image-column", help="Column with the images, if not called as usual.")]
CaptionColumn = Annotated[str | None, typer.Option("--caption-column", help="Column with the captions, if not called as usual.")]
Json = Annotated[Path | None, typer.Option("--json", help="Write every number, with counts and intervals, to this file.")]
Strength = Annotated[float, typer.Option("--strength", min=0.0, help="Multiplies the patch's correction; 0 is the backbone.")]
Backbone = Annotated[
    bool,
    typer.Option("--compare-backbone/--no-compare-backbone", help="With --patch: also the backbone, and the paired difference."),
]
Correction = Annotated[
    bool, typer.Option("--scn/--no-scn", help="Let the patch's score correction answer; without it, the cosine alone.")
]
Skip = Annotated[bool, typer.Option("--skip-missing", help="Leave out images that are not there, counted, instead of stopping.")]
Detail = Annotated[bool, typer.Option("--detail", help="Show every single kind too.")]
Wordings = Annotated[bool, typer.Option("--wordings", help="Show every wording of the exclusion queries too.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of the bootstrap intervals.")]
Device = Annotated[str | None, typer.Option("--device", help="cpu, cuda, mps; default: the best that is there.")]
Over = Annotated[str, typer.Option("--over", help="What the intervals draw: images, or kinds.")]
Rerank = Annotated[
    int, typer.Option("--rerank", min=0, help="With --patch: let its score correction order the best so many of each query.")
]
Frames = Annotated[int, typer.Option("--frames", min=1, help="Frames that a video is averaged over (NegBench: 4).")]
At = Annotated[str, typer.Option("--at", help="Cut-offs of recall, separated by commas.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    group = typer.Typer(
        no_args_is_help=True,
        help="Measure a model, with or without a patch: choice, retrieval, exclusion, dense captions, and what a gain costs.",
        epilog="Example:\n\nclipmend evaluate choice scenes --patch scenes --data scenes-test/choice.csv --json choice.json\n",
    )
    group.command(name="choice", epilog=CHOICE)(choice)
    group.command(name="retrieval", epilog=RETRIEVAL)(retrieval)
    group.command(name="exclusion", epilog=EXCLUSION)(exclusion)
    group.command(name="all", epilog=ALL)(everything)
    from clipmend.cli import evaluate_costs, evaluate_dense, evaluate_positions

    evaluate_costs.add_commands(group)
    evaluate_dense.add_commands(group)
    evaluate_positions.add_commands(group)
    app.add_typer(group, name="evaluate")


def choice(
    model: Model,
    data: Data,
    patch: Patch = None,
    image_root: Root = None,
    image_column: ImageColumn = None,
    json: Json = None,
    strength: Strength = 1.0,
    compare_backbone: Backbone = True,
    scn: Correction = True,
    frames: Frames = 4,
    skip_missing: Skip = False,
    seed: Seed = 0,
    device: Device = None,
) -> None:
    """Multiple choice in NegBench's format: accuracy by template, with counts, intervals and what was chosen instead."""
    refuse_without_patch(patch, strength=strength != 1, no_compare_backbone=not compare_backbone, no_scn=not scn)
    from clipmend.evaluation import evaluate_choice, read_choice

    items = read_choice(data, image_column=image_column)

    def measure(encoder: DualEncoder, **names: Any) -> Result:
        root = image_root or data.parent
        return evaluate_choice(
            encoder,
            items,
            image_root=root,
            score_correction=scn,
            on_missing=_missing(skip_missing),
            frames=frames,
            progress=True,
            **names,
        )

    run(measure, model, patch, strength, device, compare_backbone, seed, json)


def retrieval(
    model: Model,
    data: Data,
    patch: Patch = None,
    image_root: Root = None,
    image_column: ImageColumn = None,
    caption_column: CaptionColumn = None,
    json: Json = None,
    strength: Strength = 1.0,
    compare_backbone: Backbone = True,
    at: At = "1,5,10",
    rerank: Rerank = 0,
    frames: Frames = 4,
    skip_missing: Skip = False,
    seed: Seed = 0,
    device: Device = None,
) -> None:
    """Retrieval both ways: recall at k, ties counted against the model, and the median rank."""
    ks = cut_offs(at)
    refuse_without_patch(patch, strength=strength != 1, no_compare_backbone=not compare_backbone, rerank=rerank > 0)
    from clipmend.evaluation import evaluate_retrieval, read_retrieval

    tests = read_retrieval(data, image_column=image_column, caption_column=caption_column)

    def measure(encoder: DualEncoder, **names: Any) -> Result:
        root = image_root or data.parent
        short = rerank if encoder.corrects_scores else 0  # the backbone beside has nothing to order by
        return evaluate_retrieval(
            encoder,
            tests,
            image_root=root,
            ks=ks,
            rerank=short,
            on_missing=_missing(skip_missing),
            frames=frames,
            progress=True,
            **names,
        )

    correction = "--rerank" if rerank else None
    run(measure, model, patch, strength, device, compare_backbone, seed, json, correction=correction)


def exclusion(
    model: Model,
    data: Data,
    presence: Annotated[
        Path | None,
        typer.Option("--presence", help="What is in which image: scenes.jsonl, or a table image, present. Default: beside --data."),
    ] = None,
    patch: Patch = None,
    image_root: Root = None,
    json: Json = None,
    strength: Strength = 1.0,
    compare_backbone: Backbone = True,
    scn: Annotated[bool, typer.Option("--scn/--no-scn", help="Score every pair with the patch's score correction.")] = False,
    over: Over = "images",
    skip_missing: Skip = False,
    detail: Detail = False,
    seed: Seed = 0,
    device: Device = None,
) -> None:
    """Does "no X" put images without X above images with X? AUROC, macro over kinds, by wording."""
    refuse_without_patch(patch, strength=strength != 1, no_compare_backbone=not compare_backbone, scn=scn)
    from clipmend.evaluation import evaluate_exclusion, read_exclusion, read_presence

    if presence is None:
        beside = [data.parent / name for name in ("scenes.jsonl", "presence.jsonl", "presence.csv")]
        presence = next((path for path in beside if path.is_file()), None)
        if presence is None:
            raise ValueError(
                f"{data.parent}: no scenes.jsonl or presence.csv beside the queries; name the annotation with --presence"
            )
    queries, there = read_exclusion(data), read_presence(presence)
    root = image_root or presence.parent

    def measure(encoder: DualEncoder, **names: Any) -> Result:
        return evaluate_exclusion(
            encoder,
            queries,
            there,
            image_root=root,
            score_correction=scn,
            over=over,
            seed=seed,
            on_missing=_missing(skip_missing),
            progress=True,
            **names,
        )

    correction = "--scn" if scn else None
    run(measure, model, patch, strength, device, compare_backbone, seed, json, over=over, detail=detail, correction=correction)


def everything(
    model: Model,
    data: Annotated[Path, typer.Option("--data", help="Folder of tables, as clipmend scenes writes it.")],
    patch: Patch = None,
    json: Json = None,
    strength: Strength = 1.0,
    compare_backbone: Backbone = True,
    baselines: Annotated[
        Path | None, typer.Option("--baselines", help="Also the baselines without training, tuned on this folder of other scenes.")
    ] = None,
    parse: Annotated[
        str,
        typer.Option("--parse", help="With --baselines: gold (the tables' own parse) or rules (a rule parser, as users have it)."),
    ] = "gold",
    at: At = "1,5,10",
    rerank: Rerank = 0,
    scn: Correction = True,
    skip_missing: Skip = False,
    detail: Detail = False,
    wordings: Wordings = False,
    seed: Seed = 0,
    device: Device = None,
) -> None:
    """Everything that a folder has tables for, and on request the baselines in the same table."""
    ks = cut_offs(at)
    refuse_without_patch(patch, strength=strength != 1, no_compare_backbone=not compare_backbone, rerank=rerank > 0, no_scn=not scn)
    if parse not in ("gold", "rules") or (parse != "gold" and baselines is None):
        raise ValueError("--parse is gold or rules, and needs --baselines")
    from rich.console import Console

    from clipmend.evaluation import Evaluation, evaluate, evaluate_rivals, read_folder, read_pairs, side_by_side
    from clipmend.evaluation.results import model_names, write_json
    from clipmend.evaluation.suite import embed_all

    tests = read_folder(data)
    tuning = read_folder(baselines) if baselines else None
    pairs = read_pairs(baselines / "pairs.csv") if baselines and (baselines / "pairs.csv").is_file() else []
    plain, mended = load_encoder(model, device, patch, strength)
    if rerank:
        check_corrects_scores(mended, "--rerank")
    vectors = embed_all(plain, tests, on_missing=_missing(skip_missing), progress=True)
    options: dict[str, Any] = {"on_missing": _missing(skip_missing), "seed": seed, "ks": ks, "image_embeddings": vectors}
    name, weights = model_names(plain)
    results: dict[str, Evaluation] = {}
    if patch is None or compare_backbone:
        results["backbone"] = evaluate(plain, tests, progress=True, **options)
    if tuning is not None:
        results.update(evaluate_rivals(plain, tests, tuning, pairs, parse=parse, **options))  # type: ignore[arg-type]
    if patch is not None:
        label = "+".join(filter(None, [weights, patch_label(patch, strength)]))
        results["mended"] = evaluate(
            mended, tests, score_correction=scn, rerank=rerank, model=name, pretrained=label, progress=True, **options
        )
    console = Console(highlight=False)
    differences = results["backbone"].compare(results["mended"], seed=seed) if {"backbone", "mended"} <= set(results) else {}
    fold = "" if wordings else "/wording="
    for task in tests.tasks():
        if tuning is not None:
            console.print(side_by_side({column: found[task] for column, found in results.items() if task in found}, fold=fold))
        if task in differences:
            console.print(differences[task].table(detail=detail, fold=fold))
        elif tuning is None:
            console.print(*(found[task].table(detail, fold) for found in results.values()))
    if json is not None:
        content: dict[str, Any] = {column: found.to_dict() for column, found in results.items()}
        if differences:
            content["differences"] = {task: _differences_only(d.to_dict()) for task, d in differences.items()}
        console.print(f"written: {write_json(json, content)}", soft_wrap=True)


def run(
    measure: Callable[..., Result],
    model: str,
    patch: str | None,
    strength: float,
    device: str | None,
    compare_backbone: bool,
    seed: int,
    json: Path | None,
    over: str = "images",
    detail: bool = False,
    correction: str | None = None,
) -> None:
    """Measure the model, or the backbone and the mended model with their difference; print and write.

    ``correction`` names the option, if one was given, that asks for a patch with a score correction.
    """
    from rich.console import Console

    from clipmend.evaluation import ChoiceResult, compare
    from clipmend.evaluation.results import model_names

    plain, mended = load_encoder(model, device, patch, strength)
    if correction is not None:
        check_corrects_scores(mended, correction)
    console = Console(highlight=False)
    if patch is None:
        result = measure(plain)
    else:
        name, weights = model_names(plain)
        result = measure(mended, model=name, pretrained="+".join(filter(None, [weights, patch_label(patch, strength)])))
    written: Any = result
    if patch is not None and compare_backbone:
        written = compare(measure(plain), result, seed=seed, over=over)
        console.print(written.table(detail=detail))
    else:
        console.print(result.table(detail))
    if isinstance(result, ChoiceResult):
        console.print(result.confusion_table())
    if json is not None:
        console.print(f"written: {written.save(json)}", soft_wrap=True)


def patch_label(patch: str, strength: float) -> str:
    """A patch's name in tables, with its strength where that is not 1."""
    return patch if strength == 1.0 else f"{patch} (strength {strength:g})"


def _differences_only(comparison: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in comparison.items() if key not in ("first", "second")}


def _missing(skip: bool) -> Any:
    return "skip" if skip else "error"


def cut_offs(text: str, option: str = "--at") -> tuple[int, ...]:
    """``"1,5,10"``, given as an option, as numbers.

    Raises:
        ValueError: something else, or a number below 1.
    """
    try:
        ks = tuple(dict.fromkeys(int(part) for part in text.split(",") if part.strip()))
    except ValueError:
        ks = ()
    if not ks or min(ks) < 1:
        raise ValueError(f"{option} wants whole numbers of 1 or more, separated by commas, not {text!r}")
    return ks
