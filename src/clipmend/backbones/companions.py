"""The tokenizer or image processor that belongs to a checkpoint, or a clear word that it is not there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

__all__ = ["read_companion"]

_FILES = {"tokenizer": "tokenizer.json or vocabulary files", "image processor": "preprocessor_config.json"}
_ARGUMENTS = {"tokenizer": "tokenizer", "image processor": "processor"}


def read_companion(auto: Any, name: str, what: str, *, local_files_only: bool = False) -> Any:
    """``auto.from_pretrained(name)`` of a tokenizer or image processor.

    Args:
        auto: transformers' ``AutoTokenizer`` or ``AutoImageProcessor``.
        name: folder or hub id of the checkpoint.
        what: ``"tokenizer"`` or ``"image processor"``.
        local_files_only: take a hub id from the local cache, without asking the hub.

    Raises:
        OSError: it is not there; the message says what to do.
        ImportError: a package that it needs is missing.
    """
    try:
        found = auto.from_pretrained(name, local_files_only=local_files_only)
        if what == "tokenizer" and os.path.isdir(name) and not any((Path(name) / file).is_file() for file in _files_of(found)):
            # transformers would go on with one that knows no word but the special ones.
            raise OSError("there is no tokenizer file in the folder")
        return found
    except (OSError, ValueError) as error:
        argument = _ARGUMENTS[what]
        if os.path.isdir(name):
            raise OSError(
                f"{name} holds no {what} that can be read ({_FILES[what]}): save that of the model it was made from there, with "
                f"{argument}.save_pretrained({name!r}), or pass {argument}= to clipmend.load"
            ) from error
        reason = " ".join(str(error).split())
        raise OSError(f"no {what} found for {name!r}: {reason}; or pass {argument}= to clipmend.load") from error


def _files_of(tokenizer: Any) -> set[str]:
    """Names of the files, one of which a saved tokenizer of this kind has."""
    own = getattr(tokenizer, "vocab_files_names", None) or {}
    return {"tokenizer.json", "tokenizer_config.json", *map(str, own.values())}
