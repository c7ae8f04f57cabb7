"""Where an export is put: whole folders change places, so that nobody meets half of one export and half of another."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["FACTS", "INT8", "KIND", "MATRIX", "PAIRS", "TEXT", "check_target", "place"]

TEXT, INT8, PAIRS, MATRIX = "text.onnx", "text.int8.onnx", "scores_pairs.onnx", "scores_matrix.onnx"
FACTS = "export.json"
KIND = "clipmend ONNX export"


def check_target(target: Path) -> None:
    """Refuse a place that is neither free nor an export.

    Raises:
        ValueError: a file, or a folder with other things in it.
    """
    if target.exists() and not target.is_dir():
        raise ValueError(f"{target} is a file: give a folder for the export")
    if target.is_dir() and any(target.iterdir()) and facts_of(target).get("kind") != KIND:
        raise ValueError(f"{target} is not empty and holds no export: give a new or empty folder")


def facts_of(folder: Path) -> dict[str, Any]:
    """What an export's file says of it; nothing where there is none."""
    try:
        found = json.loads((folder / FACTS).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def place(beside: Path, target: Path) -> None:
    """Put a finished folder in the place of ``target`` by renaming it; the earlier export there goes, and what else it holds stays.

    Where a folder cannot be moved away (the working directory, or one that holds it, and mounted ones), files are replaced one by
    one.

    Args:
        beside: the finished folder, in the same folder as ``target``; it is gone afterwards, or empty.
        target: absolute; a folder, or nothing yet.
    """
    if not target.is_dir():
        os.replace(beside, target)
        return
    new = {path.name for path in beside.iterdir()}
    movable = not target.is_symlink() and not os.path.ismount(target) and not _holds(target, Path.cwd())
    if movable and _swapped(beside, target, _others(target) - new):
        return
    # Of the export before: another model's tokenizer beside this graph would look as if it belonged to it.
    for stale in {path.name for path in target.iterdir()} - _others(target) - new:
        (target / stale).unlink()
    for name in sorted(new, key=lambda name: name == FACTS):  # the facts last: they say that it is whole
        os.replace(beside / name, target / name)


def _holds(folder: Path, other: Path) -> bool:
    folder, other = folder.resolve(), other.resolve()
    return folder == other or folder in other.parents


def _others(target: Path) -> set[str]:
    """What in a folder is of no export: folders, and files that none wrote."""
    graphs = {part for name in (TEXT, INT8, PAIRS, MATRIX) for part in (name, f"{name}.data")}
    listed = facts_of(target).get("written")
    before = {name for name in listed if isinstance(name, str)} if isinstance(listed, list) else set()
    return {path.name for path in target.iterdir() if not path.is_file() or path.name not in graphs | before | {FACTS}}


def _swapped(beside: Path, target: Path, others: set[str]) -> bool:
    """Two renames, and back again if the second fails; ``False`` where the system refuses the first, and nothing has changed."""
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}-old-", dir=target.parent))
    try:
        try:
            os.rename(target, old / "old")
        except OSError:
            return False
        moved: list[str] = []
        try:
            for name in sorted(others):
                os.rename(old / "old" / name, beside / name)
                moved.append(name)
            shutil.copymode(old / "old", beside)
            os.rename(beside, target)
        except BaseException:
            for name in moved:
                with suppress(OSError):
                    os.rename(beside / name, old / "old" / name)
            os.rename(old / "old", target)  # nothing is lost
            raise
        return True
    finally:
        if target.exists():  # else what it held is in there
            shutil.rmtree(old, ignore_errors=True)
