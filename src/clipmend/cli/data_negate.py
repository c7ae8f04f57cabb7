"""``clipmend data negate``: negated captions and questions from presence lists."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any

import typer

__all__ = ["register"]

EPILOG = """Example:

clipmend data negate coco:coco/ --split train2017 -o coco-negated --seed 1

clipmend data negate voc:VOCdevkit/ --split test --wordings reserved -o voc-unseen

clipmend data negate coco:coco/ --split train2014 --reading released -o coco-released

clipmend fit openai/clip-vit-base-patch32 --data coco-negated -o my-patch
"""


class Reading(str, Enum):
    """How a denial of an absent thing is taken."""

    truthful = "truthful"
    released = "released"


class Absent(str, Enum):
    """Which absent things are denied."""

    plausible = "plausible"
    random = "random"


class Wordings(str, Enum):
    """Which phrases of negation are used."""

    training = "training"
    reserved = "reserved"
    all = "all"
    published = "published"


def register(app: typer.Typer) -> None:
    """Add the command to the group."""
    app.command(name="negate", epilog=EPILOG)(negate)


def negate(
    source: str = typer.Argument(..., metavar="SOURCE", help="A file or folder that says what images show, or READER:PATH."),
    out: Path = typer.Option(..., "--out", "-o", metavar="DIR", help="Folder to write."),
    reading: Reading = typer.Option(
        Reading.truthful,
        "--reading",
        help="truthful: wrong options are false of the image; released: as in the published training data.",
    ),
    absent: Absent = typer.Option(
        Absent.plausible, "--absent", help="Deny what usually stands beside what is shown, or anything absent."
    ),
    wordings: Wordings | None = typer.Option(
        None, "--wordings", help="Phrases of negation; reserved ones are for tests. Default: training (released: published)."
    ),
    per_image: int = typer.Option(3, "--per-image", min=1, help="Most captions taken of an image, each also with a denial."),
    questions: int | None = typer.Option(None, "--questions", min=0, help="How many; default: one an image."),
    reserve: list[str] = typer.Option([], "--reserve", metavar="THING", help="Never deny this, to test on it; repeatable."),
    nouns: Path | None = typer.Option(
        None, "--nouns", metavar="FILE", help="CSV category,singular,plural (- for none) of categories whose English is unusual."
    ),
    seed: int = typer.Option(0, "--seed", min=0, help="Fixes every text."),
    limit: int | None = typer.Option(None, "--limit", min=1, help="Take the first annotated images only."),
    image_root: Path | None = typer.Option(None, "--image-root", help="Folder that image names start from."),
    split: str | None = typer.Option(None, "--split", help="Part of the data: train2017, test, trainval, ..."),
    option: list[str] = typer.Option([], "--option", metavar="NAME=VALUE", help="Any other option of the reader; repeatable."),
    skip_missing: bool = typer.Option(False, "--skip-missing", help="Leave out images that are not there, counted."),
    skip_broken: bool = typer.Option(False, "--skip-broken", help="Leave out entries that cannot be used, counted."),
    copy_images: bool = typer.Option(False, "--copy-images", help="Copy the images into DIR, so that it stands alone."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace DIR if it is not empty."),
) -> None:
    """Write negated captions, four-way questions and exclusion queries about images of which it is known what they show.

    Facts come from COCO's instances, VOC's annotations, drawn scenes, or any reader that gives present and absent things. What is
    annotated neither way is never asserted or denied. The folder is what 'clipmend fit --data' and 'clipmend evaluate' read.
    """
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from clipmend.cli.data_check import reader_options
    from clipmend.data.annotated import Denials
    from clipmend.data.naming import read_nouns
    from clipmend.data.negate import negate as write
    from clipmend.data.readers import read

    named: dict[str, Any] = {"image_root": image_root, "split": split}
    options = {name: value for name, value in named.items() if value is not None} | reader_options(option)
    data = read(source, on_error="skip" if skip_broken else "raise", **options)
    denials = Denials(
        reading=reading.value,
        absent=absent.value,
        wordings=wordings.value if wordings else None,
        per_image=per_image,
        questions=questions,
        reserved=frozenset(reserve),
        seed=seed,
    )
    given = read_nouns(nouns) if nouns is not None else None
    progress_console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=progress_console, disable=not progress_console.is_terminal, transient=True) as progress:
        tasks = {step: progress.add_task(f"{step} images", total=None) for step in ("reading", "writing")}
        written = write(
            data,
            out,
            denials,
            nouns=given,
            on_missing="skip" if skip_missing else "error",
            limit=limit,
            copy_images=copy_images,
            overwrite=overwrite,
            advance=lambda step, count: progress.advance(tasks[step], count),
        )
    console = Console(highlight=False, soft_wrap=True)

    def say(text: str) -> None:
        console.print(text, markup=False)

    say(f"{written.folder}: " + ", ".join(f"{rows:,} {name}" for name, rows in written.rows.items()))
    say("captions: " + _counts(written.captions))
    say("right answers: " + _counts(written.answers))
    say(f"wordings: {len(written.wordings)}; the most frequent: " + _counts(dict(list(written.wordings.items())[:5])))
    if written.blind is not None:
        blind = written.blind
        say(
            f"answered without the image (chance {blind.chance:.1%}): by form {blind.form:.1%}, by what is usually true "
            f"{blind.usually_true:.1%}, by what is usually the only true one {blind.only_true:.1%}, by another image's facts "
            f"{blind.shuffled:.1%}"
        )
    for line in written.sample:
        say(line)
    for note in written.notes:
        say(f"note: {note}")


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{number:,} {name}" for name, number in counts.items()) or "none"
