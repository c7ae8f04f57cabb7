"""Negation: see where an encoder loses it (``diagnose``), put it back (``fit``), use it (``PeakPatch``).

The public names are imported on first use, so that importing this package stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_PUBLIC = {
    "Diagnosis": "clipmend.negation.diagnosis",
    "EmbeddingCorrectionNetwork": "clipmend.negation.networks",
    "PeakPatch": "clipmend.negation.patch",
    "PeakPatchConfig": "clipmend.negation.config",
    "ScoreCorrectionNetwork": "clipmend.negation.networks",
    "diagnose": "clipmend.negation.diagnosis",
    "fit": "clipmend.negation.training",
    "import_release": "clipmend.negation.release",
}

__all__ = [
    "Diagnosis",
    "EmbeddingCorrectionNetwork",
    "PeakPatch",
    "PeakPatchConfig",
    "ScoreCorrectionNetwork",
    "diagnose",
    "fit",
    "import_release",
]

if TYPE_CHECKING:
    from clipmend.negation.config import PeakPatchConfig
    from clipmend.negation.diagnosis import Diagnosis, diagnose
    from clipmend.negation.networks import EmbeddingCorrectionNetwork, ScoreCorrectionNetwork
    from clipmend.negation.patch import PeakPatch
    from clipmend.negation.release import import_release
    from clipmend.negation.training import fit


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'clipmend.negation' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
