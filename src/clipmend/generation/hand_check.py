"""A sample of generated images for a person to judge too, and how often the judge agrees with that person.

    python -m clipmend.generation.hand_check measured/check.csv

The judge learnt on drawn scenes, and a generated image is not one: only a person can say how often it errs there.
"""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from clipmend.data.records import Caption
from clipmend.data.sheets import contact_sheet
from clipmend.data.tables import integer_field, problem, read_table
from clipmend.evaluation.intervals import bootstrap_mean
from clipmend.generation.command import run_main, save_png
from clipmend.generation.prompts import THINGS, excluded, required
from clipmend.generation.sampling import to_images

__all__ = ["Agreement", "Judged", "agreement", "write_sample"]

_SAMPLE = 100  # images
_HEADER = ("number", "form", "drawn_from", "prompt", "seed", "thing", "probability", "judge", "person")


@dataclass(frozen=True)
class Judged:
    """One image and what the judge says of it.

    Args:
        form, method: what it was drawn for, and from.
        prompt: with what it asks for and rules out.
        pixels: uint8 ``[S, S, 3]``.
        seed: of the images of its prompt, which.
        present: ``[THINGS]`` probabilities.
    """

    form: str
    method: str
    prompt: Caption
    pixels: Tensor
    seed: int
    present: NDArray[np.float64]


def write_sample(images: Sequence[Judged], threshold: float, out: Path) -> None:
    """100 of the images, the same ones each time, in three files.

    Args:
        images: to pick from.
        threshold: from which probability on the judge sees a thing.
        out: folder for ``check.png`` (numbered, with what to look for, and without what the judge said, which would lead a
            person), ``check-judged.png`` (with it) and ``check.csv``, whose column ``person`` is to be filled with yes or no.
    """
    picked = np.random.default_rng(0).permutation(len(images))[:_SAMPLE]
    column = {thing: place for place, thing in enumerate(THINGS)}
    blind, judged, lines = [], [], []
    for number, place in enumerate(picked, 1):
        one = images[place]
        things = sorted({*required([one.prompt])[0], *excluded([one.prompt])[0]})
        told = []
        for thing in things:
            value = float(one.present[column[thing]])
            answer = "yes" if value >= threshold else "no"
            told.append(f"{thing}: {answer}")
            lines.append([number, one.form, one.method, one.prompt.text, one.seed, thing, f"{value:.3f}", answer, ""])
        blind.append(f"{number}. {', '.join(things)}?")
        judged.append(f"{number}. {', '.join(told)}")
    shown = [image for place in picked for image in to_images(images[place].pixels[None])]
    for name, captions, title in (
        ("check.png", blind, "What do you see?"), ("check-judged.png", judged, "What the judge sees")
    ):  # fmt: skip
        save_png(contact_sheet(shown, captions, 10, title, tile=112, caption_lines=4), out / name)
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_HEADER)
    writer.writerows(lines)
    part = out / "check.csv.part"
    part.write_text(text.getvalue(), encoding="utf-8")
    part.replace(out / "check.csv")


@dataclass(frozen=True)
class Agreement:
    """How often the judge says what a person says.

    Args:
        answers, images: how many were compared.
        agreement: share of answers that are equal, and its 95 % interval, drawing whole images.
        recall, specificity: of the things that the person sees, and does not see, the judge's share; NaN for none.
        interval, recall_interval, specificity_interval: of the three.
        differ: what the judge saw otherwise: number of the image, thing, and the person's answer.
    """

    answers: int
    images: int
    agreement: float
    interval: tuple[float, float]
    recall: float
    recall_interval: tuple[float, float]
    specificity: float
    specificity_interval: tuple[float, float]
    differ: tuple[tuple[int, str, str], ...]


def agreement(path: str | Path) -> Agreement:
    """Read a ``check.csv`` whose column ``person`` is filled; rows where it is empty are left out.

    Raises:
        FileNotFoundError: no such file. ValueError: a broken table, an answer that is neither yes nor no (file and line are named),
            the same question twice, or no answer of a person at all.
    """
    source = Path(path)
    if not source.exists():
        raise FileNotFoundError(f"{source}: no such file; it is the check.csv that an experiment writes, filled by a person")
    _, rows = read_table(source, ["number", "thing", "judge", "person"])
    numbers, same, person, differ = [], [], [], []
    seen: dict[tuple[int, str], int] = {}
    for line, row in rows:
        number, thing = integer_field(source, line, row, "number"), row["thing"].strip()
        if (number, thing) in seen:
            raise problem(source, line, f"image {number} is asked about {thing} on line {seen[number, thing]} already")
        seen[number, thing] = line
        answers = {column: row[column].strip().lower() for column in ("judge", "person")}
        if not answers["person"]:
            continue
        for column, answer in answers.items():
            if answer not in ("yes", "no"):
                raise problem(source, line, f"{column} is {row[column]!r}; write yes or no, or leave person empty")
        numbers.append(number)
        same.append(float(answers["judge"] == answers["person"]))
        person.append(answers["person"] == "yes")
        if answers["judge"] != answers["person"]:
            differ.append((number, thing, answers["person"]))
    if not same:
        raise ValueError(f"{source}: nobody has filled the column person; write yes or no there")
    labels, equal, yes = np.array(numbers), np.array(same), np.array(person)

    def share(rows: NDArray[np.bool_]) -> tuple[float, tuple[float, float]]:
        if not rows.any():
            return float("nan"), (float("nan"), float("nan"))
        return float(equal[rows].mean()), bootstrap_mean(equal[rows], labels[rows], share=True)

    whole, recall, specificity = share(np.ones(len(yes), bool)), share(yes), share(~yes)
    return Agreement(len(same), len(set(numbers)), *whole, *recall, *specificity, tuple(differ))


def _main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m clipmend.generation.hand_check",
        description="How often does the judge agree with the person who filled FILE?",
    )
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="check.csv of an experiment, its column person filled with yes or no"
    )
    found = agreement(parser.parse_args().file)
    print(f"{found.answers} answers about {found.images} images")
    for name, value, (low, high) in (
        ("agreement", found.agreement, found.interval),
        ("recall", found.recall, found.recall_interval),
        ("specificity", found.specificity, found.specificity_interval),
    ):
        print(f"{name:<12} {100 * value:5.1f} % ({100 * low:.1f} to {100 * high:.1f})")
    for number, thing, answer in found.differ:
        print(f"image {number}: {thing}, the person says {answer}")


if __name__ == "__main__":
    run_main(_main)
