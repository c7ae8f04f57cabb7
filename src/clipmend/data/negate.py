"""``clipmend data negate``: a folder of negated captions and questions from any source that says what its images show.

The folder holds what ``clipmend fit --data`` and ``clipmend evaluate`` read:

===========================  ================================================================================================
``captions.csv``             original and negated captions with their logical form
``choice.csv``               four-way questions in NegBench's columns, with ``subset`` and ``parse``
``retrieval.csv``,           captions that people wrote, plain and with a denial that is true of their image (where the source
``negated_retrieval.csv``    has captions)
``exclusion.csv``            queries that ask for images without a thing
``presence.csv``             what is in each image, and what is unknown of it
``data.json``                vocabulary, how it was made, counts, and how far the questions can be answered without the images
===========================  ================================================================================================
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from PIL import Image

from clipmend.data.annotated import Denials, negation_data_of
from clipmend.data.blind import Blind, blind_scores
from clipmend.data.collect import Annotated, OnMissing, collect
from clipmend.data.folder import CAPTION_COLUMNS, CHOICE_COLUMNS, PRESENCE_COLUMNS, TEMPLATES, caption_row, parse_of
from clipmend.data.images import IMAGE_SUFFIXES, ImageError, display_path
from clipmend.data.nouns import Noun
from clipmend.data.output import new_folder
from clipmend.data.readers.base import Record, Source
from clipmend.data.records import FORMS, Caption, NegationData, Question
from clipmend.data.scenes.facts import text_rng
from clipmend.data.scenes.wordings import RESERVED_WORDINGS
from clipmend.data.statements import Speaker, wordings_called
from clipmend.data.tables import is_text

__all__ = ["Negated", "negate"]

QUERIES_A_KIND = 6


@dataclass
class Negated:
    """What :func:`negate` wrote.

    Args:
        folder: where.
        rows: of each table.
        captions: number of captions by form.
        answers: number of questions by form of the right option.
        wordings: number of captions by wording.
        blind: how far the questions can be answered without the image; ``None`` where there are none.
        sample: a few captions and a question, in words.
        notes: what was left out or not possible.
    """

    folder: Path
    rows: dict[str, int] = field(default_factory=dict)
    captions: dict[str, int] = field(default_factory=dict)
    answers: dict[str, int] = field(default_factory=dict)
    wordings: dict[str, int] = field(default_factory=dict)
    blind: Blind | None = None
    sample: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def negate(
    source: Source,
    folder: str | os.PathLike[str],
    denials: Denials | None = None,
    *,
    nouns: Mapping[str, Noun] | None = None,
    on_missing: OnMissing = "error",
    limit: int | None = None,
    copy_images: bool = False,
    overwrite: bool = False,
    advance: Callable[[str, int], None] | None = None,
    **options: Any,
) -> Negated:
    """Write negated captions and questions about a source's images.

    Args:
        source: from :func:`clipmend.data.readers.read`.
        folder: where to; written beside and moved into place.
        denials: how they are made (see :class:`Denials`); or give its fields as ``options``.
        nouns, on_missing, limit: as for :func:`~clipmend.data.collect.collect`.
        copy_images: copy image files to ``images/``; by default the tables name them where they are, relative to the folder.
            Images that the source holds itself are always written there.
        overwrite: replace a folder that is not empty.
        advance: called with ``"reading"`` or ``"writing"`` and 1 for every image.

    Returns:
        Counts, a sample, and the blind scores of the questions.

    Raises:
        FileExistsError: the folder is not empty.
        ValueError, OSError: as for :func:`collect`; nothing is written then.
    """
    denials = replace(denials, **options) if denials is not None else Denials(**options)
    target = Path(folder).absolute()
    with new_folder(target, overwrite) as work:
        data = collect(
            source, nouns=nouns, on_missing=on_missing, limit=limit, advance=advance and (lambda n: advance("reading", n))
        )
        names = _images(data, work, target, copy_images)
        made = negation_data_of(data, denials, names, advance and (lambda n: advance("writing", n)))
        written = Negated(target, notes=data.notes)
        written.blind = blind_scores(made, data.absent, denials.seed)
        _write(work, written, made, data, replace(denials, reserved=made.reserved))
    return written


def _images(data: Annotated, work: Path, target: Path, copy: bool) -> list[str]:
    """How the tables name each image: relative to the folder; those that the source holds are written there."""
    names = []
    for k, image in enumerate(data.images):
        if isinstance(image, Path) and not copy:
            try:
                name = os.path.relpath(image.resolve(), target.resolve())
            except ValueError:  # another drive
                name = str(image.resolve())
            if not is_text(name):
                raise ValueError(f"{display_path(image)} has a name that is no text, which a table cannot hold; copy the images")
            names.append(Path(name).as_posix())
            continue
        (work / "images").mkdir(exist_ok=True)
        if isinstance(image, Path):
            name = f"images/{k:06d}{image.suffix.lower()}"
            shutil.copyfile(image, work / name)
        else:
            name = _held(image, k, work)
        names.append(name)
    return names


def _held(record: Record, number: int, work: Path) -> str:
    if isinstance(record.content, Image.Image):
        name = f"images/{number:06d}.png"
        record.open().save(work / name)
        return name
    assert record.content is not None
    suffix = Path(record.image).suffix.lower()
    if suffix not in IMAGE_SUFFIXES:
        try:
            suffix = f".{(Image.open(io.BytesIO(record.content)).format or 'img').lower()}"
        except (OSError, ValueError) as error:
            raise ImageError(f"{record.where}: {record.image}", str(error)) from None
    name = f"images/{number:06d}{suffix}"
    (work / name).write_bytes(record.content)
    return name


def _write(work: Path, written: Negated, made: NegationData, data: Annotated, denials: Denials) -> None:
    names = list(made.images)
    in_questions = {k for question in made.questions for k in question.options}
    first_option = len(made.captions)
    if denials.reading == "truthful":  # the options stand behind the captions, in a table of their own
        first_option = min(in_questions, default=len(made.captions))
    captions = made.captions[:first_option]
    unknown = made.unknown or [frozenset()] * len(names)
    queries = _exclusion(made, data, denials)

    def table(name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        with open(work / name, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            written.rows[name] = 0
            for row in rows:
                writer.writerow(row)
                written.rows[name] += 1

    presence = ((n, json.dumps(sorted(p)), json.dumps(sorted(u))) for n, p, u in zip(names, made.facts, unknown, strict=True))
    table("presence.csv", PRESENCE_COLUMNS, presence)
    table("captions.csv", CAPTION_COLUMNS, (caption_row(c, names) for c in captions))
    if made.questions:
        table("choice.csv", CHOICE_COLUMNS, (_question_row(q, made.captions, names) for q in made.questions))
    for name, denying in (("retrieval.csv", False), ("negated_retrieval.csv", True)):
        rows = _by_image([c for c in captions if c.image >= 0 and not c.complete and bool(c.denies) == denying])
        if rows:
            table(name, ("filepath", "captions", "parse"), (_retrieval_row(names[k], own) for k, own in rows.items()))
    if queries:
        table(
            "exclusion.csv",
            ("query", "absent", "wording", "subset"),
            ((q.text, "|".join(q.denies), q.wording, _subset([q])) for q in queries),
        )
    written.rows["images"] = len(names)
    written.captions = {form: sum(c.form == form for c in captions) for form in FORMS}
    written.answers = {form: sum(q.template == form for q in made.questions) for form in FORMS}
    written.wordings = dict(Counter(c.wording for c in made.captions if c.wording).most_common())
    written.sample = _sample(made, captions, names, denials.seed)
    about = {
        "format": 1,
        "source": data.name,
        **{key: sorted(value) if isinstance(value, frozenset) else value for key, value in asdict(denials).items()},
        "vocabulary": sorted(made.vocabulary or ()),
        "rows": written.rows,
        "captions": written.captions,
        "answers": written.answers,
        "blind": written.blind.to_dict() if written.blind else None,
        "notes": written.notes,
    }
    (work / "data.json").write_text(json.dumps(about, indent=2, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n")


def _subset(captions: Iterable[Caption]) -> str:
    return "reserved_wording" if any(c.wording in RESERVED_WORDINGS for c in captions) else "standard"


def _question_row(question: Question, captions: Sequence[Caption], names: Sequence[str]) -> tuple[Any, ...]:
    options = [captions[k] for k in question.options]
    parse = json.dumps([parse_of(option) for option in options])
    template = TEMPLATES[question.template]
    return (names[question.image], question.answer, *(o.text for o in options), template, _subset(options), parse)


def _by_image(captions: Sequence[Caption]) -> dict[int, list[Caption]]:
    found: dict[int, list[Caption]] = {}
    for caption in captions:
        found.setdefault(caption.image, []).append(caption)
    return found


def _retrieval_row(name: str, own: Sequence[Caption]) -> tuple[str, str, str]:
    return name, repr([c.text for c in own]), json.dumps([parse_of(c) for c in own])


def _exclusion(made: NegationData, data: Annotated, denials: Denials) -> list[Caption]:
    """A few queries for each thing that some images show and others are known not to."""
    shown = frozenset().union(*made.facts)
    lacked = frozenset().union(*data.absent)
    speaker = Speaker(data.nouns, wordings_called(denials.wordings or ""))
    rng = text_rng(denials.seed, "negate/exclusion")
    queries: dict[str, Caption] = {}
    for atom in sorted((shown & lacked) - denials.reserved):
        pool = list(speaker.single)
        for wording in rng.sample(pool, min(QUERIES_A_KIND, len(pool))):
            query = speaker.query([atom], wording, rng)
            if query is not None:
                queries.setdefault(query.text, query)
    return list(queries.values())


def _sample(made: NegationData, captions: Sequence[Caption], names: Sequence[str], seed: int) -> list[str]:
    rng = text_rng(seed, "negate/sample")
    lines = []
    for form in FORMS:
        own = [c for c in captions if c.form == form and c.image >= 0]
        for caption in rng.sample(own, min(2, len(own))):
            lines.append(f"{form} caption of {names[caption.image]}: {caption.text}")
    if made.questions:
        question = rng.choice(made.questions)
        lines.append(f"question about {names[question.image]}:")
        for place, option in enumerate(question.options):
            mark = "right" if place == question.answer else "wrong"
            lines.append(f"  {mark}: {made.captions[option].text}")
    return lines
