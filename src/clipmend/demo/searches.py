"""The demo's searches: the same index, asked before and after mending."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clipmend.backbones.base import DualEncoder
from clipmend.search import ImageIndex, search

__all__ = ["PHOTO_QUERIES", "SCENE_QUERIES", "Asked", "Query", "ask", "folder_digest"]


@dataclass(frozen=True)
class Query:
    """What is typed, what it leaves out and what it asks for (words of the images' annotation)."""

    text: str
    without: str
    wanted: tuple[str, ...] = ()


SCENE_QUERIES = (
    Query("a photo without a car", "car"),
    Query("a beach with no tree", "tree", ("at beach",)),
    Query("a cat but no balloon", "balloon", ("cat",)),
    Query("there is a house, but no bird can be seen", "bird", ("house",)),
    Query("a picture devoid of flowers", "flower"),
)
"""The last one is worded as no training text is."""

PHOTO_QUERIES = (
    Query("a photo without a cat", "cat"),
    Query("no coffee", "coffee"),
    Query("a picture that does not show a motorcycle", "motorcycle"),
    Query("a scene lacking a flower", "flower"),
    Query("a rocket but no cat", "cat", ("rocket",)),
)


@dataclass
class Asked:
    """A query's answers before and after.

    Attributes:
        query: the query.
        before, after: the first ``k`` images of each.
        wrong_before, wrong_after: for each of them, whether it shows what was excluded (``None`` where nobody knows).
        moved: where the best image that shows the excluded thing stood before and stands after, from 1; 0 where none shows it.
        of: how many images were ranked.
    """

    query: Query
    before: list[Path]
    after: list[Path]
    wrong_before: list[bool] = field(default_factory=list)
    wrong_after: list[bool] = field(default_factory=list)
    moved: tuple[int, int] = (0, 0)
    of: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "query": self.query.text,
            "excluded": self.query.without,
            "ranked": self.of,
            "shown": len(self.before),
            "with_excluded_before": sum(self.wrong_before),
            "with_excluded_after": sum(self.wrong_after),
            "first_with_excluded_before": self.moved[0],
            "first_with_excluded_after": self.moved[1],
            "before": [p.name for p in self.before],
            "after": [p.name for p in self.after],
        }


def ask(
    index: ImageIndex,
    before: DualEncoder,
    after: DualEncoder,
    queries: Sequence[Query],
    shows: Callable[[Path, str], bool],
    k: int = 8,
) -> list[Asked]:
    """Ask every query of the same index twice.

    Args:
        index: the index, never written to.
        before, after: the backbone and the mended encoder.
        queries: what to ask.
        shows: whether an image shows a thing.
        k: images kept of each answer.
    """
    answers = []
    for query in queries:
        ranked = [[hit.path for hit in search(index, encoder, query.text, k=len(index))] for encoder in (before, after)]
        wrong = [[shows(path, query.without) for path in paths] for paths in ranked]
        first = tuple(1 + w.index(True) if True in w else 0 for w in wrong)
        answers.append(Asked(query, ranked[0][:k], ranked[1][:k], wrong[0][:k], wrong[1][:k], (first[0], first[1]), len(index)))
    return answers


def folder_digest(folder: Path) -> str:
    """SHA-256 over the names and bytes of all files below a folder."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
