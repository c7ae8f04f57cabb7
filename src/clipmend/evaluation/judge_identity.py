"""Judges from a module of one's own: how they are found, and what tells one from another, for results that are kept."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from clipmend.backbones.fingerprint import digest_facts, digest_file, digest_weights, named_weights

__all__ = ["import_own", "judge_identity"]


def import_own(module: str) -> ModuleType:
    """Import a module that is installed, or a file or package of that name in the working directory.

    A console script has its own folder on the path, and not the one that the user stands in.

    Raises:
        ImportError: neither, or it cannot be imported.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:  # it is there, and something that it imports is not
            raise
    here = os.getcwd()
    sys.path.append(here)  # last: a file of one's own does not take the place of anything installed
    try:
        return import_module(module)
    finally:
        sys.path.remove(here)


def judge_identity(name: str, judge: Any) -> dict[str, Any]:
    """What identifies a judge given as ``module:object``, ready for JSON: results kept of another are not taken for its own.

    What the judge itself says, where it has an attribute ``fingerprint`` (any text: name and revision of a model, a version): only
    that and the name then count. Else the bytes of the module's file and of the file of its class, and of its attributes the
    weights of PyTorch modules and all that is plain: texts, numbers, truth values, paths, and lists and tables of them.

    Args:
        name: ``module:object``.
        judge: what it stands for.

    Raises:
        ValueError: ``fingerprint`` is no text.
    """
    said = getattr(judge, "fingerprint", None)
    if said is not None:
        if not isinstance(said, str) or not said:
            raise ValueError(f"judge {name!r}: its fingerprint is {said!r}; it must be a text that tells it from other judges")
        return {"name": name, "fingerprint": said}
    modules = {name.partition(":")[0], type(judge).__module__}
    sources = (getattr(sys.modules.get(module), "__file__", None) for module in modules)
    files = sorted({digest_file(source) for source in sources if source and Path(source).is_file()})
    kept = _attributes(judge)
    plain = {key: value for key, value in kept.items() if _is_plain(value)}
    weights = {key: digest_weights(named_weights(value)) for key, value in kept.items() if isinstance(value, nn.Module)}
    if isinstance(judge, nn.Module):
        weights[""] = digest_weights(named_weights(judge))
    return {"name": name, "files": files, "attributes": digest_facts(_told(plain)), "weights": weights}


def _attributes(judge: Any) -> dict[str, Any]:
    """Of the class, those of its parents below, and of the object itself; parts of an ``nn.Module`` are in its weights."""
    found: dict[str, Any] = {}
    for owner in (*reversed(type(judge).__mro__[:-1]), judge):
        if owner is nn.Module:
            continue
        found |= {key: value for key, value in getattr(owner, "__dict__", {}).items() if not key.startswith("__")}
        for key in getattr(owner, "__slots__", ()) if owner is not judge else ():
            if isinstance(key, str) and hasattr(judge, key):
                found[key] = getattr(judge, key)
    return found


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(part) for key, part in value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (str, int, float, bool, Path))


def _told(value: Any) -> Any:
    """Plain values as JSON has them."""
    if isinstance(value, Mapping):
        return {key: _told(part) for key, part in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    if isinstance(value, (list, tuple)):
        return [_told(part) for part in value]
    return str(value) if isinstance(value, Path) else value
