"""Everything at once: a folder of test tables, one pass over its images, all results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from clipmend.backbones.base import DualEncoder
from clipmend.data.records import truth_matrix
from clipmend.evaluation.choice import ChoiceItem, evaluate_choice, read_choice
from clipmend.evaluation.embed import ImageEmbeddings, OnMissing, image_vectors
from clipmend.evaluation.exclusion import ExclusionQuery, evaluate_exclusion, presence_auroc, read_exclusion
from clipmend.evaluation.presence import Presence, read_presence
from clipmend.evaluation.results import Comparison, Result, compare, write_json
from clipmend.evaluation.retrieval import RetrievalData, evaluate_retrieval, read_retrieval
from clipmend.evaluation.tables import json_lines, problem, read_table, text_field
from clipmend.suggest import did_you_mean

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["TASKS", "Evaluation", "EvaluationData", "embed_all", "evaluate", "read_folder", "read_pairs"]

TASKS = ("choice", "retrieval", "negated_retrieval", "exclusion", "presence")


@dataclass
class EvaluationData:
    """What there is to ask; anything may be missing.

    Args:
        choice: multiple-choice questions.
        retrieval: plain captions.
        negated_retrieval: the same images with captions that also deny.
        exclusion: queries for images without a thing; needs ``presence``.
        presence: which kinds are in which image.
        facts: every true atom of each image of ``presence``, aligned; with parsed captions it gives the oracle's ceiling.
        image_root: folder that image names start from.
        name: name of the data in tables.
    """

    choice: Sequence[ChoiceItem] = ()
    retrieval: RetrievalData | None = None
    negated_retrieval: RetrievalData | None = None
    exclusion: Sequence[ExclusionQuery] = ()
    presence: Presence | None = None
    facts: list[frozenset[str]] | None = None
    image_root: Path | None = None
    name: str = "data"

    def tasks(self) -> list[str]:
        """The tasks that the tables allow."""
        possible = {
            "choice": bool(self.choice),
            "retrieval": self.retrieval is not None,
            "negated_retrieval": self.negated_retrieval is not None,
            "exclusion": bool(self.exclusion) and self.presence is not None,
            "presence": self.presence is not None,
        }
        return [task for task in TASKS if possible[task]]

    def images(self) -> list[str]:
        """Every image that any table names, once."""
        names: dict[str, None] = dict.fromkeys(item.image for item in self.choice)
        for data in (self.retrieval, self.negated_retrieval, self.presence):
            names.update(dict.fromkeys(data.images if data else ()))
        return list(names)

    def truth(self, data: RetrievalData) -> np.ndarray | None:
        """``[N, M]`` truth of ``data``'s captions for its images; ``None`` where facts or parses are missing."""
        if self.facts is None or self.presence is None or data.parse is None:
            return None
        # Tables may name a file with its folder or without: the last part decides.
        known = {Path(name).name: facts for name, facts in zip(self.presence.images, self.facts, strict=True)}
        facts = [known.get(Path(name).name) for name in data.images]
        if any(f is None for f in facts):
            return None
        return truth_matrix([f for f in facts if f is not None], data.parse)


def read_folder(folder: str | Path) -> EvaluationData:
    """Read what ``clipmend scenes`` writes.

    That is ``choice.csv``, ``retrieval.csv``, ``negated_retrieval.csv``, ``exclusion.csv`` and ``scenes.jsonl``. Tables
    that are not there are left out; ``presence.csv`` (``image, present``) may stand in for ``scenes.jsonl``.

    Raises:
        FileNotFoundError: no such folder, or none of the tables is there.
        NotADirectoryError: a file.
        ValueError: a broken table (file and line are named).
    """
    root = Path(folder)
    if root.is_file():
        raise NotADirectoryError(
            f"{root} is a file; give the folder of tables that it is in ({root.parent}), or have that table alone evaluated "
            "(clipmend evaluate choice, retrieval or exclusion)"
        )
    if not root.is_dir():
        raise FileNotFoundError(f"{root}: no such folder; make one with: clipmend scenes {root}")

    def there(name: str) -> Path | None:
        return root / name if (root / name).is_file() else None

    paths = {name: there(f"{name}.csv") for name in ("choice", "retrieval", "negated_retrieval", "exclusion")}
    if not any(paths.values()):
        raise FileNotFoundError(
            f"{root}: none of {', '.join(f'{name}.csv' for name in paths)} is there; make them with: clipmend scenes {root}"
        )
    scenes = there("scenes.jsonl")
    annotation = scenes or there("presence.csv")
    return EvaluationData(
        choice=read_choice(paths["choice"]) if paths["choice"] else (),
        retrieval=read_retrieval(paths["retrieval"]) if paths["retrieval"] else None,
        negated_retrieval=read_retrieval(paths["negated_retrieval"]) if paths["negated_retrieval"] else None,
        exclusion=read_exclusion(paths["exclusion"]) if paths["exclusion"] else (),
        presence=read_presence(annotation) if annotation else None,
        facts=drawn_facts(scenes) if scenes else None,
        image_root=root,
        name=root.name or str(root),
    )


def drawn_facts(path: Path) -> list[frozenset[str]] | None:
    """All true atoms of drawn scenes; ``None`` where the file is of another world."""
    from clipmend.data.scenes.draw import Scene
    from clipmend.data.scenes.facts import scene_facts

    facts: dict[str, frozenset[str]] = {}
    for _, row in json_lines(path):
        try:
            scene = Scene.from_json(row)
        except ValueError:
            return None
        facts.setdefault(str(row["image"]).strip(), scene_facts(scene))
    return list(facts.values())


def read_pairs(path: str | Path, kind: str = "negation") -> list[tuple[str, str]]:
    """``(positive, contrast)`` texts of one kind from ``pairs.csv`` (columns ``kind, positive, contrast``).

    Raises:
        ValueError: a column is missing, or no pair is of that kind.
    """
    path = Path(path)
    rows = read_table(path, ("kind", "positive", "contrast"))[1]
    pairs = [
        (text_field(path, n, row, "positive"), text_field(path, n, row, "contrast"))
        for n, row in rows
        if row["kind"].strip() == kind
    ]
    if not pairs:
        kinds = sorted({row["kind"] for _, row in rows})
        raise problem(path, 1, f"no pair of kind {kind!r}; there are {', '.join(kinds)}")
    return pairs


@dataclass
class Evaluation:
    """Results by task (see :data:`TASKS`): ``evaluation["choice"]``.

    Args:
        results: what was measured.
        model: name of the model.
    """

    results: dict[str, Result] = field(default_factory=dict)
    model: str = ""

    def __getitem__(self, task: str) -> Result:
        return self.results[task]

    def __contains__(self, task: str) -> bool:
        return task in self.results

    def tables(self, detail: bool = False) -> list[Table]:
        """One Rich table a task."""
        return [result.table(detail) for result in self.results.values()]

    def to_dict(self) -> dict[str, Any]:
        """Each result in CLIP_benchmark's shape, by task."""
        return {task: result.to_dict() for task, result in self.results.items()}

    def save(self, path: str | Path) -> Path:
        """Write :meth:`to_dict` as JSON."""
        return write_json(path, self.to_dict())

    def compare(self, other: Evaluation, **options: Any) -> dict[str, Comparison]:
        """Paired differences ``other - self`` of every task that both have (options as for :func:`compare`)."""
        return {task: compare(result, other[task], **options) for task, result in self.results.items() if task in other}


def evaluate(
    encoder: DualEncoder,
    data: str | Path | EvaluationData,
    *,
    tasks: Iterable[str] | None = None,
    score_correction: bool = True,
    rerank: int = 0,
    ks: Sequence[int] = (1, 5, 10),
    image_embeddings: ImageEmbeddings | None = None,
    on_missing: OnMissing = "error",
    over: str = "images",
    samples: int = 500,
    seed: int = 0,
    level: float = 0.95,
    model: str | None = None,
    pretrained: str | None = None,
    progress: bool = False,
) -> Evaluation:
    """Run every test that a folder has tables for; each image is embedded once.

    Args:
        encoder: any dual encoder; a mended one is one.
        data: a folder (see :func:`read_folder`), or tables already read.
        tasks: some of ``choice, retrieval, negated_retrieval, exclusion, presence`` (default: all that the data allow).
        score_correction: let ``encoder.score`` answer multiple choice; False: the cosine of the (corrected) embeddings alone.
        rerank: let ``encoder.score`` order the best so many of each retrieval query.
        ks: cut-offs of recall.
        image_embeddings: ready image vectors: ``[N, D]`` in the order of ``data.images()``, or a mapping by name.
        on_missing: ``"error"``, or ``"skip"`` to leave out missing images, counted.
        over: what intervals of AUROCs draw, ``"images"`` or ``"kinds"``.
        samples: bootstrap draws.
        seed: fixes the draws.
        level: coverage of the intervals.
        model: name of the model in tables (default: the encoder's).
        pretrained: weights or patch.
        progress: show progress bars on a terminal.

    Raises:
        ValueError: an unknown task, or one that the data have no table for.
        FileNotFoundError: the folder has no tables, or images are missing.

    Example:
        >>> evaluation = clipmend.evaluate(clipmend.load("scenes"), "scenes-test")
        >>> evaluation["choice"].metrics["acc"]
    """
    tests = data if isinstance(data, EvaluationData) else read_folder(data)
    wanted = list(tasks) if tasks is not None else tests.tasks()
    for task in wanted:
        if task not in TASKS:
            raise ValueError(f"unknown task {task!r}{did_you_mean(task, TASKS)}; there are {', '.join(TASKS)}")
        if task not in tests.tasks():
            raise ValueError(f"{tests.name}: no table for {task}")
    if not wanted:
        raise ValueError(f"{tests.name}: nothing to evaluate")
    vectors = embed_all(encoder, tests, image_embeddings, on_missing=on_missing, progress=progress)
    common: dict[str, Any] = {
        "image_embeddings": vectors,
        "on_missing": on_missing,
        "level": level,
        "model": model,
        "pretrained": pretrained,
        "progress": progress,
    }
    draws: dict[str, Any] = {"over": over, "samples": samples, "seed": seed}
    results: dict[str, Result] = {}
    for task in wanted:
        label = f"{tests.name}/{task}"
        if task == "choice":
            results[task] = evaluate_choice(encoder, tests.choice, score_correction=score_correction, dataset=label, **common)
        elif task == "exclusion" and tests.presence is not None:
            results[task] = evaluate_exclusion(encoder, tests.exclusion, tests.presence, dataset=label, **draws, **common)
        elif task == "presence" and tests.presence is not None:
            results[task] = presence_auroc(encoder, tests.presence, dataset=label, **draws, **common)
        else:
            captions = tests.retrieval if task == "retrieval" else tests.negated_retrieval
            assert captions is not None
            results[task] = evaluate_retrieval(
                encoder, captions, ks=ks, rerank=rerank, truth=tests.truth(captions), dataset=label, **common
            )
    return Evaluation(results, next(iter(results.values())).model)


def embed_all(
    encoder: DualEncoder,
    data: EvaluationData,
    image_embeddings: ImageEmbeddings | None = None,
    *,
    on_missing: OnMissing = "error",
    progress: bool = False,
) -> Mapping[str, Tensor]:
    """Vector of every image that ``data`` names, by name, each embedded once."""
    names = data.images()
    vectors, kept = image_vectors(
        encoder, names, image_root=data.image_root, image_embeddings=image_embeddings, on_missing=on_missing, progress=progress
    )
    return {names[i]: vector for i, vector in zip(kept, vectors, strict=True)}
