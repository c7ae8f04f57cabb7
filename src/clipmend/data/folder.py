"""A folder of tables with what is true of each image, read back: what ``clipmend scenes`` and ``clipmend data negate`` write.

Every error names the file and the line.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from clipmend.data.images import find_image
from clipmend.data.records import FORMS, Caption, NegationData, Question

__all__ = [
    "CAPTION_COLUMNS",
    "CHOICE_COLUMNS",
    "PRESENCE_COLUMNS",
    "TEMPLATES",
    "caption_row",
    "check_folder",
    "negation_data_from_folder",
    "parse_of",
    "table_text",
]

CAPTION_COLUMNS = ("image", "caption", "form", "wording", "asserts", "denies", "complete")
CHOICE_COLUMNS = (
    "image_path",
    "correct_answer",
    *(f"caption_{k}" for k in range(4)),
    "correct_answer_template",
    "subset",
    "parse",
)
PRESENCE_COLUMNS = ("image", "present", "unknown")
TEMPLATES = {"affirmative": "positive", "negative": "negative", "hybrid": "hybrid"}
"""Form of the right answer, as NegBench's files name it."""

_FORM_OF = {name: form for form, name in TEMPLATES.items()} | {form: form for form in FORMS}


def parse_of(caption: Caption) -> dict[str, Any]:
    """Logical form of a caption, as in the ``parse`` columns; ``complete`` and ``form`` only where they are not the usual."""
    parse: dict[str, Any] = {"asserts": list(caption.asserts), "denies": list(caption.denies), "wording": caption.wording}
    if not caption.complete:
        parse |= {"complete": False, "form": caption.form}
    return parse


def caption_row(caption: Caption, names: Sequence[str]) -> tuple[str, ...]:
    """A row of ``captions.csv``."""
    image = names[caption.image] if caption.image >= 0 else ""
    asserts, denies = json.dumps(caption.asserts), json.dumps(caption.denies)
    return image, caption.text, caption.form, caption.wording, asserts, denies, json.dumps(caption.complete)


def negation_data_from_folder(folder: str | os.PathLike[str], subset: str = "standard") -> NegationData:
    """Captions and questions of a folder, with what is true of each image.

    Args:
        folder: holds ``captions.csv``, what is true of the images and, if there are questions, ``choice.csv``. What is true comes
            from ``scenes.jsonl`` (``clipmend scenes``), or from ``presence.csv`` with ``data.json`` (``clipmend data negate``): a
            thing of the vocabulary that an image is not said to have is absent, unless it is listed as unknown.
        subset: which questions to take.

    Raises:
        FileNotFoundError, ValueError: a file is missing, a column or value is wrong; the message names file and line.
    """
    root = Path(folder)
    check_folder(root)
    names, data = _annotated(root) if (root / "presence.csv").is_file() and not (root / "scenes.jsonl").is_file() else _drawn(root)
    position = {name: k for k, name in enumerate(names)}
    captions = [_caption(row, place, position) for place, row in _rows(root / "captions.csv", CAPTION_COLUMNS)]
    questions: list[Question] = []
    choice = root / "choice.csv"
    if choice.is_file():
        known: dict[Caption, int] = {}
        for place, row in _rows(choice, CHOICE_COLUMNS):
            if row["subset"] == subset:
                questions.append(_question(row, place, position, captions, known))
    return NegationData(captions=captions, questions=questions, name=root.name or str(root), **data)


def check_folder(root: Path) -> None:
    """Refuse what is no folder, before any of its files is called missing.

    Raises:
        FileNotFoundError, NotADirectoryError: nothing there, or a file.
    """
    made = "a folder made by `clipmend scenes` or `clipmend data negate` is wanted"
    if root.is_file():
        raise NotADirectoryError(f"{root} is a file; {made}, which says what each image shows; a fit without images is --text-only")
    if not root.is_dir():
        raise FileNotFoundError(f"{root}: no such folder; {made}")


def _drawn(root: Path) -> tuple[list[str], dict[str, Any]]:
    """Names of the images, and images and facts of drawn scenes."""
    from clipmend.data.scenes.facts import scene_facts
    from clipmend.data.scenes.reading import read_scenes
    from clipmend.data.scenes.world import RESERVED_KINDS

    scenes, paths = read_scenes(root)
    facts = [scene_facts(scene) for scene in scenes]
    return [scene.name for scene in scenes], {"images": paths, "facts": facts, "reserved": frozenset(RESERVED_KINDS)}


def _annotated(root: Path) -> tuple[list[str], dict[str, Any]]:
    """The same of ``presence.csv`` and ``data.json``."""
    about = root / "data.json"
    if not about.is_file():
        raise FileNotFoundError(f"{about} is missing: it holds the vocabulary; write the folder again with `clipmend data negate`")
    text = table_text(about)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also for a number of thousands of digits
        raise ValueError(f"{about}: not JSON ({error})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{about}: not an object but {type(content).__name__}")
    vocabulary = frozenset(_atoms(content.get("vocabulary"), str(about), "vocabulary"))
    reserved = frozenset(_atoms(content.get("reserved", []), str(about), "reserved"))
    names: dict[str, str] = {}
    paths: list[Path] = []
    facts: list[frozenset[str]] = []
    unknown: list[frozenset[str]] = []
    for place, row in _rows(root / "presence.csv", PRESENCE_COLUMNS):
        name = row["image"]
        if name in names:
            raise ValueError(f"{place}: the image {name!r} was named in {names[name]} already")
        names[name] = place
        path = find_image(name, root)
        if path is None:
            raise FileNotFoundError(f"{place}: the image {name!r} is missing under {root}")
        present, doubtful = (frozenset(_atoms(row[column], place, column)) for column in ("present", "unknown"))
        strange = sorted((present | doubtful) - vocabulary)
        if strange:
            raise ValueError(f"{place}: {', '.join(strange)} is not in the vocabulary of {about.name}")
        if present & doubtful:
            raise ValueError(f"{place}: {', '.join(sorted(present & doubtful))} is both present and unknown")
        paths.append(path)
        facts.append(present)
        unknown.append(doubtful)
    return list(names), {
        "images": paths,
        "facts": facts,
        "vocabulary": vocabulary,
        "reserved": reserved,
        "unknown": unknown if any(unknown) else None,
    }


def table_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}") from error


def _rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Rows of a table with where they stand; extra columns are let through."""
    if not path.is_file():
        maker = "clipmend data negate SOURCE -o" if (path.parent / "presence.csv").is_file() else "clipmend scenes"
        raise FileNotFoundError(f"{path} is missing: write the folder again with `{maker} {path.parent} --overwrite`")
    reader = csv.DictReader(io.StringIO(table_text(path), newline=""))
    missing = [column for column in columns if column not in (reader.fieldnames or ())]
    if missing:
        raise ValueError(f"{path}, line 1: no column {', '.join(missing)}; there are {', '.join(reader.fieldnames or ['none'])}")
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise ValueError(f"{path}, line {reader.line_num}: {error}") from error
        if row is None:
            return
        place = f"{path}, line {reader.line_num}"
        if any(row[column] is None for column in columns):
            raise ValueError(f"{place}: fewer values than columns")
        yield place, row


def _image(name: str, place: str, position: dict[str, int]) -> int:
    if name not in position:
        raise ValueError(f"{place}: the image {name!r} is not in scenes.jsonl or presence.csv")
    return position[name]


def _atoms(value: Any, place: str, what: str) -> tuple[str, ...]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:  # ValueError: also for a number of thousands of digits
            raise ValueError(f"{place}: {what} is not a JSON list ({error})") from error
    if not isinstance(value, list) or not all(isinstance(atom, str) for atom in value):
        raise ValueError(f"{place}: {what} is not a list of texts")
    return tuple(value)


def _caption(row: dict[str, str], place: str, position: dict[str, int]) -> Caption:
    image = _image(row["image"], place, position) if row["image"] else -1
    if row["form"] not in FORMS:
        raise ValueError(f"{place}: unknown form {row['form']!r}; choose one of {', '.join(FORMS)}")
    if row["complete"].lower() not in ("true", "false"):
        raise ValueError(f"{place}: complete must be true or false, not {row['complete']!r}")
    asserts, denies = (_atoms(row[name], place, name) for name in ("asserts", "denies"))
    return Caption(row["caption"], image, row["form"], asserts, denies, row["wording"], row["complete"].lower() == "true")


def _question(
    row: dict[str, str], place: str, position: dict[str, int], captions: list[Caption], known: dict[Caption, int]
) -> Question:
    """The question of a row; its options are appended to ``captions`` unless ``known``."""
    try:
        parses = json.loads(row["parse"])
        answer = int(row["correct_answer"])
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error
    texts = [row[f"caption_{k}"] for k in range(4)]
    if not isinstance(parses, list) or len(parses) != len(texts) or not all(isinstance(p, dict) for p in parses):
        raise ValueError(f"{place}: parse must list one object for each of the {len(texts)} captions")
    if not 0 <= answer < len(texts):
        raise ValueError(f"{place}: correct_answer must be 0 to {len(texts) - 1}, not {answer}")
    template = row["correct_answer_template"]
    if template not in _FORM_OF:
        raise ValueError(f"{place}: unknown template {template!r}; choose one of {', '.join(TEMPLATES.values())}")
    options = []
    for text, parse in zip(texts, parses, strict=True):
        asserts, denies = (_atoms(parse.get(name, []), place, name) for name in ("asserts", "denies"))
        form = parse.get("form", "affirmative" if not denies else "hybrid" if asserts else "negative")
        complete = parse.get("complete", True)
        if form not in FORMS or not isinstance(complete, bool):
            raise ValueError(f"{place}: parse has form {form!r} and complete {complete!r}")
        option = Caption(text, -1, form, asserts, denies, str(parse.get("wording", "")), complete)
        if option not in known:
            known[option] = len(captions)
            captions.append(option)
        options.append(known[option])
    return Question(_image(row["image_path"], place, position), tuple(options), answer, _FORM_OF[template])
