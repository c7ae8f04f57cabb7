"""open_clip's tokenizers, with what they truncate counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clipmend.backbones.tokens import HFTokens, TextTokens

__all__ = ["open_clip_tokens"]


def open_clip_tokens(tokenizer: Any, context_length: int, end: Callable[[list[int]], int] | None) -> TextTokens:
    """The adapter for what ``open_clip.get_tokenizer`` returned.

    Args:
        tokenizer: a ``SimpleTokenizer``, ``HFTokenizer`` or ``SigLipTokenizer``.
        context_length: most ids a text may have.
        end: maps the ids of a text to the number of them that count.

    Raises:
        ValueError: a tokenizer of another kind, or one that drops tokens at random (a training option).
    """
    if hasattr(tokenizer, "encode") and hasattr(tokenizer, "sot_token_id"):
        return _SimpleTokens(tokenizer, context_length, end)
    if hasattr(tokenizer, "tokenizer"):
        return _HFTokens(tokenizer, context_length, end)
    raise ValueError(
        f"a tokenizer of type {type(tokenizer).__name__} cannot tell what it truncates; "
        "pass what open_clip.get_tokenizer(ARCH) returns"
    )


class _SimpleTokens(TextTokens):
    """CLIP's byte-pair tokenizer."""

    def __init__(self, tokenizer: Any, context_length: int, end: Callable[[list[int]], int] | None) -> None:
        if getattr(tokenizer, "reduction_fn", None) is not None:
            raise ValueError("the tokenizer has a reduction mask, which drops words at random; use one without")
        self.tokenizer = tokenizer
        self.context_length = context_length
        self.end = end
        self.pad_id = 0

    def _ids(self, texts: list[str]) -> tuple[list[list[int]], list[int]]:
        start, stop = self.tokenizer.sot_token_id, self.tokenizer.eot_token_id
        rows = [[start, *self.tokenizer.encode(text), stop] for text in texts]
        long = [k for k, ids in enumerate(rows) if len(ids) > self.context_length]
        for k in long:
            rows[k] = [*rows[k][: self.context_length - 1], stop]
        return [ids if self.end is None else ids[: self.end(ids)] for ids in rows], long

    def describe(self) -> dict[str, Any]:
        clean = getattr(getattr(self.tokenizer, "clean_fn", None), "__name__", "")
        merges = sorted((rank, list(pair)) for pair, rank in self.tokenizer.bpe_ranks.items())
        return {"kind": "open_clip bpe", "vocabulary": dict(self.tokenizer.encoder), "merges": merges, "clean": clean}


class _HFTokens(HFTokens):
    """open_clip's wrappers around a transformers tokenizer: they clean the text, and may blank the separator."""

    def __init__(self, wrapper: Any, context_length: int, end: Callable[[list[int]], int] | None) -> None:
        if getattr(wrapper, "tokenizer_mode", ""):
            raise ValueError(f"open_clip's tokenizer mode {wrapper.tokenizer_mode!r} is not supported")
        clean = getattr(wrapper, "clean_fn", None) or _siglip_clean
        super().__init__(wrapper.tokenizer, context_length, prepare=clean, prepare_name=clean.__name__.strip("_"), end=end)
        if getattr(wrapper, "strip_sep_token", False) and self.pad_id != 0:
            raise ValueError("the tokenizer blanks its separator to id 0, which is not its padding; this is not supported")
        self.blank = wrapper.tokenizer.sep_token_id if getattr(wrapper, "strip_sep_token", False) else None

    def _ids(self, texts: list[str]) -> tuple[list[list[int]], list[int]]:
        rows, long = super()._ids(texts)
        if self.blank is not None:  # a blanked closing separator is one more padding token
            rows = [ids[:-1] if ids and ids[-1] == self.blank else ids for ids in rows]
            rows = [[0 if token == self.blank else token for token in ids] for ids in rows]
        return rows, long

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "blank": self.blank}


def _siglip_clean(text: str) -> str:
    from open_clip.tokenizer import basic_clean, canonicalize_text

    return canonicalize_text(basic_clean(text))
