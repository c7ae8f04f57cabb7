"""A trainable view of a live model: everything that a loss may need, from one forward pass.

A wrapper such as ``DistributedDataParallel`` sees only what goes through ``forward``: both sides, the tokens, the logit scale and a
recipe's own parameters all do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clipmend.backbones.base import DualEncoder
from clipmend.dense.saving import library_of
from clipmend.dense.tower_sides import OpenClipSides, Sides, TransformersSides

__all__ = ["MOST_SCALE", "Towers"]

MOST_SCALE = 100.0
"""Upper bound of the logit scale, as in CLIP."""


class Towers(nn.Module):
    """Both sides of a live ``CLIPModel``, ``SiglipModel`` or open_clip model, in one forward pass.

    Inputs are named tensors: ``pixels`` ``[B, 3, H, H]`` and ``ids`` ``[B, T]`` (padded as the model needs it), and of further
    views ``image/NAME`` ``[B, 3, H, H]`` or ``[B, K, 3, H, H]`` and ``text/NAME`` ``[B, T]`` or ``[B, K, T]``; ``mask:NAME`` (bool)
    and ``number:NAME`` for the recipe's module.

    Outputs are named too: ``image`` and ``text`` ``[B, D]``, the views ``[B, D]`` or ``[B, K, D]``, all of them L2-normalised
    float32; with ``NAME`` among ``tokens`` also ``NAME_tokens`` ``[B, P, D]``: patches without the class token, or the states of
    all text positions, projected into the joint space and L2-normalised; ``logit_scale``, exponentiated, and ``logit_bias`` where
    the model has one.

    The model is used where it is. Batch norms keep their statistics while it is trained.

    Args:
        encoder: of :func:`clipmend.load`, over a model of transformers or open_clip.
        tokens: names of the outputs whose tokens are wanted.
        freeze: ``"text"`` or ``"image"``: that side takes no gradient.

    Raises:
        ValueError: an encoder of another kind, or a model whose tokens are not to be had.
    """

    def __init__(self, encoder: DualEncoder, *, tokens: frozenset[str] = frozenset(), freeze: str | None = None) -> None:
        super().__init__()
        model: nn.Module = encoder.model  # type: ignore[attr-defined]
        self.model = model
        self.tokens = tokens
        self.freeze = freeze
        self.heads: nn.Module | None = None
        self._sides: Sides = TransformersSides(model) if library_of(encoder) == "transformers" else OpenClipSides(model)
        for name in sorted(tokens):
            self._sides.check_tokens(name.partition("/")[0])
        for side in ("image", "text"):
            for parameter in self._sides.parameters(side):
                parameter.requires_grad_(side != freeze)
        for name in ("logit_scale", "logit_bias"):
            if isinstance(getattr(model, name, None), nn.Parameter):
                getattr(model, name).requires_grad_()
        scale = self._log_scale()
        # A SigLIP is made with a larger scale than CLIP's bound: its own is kept then.
        self.most_log_scale = max(math.log(MOST_SCALE), float(scale.detach()))

    def sides(self) -> tuple[str, ...]:
        """Those that are trained."""
        return tuple(side for side in ("image", "text") if side != self.freeze)

    def _log_scale(self) -> Tensor:
        return self.model.logit_scale  # type: ignore[return-value]

    def forward(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Embed a micro-batch; see above."""
        out: dict[str, Tensor] = {}
        for name, value in self._named(inputs):
            side = name.partition("/")[0]
            several = value.ndim == (5 if side == "image" else 3)
            flat = value.flatten(0, 1) if several else value
            with_tokens = name in self.tokens
            embed = self._sides.image if side == "image" else self._sides.text
            pooled, tokens = embed(flat, with_tokens)
            out[name] = _unit(pooled).unflatten(0, value.shape[:2]) if several else _unit(pooled)
            if tokens is not None:
                out[f"{name}_tokens"] = _unit(tokens).unflatten(0, value.shape[:2]) if several else _unit(tokens)
        out["logit_scale"] = self._log_scale().float().exp().reshape(())
        bias = getattr(self.model, "logit_bias", None)
        if isinstance(bias, nn.Parameter):
            out["logit_bias"] = bias.float().reshape(()) + 0  # what is given back must not be the parameter itself
        if self.heads is not None and self.training:  # a validation has no views
            numbers = {name[len("number:") :]: value for name, value in inputs.items() if name.startswith("number:")}
            masks = {name[len("mask:") :]: value for name, value in inputs.items() if name.startswith("mask:")}
            out.update(self.heads(out, numbers, masks))
        return out

    @staticmethod
    def _named(inputs: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        for name, value in inputs.items():
            if name in ("pixels", "ids"):
                yield ("image" if name == "pixels" else "text"), value
            elif name.startswith(("image/", "text/")):
                yield name, value

    @torch.no_grad()
    def clamp_scale(self) -> None:
        """Keep the logit scale within 1 and 100, or what it was before the training if that is more."""
        self._log_scale().clamp_(0.0, self.most_log_scale)

    def checkpoint_gradients(self, on: bool) -> None:
        """Form the blocks' activations again in the backward pass, or keep them."""
        self._sides.checkpoint_gradients(on)

    def train(self, mode: bool = True) -> Towers:
        """Training mode for the sides that are trained; batch norms keep their statistics, and a frozen side is left alone."""
        super().train(mode)
        for part in self.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm):
                part.eval()
        if self.freeze is not None:
            for part in self._sides.modules(self.freeze):
                part.eval()
        return self

    def trained(self) -> dict[str, Tensor]:
        """What training changes, by name: parameters that take a gradient. Not copied."""
        return {name: parameter for name, parameter in self.named_parameters() if parameter.requires_grad}

    @property
    def whole_length(self) -> bool:
        """Whether a text must be padded to all positions of the model."""
        return self._sides.whole_length


def _unit(rows: Tensor) -> Tensor:
    return F.normalize(rows.float(), dim=-1)
