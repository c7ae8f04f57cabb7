"""``clipmend reproduce``: published tables, run again from the public data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from clipmend.cli.encoders import MODEL_HELP

if TYPE_CHECKING:
    from rich.console import Console

    from clipmend.backbones import DualEncoder
    from clipmend.negation import PeakPatchConfig
    from clipmend.reproduce.inputs import Counts, Inputs
    from clipmend.reproduce.plan import Plan, Rates

__all__ = ["register"]

PEAKPATCH = """Example:

clipmend reproduce peakpatch --coco coco/ --voc VOCdevkit/ --negbench NegBench/ -o peakpatch --dry-run

clipmend reproduce miniature mini

clipmend reproduce peakpatch --coco mini/coco --voc mini/voc --negbench mini/negbench --model scenes -o out
"""
MINIATURE = """Example:

clipmend reproduce miniature mini --train 60 --test 40
"""


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    group = typer.Typer(
        no_args_is_help=True,
        help="Run published tables again, from data to table, with the printed figures beside.",
        epilog="Example:\n\nclipmend reproduce peakpatch --coco coco/ --voc VOCdevkit/ --negbench NegBench/ -o out --dry-run\n",
    )
    group.command(name="peakpatch", epilog=PEAKPATCH)(peakpatch)
    group.command(name="miniature", epilog=MINIATURE)(miniature)
    app.add_typer(group, name="reproduce")


def peakpatch(
    coco: Path = typer.Option(
        ..., "--coco", metavar="DIR", help="COCO: annotations/ and the images of the training split and of val2017."
    ),
    voc: Path = typer.Option(..., "--voc", metavar="DIR", help="Folder that holds VOC2007 with its JPEGImages (the test images)."),
    negbench: Path = typer.Option(..., "--negbench", metavar="DIR", help="Folder with NegBench's CSV files."),
    out: Path = typer.Option(..., "--out", "-o", metavar="OUT", help="New folder, or that of an earlier run, which is resumed."),
    model: str = typer.Option("openai/clip-vit-base-patch32", "--model", help=MODEL_HELP + " Printed figures: the default's."),
    objective: list[str] = typer.Option(
        ["released", "truthful"],
        "--objective",
        help="released (the published method) or truthful (this library's); default: both. One that OUT has already is shown too.",
    ),
    split: str | None = typer.Option(None, "--split", help="COCO's training split. Default: train2014, else train2017."),
    limit: int | None = typer.Option(None, "--limit", min=1, help="Train on the first annotated images only."),
    config: Path | None = typer.Option(
        None,
        "--config",
        metavar="FILE.json",
        help="Fields of PeakPatchConfig that take other values, for both fits, or under 'released' and 'truthful' for each.",
    ),
    no_pretraining: bool = typer.Option(False, "--no-pretraining", help="Leave out the regression before the released fit."),
    skip_missing: bool = typer.Option(
        False, "--skip-missing", help="Go on, counted, without tables and images that are not there, instead of stopping."
    ),
    seed: int = typer.Option(0, "--seed", min=0, help="Seed of data, weights and batches."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only look at the data, and say what the run would take."),
    device: str | None = typer.Option(None, "--device", help="cpu, cuda, mps; default: the best that is there."),
) -> None:
    """PeakPatch's table (CLIP ViT-B/32 on NegBench): negated captions from COCO, both fits, every evaluation, printed rows beside.

    Says first what is set and where that is known from, what is missing, and what disk and time it takes. Features, fits and
    evaluations are kept: the same command goes on where a run was killed.
    """
    from rich.console import Console
    from rich.table import Table

    import clipmend
    from clipmend.reproduce.inputs import find_inputs, look_at
    from clipmend.reproduce.published import SETTINGS, configuration
    from clipmend.reproduce.report import caveats, rich_tables, write_report
    from clipmend.reproduce.run import Options, reproduce

    chosen = tuple(dict.fromkeys(objective))
    options = Options(chosen, limit, not no_pretraining, _changes(config), skip_missing, seed, True)
    console = Console(highlight=False, soft_wrap=True)
    if dry_run is False and out.exists() and not out.is_dir():
        raise NotADirectoryError(f"{out} is a file; a folder is needed")
    inputs = find_inputs(coco, voc, negbench, split=split)
    counts = look_at(inputs, limit=limit, seed=seed, progress=True)
    encoder = clipmend.load(model, device=device)
    configs = {name: _config(name, encoder, counts, options, configuration) for name in chosen}
    table = Table(title="Configuration of the released fit", title_justify="left")
    for heading in ("setting", "value", "known from", "note"):
        table.add_column(heading, overflow="fold")
    for setting in SETTINGS:
        table.add_row(setting.name, setting.value, {"unknown": "nowhere: chosen"}.get(setting.known, setting.known), setting.note)
    console.print(table)
    if encoder.num_text_layers != 12:
        layers = next(iter(configs.values()))
        console.print(
            f"{encoder.name} has {encoder.num_text_layers} text blocks: peak {layers.peak}, anchor {layers.anchor}, "
            f"score correction {list(layers.scn_layers or ())}",
            markup=False,
        )
    told = _changed(options.changes)
    if told:
        console.print(f"changed by --config: {told}", markup=False)
    problems = _preflight(console, counts, inputs, skip_missing)
    plan = _plan(encoder, model, counts, configs, out)
    console.print(plan.table())
    console.print("published: about an hour on one A100 for the joint training, once features are extracted", markup=False)
    if plan.disk > plan.free:
        problems.append(f"{plan.disk / 1e9:.1f} GB are needed where {out} lies, and {plan.free / 1e9:.1f} GB are free")
    if problems:
        raise ValueError("; ".join(problems))
    if dry_run:
        console.print("nothing was run (--dry-run)", markup=False)
        return
    done = reproduce(encoder, inputs, out, options, say=lambda text: console.print(text, markup=False))
    files = write_report(done, plan.to_dict())
    for shown in rich_tables(done):
        console.print(shown)
    for note in caveats(done):
        console.print(f"note: {note}", markup=False)
    console.print("written: " + ", ".join(map(str, files)), markup=False)


def miniature(
    folder: Path = typer.Argument(..., metavar="DIR", help="Folder to write."),
    train: int = typer.Option(60, "--train", min=8, help="Training images of COCO."),
    test: int = typer.Option(40, "--test", min=4, help="Test images of COCO, and of VOC."),
    size: int = typer.Option(64, "--size", min=16, max=4096, help="Side of the images in pixels."),
    seed: int = typer.Option(7, "--seed", min=0, help="Fixes everything."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace DIR if it is not empty."),
) -> None:
    """Draw a small COCO, VOC2007 and NegBench in their exact formats, to try 'reproduce peakpatch' on without a download."""
    from rich.console import Console

    from clipmend.reproduce.miniature import write_miniature
    from clipmend.search.embed import progress_bar

    with progress_bar("Drawing", train + 2 * test, True) as advance:
        made = write_miniature(folder, train, test, size=size, seed=seed, overwrite=overwrite, advance=lambda count: advance())
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"--coco {made.coco} --voc {made.voc} --negbench {made.negbench}", markup=False)


def _changes(path: Path | None) -> dict[str, dict[str, Any]]:
    """The values of ``--config``, by objective."""
    import json

    if path is None:
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8-sig"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON ({error})") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path}: expected an object of PeakPatchConfig's fields, not {type(values).__name__}")
    names = ("released", "truthful")
    if set(values) & set(names):
        strange = sorted(set(values) - set(names))
        if strange or not all(isinstance(part, dict) for part in values.values()):
            raise ValueError(f"{path}: expected an object under each of 'released' and 'truthful', and nothing beside them")
        return values
    for fixed in ("objective", "seed"):
        if fixed in values:
            raise ValueError(f"{path}: {fixed} is an option of the command: --{fixed}")
    return dict.fromkeys(names, values)


def _changed(changes: dict[str, dict[str, Any]] | Any) -> str:
    parts = {name: ", ".join(f"{k} {v}" for k, v in values.items()) for name, values in changes.items() if values}
    if len(set(parts.values())) == 1 and len(parts) > 1:
        return next(iter(parts.values()))
    return "; ".join(f"{name}: {text}" for name, text in parts.items())


def _config(name: str, encoder: DualEncoder, counts: Counts, options: Any, make: Any) -> PeakPatchConfig:
    made: PeakPatchConfig = make(
        name, encoder, counts.originals, seed=options.seed, pretrain=options.pretrain, changes=options.changes.get(name)
    )
    return made


def _preflight(console: Console, counts: Counts, inputs: Inputs, skip_missing: bool) -> list[str]:
    """Print what was found; what stops the run."""
    from clipmend.data.preflight import CHECKS
    from clipmend.reproduce.published import TABLES

    problems = []
    for name, report in counts.reports.items():
        told = f"{name}: {report.images:,} images, {report.captions:,} captions"
        told += f", {report.questions:,} questions" if report.questions else ""
        console.print(told, markup=False)
        for check, finding in report.findings.items():
            if finding.count:
                console.print(f"  {CHECKS[check]}: {finding.count:,} (first: {finding.examples[0]})", markup=False)
        missing = report.findings["images_missing"]
        if missing.count and (not skip_missing or missing.count == report.images):
            problems.append(
                f"{name}: {missing.count:,} of {report.images:,} images are missing; --skip-missing goes on without them"
            )
    if inputs.absent:
        names = ", ".join(f"{TABLES[name].name}.csv" for name in inputs.absent)
        console.print(f"not there: {names}", markup=False)
        if not skip_missing:
            problems.append(f"not there: {names}; --skip-missing goes on without")
    if counts.shared:
        problems.append(
            f"{len(counts.shared):,} training images are test images too ({', '.join(counts.shared[:3])}): choose another --split"
        )
    if not counts.images:
        problems.append(f"{inputs.coco}: no annotated image in {inputs.split}")
    elif not counts.originals:
        problems.append(f"{inputs.coco}: no caption in {inputs.split}")
    return problems


def _plan(encoder: DualEncoder, model: str, counts: Counts, configs: dict[str, PeakPatchConfig], out: Path) -> Plan:
    """The plan, with rates measured where the encoder is and on the CPU."""
    import clipmend
    from clipmend.reproduce.plan import make_plan, matmul_rate, measure_rates

    config = next(iter(configs.values()))
    if not counts.sample_images:
        raise ValueError("not one training image with a caption is there to measure the speed on")
    rates: dict[str, Rates] = {}
    if encoder.device.type != "cpu":
        rates[encoder.device.type] = measure_rates(encoder, counts.sample_images, counts.sample_texts, config)
    processor = encoder if encoder.device.type == "cpu" else clipmend.load(model, device="cpu")
    rates["cpu"] = measure_rates(processor, counts.sample_images, counts.sample_texts, config)
    return make_plan(counts, configs, rates, out, matmul_rate())
