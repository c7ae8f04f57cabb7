"""Reading a transformers checkpoint whole, or not at all."""

from __future__ import annotations

from typing import Any

from clipmend.backbones.quiet import quiet_loading

__all__ = ["read_model"]


def read_model(auto: Any, name: str, *, local_files_only: bool = False) -> Any:
    """``auto.from_pretrained(name)`` in the checkpoint's own dtype, refusing one whose weights are incomplete.

    transformers fills missing weights with random numbers and only logs it. A pooler may be missing: it is never used.

    Args:
        auto: the class to load with.
        name: folder or hub id.
        local_files_only: take a hub id from the local cache, without asking the hub.

    Raises:
        OSError: weights are missing or of the wrong shape; names some.
    """
    with quiet_loading():
        model, info = auto.from_pretrained(name, dtype="auto", output_loading_info=True, local_files_only=local_files_only)
    absent = [str(key) for key in info["missing_keys"] if not str(key).startswith("pooler.")]
    absent += [str(entry[0] if isinstance(entry, tuple) else entry) for entry in info["mismatched_keys"]]
    if absent:
        more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
        raise OSError(
            f"the checkpoint {name} lacks {', '.join(sorted(absent)[:3])}{more} of {type(model).__name__}: it is incomplete, or "
            "made for another class"
        )
    return model
