"""``clipmend evaluate dense``: retrieval by dense captions; models against sets; curves over checkpoints."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clipmend.cli.data_check import reader_options
from clipmend.cli.dense_inputs import SkipRows, Test, one_each, read_test, read_training, set_options, without_set
from clipmend.cli.encoders import MODEL_HELP, load_encoder, refuse_without_patch
from clipmend.cli.evaluate import Backbone, Device, Json, Patch, Seed, Skip, Strength, cut_offs, patch_label

if TYPE_CHECKING:
    from clipmend.data.dense import DenseData
    from clipmend.evaluation import DenseResult, Overlap, Result

__all__ = ["add_commands"]

DENSE = """Example:

clipmend evaluate dense scenes --set scenes --data scenes-test/ --json dense.json

clipmend evaluate dense my-longclip --set long-dci --data DCI/ --train-set dci --train-data DCI/ --published

clipmend evaluate dense on-docci on-dci --set docci --data DOCCI/ --set dci --data DCI/ --trained docci --trained dci

clipmend evaluate dense openai/clip-vit-base-patch32 --patch my-patch --set docci --data DOCCI/

clipmend evaluate dense --epochs run/ --set docci --data DOCCI/
"""


def add_commands(group: typer.Typer) -> None:
    """Add the command to the group ``evaluate``."""
    group.command(name="dense", epilog=DENSE)(dense)


def dense(
    models: Annotated[list[str] | None, typer.Argument(metavar="[MODEL]...", help=f"One or several. {MODEL_HELP}")] = None,
    more: Annotated[list[str] | None, typer.Option("--model", help="Another MODEL; repeatable.")] = None,
    sets: Annotated[
        list[str],
        typer.Option(
            "--set",
            help="docci, dci, long-dci, urban1k, sharegpt4v, vg-paragraphs, goal, folder (of your own images), table or scenes; "
            "repeatable.",
        ),
    ] = [],  # noqa: B006 (typer reads it and never changes it)
    data: Annotated[list[Path], typer.Option("--data", help="Folder or file of the set; one for each --set, in its order.")] = [],  # noqa: B006
    split: Annotated[
        list[str] | None,
        typer.Option("--split", help="Split, several joined by + (test+qual_test), or all; one for every --set, or one each."),
    ] = None,
    image_root: Annotated[
        list[Path] | None, typer.Option("--image-root", help="Folder that image names start from; one for each --set.")
    ] = None,
    option: Annotated[
        list[str], typer.Option("--option", metavar="NAME=VALUE", help="Any other option of a set (caption=both); repeatable.")
    ] = [],  # noqa: B006
    train_set: Annotated[
        list[str] | None,
        typer.Option("--train-set", help="Set trained on: what of it is in the test set is reported apart. One, or one a model."),
    ] = None,
    train_data: Annotated[list[Path] | None, typer.Option("--train-data", help="Folder or file of --train-set.")] = None,
    train_split: Annotated[
        str | None,
        typer.Option("--train-split", help="Split of --train-set trained on. Default: train, where it has one."),
    ] = None,
    train_ids: Annotated[
        Path | None, typer.Option("--train-ids", help="Instead: a file of the image ids trained on, one a line, for all models.")
    ] = None,
    trained: Annotated[
        list[str] | None, typer.Option("--trained", help="Name of the set each model was trained on, to mark it in the table.")
    ] = None,
    twins: Annotated[
        Path | None, typer.Option("--twins", help="Groups of near-duplicate images: a line each, ids with tabs or commas between.")
    ] = None,
    patch: Patch = None,
    strength: Strength = 1.0,
    gate: Annotated[
        bool | None,
        typer.Option(
            "--gate/--no-gate", help="Leave captions without a negation cue exactly as they are; default: as the patch says."
        ),
    ] = None,
    compare_backbone: Backbone = True,
    at: Annotated[str, typer.Option("--at", help="Cut-offs of recall, separated by commas.")] = "1,5,10,25,50",
    published: Annotated[bool, typer.Option("--published", help="Printed rows about these sets beside, marked as such.")] = False,
    epochs: Annotated[
        Path | None, typer.Option("--epochs", metavar="DIR", help="Folder of checkpoints epoch-1, epoch-2, ...: a curve over them.")
    ] = None,
    curve: Annotated[
        Path | None, typer.Option("--curve", metavar="DIR", help="With --epochs: where CSV and picture go. Default: that folder.")
    ] = None,
    detail: Annotated[bool, typer.Option("--detail", help="With several models: every model's full table too.")] = False,
    json: Json = None,
    skip_missing: Skip = False,
    skip_rows: SkipRows = False,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Images and texts a forward pass.")] = 32,
    seed: Seed = 0,
    device: Device = None,
) -> None:
    """Dense captions: recall both ways, the part training has not seen, near-twins, truncation; several models on several sets."""
    ks = cut_offs(at)
    names = [*(models or []), *(more or [])]
    _check(names, sets, data, epochs, curve, twins, trained, detail, json)
    refuse_without_patch(patch, strength=strength != 1, gate=gate is not None, no_compare_backbone=not compare_backbone)
    if patch is not None and (epochs is not None or len(names) != 1):
        raise ValueError("--patch mends one MODEL; name that one, and leave out --epochs")
    from rich.console import Console

    from clipmend.data.dense import DENSE_SETS
    from clipmend.evaluation.results import write_json

    console = Console(highlight=False)
    splits = one_each(split, sets, "--split")
    options = set_options(reader_options(option), [*sets])
    tests = []
    for number, name in enumerate(sets):
        given = one_each(image_root, sets, "--image-root", spread=False)[number]
        tests.append(read_test(name, data[number], splits[number], given, skip_rows, skip_missing, options.get(name, {})))
    if twins is not None:
        from clipmend.evaluation.dense_overlap import read_twins

        tests[0].data.twins = read_twins(twins, tests[0].data)
    training = read_training(train_set or [], train_data or [], train_split, len(names), epochs is not None, DENSE_SETS)
    settings = {
        "ks": ks,
        "on_missing": "skip" if skip_missing else "error",
        "batch_size": batch_size,
        "text_batch_size": batch_size,
    }
    if epochs is not None:
        _curve(console, names, epochs, curve or epochs, tests, training, train_ids, settings, device)
        return
    if patch is not None:
        overlaps = [_overlap(test, training[0] if training else None, train_ids) for test in tests]
        rows = _mended(names[0], patch, strength, gate, compare_backbone, tests, overlaps, settings, device)
        trained = (trained or [training[0].name if training else ""]) * len(rows)
        _show_mended(console, rows, trained, published, seed, json)
        return
    results = []
    for number, name in enumerate(names):
        own = training[number if len(training) > 1 else 0] if training else None
        encoder = _load(name, device)
        results.append([_measure(encoder, test, _overlap(test, own, train_ids), settings) for test in tests])
    labels = trained or [own.name if own is not None else "" for own in (training * len(names) if len(training) == 1 else training)]
    _show(console, results, labels, published, detail)
    if json is not None:
        written: list[dict[str, Any]] = []
        for number, row in enumerate(results):
            for result in row:
                written.append(result.to_dict() | _about(result, labels[number] if labels else "", published))
        console.print(f"written: {write_json(json, written[0] if len(written) == 1 else written)}", soft_wrap=True)


def _check(
    names: list[str],
    sets: list[str],
    data: list[Path],
    epochs: Path | None,
    curve: Path | None,
    twins: Path | None,
    trained: list[str] | None,
    detail: bool,
    json: Path | None,
) -> None:
    if not sets:
        raise without_set(data)
    if len(sets) != len(data):
        raise ValueError(f"give a --data for each --set: there are {len(sets)} --set and {len(data)} --data")
    if not names and epochs is None:
        raise ValueError("name a MODEL, or a folder of checkpoints with --epochs")
    if epochs is not None and len(names) > 1:
        raise ValueError("with --epochs at most one MODEL can be named, the one that training started from")
    if epochs is None and curve is not None:
        raise ValueError("--curve needs --epochs: without checkpoints there is no curve")
    if epochs is not None and (json is not None or detail or trained):
        raise ValueError("--epochs writes a CSV with every number; leave out --json, --detail and --trained")
    if twins is not None and len(sets) > 1:
        raise ValueError("--twins is about one set; evaluate the sets one by one")
    if trained and len(trained) != len(names):
        raise ValueError(f"give a --trained for each model, or none: there are {len(names)} models and {len(trained)} --trained")
    if detail and len(names) == 1:
        raise ValueError("--detail is for several models: one model's full table is shown anyway")


def _load(name: str, device: str | None) -> Any:
    import clipmend

    return clipmend.load(name, device=device)


def _overlap(test: Test, training: DenseData | None, train_ids: Path | None) -> Overlap | None:
    if training is None and train_ids is None:
        return None
    from clipmend.evaluation.dense_overlap import find_overlap, read_ids

    ids = read_ids(train_ids) if train_ids is not None else None
    name = "" if training is not None or train_ids is None else str(train_ids)
    return find_overlap(test.data, training, ids=ids, digests=test.digests, name=name)


def _measure(encoder: Any, test: Test, overlap: Overlap | None, settings: dict[str, Any]) -> DenseResult:
    from clipmend.evaluation import evaluate_dense

    return evaluate_dense(encoder, test.data, overlap=overlap, digests=test.digests, progress=True, **settings)


def _mended(
    name: str,
    patch: str,
    strength: float,
    gate: bool | None,
    compare_backbone: bool,
    tests: list[Test],
    overlaps: list[Overlap | None],
    settings: dict[str, Any],
    device: str | None,
) -> list[list[DenseResult]]:
    """The results of the mended model, after those of the backbone if they are wanted."""
    from clipmend.evaluation.results import model_names

    plain, mended = load_encoder(name, device, patch, strength, gate)
    label, weights = model_names(plain)
    encoders: list[tuple[Any, dict[str, Any]]] = [(plain, {})] if compare_backbone else []
    encoders.append((mended, {"model": label, "pretrained": "+".join(filter(None, [weights, patch_label(patch, strength)]))}))
    return [
        [_measure(encoder, test, overlap, settings | names) for test, overlap in zip(tests, overlaps, strict=True)]
        for encoder, names in encoders
    ]


def _show_mended(
    console: Any, rows: list[list[DenseResult]], trained: list[str], published: bool, seed: int, json: Path | None
) -> None:
    """Backbone, mended model and their paired difference, a table a set; or the mended model alone."""
    from clipmend.evaluation import compare
    from clipmend.evaluation.dense_tables import cross_table, gallery_notes
    from clipmend.evaluation.results import write_json

    if len(rows) == 1:
        _show(console, rows, trained, published, detail=False)
        written = [result.to_dict() | _about(result, trained[0], published) for result in rows[0]]
    else:
        pairs = [compare(first, second, seed=seed) for first, second in zip(*rows, strict=True)]
        for first, pair in zip(rows[0], pairs, strict=True):
            console.print(pair.table())
            console.print("\n".join(gallery_notes(first)), markup=False, soft_wrap=True)
        if published or len(pairs) > 1:
            shown = [rows[0], [replace(result, model=f"{result.model} + {result.pretrained}") for result in rows[1]]]
            console.print(cross_table(shown, trained_on=trained, published=published))
        written = [pair.to_dict() | _about(pair.second, trained[0], published) for pair in pairs]
    if json is not None:
        console.print(f"written: {write_json(json, written[0] if len(written) == 1 else written)}", soft_wrap=True)


def _show(console: Any, results: list[list[DenseResult]], trained: list[str], published: bool, detail: bool) -> None:
    from clipmend.evaluation.dense_tables import cross_notes, cross_table

    if len(results) == 1 or detail:
        for row in results:
            console.print(*[result.table() for result in row], sep="\n")
    if len(results) > 1 or published:
        console.print(cross_table(results, trained_on=trained, published=published))
        if any(result.unseen_ranks is not None for row in results for result in row):
            console.print(cross_table(results, trained_on=trained, part="unseen_gallery"))
    if len(results) > 1 and not detail:  # one model's own table, and each of --detail, says it already
        console.print("\n".join(cross_notes(results)), markup=False, soft_wrap=True)


def _about(result: Result, trained: str, published: bool) -> dict[str, Any]:
    from clipmend.evaluation.dense_tables import published_dense

    about: dict[str, Any] = {"trained_on": trained} if trained else {}
    return about | ({"published": [asdict(row) for row in published_dense(result.dataset)]} if published else {})


def _curve(
    console: Any,
    names: list[str],
    epochs: Path,
    out: Path,
    tests: list[Test],
    training: list[DenseData],
    train_ids: Path | None,
    settings: dict[str, Any],
    device: str | None,
) -> None:
    from rich.table import Table

    from clipmend.evaluation.dense_curve import checkpoints, loadable, measure_once, write_curve

    found = [(0, name, name) for name in names] + [(number, path.name, loadable(path)) for number, path in checkpoints(epochs)]
    if len({number for number, _, _ in found}) < len(found):
        raise ValueError(f"{epochs}: has a checkpoint 0 of its own; leave out MODEL")
    own = training[0] if training else None
    overlaps = [_overlap(test, own, train_ids) for test in tests]
    rows: list[dict[str, Any]] = []
    for number, label, name in found:
        encoder = _load(name, device)
        for test, overlap in zip(tests, overlaps, strict=True):
            seen = [] if overlap is None else overlap.seen.tolist()
            gallery = test.data.gallery_digest(test.digests)
            asked = [test.data.name, test.data.split, settings["ks"], seen, test.data.twins]
            measure = partial(_measure, encoder, test, overlap, settings)
            measured, new = measure_once(out, encoder, number, label, gallery, asked, measure)
            rows += measured
            console.print(f"{label} on {test.data.name}: {'measured' if new else 'kept from before'}", markup=False)
        table, picture = write_curve(rows, out)  # after each checkpoint, so that a stop loses one at most
    shown = Table(title="Dense captions, R@1 %, text → image / image → text", title_justify="left")
    shown.add_column("epoch", justify="right")
    for test in tests:
        shown.add_column(test.data.name, justify="right")
    value = {(row["epoch"], row["set"], row["measure"]): row["value"] for row in rows}
    for number, _, _ in found:
        cells = []
        for test in tests:
            pair = [value.get((number, test.data.name, f"{way}_retrieval_recall@1")) for way in ("image", "text")]
            cells.append("/".join("-" if one is None else f"{100 * one:.1f}" for one in pair))
        shown.add_row(str(number), *cells)
    console.print(shown)
    console.print(f"written: {table}, {picture}", soft_wrap=True, markup=False)
