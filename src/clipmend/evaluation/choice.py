"""Multiple choice: one image, several captions, one of them right (NegBench, arXiv 2501.09425)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from clipmend.backbones.base import DualEncoder
from clipmend.data.records import FORMS, Caption, NegationData
from clipmend.data.video import FRAMES
from clipmend.evaluation.accumulate import ChoiceAccumulator
from clipmend.evaluation.embed import ImageEmbeddings, OnMissing, distinct, image_vectors, pair_scores, prepared_texts
from clipmend.evaluation.intervals import cluster_sums, wilson
from clipmend.evaluation.results import Measure, Result, items_digest, model_names
from clipmend.evaluation.tables import (
    Rows,
    duplicates_note,
    image_column_of,
    integer_field,
    parse_field,
    problem,
    read_table,
    template_field,
    text_field,
)

__all__ = ["TIE", "ChoiceItem", "ChoiceResult", "choice_items", "evaluate_choice", "read_choice"]

TIE = "tie"


@dataclass(frozen=True, slots=True)
class ChoiceItem:
    """One question.

    Args:
        image: name of the image, as the table writes it.
        captions: the options, two or more.
        answer: position of the right one.
        template: form of the right one: ``"affirmative"``, ``"negative"`` or ``"hybrid"``.
        subset: part of the data it belongs to (``"standard"``, ``"reserved_wording"``, ...), ``""`` for none.
        parse: what each option asserts and denies, where the table says so.
        row: line of the table, 0 for a question that comes from no file.
        made: form of each option where the make of the table is known and no parse is there; ``""`` for the right one's.
    """

    image: str
    captions: tuple[str, ...]
    answer: int
    template: str
    subset: str = ""
    parse: tuple[Caption, ...] | None = None
    row: int = 0
    made: tuple[str, ...] = ()

    @property
    def forms(self) -> tuple[str, ...]:
        """Form of each option: from the parse, else from the table's known make, else from NegBench's order, else ``"other"``.

        NegBench writes the right option first, then a wrong hybrid, a wrong affirmative and a wrong negative one.
        """
        if self.parse is not None:
            forms = [option.form for option in self.parse]
        elif len(self.made) == len(self.captions):
            forms = list(self.made)
        elif len(self.captions) == 4 and self.answer == 0:
            forms = ["", "hybrid", "affirmative", "negative"]
        else:
            forms = ["other"] * len(self.captions)
        forms[self.answer] = self.template
        return tuple(forms)


def read_choice(path: str | Path, *, image_column: str | None = None) -> Rows[ChoiceItem]:
    """Read a NegBench multiple-choice table.

    Args:
        path: CSV with ``image_path`` (or ``video_path``, ``filepath``) and
            ``correct_answer, correct_answer_template, caption_0, caption_1, ...`` (two options or more);
            ``correct_answer_template`` is ``positive`` (or ``affirmative``), ``negative`` or ``hybrid``. The columns ``subset``
            and ``parse`` (JSON list with ``asserts`` and ``denies`` an option) are used where they are there; others are ignored.
        image_column: column with the images, where it is called otherwise.

    Returns:
        The questions, with ``source`` and ``notes``; duplicate rows are kept, noted, and a :class:`TableWarning` is given.

    Raises:
        ValueError: naming file and line: a column missing, a blank field, an answer that is no option, a broken parse.
    """
    path = Path(path)
    header, rows = read_table(path, ("correct_answer", "correct_answer_template", "caption_0", "caption_1"))
    image_column = image_column_of(path, header, ("image_path", "video_path", "filepath"), image_column)
    numbered = {name for name in header if name.startswith("caption_") and name.removeprefix("caption_").isdigit()}
    columns = [f"caption_{k}" for k in range(len(numbered))]
    if set(columns) != numbered:
        raise ValueError(
            f"{path}: option columns must run caption_0, caption_1, ... without a gap; the file has {', '.join(sorted(numbered))}"
        )
    items = []
    for line, row in rows:
        captions = tuple(text_field(path, line, row, column) for column in columns)
        answer = integer_field(path, line, row, "correct_answer")
        if not 0 <= answer < len(captions):
            raise problem(path, line, f"correct_answer is {answer}, but the options are 0 to {len(captions) - 1}")
        template = template_field(path, line, row["correct_answer_template"])
        parse = parse_field(path, line, row.get("parse", ""), captions)
        image = text_field(path, line, row, image_column)
        items.append(ChoiceItem(image, captions, answer, template, row.get("subset", "").strip(), parse, line))
    keys = [(item.row, (item.image, item.captions, item.answer)) for item in items]
    return Rows(items, str(path), duplicates_note(path, keys, "questions"))


def choice_items(data: NegationData, subset: str = "") -> Rows[ChoiceItem]:
    """The questions of ``data``; images are named by their position (``"0"``, ``"1"``, ...)."""
    items = []
    for question in data.questions:
        options = tuple(data.captions[option] for option in question.options)
        texts = tuple(option.text for option in options)
        items.append(ChoiceItem(str(question.image), texts, question.answer, question.template, subset, options))
    return Rows(items, data.name)


@dataclass
class ChoiceResult(Result):
    """Accuracy in all, by template and by subset, with Wilson intervals.

    Args:
        correct: bool ``[Q]``, one a question, in the order of the table; what paired differences rest on.
        chosen: int ``[Q]`` the option chosen, -1 where the best two are tied.
        templates: form of the right option of each question.
        chosen_forms: form of the option chosen, ``"tie"`` for none.
        subsets: subset of each question.
        images: names of the distinct images.
        image_of: int ``[Q]`` position of each question's image in ``images``.
        skipped: questions left out for want of their image.
    """

    correct: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    chosen: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    templates: list[str] = field(default_factory=list)
    chosen_forms: list[str] = field(default_factory=list)
    subsets: list[str] = field(default_factory=list)
    images: list[str] = field(default_factory=list)
    image_of: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    skipped: int = 0

    task: ClassVar[str] = "multiple_choice"
    title: ClassVar[str] = "Multiple choice, accuracy %"

    @property
    def accuracy(self) -> float:
        """Share of all questions answered right."""
        return self.metrics["acc"]

    def groups(self) -> dict[str, NDArray[np.bool_]]:
        """Questions by measure: ``acc``, ``acc_affirmative``, ...; with several subsets also ``acc/SUBSET`` and its templates."""
        templates, subsets = np.asarray(self.templates), np.asarray(self.subsets)
        everything = np.ones(len(self.correct), bool)
        names = sorted(set(self.subsets))
        parts = [("", everything)] + ([(f"/{name or 'none'}", subsets == name) for name in names] if len(names) > 1 else [])
        groups = {}
        for suffix, part in parts:
            groups[f"acc{suffix}"] = part
            for template in FORMS:
                if (chosen := part & (templates == template)).any():
                    groups[f"acc_{template}{suffix}"] = chosen
        return groups

    def measures(self) -> dict[str, Measure]:
        measures = {}
        for name, group in self.groups().items():
            right, total = int(self.correct[group].sum()), int(group.sum())
            value = right / total if total else float("nan")
            measures[name] = Measure(value, total, *wilson(right, total, self.level))
        return measures

    def confusion(self) -> dict[str, dict[str, int]]:
        """``{template: {form of the chosen option: questions}}``; the right option is listed as ``"right"``, a tie as ``"tie"``."""
        table: dict[str, dict[str, int]] = {}
        for template, form, right in zip(self.templates, self.chosen_forms, self.correct, strict=True):
            row = table.setdefault(template, {})
            key = "right" if right else form
            row[key] = row.get(key, 0) + 1
        return table

    def confusion_table(self) -> Any:
        """:meth:`confusion` as a Rich table."""
        from rich.table import Table

        confusion = self.confusion()
        columns = ["right", *[c for c in (*FORMS, "other", TIE) if any(c in row for row in confusion.values())]]
        table = Table(title=f"What was chosen: {self.model}", title_justify="left")
        table.add_column("right option is")
        for column in columns:
            table.add_column("right" if column == "right" else TIE if column == TIE else f"wrong {column}", justify="right")
        for template in [t for t in FORMS if t in confusion]:
            table.add_row(template, *[f"{confusion[template].get(c, 0):,}" for c in columns])
        return table

    def details(self) -> dict[str, Any]:
        ties = int((self.chosen < 0).sum())
        return {"confusion": self.confusion(), "ties": ties, "skipped": self.skipped, "correct": self.correct.astype(int).tolist()}

    def clusters(self, over: str = "images") -> int:
        if over != "images":
            raise ValueError(f"a multiple-choice result is resampled over images, not {over!r}")
        return len(self.images)

    def resampled(self, weights: NDArray[np.float32], over: str = "images") -> dict[str, NDArray[np.float64]]:
        count = self.clusters(over)
        draws = {}
        with np.errstate(invalid="ignore", divide="ignore"):
            for name, group in self.groups().items():
                right = cluster_sums(self.correct & group, self.image_of, count)
                draws[name] = (right @ weights) / (cluster_sums(group, self.image_of, count) @ weights)
        return draws


def evaluate_choice(
    encoder: DualEncoder,
    items: Sequence[ChoiceItem],
    *,
    image_root: str | Path | None = None,
    image_embeddings: ImageEmbeddings | None = None,
    score_correction: bool = True,
    on_missing: OnMissing = "error",
    tie_tolerance: float = 1e-6,
    batch_size: int = 64,
    level: float = 0.95,
    frames: int = FRAMES,
    dataset: str | None = None,
    model: str | None = None,
    pretrained: str | None = None,
    progress: bool = False,
) -> ChoiceResult:
    """Answer every question with the option that scores highest.

    Each image is embedded once and each distinct caption prepared once. A question is right only where the right option beats
    every other by more than ``tie_tolerance``, so a constant scorer gets 0 and the order of options says nothing.

    Args:
        encoder: any :class:`~clipmend.DualEncoder`; a mended one brings its score correction.
        items: the questions, from :func:`read_choice` or made by hand.
        image_root: folder that image names start from.
        image_embeddings: ready image vectors instead: a mapping by name, or ``[U, D]`` in the order in which the items first
            name each image.
        score_correction: False scores by the cosine of the (corrected) embeddings alone.
        on_missing: ``"error"``, or ``"skip"`` to leave out (and count) the questions whose image is missing.
        tie_tolerance: scores this close are tied; the rounding of a cosine in float32 is below 1e-6.
        batch_size: texts a forward pass.
        level: coverage of the Wilson intervals.
        frames: frames a video is averaged over.
        dataset: name of the data (default: the table's).
        model: name of the model in tables (default: the encoder's).
        pretrained: weights or patch.
        progress: show progress bars on a terminal.

    Raises:
        ValueError: no questions; a score or an embedding that is not finite (row, image and option are named).
        FileNotFoundError: images missing, unless they are skipped.
    """
    source = getattr(items, "source", "")
    notes = list(getattr(items, "notes", []))
    if not items:
        raise ValueError(f"{source or 'the data'}: no questions to answer")
    for item in items:
        if len(item.captions) < 2 or not 0 <= item.answer < len(item.captions):
            raise ValueError(f"{_where(source, item)}: answer {item.answer} of {len(item.captions)} options")
    names, image_of = distinct([item.image for item in items])
    images, kept = image_vectors(
        encoder,
        names,
        image_root=image_root,
        image_embeddings=image_embeddings,
        on_missing=on_missing,
        frames=frames,
        progress=progress,
    )
    asked = list(items)
    if len(kept) < len(names):
        position = {old: new for new, old in enumerate(kept)}
        asked = [item for item, image in zip(items, image_of, strict=True) if image in position]
        image_of = np.array([position[image] for image in image_of if image in position])
        notes.append(f"{len(items) - len(asked)} of {len(items)} questions skipped: {len(names) - len(kept)} images missing")
        names = [names[i] for i in kept]
    texts, text_of = distinct([caption for item in asked for caption in item.captions])
    prepared = prepared_texts(encoder, texts, batch_size=batch_size, progress=progress)

    sizes = np.array([len(item.captions) for item in asked])
    question_of = np.repeat(np.arange(len(asked)), sizes)
    pairs = torch.from_numpy(np.stack([image_of[question_of], text_of], 1))
    flat = pair_scores(encoder, images, prepared, pairs, score_correction=score_correction).numpy()
    option = np.arange(len(flat)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    bad = np.flatnonzero(~np.isfinite(flat))
    if len(bad):
        item = asked[question_of[bad[0]]]
        many = f"{len(bad)} of {len(flat)} scores are not finite"
        raise ValueError(f"{_where(source, item)}: the score of caption_{option[bad[0]]} is {flat[bad[0]]} ({many})")
    scores = np.full((len(asked), int(sizes.max())), -np.inf, np.float32)
    scores[question_of, option] = flat

    accumulator = ChoiceAccumulator(tie_tolerance)
    accumulator.update(np.arange(len(asked)), scores, np.array([item.answer for item in asked]))
    chosen, correct = accumulator.outcome()
    ties = int((chosen < 0).sum())
    if ties:
        notes.append(f"{ties} of {len(asked)} questions tied: counted as wrong")
    label, weights = model_names(encoder, model, pretrained)
    return ChoiceResult(
        dataset=dataset or (Path(source).stem if source else "choice"),
        model=label,
        pretrained=weights,
        items=items_digest((item.image, item.captions, item.answer) for item in asked),
        notes=notes,
        level=level,
        correct=correct,
        chosen=chosen,
        templates=[item.template for item in asked],
        chosen_forms=[TIE if pick < 0 else item.forms[pick] for item, pick in zip(asked, chosen, strict=True)],
        subsets=[item.subset for item in asked],
        images=names,
        image_of=image_of,
        skipped=len(items) - len(asked),
    )


def _where(source: str, item: ChoiceItem) -> str:
    place = f"{source}: line {item.row}: " if source and item.row else ""
    return f"{place}question about {item.image!r}"
