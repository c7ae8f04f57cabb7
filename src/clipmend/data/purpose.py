"""Whether a folder of captions may be trained on, and by which objective.

A folder that ``clipmend data negate`` wrote says in ``data.json`` how its questions read a denial, and its captions say which
wording they have; drawn scenes say in ``world.json`` which split they are. What must not be trained on is refused, before any work.
"""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

from clipmend.data.folder import check_folder
from clipmend.data.scenes.wordings import RESERVED_WORDINGS

__all__ = ["check_for_fit"]


def check_for_fit(folder: str | os.PathLike[str], objective: str, *, allow_reserved: bool = False) -> list[str]:
    """Refuse a folder that a fit with ``objective`` should not see.

    Args:
        folder: written by ``clipmend data negate`` or ``clipmend scenes``. A folder that says nothing of itself is let through,
            unless its captions bear reserved wordings.
        objective: ``"truthful"`` or ``"released"``.
        allow_reserved: take captions with reserved wordings all the same.

    Returns:
        Notes on what is odd but allowed.

    Raises:
        ValueError: reserved wordings, on which no test would then be worth anything; or questions of the released construction for
            the truthful objective: their wrong options are true of the image. Also a ``data.json`` that is none.
    """
    root = Path(folder)
    check_folder(root)
    notes = []
    reserved = _reserved_captions(root / "captions.csv")
    if reserved:
        count, names = reserved
        told = f"{count:,} captions with reserved wordings ({', '.join(sorted(names))})"
        if not allow_reserved:
            raise ValueError(
                f"{root} holds {told}: they are for tests, and a patch trained on them cannot be tested on them. Write the "
                "folder again with `clipmend data negate --wordings training`, or insist with --allow-reserved"
            )
        notes.append(f"{root} holds {told}: tests with reserved wordings say nothing about this patch")
    about = _object(root / "data.json")
    reading = about.get("reading")
    if reading == "released" and objective == "truthful":
        raise ValueError(
            f"{root} was made with --reading released: in its questions a plain caption is right and one of the wrong options is "
            "the same with a denial that is true of the image, so the truthful objective would learn that a true caption is wrong. "
            "Fit with --objective released, or write the folder again with `clipmend data negate --reading truthful`"
        )
    if reading == "truthful" and objective == "released":
        notes.append(
            f"{root} was made with --reading truthful: the published objective goes with questions of the released construction "
            "(`clipmend data negate --reading released`)"
        )
    if _object(root / "world.json").get("split") == "test":
        notes.append(f"{root} is a test split of drawn scenes: draw others to test this patch on")
    return notes


def _reserved_captions(path: Path) -> tuple[int, set[str]] | None:
    """How many captions bear reserved wordings, and which; ``None`` where none does. What is wrong with the table others tell."""
    names: set[str] = set()
    count = 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for row in csv.DictReader(file):
                wording = row.get("wording")
                if wording in RESERVED_WORDINGS:
                    count += 1
                    names.add(wording)
    except (FileNotFoundError, UnicodeDecodeError, csv.Error):
        return None
    return (count, names) if count else None


def _object(path: Path) -> dict[str, Any]:
    """A JSON object, empty where there is no such file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON ({error})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: not an object but {type(content).__name__}")
    return content
