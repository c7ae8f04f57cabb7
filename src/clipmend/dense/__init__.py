"""Dense captions: objectives for fine-tuning on them, and longer contexts for CLIP's text side.

The public names are imported on first use, so that ``import clipmend.dense`` stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_PUBLIC = {
    "CachedStep": "clipmend.losses",
    "FineTuned": "clipmend.dense.finetuned",
    "FinetuneConfig": "clipmend.dense.config",
    "FixedMarginLoss": "clipmend.losses",
    "FrozenMargins": "clipmend.losses",
    "HardNegativeLoss": "clipmend.losses",
    "HardestTripletLoss": "clipmend.losses",
    "HardnessReweightedLoss": "clipmend.losses",
    "ImportanceSampledLoss": "clipmend.losses",
    "InfoNCELoss": "clipmend.losses",
    "KeptRows": "clipmend.dense.positions",
    "LateInteractionLoss": "clipmend.losses",
    "Pairs": "clipmend.dense.pairs",
    "RECIPES": "clipmend.dense.recipes",
    "SigmoidHardNegativeLoss": "clipmend.losses",
    "Stretched": "clipmend.dense.positions",
    "cached_backward": "clipmend.losses",
    "finetune": "clipmend.dense.training",
    "keep_rows_fixed": "clipmend.dense.positions",
    "make_recipe": "clipmend.dense.recipes",
    "stretch": "clipmend.dense.positions",
    "stretch_positions": "clipmend.dense.positions",
    "write_longer": "clipmend.dense.longer",
}

__all__ = [
    "RECIPES",
    "CachedStep",
    "FineTuned",
    "FinetuneConfig",
    "FixedMarginLoss",
    "FrozenMargins",
    "HardNegativeLoss",
    "HardestTripletLoss",
    "HardnessReweightedLoss",
    "ImportanceSampledLoss",
    "InfoNCELoss",
    "KeptRows",
    "LateInteractionLoss",
    "Pairs",
    "SigmoidHardNegativeLoss",
    "Stretched",
    "cached_backward",
    "finetune",
    "keep_rows_fixed",
    "make_recipe",
    "stretch",
    "stretch_positions",
    "write_longer",
]

if TYPE_CHECKING:
    from clipmend.dense.config import FinetuneConfig
    from clipmend.dense.finetuned import FineTuned
    from clipmend.dense.longer import write_longer
    from clipmend.dense.pairs import Pairs
    from clipmend.dense.positions import KeptRows, Stretched, keep_rows_fixed, stretch, stretch_positions
    from clipmend.dense.recipes import RECIPES, make_recipe
    from clipmend.dense.training import finetune
    from clipmend.losses import (
        CachedStep,
        FixedMarginLoss,
        FrozenMargins,
        HardestTripletLoss,
        HardNegativeLoss,
        HardnessReweightedLoss,
        ImportanceSampledLoss,
        InfoNCELoss,
        LateInteractionLoss,
        SigmoidHardNegativeLoss,
        cached_backward,
    )


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'clipmend.dense' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
