"""``TextTower``: the text half of any encoder, from token ids to states, pooled states and the final embedding."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clipmend.backbones.base import OnLong
from clipmend.backbones.fingerprint import digest_facts, digest_weights, named_weights
from clipmend.backbones.taps import TappedModel, find_blocks
from clipmend.backbones.tokens import HFTokens, TextTokens, TokenisedTexts, pad_ids

__all__ = ["Pooling", "TextTower", "TowerStates", "find_final_norm", "freeze"]

Pooling = Literal["eos", "last", "cls", "mean"]

# Settings of a transformers config that change what the weights compute.
_CONFIG_FACTS = (
    "hidden_act",
    "activation",
    "hidden_activation",
    "layer_norm_eps",
    "num_attention_heads",
    "position_embedding_type",
)
# Names under which encoders keep the norm after their last block.
_FINAL_NORMS = ("final_norm", "final_layer_norm", "norm", "ln_f", "final_layernorm", "layer_norm")


@dataclass(frozen=True)
class TowerStates:
    """States of one batch of ``B`` texts, on the tower's device.

    Args:
        tokens: per layer ``[B, T, W]``, after the final norm.
        eos: per layer ``[B, W]``.
        pooled: per layer ``[B, W]``.
        mask: ``[B, T]`` bool.
        embedding: ``[B, D]``, not normalised, or ``None``.
    """

    tokens: dict[int, Tensor]
    eos: dict[int, Tensor]
    pooled: dict[int, Tensor]
    mask: Tensor
    embedding: Tensor | None


class TextTower:
    """A text transformer with its tokenizer, final norm, pooling and projection.

    Use :meth:`from_transformers` for a BERT-like encoder; CLIP-like ones are built by :func:`clipmend.load`.

    Args:
        model: the text transformer; ``call`` runs it.
        tokens: its tokenizer.
        blocks: dotted path from ``model`` to its list of blocks.
        pooling: ``"eos"`` (last valid token), ``"last"`` (last position, pad or not), ``"cls"`` (first token) or ``"mean"``
            (over the valid tokens).
        width: width ``W`` of the states.
        embed_dim: size ``D`` of the embedding.
        final_norm: the norm after the last block; ``None`` for encoders without one, whose states get a parameter-free layer norm
            per token. The embedding is the library's own in either case: pooled from the normed states where the encoder has
            a final norm, and from the raw ones where it has none.
        projection: maps pooled states ``[..., W]`` to ``[..., D]``; ``None`` for none.
        masked: give the model the mask besides the ids (as its second argument).
        fixed_length: pad every text to the context length (SigLIP attends to its padding); otherwise to the batch's longest, which
            is exact where attention is causal or masked.
        pad_left: padding goes before the text.
        weights: the tensors that make up the tower under canonical names, for the fingerprint; default: all of ``model`` and
            ``projection``.
        facts: settings besides the weights, for the fingerprint.
    """

    def __init__(
        self,
        model: nn.Module,
        tokens: TextTokens,
        *,
        blocks: str,
        pooling: Pooling,
        width: int,
        embed_dim: int,
        final_norm: Callable[[Tensor], Tensor] | None = None,
        projection: Callable[[Tensor], Tensor] | None = None,
        masked: bool = False,
        fixed_length: bool = False,
        pad_left: bool = False,
        weights: Callable[[], Mapping[str, Tensor]] | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.tokens = tokens
        self.pooling: Pooling = pooling
        self.width = int(width)
        self.embed_dim = int(embed_dim)
        self.final_norm = final_norm
        self.projection = projection
        self.masked = masked
        self.fixed_length = fixed_length
        self.pad_left = pad_left
        self.facts = {"pooling": pooling, "width": self.width, **(facts or {})}
        self._weights = weights
        self._tapped = TappedModel(model, blocks)
        self._digest: str | None = None

    @classmethod
    def from_transformers(
        cls,
        model: nn.Module,
        tokenizer: Any,
        *,
        pooling: Pooling = "mean",
        projection: nn.Module | None = None,
        context_length: int | None = None,
        lower: bool = False,
    ) -> TextTower:
        """A transformers text encoder (BERT, MiniLM, MPNet, DistilBERT, RoBERTa, ModernBERT, T5's encoder, ...).

        The model is put in evaluation mode and frozen.

        Args:
            model: what ``AutoModel.from_pretrained`` returns.
            tokenizer: its tokenizer.
            pooling: ``"mean"``, ``"cls"`` or ``"eos"`` (the last token).
            projection: a module from ``[..., W]`` to ``[..., D]``, applied to the pooled states (``nn.Linear`` for instance).
            context_length: most tokens a text may have; default: what tokenizer and model allow.
            lower: lower-case every text first.

        Raises:
            ValueError: the blocks cannot be found, or the pooling is unknown.
        """
        if pooling not in ("mean", "cls", "eos"):
            raise ValueError(f"pooling {pooling!r} is none of mean, cls, eos")
        config: Any = model.config
        count = getattr(config, "num_hidden_layers", None)
        path = find_blocks(model, count if isinstance(count, int) else None)
        width = int(config.hidden_size)
        freeze(model)
        embed_dim = width
        if projection is not None:
            freeze(projection)
            place = next(model.parameters())
            projection.to(place.device, place.dtype)
            with torch.inference_mode():
                embed_dim = projection(torch.zeros(1, width, device=place.device, dtype=place.dtype)).shape[-1]
        return cls(
            model,
            HFTokens(
                tokenizer,
                context_length or _context_length(config, tokenizer),
                prepare=str.lower if lower else None,
                prepare_name="lower" if lower else "",
            ),
            blocks=path,
            pooling=pooling,
            width=width,
            embed_dim=embed_dim,
            final_norm=find_final_norm(model, path),
            projection=projection,
            masked=True,
            facts={key: getattr(config, key) for key in _CONFIG_FACTS if isinstance(getattr(config, key, None), (str, int, float))},
        )

    @property
    def num_layers(self) -> int:
        """Number of blocks."""
        return self._tapped.num_layers

    @property
    def context_length(self) -> int:
        """Most tokens a text may have, special tokens included."""
        return self.tokens.context_length

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The weights' floating-point type."""
        return next(p.dtype for p in self.model.parameters() if p.is_floating_point())

    def to(self, device: torch.device, dtype: torch.dtype) -> TextTower:
        """Move and cast model and projection in place."""
        self.model.to(device, dtype)
        if isinstance(self.projection, nn.Module):
            self.projection.to(device, dtype)
        return self

    def tokenise(self, texts: Sequence[str], on_long: OnLong = "truncate") -> TokenisedTexts:
        """Token ids of ``texts``, with the rows that had to be cut."""
        return self.tokens(texts, on_long)

    def run(
        self, ids: Sequence[list[int]], layers: Collection[int], *, token_layers: Collection[int] = (), embedding: bool = True
    ) -> TowerStates:
        """One forward pass over a batch, stopping at the last layer needed. Call it within ``torch.inference_mode()``.

        Args:
            ids: ids of each text, from :meth:`tokenise`.
            layers: 1-indexed layers whose pooled states are wanted.
            token_layers: layers whose token states are wanted.
            embedding: also compute the final embedding.
        """
        if self.model.training:
            raise ValueError(f"{type(self.model).__name__} is in training mode; call .eval() on it before encoding")
        last = self.num_layers
        needed = {*layers, *token_layers, *([last] if embedding else [])}
        padded, mask = pad_ids(
            ids, self.tokens.pad_id, length=self.context_length if self.fixed_length else None, left=self.pad_left
        )
        padded, mask = padded.to(self.device), mask.to(self.device)
        raw = {layer: self._block_output(x) for layer, x in self._tapped.states(needed, *self._arguments(padded, mask)).items()}
        position = self._sentence_position(mask)
        tokens: dict[int, Tensor] = {}
        eos: dict[int, Tensor] = {}
        pooled: dict[int, Tensor] = {}
        for layer in {*layers, *token_layers}:
            states = self._norm(raw[layer])
            eos[layer] = states[torch.arange(len(states), device=states.device), position]
            pooled[layer] = self._pool(states, mask, position)
            if layer in token_layers:
                tokens[layer] = states
        final = None
        if embedding:
            if last in pooled and self.final_norm is not None:
                final = self.project(pooled[last])
            else:
                states = raw[last] if self.final_norm is None else self._norm(raw[last])
                final = self.project(self._pool(states, mask, position))
        return TowerStates(tokens, eos, pooled, mask, final)

    def project(self, pooled: Tensor) -> Tensor:
        """``[..., W]`` pooled states into the joint space ``[..., D]``."""
        return pooled if self.projection is None else self.projection(pooled)

    def weights(self) -> Mapping[str, Tensor]:
        """Every tensor of the tower, under canonical names; not copied."""
        if self._weights is not None:
            return self._weights()
        named = named_weights(self.model)
        if isinstance(self.projection, nn.Module):
            named |= named_weights(self.projection, "projection")
        return named

    def digest(self) -> str:
        """SHA-256 of the weights and of the settings that change what they compute; computed once."""
        if self._digest is None:
            self._digest = digest_weights(self.weights(), self.facts)
        return self._digest

    def tokenizer_digest(self) -> str:
        """SHA-256 of the tokenizer's vocabulary and rules and of the context length."""
        return digest_facts({**self.tokens.describe(), "context_length": self.context_length})

    def _arguments(self, ids: Tensor, mask: Tensor) -> tuple[Any, ...]:
        """What the model is called with."""
        return (ids, mask.long()) if self.masked else (ids,)

    def _block_output(self, states: Tensor) -> Tensor:
        """A block's output as ``[B, T, W]``."""
        return states

    def _norm(self, states: Tensor) -> Tensor:
        if self.final_norm is None:
            return F.layer_norm(states, (self.width,))
        return self.final_norm(states)

    def _sentence_position(self, mask: Tensor) -> Tensor:
        if self.pooling == "last":
            return torch.full((len(mask),), mask.shape[1] - 1, device=mask.device)
        if self.pooling == "eos":
            return mask.shape[1] - 1 - mask.flip(1).int().argmax(1)
        return mask.int().argmax(1)  # the first valid token: CLS

    def _pool(self, states: Tensor, mask: Tensor, position: Tensor) -> Tensor:
        if self.pooling == "mean":
            weight = mask.unsqueeze(-1).to(states.dtype)
            return (states * weight).sum(1) / weight.sum(1)
        return states[torch.arange(len(states), device=states.device), position]


def freeze(module: nn.Module) -> nn.Module:
    """Evaluation mode and no gradients, in place."""
    return module.eval().requires_grad_(False)


def _context_length(config: Any, tokenizer: Any) -> int:
    """The smaller of what the tokenizer and the position table allow (RoBERTa's table starts after the padding index)."""
    positions = getattr(config, "max_position_embeddings", None)
    limits = [int(tokenizer.model_max_length)]
    if isinstance(positions, int) and positions > 0:
        offset = (getattr(config, "pad_token_id", 0) or 0) + 1 if "roberta" in str(getattr(config, "model_type", "")) else 0
        limits.append(positions - offset)
    length = min(limits)
    return length if length < 1_000_000 else 512  # tokenizers that state no limit carry a huge number


def find_final_norm(model: nn.Module, path: str) -> nn.Module | None:
    """The norm that an encoder applies after its last block, beside the list of blocks at ``path``; ``None`` for none."""
    parent = model.get_submodule(path.rpartition(".")[0])
    for name in _FINAL_NORMS:
        norm = getattr(parent, name, None)
        if isinstance(norm, nn.Module):
            return norm
    return None
