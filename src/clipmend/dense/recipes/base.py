"""What a recipe may ask for and must give."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from clipmend.losses.hard_negative import HardNegativeLoss
from clipmend.losses.sigmoid import SigmoidHardNegativeLoss
from clipmend.suggest import did_you_mean

if TYPE_CHECKING:
    from PIL.Image import Image

    from clipmend.dense.pairs import Pairs
    from clipmend.dense.towers import Towers

__all__ = ["RECIPES", "Example", "Joined", "Moment", "Recipe", "Views", "make_recipe", "register"]


@dataclass(frozen=True)
class Example:
    """One training pair as a recipe sees it before it is embedded.

    Args:
        row: its position among the pairs.
        image: RGB.
        caption: the text.
        short: a short caption of the same image, where the data have one; else ``""``.
        segments: parts of the image with their sentences, where the data have them (``image, caption, box`` each).
        count_words: how many words (tokens, without start and end) the model reads of a text; of one too long, those that fit.
        frame: which part of an image of ``(width, height)`` the encoder sees, as shares of it (:meth:`in_view`).
    """

    row: int
    image: Image
    caption: str
    short: str = ""
    segments: Sequence[Any] = ()
    count_words: Callable[[str], int] = lambda text: len(text.split())
    frame: Callable[[tuple[int, int]], tuple[float, float, float, float]] = lambda size: (0.0, 0.0, 1.0, 1.0)

    def in_view(self, box: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
        """A box in pixels of the image as shares, 0 to 1, of what the encoder sees of it; it may reach beyond."""
        width, height = self.image.size
        left, top, right, bottom = self.frame((width, height))
        across, down = right - left, bottom - top
        return (
            (box[0] / width - left) / across, (box[1] / height - top) / down,
            (box[2] / width - left) / across, (box[3] / height - top) / down,
        )  # fmt: skip


@dataclass(frozen=True)
class Views:
    """What a recipe wants embedded, or handed on, besides image and caption; each under a name of the recipe's own.

    Every example must give the same names, and under one name the same number of items. The embeddings come back in
    :class:`Joined`: ``outputs["image/NAME"]`` and ``outputs["text/NAME"]``.

    Args:
        images: by name one RGB image (edges, a crop) or a list of ``K``: embedded to ``[N, D]`` or ``[N, K, D]``.
        texts: by name one text (a short caption) or a list of ``K``; likewise.
        numbers: by name an array of one shape for every example (boxes, masks, weights): ``[N, ...]`` in ``Joined.numbers``.
    """

    images: Mapping[str, Image | Sequence[Image]] = field(default_factory=dict)
    texts: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    numbers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Moment:
    """Where in the training a step stands, for weights that change.

    Args:
        step: steps done before.
        steps: of all.
        epoch: passes over the data done before, with fractions.
    """

    step: int
    steps: int
    epoch: float


@dataclass
class Joined:
    """A whole batch: the pairs of every micro-batch and every process, in one order, with gradient.

    A recipe works out its loss of this and need not know how many processes there are: each works out the whole.

    Args:
        outputs: what the towers and the recipe's own module gave, by name. ``image`` and ``text`` ``[N, D]``, unit rows;
            ``image/NAME`` and ``text/NAME`` of a recipe's views; ``image_tokens`` ``[N, P, D]`` and ``text_tokens``
            ``[N, T, D]``, unit rows, where :meth:`Recipe.tokens` asks for them (``image/NAME_tokens`` of a view); ``logit_scale``,
            exponentiated, and, where the model has one, ``logit_bias``.
        masks: bool, by name. ``text_words`` ``[N, T]`` (``text/NAME_words``): the words, without start, end and padding.
        numbers: of :class:`Views`.
        image_ids, caption_ids: int64 ``[N]``: equal ones are one image, one text.
        margin_features: ``[N, D]`` captions by the model as it was, for a frozen margin; else ``None``.
    """

    outputs: dict[str, Tensor]
    image_ids: Tensor
    caption_ids: Tensor
    masks: dict[str, Tensor] = field(default_factory=dict)
    numbers: dict[str, Tensor] = field(default_factory=dict)
    margin_features: Tensor | None = None

    @property
    def image(self) -> Tensor:
        """``[N, D]`` unit rows."""
        return self.outputs["image"]

    @property
    def text(self) -> Tensor:
        """``[N, D]`` unit rows."""
        return self.outputs["text"]

    @property
    def scale(self) -> Tensor:
        """The exponentiated logit scale."""
        return self.outputs["logit_scale"]

    @property
    def bias(self) -> Tensor | None:
        """The logit bias of a SigLIP, ``None`` of a CLIP."""
        return self.outputs.get("logit_bias")

    def ids(self) -> dict[str, Tensor]:
        """``image_ids=`` and ``caption_ids=``, as the losses take them."""
        return {"image_ids": self.image_ids, "caption_ids": self.caption_ids}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Base of the recipes. What is here suits any of them; a derived class gives other defaults and fields of its own.

    Args:
        gamma: weight of the adaptive margin in the *global* term: 0 is InfoNCE, .5 HN-CLIP's
            (:class:`~clipmend.losses.HardNegativeLoss`).
        margin: ``"live"``: from the captions as they are embedded in this step; ``"frozen"``: as the model embedded them before
            the training, for comparison.
        label_smoothing: of the global term.
        global_loss: ``"softmax"``, ``"sigmoid"`` (SigLIP's, which needs a logit bias), or ``"own"``: the one that the model was
            made with.
        learning_rate: at its highest, where the configuration names none.
        weight_decay: AdamW's, on matrices only, where the configuration names none.
        head_learning_rate: of the parameters that the recipe adds (:meth:`heads`).
        fixed_positions: first rows of the table of positions that stay as they are (20 in Long-CLIP's own recipe).
    """

    name: ClassVar[str] = ""
    about: ClassVar[str] = ""
    """One line for help and model cards."""

    gamma: float = 0.0
    margin: Literal["live", "frozen"] = "live"
    label_smoothing: float = 0.0
    global_loss: Literal["own", "softmax", "sigmoid"] = "own"
    learning_rate: float = 2e-6
    weight_decay: float = 0.01
    head_learning_rate: float = 2e-4
    fixed_positions: int = 0

    def __post_init__(self) -> None:
        for name in ("learning_rate", "weight_decay", "head_learning_rate", "fixed_positions"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0 or more")
        if self.global_loss not in ("own", "softmax", "sigmoid"):
            raise ValueError(f"global_loss is {self.global_loss!r}; it must be 'own', 'softmax' or 'sigmoid'")
        HardNegativeLoss(self.gamma, self.margin, self.label_smoothing)  # checks its own
        if self.global_loss == "sigmoid" and self.label_smoothing:
            raise ValueError("label_smoothing is of the softmax loss; the sigmoid one has none")

    # ---- before the training ------------------------------------------------------------------------------------------------

    def prepare(self, model: nn.Module, sides: Sequence[str]) -> Any:
        """Change the model before anything is trained: freeze parts, put adapters in. By default everything is trained.

        Args:
            model: of transformers or open_clip, float32; every parameter of the sides to train takes gradients.
            sides: of ``"image"`` and ``"text"``, those to train.

        Returns:
            whatever :meth:`finish` needs.

        Raises:
            ValueError: a model that this recipe cannot train. ImportError: a package that is not installed.
        """
        return None

    def finish(self, model: nn.Module, prepared: Any) -> None:
        """Make of the trained model an ordinary one again, in place."""

    def heads(self, towers: Towers) -> nn.Module | None:
        """Parameters of the recipe's own, trained with ``head_learning_rate`` and left out of the saved model.

        The module is called ``module(outputs, numbers, masks)`` for each micro-batch and returns the outputs that it adds, by name:
        tensors ``[b, ...]`` and scalars that all pairs share. All its parameters must be behind one of them.
        """
        return None

    def tokens(self) -> frozenset[str]:
        """Which of ``"image"``, ``"text"`` and the views ``"image/NAME"``, ``"text/NAME"`` also give their tokens."""
        return frozenset()

    def check(self, pairs: Pairs) -> list[str]:
        """What a user should know of the data for this recipe.

        Raises:
            ValueError: data without what the recipe needs; the way to it is named.
        """
        return []

    def notes(self, negatives: int) -> list[str]:
        """What a user should know before a training with so many negatives a query."""
        return []

    # ---- for each pair ------------------------------------------------------------------------------------------------------

    def views(self, example: Example, rng: np.random.Generator) -> Views:
        """What else to embed of a pair. Called in threads; the chance of a pair depends on seed, step and row alone."""
        return Views()

    def token_ids(self, name: str, ids: list[int], limit: int, pad_id: int, rng: np.random.Generator) -> list[int]:
        """Change the ids of a text, special tokens included: of the caption (``"text"``) or of a view (``"text/NAME"``).

        The result has at most ``limit`` of them.
        """
        return ids

    # ---- for each batch -----------------------------------------------------------------------------------------------------

    def losses(self, batch: Joined, at: Moment) -> dict[str, Tensor]:
        """The weighted terms of a batch, by name; their sum is minimised."""
        return {"global": self.global_term(batch)}

    def global_term(self, batch: Joined, *, text: Tensor | None = None) -> Tensor:
        """InfoNCE or, with ``gamma``, the hard-negative loss; of other text features where given."""
        sigmoid = self.global_loss == "sigmoid" or (self.global_loss == "own" and batch.bias is not None)
        if sigmoid and batch.bias is None:
            raise ValueError("global_loss='sigmoid' needs a model with a logit bias, such as SigLIP; this one has none")
        loss: HardNegativeLoss
        if sigmoid:
            loss = SigmoidHardNegativeLoss(self.gamma, self.margin)
        else:
            loss = HardNegativeLoss(self.gamma, self.margin, self.label_smoothing)
        value = loss(
            batch.image, batch.text if text is None else text, batch.scale, batch.bias if sigmoid else None,
            margin_features=batch.margin_features if self.margin == "frozen" else None, **batch.ids(),
        )  # fmt: skip
        assert isinstance(value, Tensor)
        return value


R = TypeVar("R", bound=type[Recipe])

RECIPES: dict[str, type[Recipe]] = {}
"""The recipes, by name."""


def register(recipe: R) -> R:
    """Make a class the recipe of its ``name``."""
    if not recipe.name:
        raise ValueError(f"{recipe.__name__} has no name")
    if recipe.name in RECIPES and RECIPES[recipe.name].__module__ != recipe.__module__:
        raise ValueError(f"two recipes are called {recipe.name!r}")
    RECIPES[recipe.name] = recipe
    return recipe


def make_recipe(name: str, **values: Any) -> Recipe:
    """A recipe by name.

    Args:
        name: one of :data:`RECIPES`.
        values: its fields; the others have their defaults.

    Raises:
        ValueError: no such recipe or field, a value of another type or out of range.
    """
    if name not in RECIPES:
        raise ValueError(f"there is no recipe {name!r}{did_you_mean(name, RECIPES)}; choose one of {', '.join(sorted(RECIPES))}")
    chosen = RECIPES[name]
    known = {f.name: f for f in fields(chosen)}
    unknown = sorted(set(values) - set(known))
    if unknown:
        hint = did_you_mean(unknown[0], known)
        raise ValueError(f"the recipe {name} has no {', '.join(unknown)}{hint}; it has {', '.join(known)}")
    typed = {}
    for key, value in values.items():
        default = known[key].default
        if default is MISSING or default is None or value is None:
            typed[key] = value
            continue
        wanted = type(default)
        if wanted is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        elif wanted is tuple and isinstance(value, list):
            value = tuple(value)
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            raise ValueError(f"the recipe {name}: {key} is {value!r}; it must be of the kind of {default!r}")
        typed[key] = value
    return chosen(**typed)


def zero_like(batch: Joined) -> Tensor:
    """A zero in the batch's own precision, for a term that is off."""
    return torch.zeros((), device=batch.image.device, dtype=batch.image.dtype)
