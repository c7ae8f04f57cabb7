"""NegBench's tables (CVPR 2025, arXiv 2501.09425): multiple choice, binary choice, retrieval, negated retrieval, videos.

What the published files hold, by their generating and evaluating code:

================================================  ==========================================================================
multiple choice                                   ``correct_answer, caption_0..3, correct_answer_template, image_path``
binary choice (CheXpert)                          ``image_path, caption_0, caption_1, correct_answer``; no template
retrieval, plain and negated                      ``positive_objects, negative_objects, filepath, image_id, captions``, the
                                                  first two and the last as Python list literals (read as data, never run)
video                                             the same columns: ``image_path`` or ``filepath`` names the video
================================================  ==========================================================================

Quirks: the right option stands at 0 in nearly every table, so the order says nothing and :meth:`Record.shuffled` is for training;
paths are those of the machine that made the table (see :func:`clipmend.data.images.find_image`); the options of the synthetic
table have another order of forms than the others'.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from clipmend.data.readers.base import Log, OnError, Record, Source, beside, register
from clipmend.data.tables import Row, caption_field, integer_field, open_table, problem, template_field, text_field, texts_field

__all__ = ["TABLES", "NegBenchTable", "choice_record", "find_tables", "identify", "read_negbench", "retrieval_record"]

Task = Literal["choice", "binary_choice", "retrieval", "negated_retrieval"]

IMAGE_COLUMNS = ("image_path", "filepath", "video_path")
ANSWER_COLUMNS = ("correct_answer", "label")
_USUAL = ("", "hybrid", "affirmative", "negative")
_SYNTHETIC = ("affirmative", "hybrid", "hybrid", "negative")


@dataclass(frozen=True)
class NegBenchTable:
    """What a table asks.

    Args:
        task: ``"choice"`` (four options), ``"binary_choice"`` (two), ``"retrieval"`` or ``"negated_retrieval"``.
        media: ``"image"`` or ``"video"``.
        about: the data it is about.
        forms: form of each option where the make of the table is known; ``""`` stands for the right option's own.
    """

    task: Task
    media: Literal["image", "video"]
    about: str
    forms: tuple[str, ...] = ()


TABLES: dict[str, NegBenchTable] = {
    "COCO_val_mcq_llama3.1_rephrased": NegBenchTable("choice", "image", "COCO val2017", _USUAL),
    "VOC2007_mcq_llama3.1_rephrased": NegBenchTable("choice", "image", "VOC2007 test", _USUAL),
    "synthetic_mcq_llama3.1_rephrased": NegBenchTable("choice", "image", "synthetic", _SYNTHETIC),
    "msr_vtt_mcq_rephrased_llama": NegBenchTable("choice", "video", "MSR-VTT", _USUAL),
    "chexpert_binary_mcq": NegBenchTable("binary_choice", "image", "CheXpert"),
    "chexpert_binary_mcq_control": NegBenchTable("binary_choice", "image", "CheXpert, control"),
    "COCO_val_retrieval": NegBenchTable("retrieval", "image", "COCO val2017"),
    "COCO_val_negated_retrieval_llama3.1_rephrased_affneg_true": NegBenchTable("negated_retrieval", "image", "COCO val2017"),
    "synthetic_retrieval_v1": NegBenchTable("retrieval", "image", "synthetic, version 1"),
    "synthetic_retrieval_v2": NegBenchTable("retrieval", "image", "synthetic, version 2"),
    "msr_vtt_retrieval": NegBenchTable("retrieval", "video", "MSR-VTT"),
    "msr_vtt_retrieval_rephrased_llama": NegBenchTable("negated_retrieval", "video", "MSR-VTT"),
}
"""The published tables, by file name without ``.csv``."""


def identify(path: str | Path) -> NegBenchTable:
    """Which task a table is: by its file name where it is a published one, else by its columns.

    Raises:
        ValueError: the columns are of none of the tasks.
        OSError: the file cannot be read.
    """
    path = Path(path)
    header, rows = open_table(path)
    rows.close()  # type: ignore[attr-defined]  # only the header was wanted
    return _identified(path, header)


def _identified(path: Path, header: list[str]) -> NegBenchTable:
    known = TABLES.get(path.name.removesuffix(".csv"))
    options = [name for name in header if name.startswith("caption_") and name.removeprefix("caption_").isdigit()]
    if known is not None:
        return known
    about = path.stem
    media: Literal["image", "video"] = "video" if "video_path" in header else "image"
    if len(options) == 2 and "correct_answer_template" not in header:
        return NegBenchTable("binary_choice", media, about)
    if options:
        return NegBenchTable("choice", media, about, _USUAL if len(options) == 4 else ())
    if "captions" in header:
        return NegBenchTable("negated_retrieval" if "negated" in path.name else "retrieval", media, about)
    raise ValueError(
        f"{path}: no table of NegBench: it needs caption_0, caption_1, ... (multiple choice) or captions (retrieval); "
        f"the file has {', '.join(header)}"
    )


def find_tables(folder: str | Path) -> dict[str, Path]:
    """The published tables in ``folder`` and below (``images/``, ``videos/``), by name without ``.csv``.

    Raises:
        FileNotFoundError: none is there (the names that were looked for are given).
        ValueError: a table is there twice.
    """
    folder = Path(folder)
    found: dict[str, Path] = {}
    for path in sorted(folder.rglob("*.csv")):
        name = path.name.removesuffix(".csv")
        if name not in TABLES:
            continue
        if name in found:
            raise ValueError(f"{folder}: {name}.csv is there twice: {found[name]} and {path}; move one away")
        found[name] = path
    if not found:
        raise FileNotFoundError(f"{folder}: none of NegBench's tables is there: {', '.join(f'{name}.csv' for name in TABLES)}")
    return {name: found[name] for name in TABLES if name in found}


def _looks_like(path: Path) -> bool:
    if path.is_dir():
        return any((path / part / f"{name}.csv").is_file() for part in ("", "images", "videos") for name in TABLES)
    if path.suffix.lower() != ".csv" or not path.is_file():
        return False
    if path.name.removesuffix(".csv") in TABLES:
        return True
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header = [name.strip().strip('"') for name in file.readline(100_000).split(",")]
    except (OSError, UnicodeDecodeError):
        return False
    return "caption_0" in header and any(name in header for name in ANSWER_COLUMNS)


@register("negbench", "NegBench's CSV tables: a file, or a folder that holds some", _looks_like, order=10)
def read_negbench(path: str | Path, *, image_root: str | Path | None = None, on_error: OnError = "raise") -> Source:
    """Stream a NegBench table, or all that a folder holds, one after the other.

    Args:
        path: a table (a published name, or any with such columns), or a folder with published tables.
        image_root: folder that image names start from (default: the table's own).
        on_error: ``"raise"`` or ``"skip"`` for rows that cannot be used.

    Returns:
        Records: a question has its options as ``captions`` with ``answer``, ``template`` and, where known, ``forms``; a retrieval
        row has its captions, and ``present`` and ``absent`` from the class lists where the table has them.

    Raises:
        FileNotFoundError: no such file, or no table in the folder.
        ValueError: (while reading) columns missing, a blank field, an answer that is no option, a list that is none.
    """
    path = Path(path)
    tables = list(find_tables(path).values()) if path.is_dir() else [path]
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder")

    def records(log: Log) -> Iterator[Record]:
        for table in tables:
            yield from _table(table, log)

    return Source(path.stem or str(path), records, image_root=beside(path) if image_root is None else image_root, on_error=on_error)


def _table(path: Path, log: Log) -> Iterator[Record]:
    header, rows = open_table(path, on_bad=log.bad if log.on_error == "skip" else None)
    kind = _identified(path, header)
    if "choice" in kind.task:
        yield from choice_rows(path, header, rows, kind, log)
        return
    image_column = _one_of(path, header, ("filepath", "image_path", "video_path"))
    if "captions" not in header:
        raise ValueError(f"{path}: column captions is missing; the file has {', '.join(header)}")
    for line, row in rows:
        try:
            yield retrieval_record(path, line, row, image_column, media=kind.media)
        except ValueError as error:
            log.bad(error)


def choice_rows(path: Path, header: list[str], rows: Iterator[Row], kind: NegBenchTable, log: Log) -> Iterator[Record]:
    """Questions of an open table; at its end, a note where the right option always stands at one place."""
    columns = option_columns(path, header)
    wanted = 2 if kind.task == "binary_choice" else None
    if wanted is not None and len(columns) != wanted:
        raise ValueError(f"{path}: a binary question has caption_0 and caption_1; the file has {', '.join(columns)}")
    answer_column = _one_of(path, header, ANSWER_COLUMNS)
    image_column = _one_of(path, header, IMAGE_COLUMNS)
    if kind.task == "choice" and "correct_answer_template" not in header:
        raise ValueError(f"{path}: column correct_answer_template is missing; the file has {', '.join(header)}")
    answers = dict.fromkeys(range(len(columns)), 0)
    for line, row in rows:
        try:
            record = choice_record(path, line, row, columns, image_column, answer_column, kind)
        except ValueError as error:
            log.bad(error)
            continue
        answers[record.answer or 0] += 1
        yield record
    asked = sum(answers.values())
    always = next((option for option, count in answers.items() if count == asked), None)
    if asked > 1 and always is not None:
        log.note(f"{path.name}: the right option is caption_{always} in all {asked:,} questions: its place must not count")


def option_columns(path: Path, header: list[str]) -> list[str]:
    """``caption_0, caption_1, ...`` of a table of questions.

    Raises:
        ValueError: fewer than two, or a gap.
    """
    numbered = {name for name in header if name.startswith("caption_") and name.removeprefix("caption_").isdigit()}
    columns = [f"caption_{k}" for k in range(len(numbered))]
    if len(columns) < 2 or set(columns) != numbered:
        there = ", ".join(sorted(numbered)) or ", ".join(header)
        raise ValueError(f"{path}: option columns must run caption_0, caption_1, ... without a gap; the file has {there}")
    return columns


def choice_record(
    path: Path, line: int, row: dict[str, str], columns: list[str], image_column: str, answer_column: str, kind: NegBenchTable
) -> Record:
    """One question.

    Raises:
        ValueError: naming file and line.
    """
    captions = tuple(caption_field(path, line, row, column) for column in columns)
    answer = integer_field(path, line, row, answer_column)
    if not 0 <= answer < len(captions):
        raise problem(path, line, f"{answer_column} is {answer}, but the options are 0 to {len(captions) - 1}")
    template = ""
    if "correct_answer_template" in row:
        template = template_field(path, line, row["correct_answer_template"])
    forms: tuple[str, ...] = ()
    if len(kind.forms) == len(captions) and (answer == 0 or "" not in kind.forms):
        forms = tuple(template if k == answer else form for k, form in enumerate(kind.forms))
    return Record(
        text_field(path, line, row, image_column),
        captions,
        answer=answer,
        template=template,
        forms=forms,
        media=kind.media,
        where=f"{path}: line {line}",
    )


def retrieval_record(
    path: Path, line: int, row: dict[str, str], image_column: str, *, media: Literal["image", "video"] = "image"
) -> Record:
    """One image with its captions and class lists.

    Raises:
        ValueError: naming file and line.
    """
    present, absent = class_lists(path, line, row)
    captions = tuple(texts_field(path, line, row["captions"]))
    image = text_field(path, line, row, image_column)
    return Record(image, captions, present=present, absent=absent, media=media, where=f"{path}: line {line}")


def class_lists(path: Path, line: int, row: dict[str, str]) -> tuple[frozenset[str] | None, frozenset[str] | None]:
    """``positive_objects`` and ``negative_objects``, ``None`` where the column is not there.

    Raises:
        ValueError: naming file and line: no list, or a class that is in both.
    """
    sets = [
        frozenset(texts_field(path, line, row[column], column, empty=True)) if column in row else None
        for column in ("positive_objects", "negative_objects")
    ]
    both = sorted((sets[0] or frozenset()) & (sets[1] or frozenset()))
    if both:
        raise problem(path, line, f"{', '.join(both)} is both in positive_objects and in negative_objects")
    return sets[0], sets[1]


def _one_of(path: Path, header: list[str], names: tuple[str, ...]) -> str:
    for name in names:
        if name in header:
            return name
    raise ValueError(f"{path}: column {' or '.join(names)} is missing; the file has {', '.join(header)}")
