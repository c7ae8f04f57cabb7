"""Read drawn scenes back. Every error names the file and the line."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

from clipmend.data.folder import check_folder, negation_data_from_folder, table_text
from clipmend.data.scenes.draw import Scene

__all__ = ["negation_data_from_folder", "read_scenes"]


def read_scenes(folder: str | os.PathLike[str]) -> tuple[list[Scene], list[Path]]:
    """Scenes of a folder and the paths of their images, in the order of ``scenes.jsonl``.

    Raises:
        FileNotFoundError: no ``scenes.jsonl``, or an image that it names is missing.
        ValueError: a line is no scene, or an image is named twice.
    """
    root = Path(folder)
    check_folder(root)
    table = root / "scenes.jsonl"
    if not table.is_file():
        raise FileNotFoundError(
            f"{root} holds no scenes.jsonl: it is no folder made by `clipmend scenes` or `clipmend data negate`"
        )
    scenes: list[Scene] = []
    lines: dict[str, int] = {}
    for number, text in enumerate(io.StringIO(table_text(table)), start=1):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
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
