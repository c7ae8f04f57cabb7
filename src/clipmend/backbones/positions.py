"""The text side's table of positions: where a model keeps it, how another is put in its place, and Long-CLIP's two tables.

CLIP adds one learned row a position to the tokens' embeddings, so the table's length is the longest text. Everything here is about
causal towers that are pooled at the end token: there a row speaks to no text that ends before it, so that a longer table leaves the
embeddings of short texts as they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clipmend.backbones.kinds import kind_of

__all__ = ["LONG_KEPT", "LONG_NAME", "TextPositions", "find_positions", "join_long_tables", "set_token_limit"]

LONG_NAME = "positional_embedding_res"  # Long-CLIP's second table
LONG_KEPT = 20  # rows that its published code reads from the first table; the file itself does not say

_BIDIRECTIONAL = (
    "it attends to its padding, up to a fixed length, and pools at the last position: any other number of positions changes the "
    "embedding of every text, however short, so that nothing is kept by keeping rows"
)


@dataclass(frozen=True)
class TextPositions:
    """The positions of one live text side, of transformers or open_clip.

    Args:
        model: the model.
        text: the part of it that holds the table.
        open_clip: whether it is open_clip's.
    """

    model: Any
    text: Any
    open_clip: bool

    @property
    def table(self) -> nn.Parameter:
        """The learned table ``[L, W]``; the model's own parameter, not a copy."""
        return self.text.positional_embedding if self.open_clip else self.text.position_embedding.weight

    @property
    def length(self) -> int:
        """Number of rows ``L``: most tokens of a text, special tokens included."""
        return int(self.table.shape[0])

    def replace(self, table: Tensor) -> None:
        """Put ``[L', W]`` in the table's place, and change with it all that follows from the number of rows.

        The parameter is a new one (an optimiser made before does not know it), with the old one's device, dtype and
        ``requires_grad``. transformers: position ids and the configs' ``max_position_embeddings``. open_clip: the causal mask and
        ``context_length``.

        Raises:
            ValueError: no matrix, or of another width.
        """
        old = self.table
        if table.ndim != 2 or table.shape[1] != old.shape[1] or not len(table):
            raise ValueError(f"a table of positions of {list(table.shape)} cannot take the place of one of {list(old.shape)}")
        length = len(table)
        new = nn.Parameter(table.detach().to(old.device, old.dtype, copy=True), requires_grad=old.requires_grad)
        if self.open_clip:
            self._replace_open_clip(new, length)
        else:
            self.text.position_embedding.weight = new
            self.text.position_embedding.num_embeddings = length
            self.text.position_ids = torch.arange(length, device=old.device)[None]  # stays a buffer, not saved
            for config in _text_configs(self.model):
                config.max_position_embeddings = length

    def _replace_open_clip(self, new: nn.Parameter, length: int) -> None:
        old = self.text.attn_mask
        self.text.positional_embedding = new
        self.text.attn_mask = torch.full((length, length), float("-inf"), dtype=old.dtype, device=old.device).triu_(1)
        for part in (self.text, self.model):  # a tower of its own is repeated on the model
            for name in ("context_length", "num_pos"):
                if hasattr(part, name):
                    setattr(part, name, length)


def find_positions(model: Any) -> TextPositions:
    """Where a live ``CLIPModel``, ``CLIPTextModel``, ``CLIPTextModelWithProjection`` or open_clip model keeps its positions.

    Raises:
        TypeError: no model of either library.
        ValueError: a model of theirs whose table cannot be made longer without changing every text; says why.
    """
    if hasattr(model, "encode_texts"):
        raise TypeError(f"{type(model).__name__} is an encoder, which remembers its length: stretch its model, then load that")
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a live model of transformers or open_clip, not {kind_of(model)}")
    kind = type(model).__name__
    if type(model).__module__.partition(".")[0] == "open_clip":
        return TextPositions(model, _open_clip_text(model, kind), True)
    family = str(getattr(getattr(model, "config", None), "model_type", ""))
    if family.startswith("siglip"):
        raise ValueError(f"{kind}, a SigLIP, cannot be stretched: {_BIDIRECTIONAL}")
    text = getattr(model, "text_model", model)
    embeddings = getattr(text, "embeddings", None)
    if family not in ("clip", "clip_text_model") or not hasattr(embeddings, "position_ids"):
        raise ValueError(f"{kind} cannot be stretched: only transformers' and open_clip's CLIPs have such a table")
    if not hasattr(embeddings, "token_embedding"):
        raise ValueError(f"{kind} has no text side, so there are no positions of tokens to stretch")
    return TextPositions(model, embeddings, False)


def _open_clip_text(model: Any, kind: str) -> Any:
    if kind not in ("CLIP", "CustomTextCLIP"):
        raise ValueError(f"open_clip's {kind} cannot be stretched; CLIP and CustomTextCLIP can")
    text = getattr(model, "text", model)
    if type(text).__name__ == "HFTextEncoder":
        raise ValueError(f"open_clip's {kind} has a text tower of transformers' own, which is not CLIP's and cannot be stretched")
    if getattr(text, "cls_emb", None) is not None:
        raise ValueError(f"open_clip's {kind} with a class token after the text (as in CoCa) cannot be stretched")
    pool = getattr(text, "text_pool_type", getattr(text, "pool_type", "argmax"))
    if text.attn_mask is None or pool not in ("argmax", "eos"):
        raise ValueError(
            f"this open_clip {kind} ({'bidirectional' if text.attn_mask is None else 'causal'}, pooled at {pool!r}) cannot be "
            f"stretched: {_BIDIRECTIONAL}"
        )
    return text


def _text_configs(model: Any) -> list[Any]:
    """Every config of the model's that states the number of text positions, each once."""
    found: dict[int, Any] = {}
    for part in (model, *model.modules()):
        config = getattr(part, "config", None)
        for candidate in (config, getattr(config, "text_config", None)):
            if hasattr(candidate, "max_position_embeddings"):
                found[id(candidate)] = candidate
    return list(found.values())


def set_token_limit(tokenizer: Any, length: int) -> None:
    """Let a tokenizer of transformers or open_clip make texts of ``length`` tokens; in place.

    A transformers tokenizer saves its limit, and what earlier calls left in it: a truncation to the old length is removed, and a
    padding to the old length becomes one to the new.

    Args:
        tokenizer: a tokenizer, a processor that has one, or what ``open_clip.get_tokenizer`` returns.
        length: most tokens of a text.

    Raises:
        TypeError: nothing of the kind.
    """
    inner = getattr(tokenizer, "tokenizer", None)
    known = False
    if hasattr(tokenizer, "context_length"):  # open_clip's
        tokenizer.context_length, known = length, True
    elif inner is None:
        inner = tokenizer
    if inner is not None and hasattr(inner, "model_max_length"):
        inner.model_max_length, known = length, True
        settings = getattr(inner, "init_kwargs", {})
        for name in ("model_max_length", "max_length"):
            if isinstance(settings.get(name), int):
                settings[name] = length
        backend = getattr(inner, "backend_tokenizer", None)
        if backend is not None:
            backend.no_truncation()
            padding = backend.padding
            if padding and padding.get("length"):
                backend.enable_padding(**{**padding, "length": length})
    if not known:
        raise TypeError(f"{kind_of(tokenizer)} is no tokenizer of transformers or open_clip")


def join_long_tables(weights: Mapping[str, Tensor], path: Path) -> tuple[dict[str, Tensor], int | None]:
    """Long-CLIP's layout as CLIP's: of its two tables of positions, the one that its model adds to the tokens.

    The files that Long-CLIP's authors published are OpenAI's state dict with ``positional_embedding`` and
    ``positional_embedding_res``, ``[248, W]`` each. Their model adds the rows before 20 of the first and the rows from 20 on of
    the second. In their training the first takes no gradient, which is what holds the first 20 rows fixed, and the second is
    trained. Where the change lies is written in their code (two masks that are not saved) and not in the file, so a file from a
    fork with another number of kept rows cannot be told apart; the published number is used.

    Args:
        weights: in open_clip's layout (OpenAI's), with or without ``text.`` in front of the text side.
        path: the file, for messages.

    Returns:
        the weights with one table, and its number of rows; the weights as they are and ``None`` where there is no second table.

    Raises:
        ValueError: a second table without the first, or the two of different shape, or no longer than what is kept.

    Source: https://github.com/beichenzbc/Long-CLIP, ``model/model_longclip.py`` (``mask1``, ``mask2`` and ``encode_text``).
    """
    second = next((name for name in weights if name in (LONG_NAME, f"text.{LONG_NAME}")), None)
    if second is None:
        return dict(weights), None
    first = second.removesuffix("_res")
    if first not in weights:
        raise ValueError(f"{path} has Long-CLIP's second table of positions, {second}, but not the first, {first}")
    one, two = weights[first], weights[second]
    if one.ndim != 2 or one.shape != two.shape:
        raise ValueError(
            f"{path}: {first} is {list(one.shape)} and {second} is {list(two.shape)}; Long-CLIP's two tables have one shape"
        )
    if len(one) <= LONG_KEPT:
        raise ValueError(f"{path}: {first} has {len(one)} rows; Long-CLIP keeps {LONG_KEPT} of its rows and stretches the others")
    joined = {name: tensor for name, tensor in weights.items() if name != second}
    joined[first] = torch.cat([one[:LONG_KEPT], two[LONG_KEPT:]])
    return joined, len(one)
