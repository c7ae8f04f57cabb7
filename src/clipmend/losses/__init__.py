"""Contrastive objectives for image-text encoders, for training everywhere.

The public names are imported on first use, so that importing this package stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_PUBLIC = {
    "CachedStep": "clipmend.losses.grad_cache",
    "ContrastiveLoss": "clipmend.losses.contrastive",
    "FixedMarginLoss": "clipmend.losses.fixed_margin",
    "FrozenMargins": "clipmend.losses.margins",
    "HardNegativeLoss": "clipmend.losses.hard_negative",
    "HardestTripletLoss": "clipmend.losses.triplet",
    "HardnessReweightedLoss": "clipmend.losses.hardness",
    "ImportanceSampledLoss": "clipmend.losses.hardness",
    "InfoNCELoss": "clipmend.losses.info_nce",
    "LateInteractionLoss": "clipmend.losses.late_interaction",
    "SigmoidHardNegativeLoss": "clipmend.losses.sigmoid",
    "cached_backward": "clipmend.losses.grad_cache",
}

__all__ = [
    "CachedStep",
    "ContrastiveLoss",
    "FixedMarginLoss",
    "FrozenMargins",
    "HardNegativeLoss",
    "HardestTripletLoss",
    "HardnessReweightedLoss",
    "ImportanceSampledLoss",
    "InfoNCELoss",
    "LateInteractionLoss",
    "SigmoidHardNegativeLoss",
    "cached_backward",
]

if TYPE_CHECKING:
    from clipmend.losses.contrastive import ContrastiveLoss
    from clipmend.losses.fixed_margin import FixedMarginLoss
    from clipmend.losses.grad_cache import CachedStep, cached_backward
    from clipmend.losses.hard_negative import HardNegativeLoss
    from clipmend.losses.hardness import HardnessReweightedLoss, ImportanceSampledLoss
    from clipmend.losses.info_nce import InfoNCELoss
    from clipmend.losses.late_interaction import LateInteractionLoss
    from clipmend.losses.margins import FrozenMargins
    from clipmend.losses.sigmoid import SigmoidHardNegativeLoss
    from clipmend.losses.triplet import HardestTripletLoss


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'clipmend.losses' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
