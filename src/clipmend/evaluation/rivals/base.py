"""What every rival is: an encoder whose embeddings of texts that deny something are put together by a rule.

A rival needs to know what a text asserts and what it denies, its :class:`Form`. On drawn scenes that is known (the gold parse,
which no real user has: the most that the idea can do); elsewhere :func:`~clipmend.evaluation.rivals.parser.rule_form` reads it off
the words. Texts that deny nothing keep the encoder's own embedding.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

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

__all__ = ["WEIGHTS", "Form", "Forms", "Rival", "Tuned", "gold_captions"]

R = TypeVar("R", bound="Rival")
WEIGHTS = (0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0)


@dataclass(frozen=True, slots=True)
class Form:
    """A text that denies something, taken apart.

    Args:
        positive: a text for what it asserts: ``"a photo of a cat and a cup"``; ``"a photo"`` where it asserts nothing.
        denied: a text for each thing it denies: ``("a photo of a dog",)``.
    """

    positive: str
    denied: tuple[str, ...]

    @classmethod
    def of(cls, caption: Caption | None) -> Form | None:
        """Of a caption whose atoms are known; ``None`` for one that denies nothing."""
        if caption is None or not caption.denies:
            return None
        return cls(photo_of(caption.asserts), tuple(photo_of([atom]) for atom in caption.denies))


Forms = Mapping[str, Caption] | Callable[[str], "Form | None"]


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
class Tuned(Generic[R]):
    """What tuning found: the rival at its best ``strengths``, their ``score``, and the score of everything tried."""

    rival: R
    strengths: tuple[float, ...]
    score: float
    curve: dict[tuple[float, ...], float]


class Rival(TextSideWrapper):
    """A dual encoder whose embeddings of texts that deny something are changed by a rule.

    A text that denies something becomes ``normalize(base + sum of strength_k * change_k)``; a subclass says which base and changes,
    and in :attr:`grid` which strengths are worth trying.

    Args:
        encoder: the backbone; its images, states and other texts are passed through.
        forms: text to logical form: captions by text (see :func:`gold_captions`), or a function from a text to its
            :class:`Form`, ``None`` where it denies nothing.
        strengths: one number for each name of :attr:`grid` (default: :attr:`default`); all 0 leaves the base.

    Raises:
        ValueError: not one strength for each name.
    """

    label = "rival"
    grid: ClassVar[Mapping[str, tuple[float, ...]]] = {"weight": WEIGHTS}
    default: ClassVar[tuple[float, ...]] = (0.5,)

    def __init__(self, encoder: DualEncoder, forms: Forms, *strengths: float) -> None:
        super().__init__(encoder)
        self.forms = forms
        self.strengths = self._checked(strengths or self.default)
        # All three are shared by every strength of one tuning.
        self._cache: dict[str, Tensor] = {}  # plain embeddings
        self._parts: dict[str, Tensor] = {}  # base and changes of texts that deny something
        self._known: dict[str, Form | None] = {}

    def _checked(self, strengths: Sequence[float]) -> tuple[float, ...]:
        if len(strengths) != len(self.grid):
            raise ValueError(f"{self.label} has {len(self.grid)} strengths ({', '.join(self.grid)}), not {len(strengths)}")
        return tuple(float(s) for s in strengths)

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.encoder.name} + {self.label} ({self.setting})"

    @property
    def setting(self) -> str:
        """The strengths by name: ``"weight 0.5, anchor 0.2"``."""
        return ", ".join(f"{name} {value:g}" for name, value in zip(self.grid, self.strengths, strict=True))

    def form(self, text: str) -> Form | None:
        """The form of a text, ``None`` where it denies nothing or is not known."""
        if text not in self._known:
            self._known[text] = self.forms(text) if callable(self.forms) else Form.of(self.forms.get(text))
        return self._known[text]

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
        forms = [self.form(text) for text in texts]
        denying = [i for i, form in enumerate(forms) if form is not None]
        new = {text: form for text, form in zip(texts, forms, strict=True) if form is not None and text not in self._parts}
        needed = list(dict.fromkeys(t for text, form in new.items() for t in self.needs(text, form)))
        options: dict[str, Any] = {"batch_size": batch_size, "on_long": on_long, "progress": progress}
        kept = [text for text, form in zip(texts, forms, strict=True) if form is None]
        plain = self._plain([*kept, *needed] if normalize else needed, options)
        self._parts.update({text: self.parts(text, form, plain) for text, form in new.items()})
        rows = torch.zeros(len(texts), self.embed_dim)
        others = [i for i, form in enumerate(forms) if form is None]
        if others and normalize:
            rows[others] = torch.stack([plain[text] for text in kept])
        elif others:
            rows[others] = self.encoder.encode_texts(kept, normalize=False, **options)
        if denying:
            stacked = torch.stack([self._parts[texts[i]] for i in denying])  # [n, 1 + strengths, D]
            scale = torch.tensor([1.0, *self.strengths])
            rows[denying] = F.normalize((stacked * scale[:, None]).sum(1), dim=-1)
        return rows

    def _plain(self, texts: Sequence[str], options: dict[str, Any]) -> dict[str, Tensor]:
        """The backbone's normalised embeddings, each text once in the life of the rival."""
        new = [t for t in dict.fromkeys(texts) if t not in self._cache]
        if new:
            self._cache.update(zip(new, self.encoder.encode_texts(new, **options), strict=True))
        return self._cache

    @abstractmethod
    def needs(self, text: str, form: Form) -> list[str]:
        """The texts whose plain embeddings :meth:`parts` combines."""

    @abstractmethod
    def parts(self, text: str, form: Form, plain: Mapping[str, Tensor]) -> Tensor:
        """``[1 + strengths, D]``: the base, and the change that each strength multiplies."""

    def share(self, other: Rival) -> None:
        """Use the same plain embeddings as a rival of the same encoder, so that a text that both need is embedded once.

        Raises:
            ValueError: another encoder.
        """
        if other.encoder is not self.encoder:
            raise ValueError(f"{self.encoder.name} and {other.encoder.name}: rivals of two encoders share no embeddings")
        self._cache = other._cache

    def at(self: R, *strengths: float) -> R:
        """The same rival at other strengths; embeddings already computed are shared."""
        other = copy(self)
        other.strengths = other._checked(strengths)
        return other

    def with_forms(self: R, forms: Forms) -> R:
        """The same rival (strengths, direction) with the logical forms of other texts."""
        other = copy(self)
        other.forms = forms
        other._parts, other._known = {}, {}
        return other

    def tune(
        self: R,
        validation: Sequence[ChoiceItem] | Callable[[R], float],
        grid: Iterable[Sequence[float]] | None = None,
        *,
        image_root: str | Path | None = None,
        image_embeddings: ImageEmbeddings | None = None,
    ) -> Tuned[R]:
        """Choose the strengths that are best on a validation split.

        Args:
            validation: questions (the mean over templates of the accuracy decides), or a function from a rival to a number, the
                higher the better.
            grid: the strengths to try (default: every combination of the class's own); of equals the smallest wins.
            image_root: folder that the questions' images start from.
            image_embeddings: ready image vectors instead, as in :func:`~clipmend.evaluation.choice.evaluate_choice`.

        Raises:
            ValueError: nothing to try.
        """
        tried = [tuple(point) for point in (product(*self.grid.values()) if grid is None else grid)]
        if not tried:
            raise ValueError("no weights to try")
        curve: dict[tuple[float, ...], float] = {}
        if callable(validation):
            for point in tried:
                curve[point] = float(validation(self.at(*point)))
        else:
            names, _ = distinct([item.image for item in validation])
            vectors, _ = image_vectors(self.encoder, names, image_root=image_root, image_embeddings=image_embeddings)
            known = self if callable(self.forms) else self.with_forms({**self.forms, **gold_captions(validation)})
            for point in tried:
                metrics = evaluate_choice(known.at(*point), validation, image_embeddings=vectors).metrics
                parts = [metrics[f"acc_{form}"] for form in FORMS if f"acc_{form}" in metrics] or [metrics["acc"]]
                curve[point] = sum(parts) / len(parts)
        best = max(curve, key=lambda point: (curve[point], -sum(abs(s) for s in point)))
        return Tuned(self.at(*best), best, curve[best], curve)
