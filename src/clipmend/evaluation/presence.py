"""What is in which image: the ground truth that exclusion and presence are judged by."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clipmend.evaluation.tables import json_lines, problem, read_table

__all__ = ["Presence", "read_presence"]


@dataclass
class Presence:
    """Kinds of thing in each image, listed exhaustively: a kind that is not listed is not there.

    Args:
        images: distinct image names.
        kinds: the kinds in each image.
        source: the file, or a name.
        notes: what was noticed while reading.
    """

    images: list[str]
    kinds: list[frozenset[str]]
    source: str = ""
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.images:
            raise ValueError(f"{self.source or 'presence'}: no images")
        if not len(self.images) == len(self.kinds):
            raise ValueError(f"{self.source or 'presence'}: {len(self.images)} images, but {len(self.kinds)} sets of kinds")
        if len(set(self.images)) < len(self.images):
            raise ValueError(f"{self.source or 'presence'}: an image is listed twice")

    @property
    def vocabulary(self) -> frozenset[str]:
        """Every kind that some image has."""
        return frozenset().union(*self.kinds)

    def matrix(self, kinds: Sequence[str]) -> NDArray[np.bool_]:
        """bool ``[len(kinds), N]``: whether the image has the kind."""
        column = {kind: np.fromiter((kind in there for there in self.kinds), bool, len(self.kinds)) for kind in set(kinds)}
        return np.stack([column[kind] for kind in kinds]) if len(kinds) else np.zeros((0, len(self.images)), bool)


def read_presence(path: str | Path) -> Presence:
    """Read which kinds are in which image.

    Args:
        path: ``.jsonl`` with ``image`` and either ``objects`` (each with ``kind``, as ``clipmend scenes`` writes them) or
            ``present`` (a list of words) a line; or CSV with ``image, present``, the latter a JSON or Python list, or words
            separated by semicolons (blank for an image with nothing).

    Raises:
        ValueError: naming file and line: a field missing or of the wrong type, an image annotated twice in different ways.
    """
    path = Path(path)
    entries: list[tuple[int, str, frozenset[str]]] = []
    doubtful = 0
    if path.suffix.lower() in (".jsonl", ".ndjson"):
        for line, content in json_lines(path):
            image = content.get("image")
            if not isinstance(image, str) or not image.strip():
                raise problem(path, line, "image must be the name of an image")
            entries.append((line, image.strip(), _from_json(path, line, content)))
    else:
        for line, row in read_table(path, ("image", "present"))[1]:
            if not row["image"].strip():
                raise problem(path, line, "image is empty")
            entries.append((line, row["image"].strip(), _words(path, line, row["present"])))
            doubtful += bool(_words(path, line, row.get("unknown", "")))
    if not entries:
        raise ValueError(f"{path}: no images")
    first: dict[str, tuple[int, frozenset[str]]] = {}
    repeated = 0
    for line, image, kinds in entries:
        if image not in first:
            first[image] = (line, kinds)
        elif first[image][1] != kinds:
            raise problem(path, line, f"image {image!r} is annotated differently than in line {first[image][0]}")
        else:
            repeated += 1
    notes = [f"{path.name}: {repeated} images annotated twice alike, counted once"] if repeated else []
    if doubtful:
        notes.append(f"{path.name}: of {doubtful} images some kinds are unknown: counted as images without them")
    return Presence(list(first), [kinds for _, kinds in first.values()], str(path), notes)


def _from_json(path: Path, line: int, content: dict[str, Any]) -> frozenset[str]:
    if "present" in content:
        return _strings(path, line, content["present"])
    objects = content.get("objects")
    if not isinstance(objects, list) or not all(isinstance(o, dict) and isinstance(o.get("kind"), str) for o in objects):
        raise problem(path, line, "needs present (a list of words) or objects (each with a kind)")
    return frozenset(o["kind"] for o in objects)


def _words(path: Path, line: int, text: str) -> frozenset[str]:
    text = text.strip()
    if not text.startswith(("[", "(", "{")):
        return frozenset(word.strip() for word in text.split(";") if word.strip())
    for read in (json.loads, ast.literal_eval):
        try:
            return _strings(path, line, read(text))
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError) as error:
            if f"{path}: line" in str(error):
                raise
    raise problem(path, line, f"present is no list: {text[:60]!r}")


def _strings(path: Path, line: int, values: Any) -> frozenset[str]:
    if not isinstance(values, (list, tuple, set)) or not all(isinstance(v, str) and v.strip() for v in values):
        raise problem(path, line, f"present must be a list of words, not {values!r}")
    return frozenset(v.strip() for v in values)
