"""Read a folder of drawn scenes back. Every error names the file and the line."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from clipmend.data.records import FORMS, Caption, NegationData, Question
from clipmend.data.scenes.draw import Scene
from clipmend.data.scenes.facts import scene_facts
from clipmend.data.scenes.tables import CAPTION_COLUMNS, CHOICE_COLUMNS, TEMPLATES
from clipmend.data.scenes.world import RESERVED_KINDS

__all__ = ["negation_data_from_folder", "read_scenes"]

_FORM_OF = {name: form for form, name in TEMPLATES.items()} | {form: form for form in FORMS}


def read_scenes(folder: str | os.PathLike[str]) -> tuple[list[Scene], list[Path]]:
    """Scenes of a folder and the paths of their images, in the order of ``scenes.jsonl``.

    Raises:
        FileNotFoundError: no ``scenes.jsonl``, or an image that it names is missing.
        ValueError: a line is no scene, or an image is named twice.
    """
    root = Path(folder)
    table = root / "scenes.jsonl"
    if not table.is_file():
        raise FileNotFoundError(f"{root} holds no scenes.jsonl: write scenes with `clipmend scenes {root}`")
    scenes: list[Scene] = []
    lines: dict[str, int] = {}
    for number, text in enumerate(io.StringIO(_text(table)), start=1):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"{table}, line {number}: not JSON ({error})") from error
        if not isinstance(row, dict):
            raise ValueError(f"{table}, line {number}: not an object but {type(row).__name__}")
        try:
            scene = Scene.from_json(row)
        except ValueError as error:
            raise ValueError(f"{table}, line {number}: {error}") from error
        if scene.name in lines:
            raise ValueError(f"{table}, line {number}: the image {scene.name!r} was named in line {lines[scene.name]} already")
        lines[scene.name] = number
        scenes.append(scene)
    paths = [root / scene.name for scene in scenes]
    missing = [path for path in paths if not path.is_file()]
    if missing:
        number = lines[scenes[paths.index(missing[0])].name]
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise FileNotFoundError(f"{table}, line {number}: the image {missing[0]} is missing{more}")
    return scenes, paths


def negation_data_from_folder(folder: str | os.PathLike[str], subset: str = "standard") -> NegationData:
    """Captions and questions of a folder that ``clipmend scenes`` wrote, with what is true of each image.

    Args:
        folder: holds ``scenes.jsonl``, ``captions.csv`` and, if there are questions, ``choice.csv``.
        subset: which questions to take.

    Raises:
        FileNotFoundError, ValueError: a file is missing, a column or value is wrong; the message names file and line.
    """
    root = Path(folder)
    scenes, paths = read_scenes(root)
    position = {scene.name: k for k, scene in enumerate(scenes)}
    captions = [_caption(row, place, position) for place, row in _rows(root / "captions.csv", CAPTION_COLUMNS)]
    questions: list[Question] = []
    choice = root / "choice.csv"
    if choice.is_file():
        known: dict[Caption, int] = {}
        for place, row in _rows(choice, CHOICE_COLUMNS):
            if row["subset"] == subset:
                questions.append(_question(row, place, position, captions, known))
    facts = [scene_facts(scene) for scene in scenes]
    name = root.name or str(root)
    return NegationData(paths, facts, captions, questions, name=name, reserved=frozenset(RESERVED_KINDS))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}") from error


def _rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Rows of a table with where they stand; extra columns are let through."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: write the folder again with `clipmend scenes {path.parent} --overwrite`")
    reader = csv.DictReader(io.StringIO(_text(path), newline=""))
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
        raise ValueError(f"{place}: the image {name!r} is not in scenes.jsonl")
    return position[name]


def _atoms(value: Any, place: str, what: str) -> tuple[str, ...]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
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
        form = "affirmative" if not denies else "hybrid" if asserts else "negative"
        option = Caption(text, -1, form, asserts, denies, str(parse.get("wording", "")))
        if option not in known:
            known[option] = len(captions)
            captions.append(option)
        options.append(known[option])
    return Question(_image(row["image_path"], place, position), tuple(options), answer, _FORM_OF[template])
