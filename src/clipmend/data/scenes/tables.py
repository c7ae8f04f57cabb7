"""Write a drawn world to a folder: images, truth, captions, questions, queries and pairs."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clipmend.data.folder import CAPTION_COLUMNS, CHOICE_COLUMNS, TEMPLATES, caption_row, parse_of
from clipmend.data.output import new_folder
from clipmend.data.records import Caption
from clipmend.data.scenes.build import exclusion_queries, make_scenes, retrieval_captions, scene_captions
from clipmend.data.scenes.captions import SUBSETS
from clipmend.data.scenes.dense import dense_captions, minimal_pairs
from clipmend.data.scenes.draw import Scene, render
from clipmend.data.scenes.questions import choice_questions

__all__ = ["CAPTION_COLUMNS", "CHOICE_COLUMNS", "TEMPLATES", "Written", "parse_of", "write_scenes"]

MAX_SIZE = 4096  # pixels; beyond it, drawing one image would fill the memory


@dataclass
class Written:
    """What :func:`write_scenes` wrote: rows by file, and notes on anything that could not be made."""

    folder: Path
    rows: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def write_scenes(
    folder: str | os.PathLike[str],
    count: int = 1000,
    size: int = 64,
    seed: int = 7,
    split: str = "train",
    overwrite: bool = False,
    advance: Callable[[int], None] | None = None,
) -> Written:
    """Draw scenes and write them with everything that is said about them.

    Args:
        folder: where to; made in a temporary folder beside it and renamed into place, so that it is never half written.
        count: number of scenes, at least 1.
        size: side of the images in pixels, 16 to 4096.
        seed, split: as in :func:`make_scenes`. Reserved wordings and denials of reserved kinds are written for ``"test"`` alone.
        overwrite: replace a folder that is not empty.
        advance: called with the number of images just written, for a progress bar.

    Returns:
        Counts of rows and notes.

    Raises:
        ValueError: a bad count, size, seed or split.
        FileExistsError: ``folder`` exists, is not empty and ``overwrite`` is false.
    """
    target = Path(folder).absolute()
    if count < 1:
        raise ValueError(f"draw at least one scene, not {count}")
    if not 16 <= size <= MAX_SIZE:
        raise ValueError(f"scenes are drawn at 16 to {MAX_SIZE} pixels, not {size}")
    scenes = make_scenes(count, seed, split)
    with new_folder(target, overwrite) as work:
        written = _write(work, scenes, size, seed, split, advance)
    written.folder = target
    return written


def _write(work: Path, scenes: Sequence[Scene], size: int, seed: int, split: str, advance: Callable[[int], None] | None) -> Written:
    written = Written(work)
    dense = dense_captions(scenes, seed)
    (work / "images").mkdir()
    (work / "twins").mkdir()
    for pair in dense:
        render(pair.scene, size).save(work / pair.scene.name, compress_level=3)
        render(pair.twin, size).save(work / pair.twin.name, compress_level=3)
        if advance:
            advance(1)
    written.rows["images"] = written.rows["twins"] = len(scenes)
    names = [scene.name for scene in scenes]
    subsets = tuple(SUBSETS) if split == "test" else ("standard",)
    captions = [c for image, scene in enumerate(scenes) for c in scene_captions(scene, seed, image, split)]
    plain, negated = (retrieval_captions(scenes, seed, negated=n) for n in (False, True))
    queries = [(query, subset) for subset in subsets for query in exclusion_queries(seed, subset)]
    pairs = minimal_pairs(scenes, seed)

    _lines(written, "scenes.jsonl", (scene.to_json() for scene in scenes))
    _lines(written, "dense.jsonl", (pair.to_json() for pair in dense))
    _table(written, "captions.csv", CAPTION_COLUMNS, (caption_row(c, names) for c in captions))
    _table(written, "choice.csv", CHOICE_COLUMNS, _choice_rows(written, scenes, seed, subsets))
    _table(written, "retrieval.csv", ("filepath", "captions", "parse"), _retrieval_rows(plain, names))
    _table(written, "negated_retrieval.csv", ("filepath", "captions", "parse"), _retrieval_rows(negated, names))
    _table(
        written, "exclusion.csv", ("query", "absent", "wording", "subset"),
        ((q.text, "|".join(q.denies), q.wording, subset) for q, subset in queries),
    )  # fmt: skip
    _table(
        written, "pairs.csv", ("kind", "positive", "contrast", "image", "group", "object"),
        ((p.kind, p.positive, p.contrast, names[p.image], p.group, p.object) for p in pairs),
    )  # fmt: skip
    about = {"count": len(scenes), "size": size, "seed": seed, "split": split}
    (work / "world.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8", newline="\n")
    return written


def _choice_rows(written: Written, scenes: Sequence[Scene], seed: int, subsets: Sequence[str]) -> list[tuple[Any, ...]]:
    rows = []
    for subset in subsets:
        # reserved subsets are smaller: fewer scenes supply them
        number = len(scenes) if subset == "standard" else -(-len(scenes) // 2)
        try:
            captions, questions = choice_questions(scenes, seed, subset, number)
        except ValueError as error:
            written.notes.append(f"choice.csv has no questions of the subset {subset!r}: {error}")
            continue
        for question in questions:
            options = [captions[k] for k in question.options]
            parse = json.dumps([parse_of(option) for option in options])
            texts = [option.text for option in options]
            template = TEMPLATES[question.template]
            rows.append((scenes[question.image].name, question.answer, *texts, template, subset, parse))
    return rows


def _retrieval_rows(captions: Sequence[Caption], names: Sequence[str]) -> Iterable[tuple[str, str, str]]:
    by_image: dict[int, list[Caption]] = {}
    for caption in captions:
        by_image.setdefault(caption.image, []).append(caption)
    for image, own in by_image.items():
        yield names[image], repr([c.text for c in own]), json.dumps([parse_of(c) for c in own])


def _lines(written: Written, name: str, rows: Iterable[dict[str, Any]]) -> None:
    with open(written.folder / name, "w", encoding="utf-8", newline="\n") as file:
        written.rows[name] = 0
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            written.rows[name] += 1


def _table(written: Written, name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with open(written.folder / name, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        written.rows[name] = 0
        for row in rows:
            writer.writerow(row)
            written.rows[name] += 1
