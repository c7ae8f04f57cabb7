"""Configurations that a command reads from a JSON file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["read_config"]


def read_config(path: Path, name: str) -> dict[str, Any]:
    """The object in a JSON file.

    Args:
        path: the file.
        name: of the class whose fields it holds, for messages.

    Raises:
        ValueError: not JSON, or no object. OSError: it cannot be read.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8-sig"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON ({error})") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path}: expected an object of {name}'s fields, not {type(values).__name__}")
    return values
