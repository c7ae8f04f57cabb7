"""Direction steering: one direction for negation in general, moved along at test time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from clipmend.backbones.base import DualEncoder
from clipmend.evaluation.rivals.base import WEIGHTS, Form, Forms, Rival

__all__ = ["NegationDirection"]


class NegationDirection(Rival):
    """The text's own embedding moved along one direction: the mean of negated minus affirmative embeddings over training pairs.

    After negation steering (training-free, arXiv 2603.20554), in the final embedding, which is all that this comparison changes.
    Whether a text denies anything is all it needs to know of the text's form.

    Args:
        encoder: the backbone.
        forms: text to logical form.
        direction: ``[D]``, from :meth:`learn`.
        strengths: how far, in units of the direction's norm for ``"add"``; for ``"project"`` the share of the component along the
            direction that is taken out. Negative ones go the other way.
        mode: ``"add"`` or ``"project"``.

    Raises:
        ValueError: a direction of another size or not finite, or another mode.
    """

    # Which way helps is part of what tuning finds out.
    grid: ClassVar[Mapping[str, tuple[float, ...]]] = {"weight": (*(-w for w in reversed(WEIGHTS)), *WEIGHTS)}

    def __init__(
        self,
        encoder: DualEncoder,
        forms: Forms,
        direction: Tensor,
        *strengths: float,
        mode: Literal["add", "project"] = "add",
    ) -> None:
        if mode not in ("add", "project"):
            raise ValueError(f"mode is 'add' or 'project', not {mode!r}")
        self.mode = mode
        super().__init__(encoder, forms, *strengths)
        if direction.shape != (encoder.embed_dim,) or not bool(torch.isfinite(direction).all()):
            raise ValueError(f"the direction must be {encoder.embed_dim} finite numbers, not {tuple(direction.shape)}")
        self.direction = direction.float()

    @property
    def label(self) -> str:  # type: ignore[override]
        return "negation direction" if self.mode == "add" else "negation direction, projected"

    @classmethod
    def learn(
        cls,
        encoder: DualEncoder,
        pairs: Sequence[tuple[str, str]],
        forms: Forms,
        *strengths: float,
        mode: Literal["add", "project"] = "add",
    ) -> NegationDirection:
        """Learn the direction from ``(affirmative, negated)`` training texts.

        Raises:
            ValueError: no pairs.
        """
        if not pairs:
            raise ValueError("a negation direction needs pairs of an affirmative and a negated text")
        negated = encoder.encode_texts([pair[1] for pair in pairs])
        affirmative = encoder.encode_texts([pair[0] for pair in pairs])
        return cls(encoder, forms, (negated - affirmative).mean(0), *strengths, mode=mode)

    def needs(self, text: str, form: Form) -> list[str]:
        return [text]

    def parts(self, text: str, form: Form, plain: Mapping[str, Tensor]) -> Tensor:
        own = plain[text]
        if self.mode == "add":
            return torch.stack([own, self.direction])
        unit = F.normalize(self.direction, dim=-1)
        return torch.stack([own, -(own @ unit) * unit])
