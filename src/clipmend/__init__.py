"""clipmend: make CLIP-like image-text encoders say what they know.

The public names are imported on first use, so that ``import clipmend`` and ``clipmend --help`` stay quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "load": "clipmend.backbones",
    "DualEncoder": "clipmend.backbones",
    "TextStates": "clipmend.backbones",
    "diagnose": "clipmend.negation",
    "Diagnosis": "clipmend.negation",
    "fit": "clipmend.negation",
    "PeakPatch": "clipmend.negation",
    "PeakPatchConfig": "clipmend.negation",
    "evaluate": "clipmend.evaluation",
}

__all__ = [
    "Diagnosis",
    "DualEncoder",
    "PeakPatch",
    "PeakPatchConfig",
    "TextStates",
    "__version__",
    "diagnose",
    "evaluate",
    "fit",
    "load",
]

if TYPE_CHECKING:
    from clipmend.backbones import DualEncoder, TextStates, load
    from clipmend.evaluation import evaluate
    from clipmend.negation import Diagnosis, PeakPatch, PeakPatchConfig, diagnose, fit


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'clipmend' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
