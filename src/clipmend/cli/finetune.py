"""``clipmend finetune``: train a CLIP on images with long captions."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import typer

from clipmend.cli.config import read_config

__all__ = ["register"]

EPILOG = """Example:

clipmend finetune openai/clip-vit-base-patch16 --data docci:docci/ --recipe hn-clip --length 248 -o clip-docci

clipmend finetune clip-248 --data photos/ --recipe lora --set gamma=0.5 --batch-size 128 --micro-batches 8 -o clip-lora

accelerate launch --multi_gpu --mixed_precision bf16 $(which clipmend) finetune clip-248 --data photos/ -o clip-photos
"""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(name="finetune", epilog=EPILOG)(finetune)


def finetune(
    model: str = typer.Argument(..., help="Hub id or folder of a CLIP or SigLIP, 'open_clip:ARCH/TAG', or MODEL::FILE."),
    data: str = typer.Option(
        ...,
        "--data",
        metavar="DATA",
        help="Images with captions: a folder with captions.csv or a .txt beside each image, drawn scenes, a table, or READER:PATH.",
    ),
    out: Path = typer.Option(..., "--out", "-o", metavar="OUT", help="The model, a new folder."),
    recipe: str | None = typer.Option(
        None,
        "--recipe",
        help="What is minimised: plain, hn-clip (the default), long-clip, debias-clip, finelip, goal, structxlip, lora or dora.",
    ),
    set_: list[str] = typer.Option([], "--set", metavar="NAME=VALUE", help="A field of the recipe, such as gamma=0.5; repeatable."),
    length: int | None = typer.Option(None, "--length", min=1, help="Text positions; a shorter CLIP is stretched first."),
    keep: int | None = typer.Option(None, "--keep", min=0, help="With --length: first positions kept as they are (default 20)."),
    epochs: float | None = typer.Option(None, "--epochs", help="Passes over the data (default 10)."),
    steps: int | None = typer.Option(None, "--steps", min=1, help="Optimiser steps, in place of epochs."),
    batch_size: int | None = typer.Option(
        None, "--batch-size", min=2, help="Pairs contrasted with one another, over all processes (default 128)."
    ),
    micro_batches: int | None = typer.Option(
        None, "--micro-batches", min=1, help="Embed a batch in so many pieces: less memory, the same negatives (default 1)."
    ),
    accumulate: int | None = typer.Option(None, "--accumulate", min=1, help="Batches a step; adds no negatives (default 1)."),
    lr: float | None = typer.Option(None, "--lr", help="Highest learning rate (default: the recipe's)."),
    warmup: float | None = typer.Option(None, "--warmup", help="Steps, or below 1 their share, of rising rate (default 0.1)."),
    weight_decay: float | None = typer.Option(None, "--weight-decay", help="On matrices only (default: the recipe's)."),
    precision: str | None = typer.Option(None, "--precision", help="no, bf16 or fp16, of the arithmetic; weights stay float32."),
    gradient_checkpointing: bool = typer.Option(False, "--gradient-checkpointing", help="Less memory, about a third more time."),
    freeze: str | None = typer.Option(None, "--freeze", help="text or image: leave that side as it is."),
    validation: float | None = typer.Option(None, "--validation", help="Share of the training images held out (default 0.05)."),
    validate_every: int | None = typer.Option(None, "--validate-every", min=1, help="Steps between them (default: an epoch)."),
    choose: str | None = typer.Option(None, "--choose", help="best: the state of the highest validation recall; last."),
    lens_every: int | None = typer.Option(
        None, "--lens-every", min=0, help="Steps between looks through the saturation lens, drawn to OUT/lens.png (default: none)."
    ),
    checkpoint_every: int | None = typer.Option(
        None, "--checkpoint-every", min=1, help="Steps between checkpoints, to which a kill goes back (default: 100)."
    ),
    seed: int | None = typer.Option(None, "--seed", min=0, help="Of batches, the held-out part and chances within the recipe."),
    config: Path | None = typer.Option(None, "--config", metavar="FILE.json", help="FinetuneConfig's fields; options come first."),
    split: str | None = typer.Option(None, "--split", help="Split of the data, where it has any (default: train)."),
    image_root: Path | None = typer.Option(None, "--image-root", help="Folder that image names start from."),
    option: list[str] = typer.Option([], "--option", metavar="NAME=VALUE", help="Any other option of the reader; repeatable."),
    skip_broken: bool = typer.Option(
        False, "--skip-broken", help="Leave out rows that cannot be used and images that cannot be opened, and name them."
    ),
    work: Path | None = typer.Option(
        None, "--work", metavar="DIR", help="Checkpoints and metrics; the same command goes on from there (default: OUT.work)."
    ),
    workers: int | None = typer.Option(None, "--workers", min=1, help="Threads that read images (default: one a core, at most 8)."),
    device: str | None = typer.Option(None, "--device", help="cpu; default: the best that is there."),
) -> None:
    """Fine-tune a CLIP or SigLIP on images with long captions and write it as an ordinary model of its own library.

    A part of the training images is held out, and the state of the best recall on it is kept: never give test data. A run that was
    killed is resumed by the same command, with the same result. Several processes or machines: accelerate launch.
    """
    import os

    from rich.console import Console

    from clipmend.cli.data_check import reader_options
    from clipmend.data.images import display_path
    from clipmend.dense.config import FinetuneConfig
    from clipmend.dense.lens import plot_lens
    from clipmend.dense.pairs import open_pairs
    from clipmend.dense.progress import METRICS, read_metrics
    from clipmend.dense.recipes import make_recipe
    from clipmend.dense.training import finetune as train

    main = int(os.environ.get("RANK", "0")) == 0
    if main and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(f"{out} exists already; choose a new folder for the model, or delete it")
    if work is not None and work.exists() and not work.is_dir():
        raise NotADirectoryError(f"{work} is a file; --work wants a folder")
    if keep is not None and length is None:
        raise ValueError("--keep is about stretching: give --length too")
    if steps is not None and epochs is not None:
        raise ValueError("--steps and --epochs exclude each other")
    values: dict[str, Any] = {}
    if config is not None:
        values = read_config(config, "FinetuneConfig")
    described = values.pop("recipe", None)
    base = described if isinstance(described, dict) else {"name": described} if described else {}
    name = recipe or str(base.get("name", "hn-clip"))
    fields = {key: value for key, value in base.items() if key != "name"} if name == base.get("name") else {}
    values["recipe"] = make_recipe(name, **{**fields, **_fields(set_)})
    chosen = FinetuneConfig.from_dict(values, source=str(config or "config")).with_(
        length=length, keep=keep, epochs=epochs, steps=steps, batch_size=batch_size, micro_batches=micro_batches,
        accumulate=accumulate, learning_rate=lr, warmup=warmup, weight_decay=weight_decay, precision=precision, freeze=freeze,
        gradient_checkpointing=gradient_checkpointing or None, validation=validation, validate_every=validate_every, choose=choose,
        lens_every=lens_every, checkpoint_every=checkpoint_every, seed=seed,
    )  # fmt: skip
    if epochs is not None and chosen.steps is not None:
        raise ValueError(f"{config} gives steps, which come before --epochs; leave one of them out")
    named = {"split": split, "image_root": image_root, **reader_options(option)}
    given = {key: value for key, value in named.items() if value is not None}
    pairs = open_pairs(data, skip_broken=skip_broken, **given)
    console = Console(highlight=False, soft_wrap=True)

    def validated(step: int, found: dict[str, float]) -> None:
        console.print(
            f"step {step}: recall at 1 {found['text_to_image@1']:.1f} text to image, {found['image_to_text@1']:.1f} image to text",
            markup=False,
        )

    shown, out = display_path(out), Path(os.path.abspath(out))
    folder = work or out.with_name(f"{out.name}.work")
    done = train(
        model, pairs, chosen, directory=folder, device=device, workers=workers, progress=True,
        on_start=lambda notes: console.print("\n".join(notes), markup=False), on_validation=validated,
    )  # fmt: skip
    if not main:
        return
    done.command = shlex.join(["clipmend", *sys.argv[1:]])
    seen = done.lens

    def reports(place: Path) -> None:
        (place / METRICS).write_bytes((folder / METRICS).read_bytes())
        if seen:
            plot_lens(read_metrics(folder / METRICS), place / "lens.png", f"{chosen.recipe.name} on {pairs.name}")

    done.save(out, also=reports)
    if chosen.lens_every and not seen:
        console.print("note: the lens was asked for after its last step, and saw no batch", style="yellow")
    if seen:
        console.print(
            f"lens: InfoNCE below 0.001 on {100 * seen.get('saturated', 0):.0f}% of {seen.get('batches', 0):.0f} batches, "
            f"its gradient exactly 0 on {100 * seen.get('zero_gradient', 0):.0f}%",
            markup=False,
        )
    if work is None:
        _clear(folder)
    console.print(f"{shown}: kept the state of step {done.best_step:,} of {done.steps:,}, {done.seconds:.0f} s", markup=False)
    if done.best_step == 0 and done.steps:
        console.print(
            "note: that is the model before the training; no later state was better on the held-out images", style="yellow"
        )


def _fields(pairs: list[str]) -> dict[str, Any]:
    """``NAME=VALUE`` of ``--set``: true, false and numbers are taken as such.

    Raises:
        ValueError: not of that form.
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"--set {pair}: write it as NAME=VALUE")
        found[name.strip().replace("-", "_")] = _value(value.strip())
    return found


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _clear(folder: Path) -> None:
    """Delete what the training kept in its own work folder, and the folder unless it holds anything else."""
    from contextlib import suppress

    from clipmend.checkpoint import CHECKPOINT
    from clipmend.dense.progress import METRICS

    for path in (folder / CHECKPOINT, folder / METRICS, *folder.glob("best-*.safetensors")):
        path.unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()
