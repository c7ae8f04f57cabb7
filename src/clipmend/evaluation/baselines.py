"""Baselines without training: query arithmetic, a negation direction, projecting the denied phrase away.

Each is given the gold logical form of every text (what it asserts, what it denies), which no real user has: they show the most that
each idea can do. Each is a :class:`~clipmend.DualEncoder`, so that the same evaluators take it, and has one ``weight`` to tune on a
validation split. Texts that deny nothing, or have no known form, keep the encoder's own embedding.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from clipmend.backbones.base import DualEncoder, OnLong
from clipmend.backbones.wrapper import TextSideWrapper
from clipmend.data.phrases import photo_of
from clipmend.data.records import FORMS, Caption
from clipmend.evaluation.choice import ChoiceItem, evaluate_choice
from clipmend.evaluation.embed import ImageEmbeddings, distinct, image_vectors
from clipmend.evaluation.exclusion import ExclusionQuery
from clipmend.evaluation.retrieval import RetrievalData

__all__ = ["Baseline", "NegationDirection", "PhraseProjection", "QueryArithmetic", "Tuned", "gold_captions"]

B = TypeVar("B", bound="Baseline")
WEIGHTS = (0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0)


def gold_captions(
    *sources: Iterable[ChoiceItem] | Iterable[ExclusionQuery] | RetrievalData | Iterable[Caption],
) -> dict[str, Caption]:
    """Text to logical form, from questions, queries, retrieval data or captions; texts without a parse are left out."""
    forms: dict[str, Caption] = {}
    for source in sources:
        entries: Iterable[Any] = (source.parse or []) if isinstance(source, RetrievalData) else source
        for entry in entries:
            if isinstance(entry, ChoiceItem):
                forms.update({caption.text: caption for caption in entry.parse or ()})
            else:
                caption = entry.caption if isinstance(entry, ExclusionQuery) else entry
                forms[caption.text] = caption
    return forms


@dataclass(frozen=True)
class Tuned(Generic[B]):
    """What tuning found: the baseline at its best ``weight``, that weight's ``score``, and the score of each weight tried."""

    baseline: B
    weight: float
    score: float
    curve: dict[float, float]


class Baseline(TextSideWrapper):
    """A dual encoder whose embeddings of texts that deny something are changed by a rule.

    Args:
        encoder: the backbone; its images, states and other texts are passed through.
        captions: text to logical form (see :func:`gold_captions`).
        weight: strength of the rule; 0 leaves the embedding of the text that the rule starts from.
    """

    label = "baseline"
    weights: ClassVar[tuple[float, ...]] = WEIGHTS

    def __init__(self, encoder: DualEncoder, captions: Mapping[str, Caption], weight: float = 0.5) -> None:
        super().__init__(encoder)
        self.captions = captions
        self.weight = float(weight)
        # Both are shared by every weight of one tuning.
        self._cache: dict[str, Tensor] = {}  # plain embeddings
        self._parts: dict[str, tuple[Tensor, Tensor]] = {}  # base and change of texts that deny something

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.encoder.name} + {self.label} ({self.weight:g})"

    def encode_texts(
        self,
        texts: Sequence[str],
        *,
        batch_size: int = 64,
        normalize: bool = True,
        on_long: OnLong = "warn",
        progress: bool = False,
    ) -> Tensor:
        """``[N, D]``: the rule's embedding of texts that deny something, the backbone's of all others.

        A rule gives directions, so that its embeddings have norm 1 even with ``normalize=False``.
        """
        denying = [i for i, text in enumerate(texts) if text in self.captions and self.captions[text].denies]
        new = [texts[i] for i in denying if texts[i] not in self._parts]
        needed = list(dict.fromkeys(t for text in new for t in self.needs(text, self.captions[text])))
        options: dict[str, Any] = {"batch_size": batch_size, "on_long": on_long, "progress": progress}
        changed = set(denying)
        kept = [text for i, text in enumerate(texts) if i not in changed]
        plain = self._plain([*kept, *needed] if normalize else needed, options)
        rows = torch.zeros(len(texts), self.embed_dim)
        others = [i for i in range(len(texts)) if i not in changed]
        if others and normalize:
            rows[others] = torch.stack([plain[text] for text in kept])
        elif others:
            rows[others] = self.encoder.encode_texts(kept, normalize=False, **options)
        if denying:
            base, change = zip(*(self._split(texts[i], plain) for i in denying), strict=True)
            rows[denying] = F.normalize(torch.stack(base) + self.weight * torch.stack(change), dim=-1)
        return rows

    def _split(self, text: str, plain: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        if text not in self._parts:
            self._parts[text] = self.parts(text, self.captions[text], plain)
        return self._parts[text]

    def _plain(self, texts: Sequence[str], options: dict[str, Any]) -> dict[str, Tensor]:
        """The backbone's normalised embeddings, each text once in the life of the baseline."""
        new = [t for t in dict.fromkeys(texts) if t not in self._cache]
        if new:
            self._cache.update(zip(new, self.encoder.encode_texts(new, **options), strict=True))
        return self._cache

    @abstractmethod
    def needs(self, text: str, caption: Caption) -> list[str]:
        """The texts whose plain embeddings :meth:`parts` combines."""

    @abstractmethod
    def parts(self, text: str, caption: Caption, plain: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """``base`` and ``change``, ``[D]``: a text that denies something becomes ``normalize(base + weight * change)``."""

    def with_weight(self: B, weight: float) -> B:
        """The same baseline at another weight; embeddings already computed are shared."""
        other = copy(self)
        other.weight = float(weight)
        return other

    def with_captions(self: B, captions: Mapping[str, Caption]) -> B:
        """The same baseline (weight, direction) with the logical forms of other texts."""
        other = copy(self)
        other.captions = captions
        other._parts = {}
        return other

    def tune(
        self: B,
        validation: Sequence[ChoiceItem] | Callable[[B], float],
        weights: Sequence[float] | None = None,
        *,
        image_root: str | Path | None = None,
        image_embeddings: ImageEmbeddings | None = None,
    ) -> Tuned[B]:
        """Choose the weight that is best on a validation split.

        Args:
            validation: questions with a parse (the mean over templates of the accuracy decides), or a function from a baseline to a
                number, the higher the better.
            weights: the weights to try (default: the class's own); of equals the smallest magnitude wins.
            image_root: folder that the questions' images start from.
            image_embeddings: ready image vectors instead, as in :func:`~clipmend.evaluation.choice.evaluate_choice`.

        Raises:
            ValueError: no weights.
        """
        weights = self.weights if weights is None else weights
        if not weights:
            raise ValueError("no weights to try")
        curve: dict[float, float] = {}
        if callable(validation):
            for weight in weights:
                curve[weight] = float(validation(self.with_weight(weight)))
        else:
            names, _ = distinct([item.image for item in validation])
            vectors, _ = image_vectors(self.encoder, names, image_root=image_root, image_embeddings=image_embeddings)
            known = self.with_captions({**self.captions, **gold_captions(validation)})
            for weight in weights:
                metrics = evaluate_choice(known.with_weight(weight), validation, image_embeddings=vectors).metrics
                parts = [metrics[f"acc_{form}"] for form in FORMS if f"acc_{form}" in metrics]
                curve[weight] = sum(parts) / len(parts)
        best = max(curve, key=lambda weight: (curve[weight], -abs(weight)))
        return Tuned(self.with_weight(best), best, curve[best], curve)


class QueryArithmetic(Baseline):
    """Take "A and B but no C" as the embedding of "a photo of A and B" minus ``weight`` times that of "a photo of C".

    What photo-search tools offer as "a - b". Several denied things are each subtracted; a text that asserts nothing starts from
    "a photo".
    """

    label = "query arithmetic"

    def needs(self, text: str, caption: Caption) -> list[str]:
        return [photo_of(caption.asserts), *[photo_of([atom]) for atom in caption.denies]]

    def parts(self, text: str, caption: Caption, plain: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        positive, *denied = [plain[t] for t in self.needs(text, caption)]
        return positive, -torch.stack(denied).sum(0)


class PhraseProjection(Baseline):
    """The text's own embedding with ``weight`` times its component along each denied thing ("a photo of C") taken out.

    The core of rule-based projection (training-free, ICLR 2026); ``weight`` 1 makes it orthogonal to one denied thing,
    more turns it away.
    """

    label = "phrase projection"

    def needs(self, text: str, caption: Caption) -> list[str]:
        return [text, *[photo_of([atom]) for atom in caption.denies]]

    def parts(self, text: str, caption: Caption, plain: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        own, *denied = [plain[t] for t in self.needs(text, caption)]
        return own, -torch.stack([(own @ d) * d for d in denied]).sum(0)


class NegationDirection(Baseline):
    """The text's own embedding moved along one direction: the mean of negated minus affirmative embeddings over training pairs.

    Args:
        encoder: the backbone.
        captions: text to logical form.
        direction: ``[D]``, from :meth:`learn`.
        weight: how far, in units of the direction's norm for ``"add"``; for ``"project"`` the share of the component along the
            direction that is taken out. Negative weights go the other way.
        mode: ``"add"`` or ``"project"``.
    """

    # Which way helps is part of what tuning finds out.
    weights: ClassVar[tuple[float, ...]] = (*(-w for w in reversed(WEIGHTS)), *WEIGHTS)

    def __init__(
        self,
        encoder: DualEncoder,
        captions: Mapping[str, Caption],
        direction: Tensor,
        weight: float = 0.5,
        mode: Literal["add", "project"] = "add",
    ) -> None:
        super().__init__(encoder, captions, weight)
        if direction.shape != (encoder.embed_dim,) or not bool(torch.isfinite(direction).all()):
            raise ValueError(f"the direction must be {encoder.embed_dim} finite numbers, not {tuple(direction.shape)}")
        if mode not in ("add", "project"):
            raise ValueError(f"mode is 'add' or 'project', not {mode!r}")
        self.direction = direction.float()
        self.mode = mode

    @property
    def label(self) -> str:  # type: ignore[override]
        return "negation direction" if self.mode == "add" else "negation direction, projected"

    @classmethod
    def learn(
        cls,
        encoder: DualEncoder,
        pairs: Sequence[tuple[str, str]],
        captions: Mapping[str, Caption],
        weight: float = 0.5,
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
        return cls(encoder, captions, (negated - affirmative).mean(0), weight, mode)

    def needs(self, text: str, caption: Caption) -> list[str]:
        return [text]

    def parts(self, text: str, caption: Caption, plain: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        own = plain[text]
        if self.mode == "add":
            return own, self.direction
        unit = F.normalize(self.direction, dim=-1)
        return own, -(own @ unit) * unit
