"""What the experiment on dense captions compares: every run with its recipe, and the recipes that exist for it alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from clipmend.dense import make_recipe
from clipmend.dense.recipes import Joined, Moment, Recipe, register
from clipmend.losses import (
    FixedMarginLoss,
    HardestTripletLoss,
    HardNegativeLoss,
    HardnessReweightedLoss,
    ImportanceSampledLoss,
)

SHARES = (5, 20, 50)  # per cent of the training images; all of them is the main comparison
GAMMAS = (0.25, 0.75, 1.0)  # beside 0 and .5, which the main comparison has
FRAMEWORKS = ("long-clip", "debias-clip", "finelip", "goal", "structxlip", "lora", "dora")
WEIGHTINGS = {
    "hardness": HardnessReweightedLoss,
    "importance": ImportanceSampledLoss,
    "fixed-margin": FixedMarginLoss,
    "triplet": HardestTripletLoss,
}


@register
@dataclass(frozen=True, kw_only=True)
class WeightedRecipe(Recipe):
    """One of the weightings that HN-CLIP is compared with, in the global term's place.

    Args:
        weighting: a name of :data:`WEIGHTINGS`, with the defaults of its loss.
    """

    name: ClassVar[str] = "weighted"
    about: ClassVar[str] = "another weighting of negatives"
    weighting: str = "hardness"

    def losses(self, batch: Joined, at: Moment) -> dict[str, Tensor]:
        value = WEIGHTINGS[self.weighting]()(batch.image, batch.text, batch.scale, **batch.ids())
        assert isinstance(value, Tensor)
        return {"global": value}


@register
@dataclass(frozen=True, kw_only=True)
class FixedScaleRecipe(Recipe):
    """The hard-negative loss at a logit scale that does not learn.

    Args:
        scale: the logit scale.
    """

    name: ClassVar[str] = "fixed-scale"
    about: ClassVar[str] = "the hard-negative loss at a fixed logit scale"
    scale: float = 50.0

    def losses(self, batch: Joined, at: Moment) -> dict[str, Tensor]:
        fixed = torch.tensor(self.scale, device=batch.image.device)
        value = HardNegativeLoss(self.gamma)(batch.image, batch.text, fixed, **batch.ids())
        assert isinstance(value, Tensor)
        return {"global": value + 0 * batch.scale}  # the model's own scale is still a parameter, with a gradient of zero


@dataclass(frozen=True)
class Run:
    """One training, but for its seed.

    Args:
        label: its name in a table.
        part: the table it stands in.
        recipe: by name.
        values: of the recipe.
        share: of the training images, in per cent.
        lens: look at its batches through the saturation lens.
    """

    label: str
    part: str
    recipe: str
    values: dict[str, Any] = field(default_factory=dict)
    share: int = 100
    lens: bool = False

    def make(self, rate: float) -> Recipe:
        return make_recipe(self.recipe, **{"learning_rate": rate, **self.values})


def runs() -> dict[str, Run]:
    """Every run by name; those of the first parts matter most."""
    found = {
        "plain": Run("InfoNCE", "main", "plain", lens=True),
        "margin": Run("L_HN, gamma .5", "main", "plain", {"gamma": 0.5}, lens=True),
        "hn-clip": Run("HN-CLIP (L_HN + L_tok)", "main", "hn-clip"),
    }
    found |= {f"gamma-{gamma:g}": Run(f"gamma {gamma:g}", "gamma", "plain", {"gamma": gamma}) for gamma in GAMMAS}
    found["frozen"] = Run("gamma .5, frozen margin", "frozen", "plain", {"gamma": 0.5, "margin": "frozen"})
    found["tokens"] = Run("InfoNCE + L_tok", "tokens", "hn-clip", {"gamma": 0.0})
    for name in FRAMEWORKS:
        found[name] = Run(name, "frameworks", name)
        found[f"{name}-margin"] = Run(f"{name} + L_HN", "frameworks", name, {"gamma": 0.5})
    for name in WEIGHTINGS:
        found[name] = Run(name.replace("-", " "), "weightings", "weighted", {"weighting": name})
    for scale, gamma in ((25.0, 1.0), (50.0, 0.5), (100.0, 0.25), (25.0, 0.0), (50.0, 0.0), (100.0, 0.0)):
        found[f"scale-{scale:g}-{gamma:g}"] = Run(f"s = {scale:g}, gamma = {gamma:g}", "product", "fixed-scale",
                                                  {"scale": scale, "gamma": gamma})  # fmt: skip
    for share in SHARES:
        found[f"plain-{share}"] = Run("InfoNCE", "shares", "plain", share=share)
        found[f"margin-{share}"] = Run("L_HN, gamma .5", "shares", "plain", {"gamma": 0.5}, share=share)
    return found


THREE_SEEDS = ("main", "gamma", "frozen", "shares")
"""The parts that are run with every seed; the others with the first."""
