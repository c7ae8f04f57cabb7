"""``PeakPatchConfig``: every choice that makes a patch, in one documented place."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clipmend.backbones.base import DualEncoder

__all__ = ["OBJECTIVES", "PeakPatchConfig", "default_layers"]

OBJECTIVES = ("truthful", "released")


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def default_layers(num_text_layers: int) -> tuple[int, int, tuple[int, ...]]:
    """Anchor, peak and SCN layers for an encoder of ``num_text_layers`` blocks that nobody has diagnosed.

    The peak lies at two thirds of the depth, where divergence peaks in the encoders measured so far; the anchor two blocks
    before; the SCN reads the peak and the last. Twelve blocks (CLIP ViT-B/32): 6, 8, (8, 12); six (MiniLM): 2, 4, (4, 6).
    Layers coincide where there are fewer than three blocks.

    Raises:
        ValueError: no block at all.
    """
    if num_text_layers < 1:
        raise ValueError("the text encoder has no blocks, so there are no states to read")
    peak = max(1, min(round(num_text_layers * 2 / 3), num_text_layers - 1))
    return max(1, peak - 2), peak, tuple(sorted({peak, num_text_layers}))


@dataclass
class PeakPatchConfig:
    """All hyper-parameters of a patch and of its training. Layers are 1-indexed: layer ``l`` is the output of block ``l``.

    Args:
        peak: layer whose token states the ECN reads; ``None``: from a diagnosis, or :func:`default_layers`.
        anchor: earlier, stable layer (at most the peak) whose sentence token the ECN reads besides; ``None``: chosen like ``peak``.
        scn_layers: layers the SCN reads, ascending, the encoder's last one at the end (it is replaced by the ECN's corrected
            embedding); ``None``: chosen like ``peak``.
        text_width: width of the text states; ``None``: the encoder's.
        embed_dim: size of the joint space; ``None``: the encoder's.
        hidden: width of the ECN's MLP.
        heads: attention heads of the ECN; must divide ``text_width``.
        dropout: in both networks, in training only.
        use_anchor: False: ablation without the anchor layer.
        use_pool: False: ablation without the mean of the peak's tokens.
        eos_only: True: ablation that reads the peak's sentence token alone.
        use_direct: give the ECN its two direct paths, over the final embedding and over the tokens (our extension; False: the
            published network).
        use_scn: also train a network that corrects scores (multiple choice, re-ranking).
        context: size of the SCN's text and cross summaries.
        bound: largest correction of a score by the SCN; a fit halves it, up to four times, where that answers more held-out
            questions.
        gate: leave captions without any negation cue exactly as they are (English cues only).
        objective: ``"truthful"`` (a pair counts as wrong only where it is known to be false) or ``"released"`` (the published
            objective: the negated caption always counts as wrong).
        steps: optimiser steps.
        epochs: passes over the training images; takes the place of ``steps`` when given.
        pretrain_steps: steps that regress the correction onto ``normalize(original) - normalize(negated)`` first.
        batch_size: images a step.
        question_batch: multiple-choice questions a step.
        ecn_learning_rate: peak learning rate of the ECN.
        scn_learning_rate: peak learning rate of the SCN.
        warmup_steps: steps of linear warm-up before the cosine decay.
        weight_decay: AdamW's, on weight matrices.
        grad_clip: largest norm of the gradient.
        logit_scale: multiplier of the cosines in the contrastive loss, fixed; ``None``: the encoder's own (100 for CLIP).
        scn_temperature: divisor of the corrected scores in the loss on questions.
        scn_weight: weight of the loss on questions.
        image_noise: expected length of the noise added to the unit image embeddings of questions.
        correction_penalty: weight, within it, of the mean squared correction of the SCN.
        guidance_weight: weight of the term that shows each negated caption where arithmetic with its true parse would put it.
        guidance_until: share of the steps over which that term fades to its floor; ``None``: it does not fade. The contrast does
            not care which of the images that a caption is true of comes first; guidance keeps an order among them.
        guidance_floor: share of its weight that is left after it has faded.
        guidance_strength: how far that arithmetic moves a hybrid caption from what it denies.
        free_penalty: weight of the squared length of what the MLP adds by itself, so that the direct paths carry what they can:
            what they carry holds for things never denied in training too.
        contrast_weight: weight of the contrastive term.
        preservation_weight: weight of the term that keeps captions without negation where they were.
        text_only_weight: weight of the text-only pairs (no image); 0 turns them off where there are images.
        text_only_batch: noun sets a step, in whole worlds of 32.
        text_only_sets: noun sets made for text-only training.
        text_only_strength: ``guidance_strength`` of the noun sets: more, since what is learned of a noun lands short of its place.
        borrowed_denials: captions of the images repeated with a noun denied that the data never speak of, as a share of the
            affirmative ones; only in a fit that mixes images and noun sets.
        text_only_scale: multiplier of the cosine difference in the text-only loss (the inverse of a temperature).
        validation_fraction: share of the images kept for choosing among the states.
        eval_every: steps between two validations; ``None``: about twenty in all.
        seed: fixes initial weights, batches and the validation split.
    """

    peak: int | None = None
    anchor: int | None = None
    scn_layers: tuple[int, ...] | None = None
    text_width: int | None = None
    embed_dim: int | None = None
    hidden: int = 1024
    heads: int = 8
    dropout: float = 0.1
    use_anchor: bool = True
    use_pool: bool = True
    eos_only: bool = False
    use_direct: bool = True
    use_scn: bool = True
    context: int = 128
    bound: float = 0.2
    gate: bool = False
    objective: str = "truthful"
    steps: int = 500
    epochs: int | None = None
    pretrain_steps: int = 0
    batch_size: int = 128
    question_batch: int = 64
    ecn_learning_rate: float = 2e-3
    scn_learning_rate: float = 1e-3
    warmup_steps: int = 50
    weight_decay: float = 0.01
    grad_clip: float = 1.0
    logit_scale: float | None = None
    scn_temperature: float = 0.07
    scn_weight: float = 1.0
    image_noise: float = 0.5
    correction_penalty: float = 0.1
    guidance_weight: float = 6.0
    guidance_until: float | None = None
    guidance_floor: float = 0.25
    guidance_strength: float = 0.6
    free_penalty: float = 0.3
    contrast_weight: float = 0.5
    preservation_weight: float = 8.0
    text_only_weight: float = 2.0
    text_only_batch: int = 160
    text_only_sets: int = 4800
    text_only_strength: float = 0.8
    borrowed_denials: float = 0.7
    text_only_scale: float = 12.0
    validation_fraction: float = 0.1
    eval_every: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_types()
        self._check_layers()
        if self.objective not in OBJECTIVES:
            raise ValueError(f"objective must be one of {', '.join(OBJECTIVES)}, not {self.objective!r}")
        if self.guidance_until is not None and not self.guidance_until > 0:
            raise ValueError(f"guidance_until must be above 0 or None, not {self.guidance_until}")
        if self.logit_scale is not None and not self.logit_scale > 0:
            raise ValueError(f"logit_scale must be above 0 or None, not {self.logit_scale}")
        for name in ("text_width", "embed_dim", "epochs", "steps", "eval_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1 or None, not {value}")
        for name in (
            "hidden",
            "heads",
            "context",
            "batch_size",
            "question_batch",
            "text_only_batch",
            "text_only_sets",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.text_width is not None and not self.eos_only and self.text_width % self.heads:
            raise ValueError(f"heads must divide text_width: {self.text_width} % {self.heads} = {self.text_width % self.heads}")
        for name in (
            "bound",
            "ecn_learning_rate",
            "scn_learning_rate",
            "grad_clip",
            "scn_temperature",
            "text_only_scale",
        ):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in (
            "seed",
            "pretrain_steps",
            "warmup_steps",
            "weight_decay",
            "scn_weight",
            "image_noise",
            "correction_penalty",
            "guidance_weight",
            "guidance_floor",
            "guidance_strength",
            "free_penalty",
            "text_only_strength",
            "contrast_weight",
            "preservation_weight",
            "text_only_weight",
            "borrowed_denials",
        ):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be below 0, but is {getattr(self, name)}")
        for name in ("dropout", "validation_fraction"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), not {getattr(self, name)}")

    def _check_types(self) -> None:
        """Every field against its annotation; NumPy's numbers become Python's, so that the config can be saved."""
        for field in fields(self):
            value, kind = getattr(self, field.name), str(field.type)
            if value is None and kind.endswith(" | None"):
                continue
            kind = kind.removesuffix(" | None")
            if kind.startswith("tuple"):
                if not isinstance(value, list | tuple) or not all(_is_whole(layer) for layer in value):
                    raise ValueError(f"{field.name} must be a list of whole numbers, not {value!r}")
                value = tuple(int(layer) for layer in value)
            elif kind == "int":
                if not _is_whole(value):
                    raise ValueError(f"{field.name} must be a whole number, not {value!r}")
                value = int(value)
            elif kind == "float":
                # An infinite grad_clip is how clipping is turned off.
                allowed = isinstance(value, Real) and not isinstance(value, bool) and not math.isnan(value)
                if not allowed or (math.isinf(value) and field.name != "grad_clip"):
                    raise ValueError(f"{field.name} must be a finite number, not {value!r}")
                value = value if isinstance(value, int) else float(value)
            elif kind == "bool" and not isinstance(value, bool):
                raise ValueError(f"{field.name} must be true or false, not {value!r}")
            setattr(self, field.name, value)

    def _check_layers(self) -> None:
        for name in ("anchor", "peak"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is a layer and layers start at 1, but it is {value}")
        if self.anchor is not None and self.peak is not None and self.anchor > self.peak:
            raise ValueError(f"the anchor must not lie after the peak, but anchor = {self.anchor} and peak = {self.peak}")
        if self.scn_layers is not None:
            if not self.scn_layers or self.scn_layers[0] < 1 or list(self.scn_layers) != sorted(set(self.scn_layers)):
                raise ValueError(f"scn_layers must be layers >= 1 in ascending order, each once, not {list(self.scn_layers)}")
            if self.peak is not None and self.peak > self.scn_layers[-1]:
                raise ValueError(
                    f"scn_layers must end with the last layer, but end with {self.scn_layers[-1]}, before the peak {self.peak}"
                )

    @property
    def is_resolved(self) -> bool:
        """Whether nothing is left for an encoder to fill in."""
        return None not in (self.anchor, self.peak, self.scn_layers, self.text_width, self.embed_dim)

    def resolved(self, encoder: DualEncoder, diagnosis: Any = None) -> PeakPatchConfig:
        """A copy with sizes and layers filled in, checked against ``encoder``.

        Args:
            encoder: the backbone.
            diagnosis: a :class:`clipmend.Diagnosis`, whose suggested layers come before :func:`default_layers`; layers set in
                this config come before either.

        Raises:
            ValueError: a layer the encoder does not have, SCN layers that do not end with its last, or other sizes than its own.
        """
        last = encoder.num_text_layers
        anchor, peak, scn_layers = default_layers(last)
        if diagnosis is not None:
            anchor, peak, scn_layers = diagnosis.anchor, diagnosis.peak, tuple(diagnosis.scn_layers)
        if self.peak is not None and self.peak != peak:  # the rest of the suggestion belongs to the peak that was suggested
            peak = self.peak
            anchor, scn_layers = max(1, peak - 2), tuple(sorted({peak, last}))
        for name, own in (("text_width", encoder.text_width), ("embed_dim", encoder.embed_dim)):
            if getattr(self, name) not in (None, own):
                raise ValueError(f"{name} is {getattr(self, name)} in the config but {own} in {encoder.name}")
        filled = replace(
            self,
            logit_scale=self.logit_scale or encoder.logit_scale,
            peak=peak,
            anchor=self.anchor or anchor,
            scn_layers=self.scn_layers or scn_layers,
            text_width=encoder.text_width,
            embed_dim=encoder.embed_dim,
        )
        if peak > last:
            raise ValueError(f"peak is layer {peak}, but {encoder.name} has {last} text layers")
        assert filled.scn_layers is not None
        if filled.scn_layers[-1] != last:
            raise ValueError(
                f"scn_layers must end with the last text layer of {encoder.name}, {last}, but are {list(filled.scn_layers)}"
            )
        return filled

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        values = asdict(self)
        if self.scn_layers is not None:
            values["scn_layers"] = list(self.scn_layers)
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = "config") -> PeakPatchConfig:
        """Inverse of :meth:`to_dict`.

        Args:
            values: names and values of fields; those left out take their defaults.
            source: what to call ``values`` in an error, such as the file's path.

        Raises:
            ValueError: an unknown field (nothing is dropped in silence), or a value that is not allowed.
        """
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ValueError(
                f"{source}: unknown field{'s' * (len(unknown) > 1)} {', '.join(unknown)}; "
                "a newer clipmend may have written it, or a name is misspelt"
            )
        try:
            return cls(**values)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{source}: {error}") from error

    def to_json(self) -> str:
        """:meth:`to_dict` as indented JSON."""
        return json.dumps(self.to_dict(), indent=2)
