"""What the tests of attaching share."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from clipmend.backbones.base import DualEncoder
from clipmend.negation import PeakPatch, PeakPatchConfig

NEAR = {"atol": 1e-5, "rtol": 0.0}
TEXTS = ["a dog", "no cat", "a street with no cars, at night", "cat", "a dog and no cat on it"]


def patch_for(encoder: DualEncoder, **config: Any) -> PeakPatch:
    """A patch that corrects much, as after training."""
    settings = {"hidden": 32, "heads": 4, "context": 8, "use_scn": False, **config}
    patch = PeakPatch.untrained(encoder, PeakPatchConfig(**settings))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in patch.ecn.mlp[-1].parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
        if patch.ecn.use_direct:
            patch.ecn.readout.value.copy_(torch.randn(patch.ecn.readout.value.shape, generator=generator) * 0.3)
    return patch


def insides(model: nn.Module) -> list[tuple[str, dict[str, tuple[int, Any]]]]:
    """Everything that hangs on each module of a model: the attributes' identities, and copies of its tables."""
    found = []
    for name, module in model.named_modules():
        own = {key: (id(value), dict(value) if isinstance(value, dict) else None) for key, value in vars(module).items()}
        found.append((name, own))
    return found


def hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())
