"""Query arithmetic: what photo-search tools offer as "a - b"."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from clipmend.evaluation.rivals.base import Form, Rival

__all__ = ["QueryArithmetic"]


class QueryArithmetic(Rival):
    """Take "A and B but no C" as the embedding of "a photo of A and B" minus ``weight`` times that of "a photo of C".

    Several denied things are each subtracted; a text that asserts nothing starts from "a photo". The text itself is not read.
    """

    label = "query arithmetic"

    def needs(self, text: str, form: Form) -> list[str]:
        return [form.positive, *form.denied]

    def parts(self, text: str, form: Form, plain: Mapping[str, Tensor]) -> Tensor:
        positive, *denied = [plain[t] for t in self.needs(text, form)]
        return torch.stack([positive, -torch.stack(denied).sum(0)])
