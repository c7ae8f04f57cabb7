"""Drawn scenes (``clipmend scenes``): a paragraph for each scene and for its near-twin, of which one attribute differs.

Scene and twin are both in the gallery, so that whoever reads only the gist of a paragraph finds one of the two by chance.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clipmend.data.dense.base import DenseRow, asked, caption_text, dense_set, json_field
from clipmend.data.readers.base import Log
from clipmend.data.tables import json_lines

__all__ = ["scenes_rows"]


@dense_set("scenes", "drawn scenes with near-twins: the folder that clipmend scenes writes")
def scenes_rows(path: Path, splits: tuple[str, ...], root: Path | None, log: Log, *, twins: bool = True) -> Iterator[DenseRow]:
    """Stream the paragraphs of drawn scenes.

    Args:
        path: the folder (``dense.jsonl``, ``images/``, ``twins/``, ``world.json``).
        splits: a folder is one split, the one it was drawn as; naming another is an error.
        root: folder that image names start from (default: ``path``).
        log: takes what cannot be used.
        twins: read the twins too.
    """
    if not isinstance(twins, bool):
        raise ValueError(f"twins is {twins!r}; it must be true or false")
    folder = path if path.is_dir() else path.parent
    table = folder / "dense.jsonl" if path.is_dir() else path
    if not table.is_file():
        raise FileNotFoundError(f"{table}: no such file; write scenes with: clipmend scenes {folder}")
    world = _world(folder / "world.json")
    split = str(world.get("split", ""))
    if not asked(split, splits):
        raise ValueError(f"{folder}: these scenes are of the split {split!r}, not {'+'.join(splits)}")
    drawn = f"scenes {split} {world['seed']} {world.get('size')}" if "seed" in world else ""
    base = root or folder
    for line, entry in json_lines(table, on_bad=log.bad if log.on_error == "skip" else None):
        where = f"{table}: line {line}"
        try:
            image = json_field(entry, where, "image")
            rows = [(image, caption_text(entry.get("caption"), where, "caption"))]
            if twins:
                twin = json_field(entry, where, "twin_image")
                if twin == image:
                    raise ValueError(f"{where}: twin_image is the image itself")
                rows.append((twin, caption_text(entry.get("twin_caption"), where, "twin_caption")))
        except ValueError as error:
            log.bad(error)
            continue
        for name, text in rows:
            known = f"{drawn} {name}" if drawn else ""
            file = base / name  # and no search by the last part of the name, which a scene and its twin share
            yield DenseRow(name, text, where, file, name.rsplit(".", 1)[0], split=split, group=image, known_as=known)


def _world(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
