"""How a fine-tuning runs: everything but what a recipe brings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any, Literal

from clipmend.backbones.kinds import kind_of
from clipmend.dense.positions import KEEP
from clipmend.dense.recipes import RECIPES, Recipe, make_recipe

__all__ = ["FinetuneConfig", "Precision"]

Precision = Literal["no", "bf16", "fp16"]


def _check_kind(name: str, kinds: list[str], value: Any) -> None:
    """Whether a value is of the kind that its field is declared as; a configuration read from a file may hold anything."""
    if value is None and "None" in kinds:
        return
    for kind, wanted, said in (("bool", bool, "true or false"), ("int", Integral, "a whole number"), ("float", Real, "a number")):
        if kind in kinds and (not isinstance(value, wanted) or (kind != "bool" and isinstance(value, bool))):
            raise ValueError(f"{name} is {value!r:.60}; it must be {said}")


@dataclass(frozen=True)
class FinetuneConfig:
    """What a fine-tuning is made of.

    Args:
        recipe: what is minimised, and with which rates (:mod:`clipmend.dense.recipes`); an object, or a name for its defaults.
        length: text positions to train with; a CLIP with fewer is stretched first (:func:`clipmend.dense.stretch`). ``None``: as
            many as the model has.
        keep: positions that stretching leaves as they are.
        epochs: passes over the training pairs; the paper's 10. A step that would be incomplete is left out, and each pass has
            an order of its own.
        steps: optimiser steps, in place of ``epochs``.
        batch_size: pairs that are contrasted with one another, over all processes together: a query has ``batch_size - 1``
            negatives (less those that share its image or caption), however many processes and micro-batches there are.
        micro_batches: pieces in which each process embeds its share of a batch. More of them need less memory and, beyond one, a
            second forward pass (:func:`clipmend.losses.cached_backward`); gradients stay those of the whole batch.
        accumulate: batches whose gradients are averaged for one step. It adds no negatives.
        learning_rate: at its highest; ``None``: the recipe's.
        weight_decay: AdamW's, on matrices only; ``None``: the recipe's.
        warmup: steps in which the rate rises from zero, or, below 1, their share of all steps.
        betas, eps: AdamW's.
        grad_clip: most that the norm of all gradients may be; 0 for no limit.
        precision: ``"no"``, ``"bf16"`` or ``"fp16"``: of the arithmetic. Weights, optimiser and loss are float32 throughout.
            ``None``: what ``accelerate launch`` was told, or ``"no"``.
        gradient_checkpointing: form the blocks' activations again for the gradient: less memory, about a third more time.
        freeze: ``"text"`` or ``"image"``: leave that side as it is, byte for byte.
        validation: share of the training images held out, with all their captions, to choose the state by.
        validation_limit: most images held out.
        validate_every: steps between validations; ``None``: an epoch, at least ten times in all.
        checkpoint_every: steps between checkpoints, where there is a working folder. Every validation writes one too.
        choose: ``"best"``: keep the state of the highest validation recall (the mean of both ways at 1, the later of equal ones),
            the one before the training included; ``"last"``: keep the last, as comparisons at an equal budget need it.
        lens_every: steps between looks through the saturation lens (:mod:`clipmend.dense.lens`); 0 for none.
        seed: of batches, dropout, the held-out part and a recipe's own chances.
    """

    recipe: Recipe = field(default_factory=lambda: make_recipe("hn-clip"))
    length: int | None = None
    keep: int = KEEP
    epochs: float = 10.0
    steps: int | None = None
    batch_size: int = 128
    micro_batches: int = 1
    accumulate: int = 1
    learning_rate: float | None = None
    weight_decay: float | None = None
    warmup: float = 0.1
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-6
    grad_clip: float = 1.0
    precision: Precision | None = None
    gradient_checkpointing: bool = False
    freeze: Literal["text", "image"] | None = None
    validation: float = 0.05
    validation_limit: int = 1000
    validate_every: int | None = None
    checkpoint_every: int = 100
    choose: Literal["best", "last"] = "best"
    lens_every: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.recipe, str):
            object.__setattr__(self, "recipe", make_recipe(self.recipe))
        if not isinstance(self.recipe, Recipe):
            raise ValueError(f"recipe is {kind_of(self.recipe)}; give one of {', '.join(sorted(RECIPES))}, or a Recipe")
        for f in fields(self):
            _check_kind(f.name, str(f.type).split(" | "), getattr(self, f.name))
        if not isinstance(self.betas, (tuple, list)) or len(self.betas) != 2:
            raise ValueError(f"betas is {self.betas!r}; it must be two numbers")
        object.__setattr__(self, "betas", tuple(self.betas))
        for beta in self.betas:
            _check_kind("betas", ["float"], beta)
            if not 0 <= beta < 1:
                raise ValueError(f"betas is {self.betas!r}; either must be from 0 up to, but not, 1")
        for name in ("batch_size", "micro_batches", "accumulate", "validation_limit", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.batch_size < 2:
            raise ValueError("batch_size is 1: a pair alone has no negatives")
        for name in ("length", "steps", "validate_every"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1, or left out")
        if not 0 < self.epochs < float("inf"):
            raise ValueError(f"epochs is {self.epochs}; it must be above 0, and finite")
        for name in ("learning_rate", "weight_decay", "warmup", "grad_clip", "lens_every", "eps", "keep", "seed"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise ValueError(f"{name} is {value}; it must be 0 or more")
        if not 0 < self.validation < 1:
            raise ValueError(f"validation is {self.validation}; it is the share of the images held out, between 0 and 1")
        if self.precision not in (None, "no", "bf16", "fp16"):
            raise ValueError(f"precision is {self.precision!r}; it must be 'no', 'bf16' or 'fp16'")
        if self.choose not in ("best", "last"):
            raise ValueError(f"choose is {self.choose!r}; it must be 'best' or 'last'")
        if self.freeze not in (None, "text", "image"):
            raise ValueError(f"freeze is {self.freeze!r}; it must be 'text' or 'image'")

    @property
    def rate(self) -> float:
        """The learning rate at its highest."""
        return self.recipe.learning_rate if self.learning_rate is None else self.learning_rate

    @property
    def decay(self) -> float:
        """The weight decay."""
        return self.recipe.weight_decay if self.weight_decay is None else self.weight_decay

    def to_dict(self) -> dict[str, Any]:
        """JSON-able, the recipe by name and fields."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        found["recipe"] = {"name": self.recipe.name, **asdict(self.recipe)}
        found["betas"] = list(self.betas)
        return found

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, source: str = "config") -> FinetuneConfig:
        """What :meth:`to_dict` gave.

        Raises:
            ValueError: fields that do not exist, or values that cannot be used.
        """
        unknown = sorted(set(values) - {f.name for f in fields(cls)})
        if unknown:
            raise ValueError(f"{source}: there is no {', '.join(unknown)} in a fine-tuning's configuration")
        given = dict(values)
        if isinstance(given.get("recipe"), Mapping):
            described = dict(given["recipe"])
            given["recipe"] = make_recipe(str(described.pop("name", "")), **described)
        try:
            return cls(**given)
        except TypeError as error:
            raise ValueError(f"{source}: {error}") from error

    def with_(self, **values: Any) -> FinetuneConfig:
        """With the values that are not ``None`` in place of its own."""
        return replace(self, **{name: value for name, value in values.items() if value is not None})

    def identity(self) -> str:
        """The same text for two configurations that train alike; what is only about reports and files is left out."""
        silent = ("checkpoint_every", "lens_every")
        return json.dumps({name: value for name, value in self.to_dict().items() if name not in silent}, sort_keys=True)
