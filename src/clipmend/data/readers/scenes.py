"""Drawn scenes (``clipmend scenes``): presence of all their kinds, exactly known, and the plain captions.

The kinds that are kept for testing are ``reserved`` unless the folder is of the test split.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from clipmend.data.readers.base import Log, OnError, Record, Source, register
from clipmend.data.tables import is_text, json_lines, open_table, problem, texts_field

__all__ = ["read_drawn_scenes"]


@register("scenes", "a folder of drawn scenes (clipmend scenes)", lambda path: (path / "scenes.jsonl").is_file(), order=12)
def read_drawn_scenes(path: str | Path, *, captions: bool = True, on_error: OnError = "raise") -> Source:
    """Stream drawn scenes.

    Args:
        path: the folder with ``scenes.jsonl``.
        captions: give the captions of ``retrieval.csv`` too, where it is there.
        on_error: ``"raise"`` or ``"skip"`` for scenes that cannot be used.

    Raises:
        FileNotFoundError: no ``scenes.jsonl``.
        ValueError: (while reading) naming file and line: no scene, a kind that is not drawn.
    """
    from clipmend.data.scenes.draw import Scene
    from clipmend.data.scenes.world import KINDS, RESERVED_KINDS

    root = Path(path)
    table = root / "scenes.jsonl"
    if not table.is_file():
        raise FileNotFoundError(f"{table}: no such file; write scenes with: clipmend scenes {root}")
    everything = frozenset(KINDS)

    def records(log: Log) -> Iterator[Record]:
        texts = _captions(root / "retrieval.csv", log) if captions else {}
        for line, content in json_lines(table, on_bad=log.bad if on_error == "skip" else None):
            try:
                if not isinstance(content.get("image"), str) or "\0" in content["image"] or not is_text(content["image"]):
                    raise ValueError(f"image is {content.get('image')!r:.60}, which no file can be called")
                scene = Scene.from_json(content)
            except ValueError as error:
                log.bad(problem(table, line, str(error)))
                continue
            shown = frozenset(scene.kinds)
            where = f"{table}: line {line}"
            yield Record(scene.name, texts.get(scene.name, ()), present=shown, absent=everything - shown, where=where)

    reserved = () if _split(root) == "test" else RESERVED_KINDS
    name = root.name or "scenes"
    return Source(name, records, image_root=root, vocabulary=everything, reserved=reserved, on_error=on_error)


def _captions(path: Path, log: Log) -> dict[str, tuple[str, ...]]:
    if not path.is_file():
        return {}
    found: dict[str, tuple[str, ...]] = {}
    _, rows = open_table(path, ("filepath", "captions"), on_bad=log.bad if log.on_error == "skip" else None)
    for line, row in rows:
        try:
            found[row["filepath"].strip()] = tuple(texts_field(path, line, row["captions"]))
        except ValueError as error:
            log.bad(error)
    return found


def _split(root: Path) -> str:
    try:
        content = json.loads((root / "world.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    return str(content.get("split", "")) if isinstance(content, dict) else ""
