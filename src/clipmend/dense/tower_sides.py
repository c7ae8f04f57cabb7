"""How each library's models give their features and tokens: the part of :mod:`clipmend.dense.towers` that knows them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["OpenClipSides", "Sides", "TransformersSides"]

Embedded = tuple[Tensor, Tensor | None]


class Sides(ABC):
    """The image and the text side of a model.

    Args:
        model: the live model.
    """

    whole_length = False
    """Texts must be padded to all positions."""

    def __init__(self, model: Any) -> None:
        self.model = model

    @abstractmethod
    def image(self, pixels: Tensor, tokens: bool) -> Embedded:
        """``[B, 3, H, H]`` to ``[B, D]`` and, if asked for, patches ``[B, P, D]``; not normalised."""

    @abstractmethod
    def text(self, ids: Tensor, tokens: bool) -> Embedded:
        """``[B, T]`` to ``[B, D]`` and, if asked for, tokens ``[B, T, D]``; not normalised."""

    @abstractmethod
    def modules(self, side: str) -> list[nn.Module]:
        """The modules that make up ``"image"`` or ``"text"``."""

    @abstractmethod
    def checkpoint_gradients(self, on: bool) -> None:
        """Switch it on or off in both sides."""

    @abstractmethod
    def check_tokens(self, side: str) -> None:
        """Raise a ``ValueError`` where the side has no tokens to give."""

    def parameters(self, side: str) -> Iterator[nn.Parameter]:
        """Everything of one side."""
        for part in self.modules(side):
            yield from part.parameters()


class TransformersSides(Sides):
    """``CLIPModel`` and ``SiglipModel``."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.checkpoints = False
        self.siglip = model.config.model_type == "siglip"
        self.whole_length = self.siglip

    def image(self, pixels: Tensor, tokens: bool) -> Embedded:
        vision = self.model.vision_model
        out = vision(pixel_values=pixels)
        states = out.last_hidden_state
        if self.siglip:  # no projection but a pooling head: a patch is what it gives for that patch alone
            patches = vision.head(states.flatten(0, 1)[:, None]).unflatten(0, states.shape[:2]) if tokens else None
            return out.pooler_output, patches
        project = self.model.visual_projection
        return project(out.pooler_output), project(vision.post_layernorm(states[:, 1:])) if tokens else None

    def text(self, ids: Tensor, tokens: bool) -> Embedded:
        text = self.model.text_model
        out = text(input_ids=ids)
        if self.siglip:  # its pooled output is projected already
            return out.pooler_output, text.head(out.last_hidden_state) if tokens else None
        project = self.model.text_projection
        return project(out.pooler_output), project(out.last_hidden_state) if tokens else None

    def modules(self, side: str) -> list[nn.Module]:
        names = ("vision_model", "visual_projection") if side == "image" else ("text_model", "text_projection")
        return [getattr(self.model, name) for name in names if hasattr(self.model, name)]

    def checkpoint_gradients(self, on: bool) -> None:
        if on:
            # transformers has given it another name, and will take the old one away.
            enable = getattr(self.model, "activation_checkpointing_enable", None) or self.model.gradient_checkpointing_enable
            enable({"use_reentrant": False})
        elif self.checkpoints:
            disable = getattr(self.model, "activation_checkpointing_disable", None) or self.model.gradient_checkpointing_disable
            disable()
        self.checkpoints = on

    def check_tokens(self, side: str) -> None:
        if self.siglip and side == "image" and not hasattr(self.model.vision_model, "head"):
            raise ValueError("this SigLIP has no pooling head, so that its patches have no place in the joint space")


class OpenClipSides(Sides):
    """open_clip's ``CLIP`` and ``CustomTextCLIP``."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.own = getattr(model, "text", model)  # the text tower, or the model itself, which then holds its parts
        self.hugging_face = type(self.own).__name__ == "HFTextEncoder"
        self.pool = str(getattr(self.own, "text_pool_type", getattr(self.own, "pool_type", "argmax")))
        self.causal = not self.hugging_face and self.own.attn_mask is not None
        self.whole_length = not (self.hugging_face or (self.causal and self.pool in ("argmax", "eos")))

    def image(self, pixels: Tensor, tokens: bool) -> Embedded:
        visual = self.model.visual
        if not tokens:
            return self.model.encode_image(pixels), None
        before = visual.output_tokens
        visual.output_tokens = True
        try:
            pooled, states = visual(pixels)
        finally:
            visual.output_tokens = before
        if getattr(visual, "final_ln_after_pool", False):
            states = visual.ln_post(states)
        return pooled, states if visual.proj is None else states @ visual.proj

    def text(self, ids: Tensor, tokens: bool) -> Embedded:
        own = self.own
        if self.hugging_face or (self.whole_length and not tokens):
            return self.model.encode_text(ids), None
        length = ids.shape[1]
        mask = None if own.attn_mask is None else own.attn_mask[:length, :length]
        states = own.token_embedding(ids) + own.positional_embedding[:length]  # [B, T, W]
        states = own.ln_final(own.transformer(states.to(own.transformer.get_cast_dtype()), attn_mask=mask))
        rows = torch.arange(len(ids), device=ids.device)
        if self.pool == "argmax":
            pooled = states[rows, ids.argmax(-1)]
        elif self.pool == "eos":
            end: Any = getattr(own, "text_eos_id", getattr(own, "eos_id", None))
            pooled = states[rows, ids.eq(end).int().argmax(-1)]
        else:
            pooled = states[:, 0 if self.pool == "first" else -1]
        return self._project(pooled), self._project(states) if tokens else None

    def _project(self, states: Tensor) -> Tensor:
        projection = self.own.text_projection
        if projection is None:
            return states
        return projection(states) if isinstance(projection, nn.Linear) else states @ projection

    def modules(self, side: str) -> list[nn.Module]:
        if side == "image":
            return [self.model.visual]
        if self.own is not self.model:
            return [self.own]
        return [self.model.transformer, self.model.token_embedding, self.model.ln_final]

    def parameters(self, side: str) -> Iterator[nn.Parameter]:
        yield from super().parameters(side)
        if side == "text" and self.own is self.model:  # bare parameters beside the modules
            for name in ("positional_embedding", "text_projection"):
                found = getattr(self.model, name, None)
                if isinstance(found, nn.Parameter):
                    yield found
                elif isinstance(found, nn.Module):
                    yield from found.parameters()

    def checkpoint_gradients(self, on: bool) -> None:
        self.model.set_grad_checkpointing(on)

    def check_tokens(self, side: str) -> None:
        visual = self.model.visual
        if side == "image":
            if (
                not hasattr(visual, "output_tokens")
                or getattr(visual, "attn_pool", None) is not None
                or not hasattr(visual, "proj")
            ):
                raise ValueError(
                    f"the patches of an open_clip {type(visual).__name__} have no projection into the joint space, which late "
                    "interaction needs: take a plain ViT, or a recipe without it (hn-clip with token_weight=0)"
                )
        elif self.hugging_face or getattr(self.own, "use_pad_mask", False):
            raise ValueError(
                "the words of this open_clip text tower cannot be had, which late interaction needs: take a model with CLIP's own "
                "text tower, or a recipe without it (hn-clip with token_weight=0)"
            )
