"""``clipmend evaluate zeroshot``, ``pairs`` and ``respect``: what a gain costs, and what the first hits show."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clipmend.cli import evaluate as shared
from clipmend.cli.encoders import refuse_without_patch
from clipmend.cli.evaluate import At, Backbone, Device, Json, Model, Patch, Root, Seed, Skip, Strength

if TYPE_CHECKING:
    from clipmend.backbones import DualEncoder
    from clipmend.evaluation import Result

__all__ = ["add_commands"]

ZEROSHOT = """Example:

clipmend evaluate zeroshot openai/clip-vit-base-patch32 --patch my-patch --data imagenet-val/ --class-names names.json

clipmend evaluate zeroshot photos --data photos-by-class/ --json zeroshot.json
"""
PAIRS = """Example:

clipmend evaluate pairs scenes --patch scenes --data scenes-test/pairs.csv --json pairs.json
"""
RESPECT = """Example:

clipmend evaluate respect scenes --patch scenes --data scenes-test/exclusion.csv --judge scenes-test/scenes.jsonl

clipmend evaluate respect MODEL --data negated_retrieval.csv --judge my_detector:Detector --image-root photos/
"""


def add_commands(group: typer.Typer) -> None:
    """Add the commands to the group ``evaluate``."""
    group.command(name="zeroshot", epilog=ZEROSHOT)(zeroshot)
    group.command(name="pairs", epilog=PAIRS)(pairs)
    group.command(name="respect", epilog=RESPECT)(respect)


def zeroshot(
    model: Model,
    data: Annotated[str, typer.Option("--data", help="Image folder with one folder a class; hf:NAME, or a saved data set.")],
    patch: Patch = None,
    class_names: Annotated[
        Path | None, typer.Option("--class-names", help="Names of the classes: one a line, or JSON, folder to name.")
    ] = None,
    templates: Annotated[
        Path | None, typer.Option("--templates", help="Prompts, one a line; {} is the class name, {a} the same with its article.")
    ] = None,
    split: Annotated[str | None, typer.Option("--split", help="Split of a Hugging Face data set.")] = None,
    json: Json = None,
    strength: Strength = 1.0,
    compare_backbone: Backbone = True,
    seed: Seed = 0,
    device: Device = None,
) -> None:
    """Zero-shot classification: top-1, top-5 and the mean over classes, with intervals."""
    refuse_without_patch(patch, strength=strength != 1, no_compare_backbone=not compare_backbone)
    from clipmend.evaluation.zeroshot import TEMPLATES, evaluate_zeroshot, read_class_names, read_labelled, read_templates

    images = read_labelled(data, read_class_names(class_names) if class_names else None, split)
    prompts = read_templates(templates) if templates else list(TEMPLATES)

    def measure(encoder: DualEncoder, **names: Any) -> Result:
        return evaluate_zeroshot(encoder, images, templates=prompts, progress=True, **names)

    shared.run(measure, model, patch, strength, device, compare_backbone, seed, json)


def pairs(
    model: Model,
    data: Annotated[Path, typer.Option("--data", help="Table kind, positive, contrast, image (pairs.csv of drawn scenes).")],
    kinds: Annotated[str | None, typer.Option("--kinds", help="Only these kinds, separated by commas.")] = None,
    patch: Patch = None,
    image_root: Root = None,
    json: Json = None,
    strength: Strength = 1.0,
    compare_backbone: Backbone = True,
    scn: Annotated[bool, typer.Option("--scn/--no-scn", help="Let the patch's score correction answer.")] = False,
    skip_missing: Skip = False,
    seed: Seed = 0,
    device: Device = None,
) -> None:
    """Minimal pairs: does an image prefer the true text to the one with a colour, a side or an order changed?"""
    refuse_without_patch(patch, strength=strength != 1, no_compare_backbone=not compare_backbone, scn=scn)
    from clipmend.evaluation import evaluate_pairs, read_image_pairs

    items = read_image_pairs(data, [kind.strip() for kind in kinds.split(",") if kind.strip()] if kinds else None)

    def measure(encoder: DualEncoder, **names: Any) -> Result:
        root = image_root or data.parent
        missing: Any = "skip" if skip_missing else "error"
        return evaluate_pairs(encoder, items, image_root=root, score_correction=scn, on_missing=missing, progress=True, **names)

    shared.run(measure, model, patch, strength, device, compare_backbone, seed, json, correction="--scn" if scn else None)


def respect(
    model: Model,
    data: Annotated[Path, typer.Option("--data", help="Exclusion queries (query, absent), or a retrieval table.")],
    judge: Annotated[
        str, typer.Option("--judge", help="Says what an image shows: scenes.jsonl, a table image, present, or module:object.")
    ],
    patch: Patch = None,
    image_root: Root = None,
    json: Json = None,
    strength: Strength = 1.0,
    compare_backbone: Backbone = True,
    at: At = "1,5,10",
    skip_missing: Skip = False,
    seed: Seed = 0,
    device: Device = None,
) -> None:
    """Share of the first k images that show nothing of what the query denies, as a judge sees them.

    What a query asserts and denies is the table's own parse, where it has one, else a rule parser's.
    """
    ks = shared.cut_offs(at)
    refuse_without_patch(patch, strength=strength != 1, no_compare_backbone=not compare_backbone)
    from clipmend.evaluation import evaluate_respect, load_judge, read_exclusion, read_retrieval
    from clipmend.evaluation.judged import OracleJudge
    from clipmend.evaluation.rivals import parse
    from clipmend.evaluation.tables import read_table

    knows = load_judge(judge)
    owner: list[int] | None = None
    if "absent" in read_table(data, ())[0]:
        queries = [query.caption for query in read_exclusion(data)]
        if not isinstance(knows, OracleJudge):
            raise ValueError(f"{data}: exclusion queries name no images; give a retrieval table, or an annotation as --judge")
        images = list(knows.images)
    else:
        table = read_retrieval(data)
        queries = list(table.parse or [parse(text).caption for text in table.captions])
        images, owner = table.images, table.image_of.tolist()

    def measure(encoder: DualEncoder, **names: Any) -> Result:
        missing: Any = "skip" if skip_missing else "error"
        return evaluate_respect(
            encoder, queries, images, knows, image_of=owner, image_root=image_root or data.parent, ks=ks, on_missing=missing,
            dataset=data.stem, progress=True, **names,
        )  # fmt: skip

    shared.run(measure, model, patch, strength, device, compare_backbone, seed, json)
