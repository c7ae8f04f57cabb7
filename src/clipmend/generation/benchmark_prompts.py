"""Prompts for generators of photographs: read from a file, or made of common nouns; what each asks for and rules out is known."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from clipmend.data.nouns import load_nouns
from clipmend.data.records import Caption
from clipmend.data.statements import Speaker, wordings_called
from clipmend.data.tables import problem, read_table, text_field, texts_field
from clipmend.evaluation.rivals.parser import parse

__all__ = ["FORM_NAMES", "noun_prompts", "prompts_called", "read_prompts"]

FORM_NAMES = {"affirmative": "affirmative", "negative": "exclusion", "hybrid": "hybrid"}
"""What tables call a caption's form."""
_CATEGORIES = ("mammals", "birds", "furniture", "land_vehicles", "fruit", "musical_instruments", "kitchen_and_tableware", "toys")
"""Of things that a picture can show, and a detector find."""


def prompts_called(name: str, seed: int = 0) -> list[Caption]:
    """``nouns:COUNT`` for :func:`noun_prompts`, else a file for :func:`read_prompts`.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a count that is none, or a broken file.
    """
    kind, colon, count = name.partition(":")
    if kind != "nouns" or not colon or Path(name).exists():
        return read_prompts(name)
    if not count.isdecimal() or int(count) < 1:
        raise ValueError(f"nouns:{count}: name how many prompts of each form, such as nouns:100")
    return noun_prompts(int(count), seed)


def noun_prompts(count: int, seed: int = 0, wordings: str = "reserved") -> list[Caption]:
    """``count`` prompts of each form about common things: affirmative, exclusion ("a photo without a cat") and hybrid.

    Args:
        count: of each form.
        seed: fixes them; the first prompts of a form are the same whatever the count.
        wordings: a set of phrases of negation (see :data:`~clipmend.data.statements.WORDING_SETS`); the reserved ones are in no
            training data of this library.

    Raises:
        ValueError: an unknown set, or a count below 1.
    """
    if count < 1:
        raise ValueError(f"the number of prompts must be at least 1, got {count}")
    nouns = {noun.singular: noun for noun in load_nouns(categories=_CATEGORIES)}
    chosen = [wording for wording in wordings_called(wordings) if wording.kinds == 1]
    speaker, names, prompts = Speaker(nouns, chosen), list(nouns), []
    for number, form in enumerate(FORM_NAMES):
        rng, made, seen = random.Random(f"{seed}/{number}"), 0, set()
        while made < count:
            things, wording = rng.sample(names, 3), rng.choice(chosen)
            if form == "affirmative":
                prompt: Caption | None = speaker.affirmative(things[: rng.randint(1, 2)], rng)
            elif form == "negative":
                prompt = speaker.query(things[2:], wording, rng)
            else:
                prompt = speaker.hybrid(things[: rng.randint(1, 2)], things[2:], wording, rng)
            if prompt is not None and prompt.text not in seen:
                seen.add(prompt.text)
                prompts.append(prompt)
                made += 1
    return prompts


def read_prompts(path: str | Path) -> list[Caption]:
    """Prompts of a file: a table ``prompt, asserts, denies``, or a text file with one prompt a line.

    ``asserts`` and ``denies`` are lists of things, ``["cat", "red cup"]``, and may be empty. Without these columns, and in a text
    file, the rule parser reads them off the prompt.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a broken table (file and line are named), one of the two columns without the other, a prompt that speaks of
            nothing, or the same prompt twice.
    """
    source = Path(path)
    prompts: list[tuple[int, Caption]] = []
    if source.suffix.lower() in (".txt", ".text", ""):
        try:
            lines = source.read_text(encoding="utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise ValueError(f"{source}: not UTF-8 text; save it as UTF-8") from error
        prompts = [(number, parse(line.strip()).caption) for number, line in enumerate(lines, 1) if line.strip()]
    elif source.suffix.lower() in (".json", ".jsonl"):
        raise ValueError(f"{source}: prompts come as a table (.csv) or as a text file (.txt), not as JSON")
    else:
        header, rows = read_table(source, ["prompt"])
        gold = [column for column in ("asserts", "denies") if column in header]
        if len(gold) == 1:  # or the one column would be passed over
            raise ValueError(f"{source}: the column {gold[0]} needs the other of asserts and denies; give both, or neither")
        parsed = bool(gold)
        for line, row in rows:
            text = text_field(source, line, row, "prompt")
            prompts.append((line, _gold(source, line, row, text) if parsed else parse(text).caption))
    if not prompts:
        raise ValueError(f"{source}: holds no prompts")
    _check(source, prompts)
    return [prompt for _, prompt in prompts]


def _gold(path: Path, line: int, row: dict[str, str], text: str) -> Caption:
    asserts, denies = (texts_field(path, line, row[column], column, empty=True) for column in ("asserts", "denies"))
    form = ("hybrid" if asserts else "negative") if denies else "affirmative"
    return Caption(text, -1, form, tuple(asserts), tuple(denies))


def _check(path: Path, prompts: Sequence[tuple[int, Caption]]) -> None:
    seen: dict[str, int] = {}
    for line, prompt in prompts:
        if not (prompt.asserts or prompt.denies):
            raise problem(path, line, f"the prompt asks for nothing and rules out nothing that could be judged: {prompt.text!r}")
        both = set(prompt.asserts) & set(prompt.denies)
        if both:
            raise problem(path, line, f"{', '.join(sorted(both))} is both asked for and ruled out")
        if prompt.text in seen:
            raise problem(path, line, f"the same prompt as on line {seen[prompt.text]}")
        seen[prompt.text] = line
