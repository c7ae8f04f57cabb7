"""Rule-based projection: the denied phrase's direction is taken out of the text's embedding, and an anchor is added."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from clipmend.evaluation.rivals.base import WEIGHTS, Form, Rival

__all__ = ["RuleProjection"]


class RuleProjection(Rival):
    """The text's own embedding, less ``weight`` times its component along each denied thing, plus ``anchor`` times the rest.

    After "Seeing What's Not There" (training-free, ICLR 2026): parse the negated phrase, project its direction out, add an anchor
    bias. The paper's anchor is not spelt out in the material at hand; here it is the embedding of what the text asserts ("a photo
    of A and B", or "a photo"), which holds what all texts share and a projection takes away. ``weight`` 1 makes the embedding
    orthogonal to one denied thing, more turns it away; ``anchor`` 0 is the projection alone.
    """

    label = "rule-based projection"
    grid: ClassVar[Mapping[str, tuple[float, ...]]] = {"weight": WEIGHTS, "anchor": (0.0, 0.1, 0.25, 0.5, 1.0, 2.0)}
    default: ClassVar[tuple[float, ...]] = (1.0, 0.0)

    def needs(self, text: str, form: Form) -> list[str]:
        return [text, form.positive, *form.denied]

    def parts(self, text: str, form: Form, plain: Mapping[str, Tensor]) -> Tensor:
        own, positive, *denied = [plain[t] for t in self.needs(text, form)]
        return torch.stack([own, -torch.stack([(own @ d) * d for d in denied]).sum(0), positive])
