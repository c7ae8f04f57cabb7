"""What a training writes while it runs: a file of JSON lines."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["METRICS", "MetricsFile", "read_metrics"]

METRICS = "metrics.jsonl"
"""Name of the file in a working folder."""


class MetricsFile:
    """A JSON object a line, written as it comes; nothing without a folder.

    Args:
        folder: the working folder, or ``None``.
        step: where the training goes on: later lines, of a run that was killed, are written again by the one that resumes.
    """

    def __init__(self, folder: Path | None, step: int) -> None:
        self.path = None if folder is None else folder / METRICS
        if self.path is None:
            return
        kept = [entry for entry in read_metrics(self.path) if entry.get("step", 0) <= step] if step else []
        part = self.path.with_suffix(".part")
        part.write_text("".join(json.dumps(entry) + "\n" for entry in kept), encoding="utf-8")
        os.replace(part, self.path)

    def write(self, entry: dict[str, Any]) -> None:
        """Add one."""
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The entries of a file of metrics; a last line that was cut by a kill is left out."""
    if not path.is_file():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            found.append(entry)
    return found
