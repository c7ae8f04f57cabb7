"""A patch on disk: three files, written beside and renamed into place, checked when read. Never pickle."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

import clipmend
from clipmend.backbones.hub import hub_problem

__all__ = ["BUNDLED", "CARD", "CONFIG", "FORMAT", "WEIGHTS", "locate_patch", "read_patch", "write_patch"]

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
FORMAT = 1  # raised when a reader of the old format would misread the new one
BUNDLED = ("photos", "scenes")
_KIND = "PeakPatch"
_ENTRIES = {"kind", "format", "config", "backbone", "metrics", "training_data", "command", "versions", "dtype", "weights_sha256"}
_DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
_HUB_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")


def write_patch(
    folder: Path, described: Mapping[str, Any], tensors: Mapping[str, Tensor], card: Callable[[], str], dtype: torch.dtype
) -> Path:
    """Write ``config.json``, ``model.safetensors`` and ``README.md``; see :meth:`PeakPatch.save_pretrained`."""
    if dtype not in _DTYPES:
        raise ValueError(f"dtype must be float32, float16 or bfloat16, not {dtype}")
    cast = {name: value.detach().cpu().to(dtype).contiguous() for name, value in tensors.items()}
    for name, value in cast.items():
        if not value.isfinite().all():
            why = f"does not fit {_DTYPES[dtype]}" if tensors[name].isfinite().all() else "is not finite"
            raise ValueError(f"weight {name} {why}; the patch was not written")
    weights = save(cast, metadata={"format": "pt"})
    config = {
        "kind": _KIND,
        "format": FORMAT,
        **_plain(described),
        "versions": {"clipmend": clipmend.__version__, "torch": torch.__version__},
        "dtype": _DTYPES[dtype],
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
    }
    # The config comes last: it names the weights it belongs to, so that a kill in between is noticed when read.
    contents = {
        CARD: card().encode(),
        WEIGHTS: weights,
        CONFIG: (json.dumps(config, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode(),
    }
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: give a folder for the patch")
    occupied = folder.is_dir() and any(folder.iterdir())
    if occupied and not _is_patch(folder):
        raise ValueError(f"{folder} is not empty and holds no patch: give a new or empty folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder if occupied else folder.parent))
    try:
        beside.chmod(0o755)  # mkdtemp keeps others out
        for name, content in contents.items():
            (beside / name).write_bytes(content)
        if occupied:
            for name in contents:
                os.replace(beside / name, folder / name)
        else:
            if folder.is_dir():  # empty; not every system renames onto an empty folder
                folder.rmdir()
            os.replace(beside, folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return folder


def read_patch(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Entries of ``config.json`` and float32 tensors, checked.

    Raises:
        ValueError: a file missing, damaged, of another kind or newer than this clipmend.
    """
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise ValueError(f"{folder} is not a whole patch: {name} is missing")
    path = folder / CONFIG
    try:
        described = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(described, dict) or described.get("kind") != _KIND:
        raise ValueError(f"{path} does not describe a PeakPatch")
    if not isinstance(described.get("format"), int) or described["format"] > FORMAT:
        raise ValueError(
            f"{path} was written by a newer clipmend (format {described.get('format')}; this one reads up to {FORMAT}): "
            "upgrade clipmend"
        )
    missing, unknown = sorted(_ENTRIES - set(described)), sorted(set(described) - _ENTRIES)
    if missing or unknown:
        raise ValueError(f"{path}: {'missing' if missing else 'unknown'} entries {', '.join(missing or unknown)}")
    for entry in ("config", "backbone", "metrics"):
        if not isinstance(described[entry], dict):
            raise ValueError(f'{path}: the entry "{entry}" must be a mapping')
    weights = (folder / WEIGHTS).read_bytes()
    try:
        tensors = load(weights)
    except (SafetensorError, ValueError, KeyError) as error:
        raise ValueError(f"{folder / WEIGHTS} is damaged: {error}") from error
    if hashlib.sha256(weights).hexdigest() != described["weights_sha256"]:
        raise ValueError(f"{folder / WEIGHTS} is not the file that {path} was written with: it is damaged or was replaced")
    return described, {name: value.float() for name, value in tensors.items()}


def locate_patch(name: str | os.PathLike[str], *, revision: str | None = None, token: str | bool | None = None) -> Path:
    """The local folder of a bundled patch, a folder, or a repository on the hub (downloaded, or cached where there is no network).

    Raises:
        ValueError: there is nothing of that name.
    """
    text = os.fspath(name)
    if text in BUNDLED:
        import clipmend.backbones

        folder = Path(clipmend.backbones.__file__).parent / text / "patch"
        if not folder.is_dir():
            raise ValueError(f"the bundled patch {text!r} is not in this installation ({folder} is missing)")
        return folder
    if Path(text).is_dir():
        return Path(text)
    if Path(text).exists():
        raise ValueError(f"{text} is a file: give the folder of the patch")
    if not _HUB_ID.fullmatch(text):
        bundled = ", ".join(BUNDLED)
        meant = get_close_matches(text.strip().lower(), BUNDLED, 1, 0.75)
        mean = f" (did you mean {meant[0]!r}?)" if meant else ""
        raise ValueError(f"no patch called {text!r}{mean}: neither bundled ({bundled}), nor a folder, nor a hub id (owner/name)")
    import huggingface_hub

    problem = hub_problem(text)  # without the hub, what the local cache holds will do
    try:
        return Path(
            huggingface_hub.snapshot_download(
                text, revision=revision, token=token, allow_patterns=[CONFIG, WEIGHTS, CARD], local_files_only=bool(problem)
            )
        )
    except Exception as error:  # the hub library raises a dozen kinds, some of them its HTTP client's
        reason = f"nor in the local cache, and {problem}" if problem else f"and the hub says: {' '.join(str(error).split())}"
        raise ValueError(f"no patch called {text!r}: it is no folder here, {reason}") from error


def _is_patch(folder: Path) -> bool:
    try:
        return json.loads((folder / CONFIG).read_text("utf-8")).get("kind") == _KIND
    except (OSError, ValueError, AttributeError):
        return False


def _plain(value: Any) -> Any:
    """``value`` as JSON has it: tuples as lists, NumPy and torch scalars as numbers, NaN and infinity as null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if hasattr(value, "item") and not isinstance(value, str | bytes):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
